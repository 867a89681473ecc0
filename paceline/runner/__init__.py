"""The torch backend: owns the weights, the caches and the slots, and runs rounds."""

import os

# OpenMP's threads wait for each other by spinning. Without a limit they take the cores from the HTTP process on a small
# machine; asleep too early, a round of 150 short parallel parts takes twice as long. Read when torch is loaded, so it is
# set before.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

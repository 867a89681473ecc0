"""The torch backend: owns the weights, the caches and the slots, and runs rounds."""

"""Drafters: one file and one line each. A name here is what `--drafter` takes.

Of those with a folder that a model brings, the later one in the table is the default.
"""

from paceline.core.registry import Registry
from paceline.drafters.base import Builder, Describer, WeightsFrom

_TABLE = {
    "none": ("paceline.drafters.none:build", WeightsFrom.NOTHING),
    "ngram": ("paceline.drafters.ngram:build", WeightsFrom.NOTHING),
    "mtp": ("paceline.drafters.mtp:build", WeightsFrom.TARGET),
    "dflash": ("paceline.drafters.dflash:build", WeightsFrom.FOLDER),
    "dflash2": ("paceline.drafters.dflash2:build", WeightsFrom.FOLDER),
}
DRAFTERS: Registry[Builder] = Registry("--drafter", {name: entry for name, (entry, _) in _TABLE.items()})
# Beside its `build`, a drafter with weights or state has `describe`: what it holds, from a config alone.
DESCRIBERS: Registry[Describer] = Registry(
    "--drafter",
    {
        name: entry.replace(":build", ":describe")
        for name, (entry, weights) in _TABLE.items()
        if weights is not WeightsFrom.NOTHING
    },
)
WEIGHTS_FROM: dict[str, WeightsFrom] = {name: weights for name, (_, weights) in _TABLE.items()}

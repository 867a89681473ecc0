"""Drafters: one file and one line each. A name here is what `--drafter` takes."""

from collections.abc import Callable

from paceline.core.registry import Registry
from paceline.drafters.base import Drafter

DRAFTERS: Registry[Callable[[], Drafter]] = Registry(
    "--drafter",
    {
        "none": "paceline.drafters.none:NoDrafter",
        "ngram": "paceline.drafters.ngram:NgramDrafter",
    },
)

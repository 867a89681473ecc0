"""What a drafter, a draft length K and a concurrency C look like in every plot of a report, and in the plots' legends."""

from typing import Any

from matplotlib.lines import Line2D

from paceline.measure.drawing import SERIES, series_colour
from paceline.measure.settings import NO_DRAFTS, Speculation

_MARKERS = "osD^vPX"
_DASHES = ("solid", (0, (5, 2)), (0, (1.5, 1.5)), (0, (5, 2, 1.5, 2)))


class Looks:
    """A colour per drafter, a dash and a strength per K of that drafter (the largest K is solid and full), a marker per C."""

    def __init__(self, speculation: tuple[Speculation, ...], concurrency: tuple[int, ...]) -> None:
        self._drafters = list(dict.fromkeys(one.drafter for one in speculation if one.draft_tokens))
        self._lengths = {
            name: sorted((one.draft_tokens for one in speculation if one.drafter == name), reverse=True)
            for name in [NO_DRAFTS, *self._drafters]
        }
        self._concurrency = sorted(concurrency)

    def colour(self, drafter: str) -> str:
        """0 is the neutral colour of no drafts, the others take turns in 1 … SERIES − 1."""
        index = 0 if drafter == NO_DRAFTS else 1 + self._drafters.index(drafter) % (SERIES - 1)
        return series_colour(index)

    def line(self, one: Speculation) -> dict[str, Any]:
        """How a line is drawn; the same words make its sample in a legend."""
        return {"color": self.colour(one.drafter), "linestyle": _DASHES[self._rank(one) % len(_DASHES)]}

    def fill(self, one: Speculation) -> dict[str, Any]:
        """How a bar is drawn."""
        strength = 1 - 0.6 * self._rank(one) / len(self._lengths[one.drafter])
        return {"color": self.colour(one.drafter), "alpha": strength}

    def marker(self, concurrency: int) -> str:
        return _MARKERS[self._concurrency.index(concurrency) % len(_MARKERS)]

    def _rank(self, one: Speculation) -> int:
        return self._lengths[one.drafter].index(one.draft_tokens)


def line_sample(label: str, style: dict[str, Any]) -> Line2D:
    return Line2D([], [], label=label, **({"linewidth": 2} | style))


def marker_sample(label: str, marker: str, colour: str) -> Line2D:
    return Line2D([], [], label=label, color=colour, marker=marker, markersize=6.5, linestyle="none")

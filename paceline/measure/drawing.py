"""How the report's drawings look: one style, a look per drafter, K and C, and SVG that takes its colours from the page.

Colours are written as CSS variables of the page, so that one drawing serves light, dark and print; fonts come from the
page too. The SVG carries no links, no scripts and no styles of its own.
"""

import io
import re
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.typing import RcKeyType

from paceline.measure.settings import NO_DRAFTS, Speculation

SERIES = 7
# Stand-ins that no drawing uses otherwise; `to_svg` replaces them with the page's variables.
INK, MUTED, GRID, SURFACE = "#010101", "#020202", "#030303", "#040404"
_VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid", SURFACE: "surface"} | {
    f"#0a0a{i:02x}": f"s{i}" for i in range(SERIES)
}
STYLE: dict[RcKeyType, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "paceline",
    "font.size": 9.5,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "figure.constrained_layout.wspace": 0.06,
}
PERCENT_TICKS = ([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100"])
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
        return f"#0a0a{index:02x}"

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


def label_axes(ax: Axes, x: str, y: str) -> None:
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.grid(axis="y")
    ax.tick_params(length=0)


def to_svg(figure: Figure, title: str) -> str:
    """The drawing as an element for a page: no prolog, no sizes, no namespaces (HTML supplies them), no styles."""
    sink = io.StringIO()
    FigureCanvasSVG(figure)
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(sink, format="svg", transparent=True, metadata=nothing)
    body = sink.getvalue()
    body = body[body.index("<svg") :]
    head = rf'<svg viewBox="\1" role="img" aria-label="{title}">'
    body = re.sub(r'<svg [^>]*viewBox="([^"]*)"[^>]*>', head, body, count=1)
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, count=1, flags=re.DOTALL)
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r" font-family: [^;\"]*;", "", body)
    # Each drawing numbers its groups from 1; only marker and clip ids are referred to, and those are hashes.
    body = re.sub(r'<g id="[^"]*">', "<g>", body)
    for stand_in, name in _VARIABLES.items():
        body = body.replace(stand_in, f"var(--{name})")
    return body

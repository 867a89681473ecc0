"""How every drawing of a report looks, and how it becomes SVG: an element of a page, or a file of its own.

Colours are drawn as stand-ins. In a page they become its CSS variables, so that one drawing serves light, dark and print; in a
file, the page's light colours. The SVG carries no links, no scripts and no styles of its own; in a page, no fonts either.
"""

import io
import re
from functools import cache
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.typing import RcKeyType

from paceline.measure.page import page_style

SERIES = 7
# Stand-ins that no drawing uses otherwise.
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
    "figure.constrained_layout.wspace": 0.06,
}


def series_colour(index: int) -> str:
    """The stand-in of series colour 0 (the neutral one) … SERIES − 1."""
    return f"#0a0a{index:02x}"


def label_axes(ax: Axes, x: str, y: str) -> None:
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.grid(axis="y")
    ax.tick_params(length=0)


def svg_of(figure: Figure) -> str:
    """The drawing with its stand-ins: an <svg> without prolog and metadata. Called inside `rc_context(STYLE)`."""
    sink = io.StringIO()
    FigureCanvasSVG(figure)
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(sink, format="svg", transparent=True, metadata=nothing)
    body = sink.getvalue()
    return re.sub(r"<metadata>.*?</metadata>", "", body[body.index("<svg") :], flags=re.DOTALL)


def page_element(svg: str, title: str) -> str:
    """The drawing as an element of a page: no sizes, no namespaces (HTML supplies them), no styles."""
    head = rf'<svg viewBox="\1" role="img" aria-label="{title}">'
    body = re.sub(r'<svg [^>]*viewBox="([^"]*)"[^>]*>', head, svg, count=1)
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, count=1, flags=re.DOTALL)
    body = re.sub(r" font-family: [^;\"]*;", "", body)
    # Each drawing numbers its groups from 1; only marker and clip ids are referred to, and those are hashes.
    body = re.sub(r'<g id="[^"]*">', "<g>", body)
    for stand_in, name in _VARIABLES.items():
        body = body.replace(stand_in, f"var(--{name})")
    return body


def file_text(svg: str) -> str:
    """The drawing as a file that any viewer shows, on the page's light background."""
    end = svg.index(">") + 1
    body = f"{svg[:end]}<rect width='100%' height='100%' style='fill: {SURFACE}'/>{svg[end:]}"
    for stand_in, name in _VARIABLES.items():
        body = body.replace(stand_in, _light_colours()[name])
    return f'<?xml version="1.0" encoding="utf-8"?>\n{body}'


@cache
def _light_colours() -> dict[str, str]:
    first = page_style().partition("}")[0]
    return dict(re.findall(r"--(\w+): (#\w+);", first))

"""The report's plots: a summary in, SVG text out. Every number comes from the summary.

Colours stand for drafters, dashes and strengths for K, markers for C (looks.py); each plot brings its own legend.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from paceline.measure.drawing import INK, MUTED, STYLE, SURFACE, label_axes, page_element, svg_of
from paceline.measure.looks import Looks, line_sample, marker_sample
from paceline.measure.settings import NO_DRAFTS, Speculation
from paceline.measure.stats import Figures
from paceline.measure.summary import Cell, Summary, speed

_PERCENT = ([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100"])

_Place = Literal["outside upper left", "outside upper right", "outside right upper"]
Measure = Callable[[Figures], float | None]


def paradox_plot(summary: Summary) -> str:
    """tok/s of every cell against its acceptance, and against its tokens per round: colour drafter, marker C, number K."""
    looks, cs = _looks(summary), sorted(summary.settings.concurrency)
    drafters = list(dict.fromkeys(drafting.speculation.drafter for drafting in summary.drafting))
    with rc_context(STYLE):
        figure = Figure(figsize=(10.4, 4.8), layout="constrained")
        panels: list[Axes] = list(figure.subplots(1, 2, sharey=True))
        for ax, measure in zip(panels, (_share, _per_round), strict=True):
            labels = _Labels(ax)
            for cell in summary.cells:
                if cell.point.draft_tokens == 0 and cell.figures:
                    _without_drafts(ax, cell, looks, None if measure is _share else measure(cell.figures), labels)
            for drafter in drafters:
                for c in cs:
                    mine = [o for o in summary.cells if (o.point.drafter, o.point.concurrency) == (drafter, c)]
                    _trail(ax, mine, looks, measure, labels)
            labels.place()
            ax.margins(x=0.09)
        panels[0].set_xlim(-0.03, 1.09)
        panels[0].set_xticks(*_PERCENT)
        label_axes(panels[0], "acceptance: accepted / proposed drafts, %", "tok/s, all streams")
        label_axes(panels[1], "tokens per round: 1 + accepted drafts / rounds", "")
        panels[0].set_ylim(0, 1.1 * max(map(speed, summary.cells)))
        dots = [marker_sample("no drafts", "o", looks.colour(NO_DRAFTS))]
        dots += [marker_sample(name, "o", looks.colour(name)) for name in drafters]
        _legend(figure, dots)
        _legend(figure, [marker_sample(f"C = {c}", looks.marker(c), MUTED) for c in cs], "outside upper right")
        return page_element(svg_of(figure), "Speed of every cell against acceptance and against tokens per round")


class _Labels:
    """Texts beside the points of one panel, each on the side that is farthest from all others."""

    _SIDES = ((6, 4), (6, -10), (-6, 4), (-6, -10))

    def __init__(self, ax: Axes) -> None:
        self._ax = ax
        self._points: list[tuple[float, float, str]] = []

    def add(self, x: float, y: float, text: str) -> None:
        """A point; an empty text only takes its place."""
        self._points.append((x, y, text))

    def place(self) -> None:
        """Distances are measured in about 1/200 of the ranges of the points, which are those of the panel."""
        if not self._points:
            return
        xs, ys, _ = zip(*self._points, strict=True)
        wide, high = (200 / (max(values) - min(values) or 1) for values in (xs, ys))
        taken = [(x * wide, y * high) for x, y, _ in self._points]

        def room(x: float, y: float) -> float:
            return min(abs(x - a) + abs(y - b) for a, b in taken)

        for x, y, text in self._points:
            if text:
                dx, dy = max(self._SIDES, key=lambda side: room(x * wide + 1.8 * side[0], y * high + 1.2 * side[1]))
                taken.append((x * wide + 1.8 * dx, y * high + 1.2 * dy))
                side = "left" if dx > 0 else "right"
                self._ax.annotate(text, (x, y), (dx, dy), textcoords="offset points", ha=side, fontsize=8, color=INK)


def _trail(ax: Axes, cells: list[Cell], looks: Looks, measure: Measure, labels: _Labels) -> None:
    """The cells of one drafter at one C, joined from the smallest K to the largest."""
    dots = [(x, cell) for cell in cells if cell.figures is not None and (x := measure(cell.figures)) is not None]
    if not dots:
        return
    xs, ys = [x for x, _ in dots], [speed(cell) for _, cell in dots]
    point = dots[0][1].point
    colour, marker = looks.colour(point.drafter), looks.marker(point.concurrency)
    ax.plot(xs, ys, color=colour, linewidth=1, alpha=0.55, zorder=2)
    ax.scatter(xs, ys, s=58, marker=marker, color=colour, edgecolors=SURFACE, linewidths=1, zorder=3)
    for x, cell in dots:
        labels.add(x, speed(cell), str(cell.point.draft_tokens))


def _without_drafts(ax: Axes, cell: Cell, looks: Looks, x: float | None, labels: _Labels) -> None:
    """A point, or where there is no x (no drafts have no acceptance) a line across the panel."""
    colour, c = looks.colour(NO_DRAFTS), cell.point.concurrency
    if x is None:
        ax.axhline(speed(cell), color=colour, linewidth=1.4, linestyle=(0, (4, 3)), zorder=1)
        style: dict[str, Any] = {"textcoords": "offset points", "ha": "right", "fontsize": 8, "color": MUTED}
        ax.annotate(f"no drafts, C = {c}", (1.09, speed(cell)), (-2, 3), **style)
    else:
        ax.scatter([x], [speed(cell)], s=58, marker=looks.marker(c), color=colour, edgecolors=SURFACE, zorder=3)
        labels.add(x, speed(cell), "")


def scaling_plot(summary: Summary) -> str:
    """tok/s against C, a line per drafter and K, and the ideal line: the first cell's speed times the growth of C."""
    looks, cs = _looks(summary), sorted(summary.settings.concurrency)
    with rc_context(STYLE):
        figure = Figure(figsize=(10.4, 3.8), layout="constrained")
        ax = figure.subplots()
        handles = []
        for one in summary.settings.speculation:
            cells = [cell for cell in summary.cells if cell.point.speculation == one and cell.figures]
            xs, ys = [cell.point.concurrency for cell in cells], [speed(cell) for cell in cells]
            ax.plot(xs, ys, marker="o", markersize=5.5, linewidth=2, zorder=3, **looks.line(one))
            handles.append(line_sample(one.label, looks.line(one)))
        base = next((cell for cell in summary.cells if cell.figures), None)
        if base is not None and len(cs) > 1:
            ideal = [speed(base) * c / base.point.concurrency for c in cs]
            style: dict[str, Any] = {"color": MUTED, "linewidth": 1.2, "linestyle": (0, (1, 2))}
            ax.plot(cs, ideal, zorder=2, **style)
            handles.append(line_sample(f"ideal for {base.point.speculation.label}", style))
        ax.set_xticks(cs, [str(c) for c in cs])
        ax.set_xlim(0, max(cs) * 1.06)
        ax.set_ylim(bottom=0)
        label_axes(ax, "concurrent requests C", "tok/s, all streams")
        _legend(figure, handles, "outside right upper", 1)
        return page_element(svg_of(figure), "Throughput against concurrency, one line per drafter and draft length")


def position_plot(summary: Summary) -> str:
    """Acceptance by draft position: joint above, conditional below, a panel per workload and one for all of them."""
    looks = _looks(summary)
    names = list(dict.fromkeys(name for drafting in summary.drafting for name in drafting.workloads))
    most = max(drafting.speculation.draft_tokens for drafting in summary.drafting)
    with rc_context(STYLE):
        figure = Figure(figsize=(10.4, 4.4), layout="constrained")
        grid = figure.subplots(2, len(names), sharex=True, sharey=True, squeeze=False)
        for name, joint, conditional in zip(names, *grid, strict=True):
            for drafting in summary.drafting:
                shares = drafting.workloads.get(name)
                if shares is not None:
                    _position_line(joint, drafting.speculation, list(shares.joint), looks)
                    _position_line(conditional, drafting.speculation, shares.conditional, looks)
            joint.set_title(name)
            label_axes(joint, "", "joint, %" if name == names[0] else "")
            label_axes(conditional, "draft position", "conditional, %" if name == names[0] else "")
        grid[0][0].set(xlim=(0.7, most + 0.3), xticks=range(1, most + 1, 2), ylim=(0, 1.04))
        grid[0][0].set_yticks(*_PERCENT)
        _legend(figure, [line_sample(o.speculation.label, looks.line(o.speculation)) for o in summary.drafting])
        return page_element(svg_of(figure), "Acceptance by draft position, joint and conditional, by workload")


def _position_line(ax: Axes, one: Speculation, values: list[float | None], looks: Looks) -> None:
    spots = [(place, value) for place, value in enumerate(values, 1) if value is not None]
    if spots:
        xs, ys = zip(*spots, strict=True)
        ax.plot(xs, ys, marker="o", markersize=3.5, linewidth=1.7, **looks.line(one))


def workload_plot(summary: Summary, concurrency: int) -> str:
    """At one C: acceptance, tokens/round and decode speed side by side, a bar per drafter, K and workload."""
    looks = _looks(summary)
    cells = [cell for cell in summary.cells if cell.point.concurrency == concurrency and cell.figures]
    names = sorted({name for cell in cells for name in cell.workloads})
    with rc_context(STYLE):
        height = 1.2 + len(names) * (0.24 + 0.15 * len(cells))
        figure = Figure(figsize=(10.4, height), layout="constrained")
        panels: list[Axes] = list(figure.subplots(1, 3, sharey=True))
        titles = ("acceptance, %", "tokens per round", "tok/s of one stream")
        for ax, title, measure in zip(panels, titles, (_share, _per_round, _stream), strict=True):
            for place, cell in enumerate(cells):
                height = 0.8 / len(cells)
                ys = [row - 0.4 + (place + 0.5) * height for row in range(len(names))]
                widths = [measure(cell.workloads[name]) or 0.0 for name in names]
                ax.barh(ys, widths, height=height * 0.86, zorder=3, **looks.fill(cell.point.speculation))
            ax.set_title(title)
            ax.set_yticks(range(len(names)), names)
            ax.tick_params(axis="y", length=0)
            ax.grid(axis="x")
            ax.spines["left"].set_visible(False)
        panels[0].set_xlim(0, 1)
        panels[0].set_xticks(*_PERCENT)
        panels[0].invert_yaxis()
        shown = [cell.point.speculation for cell in cells]
        _legend(figure, [Patch(label=one.label, **looks.fill(one)) for one in shown])
        return page_element(
            svg_of(figure), f"Workloads at C = {concurrency}: acceptance, tokens per round and decode speed"
        )


def waiting_plot(summary: Summary) -> str:
    """TTFT from p50 to p90 and queue from p50 to the longest, a mark per drafter and K at each C."""
    looks, cs = _looks(summary), sorted(summary.settings.concurrency)
    many = summary.settings.speculation
    with rc_context(STYLE):
        figure = Figure(figsize=(10.4, 3.6), layout="constrained")
        panels: list[Axes] = list(figure.subplots(1, 2))
        for cell in summary.cells:
            if cell.figures is None:
                continue
            one, figures = cell.point.speculation, cell.figures
            x = cs.index(cell.point.concurrency) + 0.7 * ((many.index(one) + 0.5) / len(many) - 0.5)
            ranges = ((figures.ttft_p50_s, figures.ttft_p90_s), (figures.queue_p50_s, figures.queue_max_s))
            for ax, (low, high) in zip(panels, ranges, strict=True):
                ax.plot([x, x], [low * 1000, high * 1000], linewidth=2.4, solid_capstyle="butt", **looks.fill(one))
                ax.plot([x], [low * 1000], marker="o", markersize=5, **looks.fill(one))
        for ax, title in zip(panels, ("TTFT, p50 (dot) to p90", "Queue, p50 (dot) to longest"), strict=True):
            ax.set_title(title)
            ax.set_xticks(range(len(cs)), [str(c) for c in cs])
            ax.set_xlim(-0.5, len(cs) - 0.5)
            ax.set_ylim(0, max(ax.get_ylim()[1], 1))
            label_axes(ax, "concurrent requests C", "ms" if ax is panels[0] else "")
        _legend(figure, [line_sample(one.label, looks.fill(one)) for one in many])
        return page_element(svg_of(figure), "Time to first token and time in the queue, by C, drafter and K")


def _legend(figure: Figure, handles: Sequence[Artist], place: _Place = "outside upper left", columns: int = 6) -> None:
    figure.legend(handles=handles, loc=place, ncols=min(columns, len(handles)), frameon=False, fontsize=9)


def _looks(summary: Summary) -> Looks:
    return Looks(summary.settings.speculation, summary.settings.concurrency)


def _share(figures: Figures) -> float | None:
    return figures.acceptance


def _per_round(figures: Figures) -> float | None:
    return figures.tokens_per_round


def _stream(figures: Figures) -> float | None:
    return figures.stream_tokens_per_s

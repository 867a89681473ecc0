"""The report's plots: a summary in, SVG elements of the page out. Every number comes from the summary."""

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paceline.measure.drawing import MUTED, SERIES, STYLE, SURFACE, label_axes, page_element, series_colour, svg_of
from paceline.measure.stats import Figures
from paceline.measure.summary import Cell, Summary, speed


def series_index(k: int, ks: list[int]) -> int:
    """The colour of a draft length: 0 is the neutral one of K = 0, the others take turns in 1 … SERIES − 1."""
    drafted = sorted(set(ks) - {0})
    return 0 if k == 0 else 1 + drafted.index(k) % (SERIES - 1)


def scaling_plot(summary: Summary) -> str:
    """tok/s against C, a line per K, and the ideal line: the first cell's speed times the growth of C."""
    ks, cs = _axes_values(summary)
    with rc_context(STYLE):
        figure = Figure(figsize=(5.6, 3.6), layout="constrained")
        ax = figure.subplots()
        for k in ks:
            cells = [cell for cell in summary.cells if cell.point.draft_tokens == k and cell.figures]
            xs, ys = [cell.point.concurrency for cell in cells], [speed(cell) for cell in cells]
            ax.plot(xs, ys, marker="o", markersize=5.5, linewidth=2, color=_colour(k, ks), zorder=3)
        base = _base(summary)
        if base is not None and len(cs) > 1:
            ideal = [speed(base) * c / base.point.concurrency for c in cs]
            ax.plot(cs, ideal, color=MUTED, linewidth=1.2, linestyle=(0, (4, 3)), zorder=2)
        ax.set_xticks(cs, [str(c) for c in cs])
        ax.set_xlim(0, max(cs) * 1.06)
        ax.set_ylim(bottom=0)
        label_axes(ax, "concurrent requests C", "tok/s, all streams")
        return _svg(figure, "Throughput against concurrency, one line per draft length")


def ideal_label(summary: Summary) -> str:
    base = _base(summary)
    return "" if base is None else f"ideal for K = {base.point.draft_tokens}"


def _base(summary: Summary) -> Cell | None:
    return next((cell for cell in summary.cells if cell.figures), None)


def acceptance_plot(summary: Summary) -> str:
    """A panel per C: decode speed of one stream against acceptance, a dot per workload, a line where K = 0 stands."""
    ks, cs = _axes_values(summary)
    columns = min(3, len(cs))
    rows = -(-len(cs) // columns)
    with rc_context(STYLE):
        figure = Figure(figsize=(10.4, 0.5 + 2.6 * rows), layout="constrained")
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        panels: list[Axes] = list(grid.flat)
        for spare in panels[len(cs) :]:
            spare.set_visible(False)
        for ax, c in zip(panels, cs, strict=False):
            for cell in summary.cells:
                if cell.point.concurrency == c and cell.figures:
                    _acceptance_dots(ax, cell, ks)
            ax.set_title(f"C = {c}")
            ax.set_xlim(-0.03, 1.03)
            ax.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100 %"])
            label_axes(ax, "acceptance", "tok/s of one stream" if ax is panels[0] else "")
        panels[0].set_ylim(0, 1.08 * max(1, *(float(ax.dataLim.y1) for ax in panels[: len(cs)])))
        return _svg(figure, "Decode speed of one stream against acceptance, a dot per workload")


def _acceptance_dots(ax: Axes, cell: Cell, ks: list[int]) -> None:
    k = cell.point.draft_tokens
    if k == 0 and cell.figures and cell.figures.stream_tokens_per_s is not None:
        ax.axhline(cell.figures.stream_tokens_per_s, color=_colour(0, ks), linewidth=1.6, linestyle=(0, (4, 3)))
    dots = [
        (figures.acceptance, figures.stream_tokens_per_s)
        for figures in cell.workloads.values()
        if figures.acceptance is not None and figures.stream_tokens_per_s is not None
    ]
    if dots:
        xs, ys = zip(*dots, strict=True)
        ax.scatter(xs, ys, s=46, color=_colour(k, ks), edgecolors=SURFACE, linewidths=1.2, zorder=3)


def workload_plot(summary: Summary, concurrency: int) -> str:
    """At one C: acceptance, tokens/round and decode speed side by side, a bar per K and workload."""
    ks, _ = _axes_values(summary)
    cells = [cell for cell in summary.cells if cell.point.concurrency == concurrency and cell.figures]
    names = sorted({name for cell in cells for name in cell.workloads})
    with rc_context(STYLE):
        figure = Figure(figsize=(10.4, 0.9 + len(names) * (0.24 + 0.17 * len(cells))), layout="constrained")
        panels: list[Axes] = list(figure.subplots(1, 3, sharey=True))
        titles = ("acceptance", "tokens per round", "tok/s of one stream")
        for ax, title, value in zip(panels, titles, (_acceptance, _per_round, _stream), strict=True):
            for place, cell in enumerate(cells):
                height = 0.8 / len(cells)
                ys = [row - 0.4 + (place + 0.5) * height for row in range(len(names))]
                widths = [value(cell.workloads[name]) for name in names]
                ax.barh(ys, widths, height=height * 0.86, color=_colour(cell.point.draft_tokens, ks), zorder=3)
            ax.set_title(title)
            ax.set_yticks(range(len(names)), names)
            ax.tick_params(axis="y", length=0)
            ax.grid(axis="x")
            ax.spines["left"].set_visible(False)
        panels[0].set_xlim(0, 1)
        panels[0].set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100 %"])
        panels[0].invert_yaxis()
        return _svg(figure, f"Workloads at C = {concurrency}: acceptance, tokens per round and decode speed")


def waiting_plot(summary: Summary) -> str:
    """TTFT from p50 to p90 and queue from p50 to the longest, a mark per K at each C."""
    ks, cs = _axes_values(summary)
    with rc_context(STYLE):
        figure = Figure(figsize=(5.6, 3.6), layout="constrained")
        panels: list[Axes] = list(figure.subplots(1, 2))
        for cell in summary.cells:
            if cell.figures is None:
                continue
            k, figures = cell.point.draft_tokens, cell.figures
            x = cs.index(cell.point.concurrency) + 0.6 * ((ks.index(k) + 0.5) / len(ks) - 0.5)
            ranges = ((figures.ttft_p50_s, figures.ttft_p90_s), (figures.queue_p50_s, figures.queue_max_s))
            for ax, (low, high) in zip(panels, ranges, strict=True):
                ax.plot([x, x], [low * 1000, high * 1000], color=_colour(k, ks), linewidth=2.4, solid_capstyle="butt")
                ax.plot([x], [low * 1000], marker="o", markersize=6, color=_colour(k, ks))
        for ax, title in zip(panels, ("TTFT, p50 (dot) to p90", "Queue, p50 (dot) to longest"), strict=True):
            ax.set_title(title)
            ax.set_xticks(range(len(cs)), [str(c) for c in cs])
            ax.set_xlim(-0.5, len(cs) - 0.5)
            ax.set_ylim(0, max(ax.get_ylim()[1], 1))
            label_axes(ax, "C", "ms" if ax is panels[0] else "")
        return _svg(figure, "Time to first token and time in the queue, by concurrency and draft length")


def _acceptance(figures: Figures) -> float:
    return figures.acceptance or 0.0


def _per_round(figures: Figures) -> float:
    return figures.tokens_per_round or 0.0


def _stream(figures: Figures) -> float:
    return figures.stream_tokens_per_s or 0.0


def _axes_values(summary: Summary) -> tuple[list[int], list[int]]:
    points = [cell.point for cell in summary.cells]
    return sorted({point.draft_tokens for point in points}), sorted({point.concurrency for point in points})


def _colour(k: int, ks: list[int]) -> str:
    return series_colour(series_index(k, ks))


def _svg(figure: Figure, title: str) -> str:
    return page_element(svg_of(figure), title)

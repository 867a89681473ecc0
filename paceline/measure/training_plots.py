"""The plots of a training run: loss, tokens per round while training, and acceptance by draft position. A run in, SVG out.

Each returns a drawing with stand-in colours (`drawing.py`), or None where the run has nothing to draw yet.
"""

from collections.abc import Callable
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from paceline.measure.drawing import INK, SERIES, STYLE, label_axes, series_colour, svg_of
from paceline.measure.training_log import Curve, TrainingRun

_ROUNDS = "tokens_per_round"
_POOLED = "pooled"


def loss_plot(run: TrainingRun) -> str | None:
    """A panel per stage: its loss over the steps, and every other figure of it that is a loss."""
    if not run.curves:
        return None
    columns = min(2, len(run.curves))
    rows = -(-len(run.curves) // columns)
    with rc_context(STYLE):
        figure = Figure(figsize=(10.4, 0.2 + 2.5 * rows), layout="constrained")
        panels: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
        for spare in panels[len(run.curves) :]:
            spare.set_visible(False)
        for ax, (stage, curve) in zip(panels, run.curves.items(), strict=False):
            _loss_panel(ax, stage, curve)
        return svg_of(figure)


def _loss_panel(ax: Axes, stage: str, curve: Curve) -> None:
    names = ["loss", *sorted(name for name in curve.figures if name.endswith("_loss"))]
    for i, name in enumerate(names, 1):
        ax.plot(curve.steps, curve.figures[name], linewidth=1.6, color=series_colour(i), label=name.replace("_", " "))
    ax.set_yscale("log")
    ax.set_xlim(left=0)
    # Powers of ten alone would leave most of these axes without a number.
    ax.yaxis.set_major_locator(LogLocator(10, (1, 2, 5)))
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.yaxis.set_minor_locator(NullLocator())
    ax.set_title(
        f"{stage}: {curve.figures['loss'][-1]:.3g} after {curve.steps[-1]:,} steps in {curve.seconds[-1] / 60:.1f} min"
    )
    label_axes(ax, "steps", "loss")
    if len(names) > 1:
        ax.legend(frameon=False)


def rounds_plot(run: TrainingRun) -> str | None:
    """Tokens per round on the training batches over the minutes of each stage, a line per drafter."""
    drawn = {stage: curve for stage, curve in run.curves.items() if _ROUNDS in curve.figures}
    if not drawn:
        return None
    with rc_context(STYLE):
        figure = Figure(figsize=(10.4, 3.6), layout="constrained")
        ax = figure.subplots()
        for place, (stage, curve) in enumerate(drawn.items(), 1):
            minutes = [seconds / 60 for seconds in curve.seconds]
            last = curve.figures[_ROUNDS][-1]
            colour = series_colour(1 + (place - 1) % (SERIES - 1))
            ax.plot(minutes, curve.figures[_ROUNDS], linewidth=1.8, color=colour, label=f"{stage}: {last:.2f}")
        ax.set_xlim(left=0)
        ax.set_ylim(bottom=1)
        label_axes(ax, "minutes", "tokens per round")
        ax.legend(frameon=False, loc="lower right")
        return svg_of(figure)


def acceptance_positions_plot(run: TrainingRun) -> str | None:
    """A column per drafter; above, the share of rounds that accepted at least that many drafts; below, the share of the rounds
    that got there in which the draft at a position was accepted. A line per workload, pooled in bold."""
    found = run.acceptance
    if not found:
        return None
    with rc_context(STYLE):
        figure = Figure(figsize=(10.4, 5.6), layout="constrained")
        grid = figure.subplots(2, len(found), sharey="row", squeeze=False)
        for column, (drafter, reports) in enumerate(found.items()):
            above, below = grid[0][column], grid[1][column]
            for place, (workload, report) in enumerate(reports.items(), 1):
                for ax, shares in ((above, report["joint"]), (below, conditional_shares(report))):
                    _line(ax, workload, place, shares)
            above.set_title(
                f"{drafter}: {reports[_POOLED][_ROUNDS]:.2f} tokens/round" if _POOLED in reports else drafter
            )
            label_axes(above, "", "accepted up to here" if column == 0 else "")
            label_axes(below, "draft position", "accepted if the ones before were" if column == 0 else "")
        for row in grid:
            row[0].set_ylim(max(0.0, row[0].get_ylim()[0]), 1.0)
            row[0].yaxis.set_major_formatter(_percent)
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, frameon=False, loc="outside upper left", ncols=min(len(labels), 7))
        return svg_of(figure)


def conditional_shares(report: dict[str, Any]) -> list[float]:
    """By position, as far as any round got: what comes after has no share, though the report has a number there."""
    reached = [1.0, *report["joint"]]
    return [share for share, before in zip(report["conditional"], reached, strict=False) if before > 0]


def _line(ax: Axes, workload: str, place: int, shares: list[float]) -> None:
    pooled = workload == _POOLED
    ax.plot(
        range(1, len(shares) + 1),
        shares,
        marker="o",
        markersize=5 if pooled else 3.5,
        linewidth=2.4 if pooled else 1.3,
        linestyle="-" if pooled or place < SERIES else (0, (3, 2)),  # colours come round again
        color=INK if pooled else series_colour(1 + (place - 1) % (SERIES - 1)),
        label=workload,
        clip_on=False,  # marks at 100 % stay whole
        zorder=4 if pooled else 3,
    )
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _percent(share: float, _: Any) -> str:
    return f"{100 * share:.0f} %"


# File name in plots/ → what it is called in the report, and how it is drawn.
PLOTS: dict[str, tuple[str, str, Callable[[TrainingRun], str | None]]] = {
    "loss": ("Loss", "On the training batches, a panel per stage.", loss_plot),
    "tokens_per_round": (
        "Tokens per round while training",
        "1 plus the drafts that would be accepted, at random places of the training rows; noisy, and no held-out figure.",
        rounds_plot,
    ),
    "acceptance": (
        "Acceptance by draft position",
        "Greedy, on held-out prompts. Above: the share of rounds that accepted at least so many drafts (joint). Below: of the "
        "rounds that accepted all before, the share that accepted this one too (conditional).",
        acceptance_positions_plot,
    ),
}

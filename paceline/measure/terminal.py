"""The summary on a terminal: one table that fits 80 columns, what to read with care, and which cells to deploy.

Formats only; every number comes from the summary. The report has what is left out here.
"""

from rich.console import Console
from rich.table import Table

from paceline.measure.formats import milliseconds, number, percent
from paceline.measure.summary import Cell, Summary, speed

# Short enough that the widest figures leave every heading on one line of 80 columns.
_COLUMNS = (
    "drafter", "K", "C", "tok/s", "vs none", "stream", "accept", "tok/round", "batch", "TTFT", "equal",
)  # fmt: skip
_LEGEND = (
    "tok/s: all streams together, stream: one of them. accept: accepted / proposed drafts. tok/round: 1 + accepted / "
    "rounds. batch: decode rows of a round, on average. TTFT: p50. equal: replies with the very tokens of the first row."
)


def print_summary(summary: Summary, console: Console) -> None:
    table = Table(title=summary.settings.model, title_justify="left", padding=(0, 1, 0, 0), box=None)
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name == "drafter" else "right", no_wrap=True)
    for before, cell in zip([None, *summary.cells], summary.cells, strict=False):
        if before and before.point.concurrency != cell.point.concurrency:
            table.add_row()
        style = "bold green" if cell.point in summary.fastest else "red" if cell.figures is None else None
        table.add_row(*_texts(summary, cell), style=style)
    console.print(table, highlight=False)
    console.print(f"[dim]{_LEGEND}[/]\n", highlight=False)
    for warning in summary.warnings:
        console.print(f"[yellow]![/] {warning}", highlight=False)
    for line in summary.advice:
        console.print(line, highlight=False)


def _texts(summary: Summary, cell: Cell) -> list[str]:
    point, figures = cell.point, cell.figures
    lead = [point.drafter, str(point.draft_tokens), str(point.concurrency)]
    if figures is None:
        return [*lead, "failed"] + ["–"] * (len(_COLUMNS) - 4)
    plain = speed(summary.plain(cell))
    return [
        *lead,
        number(figures.tokens_per_s, 1),
        f"{speed(cell) / plain:.2f}×" if plain else "–",
        number(figures.stream_tokens_per_s, 1),
        percent(figures.acceptance),
        number(figures.tokens_per_round, 2),
        number(figures.average_batch, 2),
        milliseconds(figures.ttft_p50_s),
        percent(cell.equal_share),
    ]

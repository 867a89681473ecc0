"""`summary.json`: what a campaign found, made only from the rows and logs of its points, with advice in plain words.

The best cell is the one with the most tokens per second; within the margin that one run cannot resolve, a smaller K
wins, because it costs less where a workload is less kind.
"""

from datetime import UTC, datetime
from pathlib import Path

import msgspec

from paceline import __version__
from paceline.measure.record import POINT_FILE, SERVER_LOG, PointRecord, Row, read_json, read_rows
from paceline.measure.reqlog import RequestLog
from paceline.measure.settings import BenchSettings, Point
from paceline.measure.stats import Figures, equal_share, group_figures, point_figures

TIE_MARGIN = 0.03
THIN_BATCH = 0.5


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A measured point, or a failed one with its reason and no figures. `equal_share` compares with the reference."""

    point: Point
    reason: str | None
    boot_s: float
    figures: Figures | None
    workloads: dict[str, Figures]
    equal_share: float | None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """`effective` is the `server_start` line of the reference: the first good point, whose tokens the others repeat."""

    schema: str = "paceline_bench_summary"
    schema_version: int = 1
    made_at: str
    paceline: str
    settings: BenchSettings
    fixtures_hash: str
    reference: Point | None
    effective: dict[str, object] | None
    best: Point | None
    advice: str
    warnings: list[str]
    cells: list[Cell]

    def cell(self, point: Point | None) -> Cell | None:
        return next((cell for cell in self.cells if cell.point == point), None)


def summarise(settings: BenchSettings, fixtures_hash: str, points: Path) -> Summary:
    """`points` is the folder that holds one folder per finished point of the grid."""
    records = [read_json(points / point.name / POINT_FILE, PointRecord) for point in settings.points()]
    reference = next((record for record in records if record.status == "done"), None)
    reference_rows = read_rows(points / reference.point.name) if reference else []
    cells = [_cell(record, points / record.point.name, reference_rows) for record in records]
    best = _best(cells)
    return Summary(
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        paceline=__version__,
        settings=settings,
        fixtures_hash=fixtures_hash,
        reference=reference.point if reference else None,
        effective=reference.effective if reference else None,
        best=best.point if best else None,
        advice=_advice(cells, best),
        warnings=_warnings(cells),
        cells=cells,
    )


def _cell(record: PointRecord, folder: Path, reference_rows: list[Row]) -> Cell:
    rows = read_rows(folder) if record.status == "done" else []
    if not rows:
        return Cell(
            point=record.point,
            reason=record.reason or "no requests",
            boot_s=record.boot_s,
            figures=None,
            workloads={},
            equal_share=None,
        )
    first_request = min(row.request_id for row in rows)
    return Cell(
        point=record.point,
        reason=None,
        boot_s=record.boot_s,
        figures=point_figures(rows, RequestLog(folder / SERVER_LOG).throughput_from(first_request)),
        workloads={
            name: group_figures([row for row in rows if row.workload == name])
            for name in sorted({row.workload for row in rows})
        },
        equal_share=equal_share(rows, reference_rows),
    )


def speed(cell: Cell | None) -> float:
    """tok/s of a cell; 0 where it failed, so that it never wins."""
    return (cell.figures.tokens_per_s or 0.0) if cell and cell.figures else 0.0


def _best(cells: list[Cell]) -> Cell | None:
    fastest = max(map(speed, cells), default=0.0)
    close = [cell for cell in cells if speed(cell) > 0 and speed(cell) >= fastest * (1 - TIE_MARGIN)]
    return min(close, key=lambda cell: (cell.point.draft_tokens, cell.point.concurrency), default=None)


def _advice(cells: list[Cell], best: Cell | None) -> str:
    if best is None:
        return "No point could be measured; the reasons are in the table."
    sentences = [f"Most throughput: C={best.point.concurrency} with {_choice(cells, best)}."]
    if best.point.draft_tokens == 0 and any(cell.point.draft_tokens and cell.figures for cell in cells):
        sentences = ["No speculation wins here: no draft length was faster by more than the margin.", *sentences]
    for c in sorted({cell.point.concurrency for cell in cells} - {best.point.concurrency}):
        winner = _best([cell for cell in cells if cell.point.concurrency == c])
        if winner:
            sentences.append(f"At C={c}: {_choice(cells, winner)}.")
    margin = f"{100 * TIE_MARGIN:.0f} %"
    sentences.append(f"Cells within {margin} of the fastest count as equal (one run each): the smaller K is taken.")
    return " ".join(sentences)


def _choice(cells: list[Cell], cell: Cell) -> str:
    """A setting with its evidence: tok/s always, acceptance and tokens/round wherever there were drafts."""
    k, figures = cell.point.draft_tokens, cell.figures
    if k == 0 or figures is None:
        return f"no speculation (K=0), {speed(cell):.1f} tok/s"
    text = f"K={k} ({cell.point.drafter} drafts), {speed(cell):.1f} tok/s{_gain(cells, cell)}"
    if figures.acceptance is None or figures.tokens_per_round is None:
        return f"{text}, though nothing was drafted"
    return f"{text}, {100 * figures.acceptance:.1f} % accepted, {figures.tokens_per_round:.2f} tokens per round"


def _gain(cells: list[Cell], cell: Cell) -> str:
    """', 1.4× of K=0' against the cell without speculation at the same C; empty where there is none to compare with."""
    plain = next(
        (o for o in cells if o.point.concurrency == cell.point.concurrency and o.point.draft_tokens == 0), None
    )
    if cell.point.draft_tokens == 0 or speed(plain) == 0:
        return ""
    return f", {speed(cell) / speed(plain):.2f}× of K=0 at the same C"


def _warnings(cells: list[Cell]) -> list[str]:
    warnings = []
    for cell in cells:
        name, c, figures = cell.point.name, cell.point.concurrency, cell.figures
        if figures is None:
            warnings.append(f"{name} failed: {cell.reason}")
            continue
        batch = figures.average_batch
        if batch is None:
            warnings.append(f"{name}: the log holds no throughput lines, so its average batch is unknown.")
        elif batch < THIN_BATCH * c:
            warnings.append(
                f"{name}: C={c} is nominal; the average decode batch was {batch:.2f}. "
                "Its tok/s says little about that many streams: send more requests (--prompts, --seeds)."
            )
        if cell.equal_share is not None and cell.equal_share < 1:
            warnings.append(
                f"{name}: {100 * (1 - cell.equal_share):.1f} % of the replies differ from the first cell's: "
                "not the same work."
            )
    return warnings

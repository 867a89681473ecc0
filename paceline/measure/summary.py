"""`summary.json`: what a campaign found, made only from the rows and logs of its points, with advice in plain words.

The best cell is the one with the most tokens per second; within the margin that one run cannot resolve, a smaller K
wins, because it costs less where a workload is less kind.
"""

from datetime import UTC, datetime
from itertools import permutations
from pathlib import Path

import msgspec

from paceline import __version__
from paceline.measure.record import POINT_FILE, SERVER_LOG, PointRecord, Row, read_json, read_rows
from paceline.measure.reqlog import RequestLog, field
from paceline.measure.settings import BenchSettings, Point, Speculation
from paceline.measure.stats import Figures, Positions, equal_share, group_figures, point_figures, positions

TIE_MARGIN = 0.03
THIN_BATCH = 0.5
ALL_WORKLOADS = "all"


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A measured point, or a failed one with its reason and no figures. `equal_share` compares with the reference."""

    point: Point
    reason: str | None
    boot_s: float
    figures: Figures | None
    workloads: dict[str, Figures]
    equal_share: float | None


class Drafting(msgspec.Struct, frozen=True, kw_only=True):
    """How one drafter with one K fared by draft position, by workload and over all; every C that was measured together,
    since C changes neither the text nor what is drafted of it."""

    speculation: Speculation
    workloads: dict[str, Positions]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """`effective` is the `server_start` line of the reference: the first good point, whose tokens the others repeat.

    `fastest` holds the best point of each C, `best` the best of all. `advice` and `warnings` are sentences.
    """

    schema: str = "paceline_bench_summary"
    schema_version: int = 2
    made_at: str
    paceline: str
    settings: BenchSettings
    fixtures_hash: str
    reference: Point | None
    effective: dict[str, object] | None
    best: Point | None
    fastest: list[Point]
    advice: list[str]
    warnings: list[str]
    cells: list[Cell]
    drafting: list[Drafting]

    def cell(self, point: Point | None) -> Cell | None:
        return next((cell for cell in self.cells if cell.point == point), None)

    def plain(self, cell: Cell) -> Cell | None:
        """The cell without drafts at the same C."""
        return _plain(self.cells, cell)


def summarise(settings: BenchSettings, fixtures_hash: str, points: Path) -> Summary:
    """`points` is the folder that holds one folder per finished point of the grid."""
    records = [read_json(points / point.name / POINT_FILE, PointRecord) for point in settings.points()]
    rows = {
        record.point: read_rows(points / record.point.name) if record.status == "done" else [] for record in records
    }
    reference = next((record for record in records if record.status == "done"), None)
    reference_rows = rows[reference.point] if reference else []
    cells = [
        _cell(record, rows[record.point], points / record.point.name / SERVER_LOG, reference_rows) for record in records
    ]
    best = _best(cells)
    winners = [_best([cell for cell in cells if cell.point.concurrency == c]) for c in sorted(settings.concurrency)]
    fastest = [cell for cell in winners if cell]
    return Summary(
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        paceline=__version__,
        settings=settings,
        fixtures_hash=fixtures_hash,
        reference=reference.point if reference else None,
        effective=reference.effective if reference else None,
        best=best.point if best else None,
        fastest=[cell.point for cell in fastest],
        advice=_advice(cells, fastest),
        warnings=beyond_training(records) + _warnings(cells),
        cells=cells,
        drafting=_drafting(settings, rows),
    )


def _cell(record: PointRecord, rows: list[Row], log: Path, reference_rows: list[Row]) -> Cell:
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
        figures=point_figures(rows, RequestLog(log).throughput_from(first_request)),
        workloads={name: group_figures(some) for name, some in _by_workload(rows).items()},
        equal_share=equal_share(rows, reference_rows),
    )


def _by_workload(rows: list[Row]) -> dict[str, list[Row]]:
    return {name: [row for row in rows if row.workload == name] for name in sorted({row.workload for row in rows})}


def _drafting(settings: BenchSettings, rows: dict[Point, list[Row]]) -> list[Drafting]:
    found = []
    for one in settings.speculation:
        pooled = [row for point, some in rows.items() if point.speculation == one for row in some]
        if one.draft_tokens and pooled:
            groups = {ALL_WORKLOADS: pooled} | _by_workload(pooled)
            shares = {name: positions(some) for name, some in groups.items()}
            found.append(Drafting(speculation=one, workloads=shares))
    return found


def speed(cell: Cell | None) -> float:
    """tok/s of a cell; 0 where it failed, so that it never wins."""
    return (cell.figures.tokens_per_s or 0.0) if cell and cell.figures else 0.0


def _plain(cells: list[Cell], cell: Cell) -> Cell | None:
    c = cell.point.concurrency
    return next((o for o in cells if o.point.concurrency == c and o.point.draft_tokens == 0), None)


def _best(cells: list[Cell]) -> Cell | None:
    fastest = max(map(speed, cells), default=0.0)
    close = [cell for cell in cells if speed(cell) > 0 and speed(cell) >= fastest * (1 - TIE_MARGIN)]
    return min(close, key=lambda cell: (cell.point.draft_tokens, cell.point.concurrency), default=None)


def _advice(cells: list[Cell], fastest: list[Cell]) -> list[str]:
    """A line for the best cell of each C, what looks odd about it, and the rule of choice."""
    if not fastest:
        return ["No point could be measured; the reasons are in the table."]
    lines = []
    for winner in fastest:
        point = winner.point
        lines.append(f"Fastest at C={point.concurrency}: {point.speculation.label}, {_evidence(cells, winner)}.")
        rivals = [o for o in cells if o.point.concurrency == point.concurrency and o.point.draft_tokens and o.figures]
        if point.draft_tokens == 0 and rivals:
            lines.append(
                f"At C={point.concurrency} nothing beat it by more than the margin: drafting does not pay here."
            )
    paradox = _paradox(cells)
    if paradox:
        lines.append(paradox)
    lines.append(f"Cells within {100 * TIE_MARGIN:.0f} % count as equally fast (one run each): the smaller K is taken.")
    return lines


def _evidence(cells: list[Cell], cell: Cell) -> str:
    """tok/s always, acceptance and tokens/round wherever there were drafts."""
    figures, plain = cell.figures, _plain(cells, cell)
    text = f"{speed(cell):.1f} tok/s"
    if cell.point.draft_tokens == 0 or figures is None:
        return text
    if speed(plain) > 0:
        text += f" ({speed(cell) / speed(plain):.2f}× of no drafts)"
    if figures.acceptance is None or figures.tokens_per_round is None:
        return f"{text}, though nothing was drafted"
    return f"{text}, {100 * figures.acceptance:.1f} % accepted, {figures.tokens_per_round:.2f} tokens per round"


def _paradox(cells: list[Cell]) -> str | None:
    """The two cells of one C that show best that acceptance is not speed: the accepted share lower, the speed higher."""

    def gap(pair: tuple[Cell, Cell]) -> float:
        """How far both differ; not above 0 unless the first cell is the faster one and accepts less."""
        (fast, quick), (slow, thorough) = [(speed(cell), _acceptance(cell)) for cell in pair]
        same_c = pair[0].point.concurrency == pair[1].point.concurrency
        return (thorough - quick) * (fast / slow - 1) if same_c and fast * (1 - TIE_MARGIN) > slow else 0.0

    drafted = [cell for cell in cells if cell.figures and cell.figures.acceptance is not None and speed(cell) > 0]
    pair = max(permutations(drafted, 2), key=gap, default=None)
    if pair is None or gap(pair) <= 0:
        return None
    fast, slow = pair
    shares = [f"{one.point.speculation.label} accepts {100 * _acceptance(one):.1f} % of its drafts" for one in pair]
    per_round = [one.figures.tokens_per_round or 1.0 if one.figures else 1.0 for one in pair]
    return (
        f"Acceptance is not speed: at C={fast.point.concurrency} {shares[0]} and {shares[1]}, and yet "
        f"{fast.point.speculation.label} is {speed(fast) / speed(slow):.2f}× as fast: tokens per round are "
        f"{per_round[0]:.2f} against {per_round[1]:.2f}, and what a round costs differs too."
    )


def _acceptance(cell: Cell) -> float:
    return (cell.figures.acceptance or 0.0) if cell.figures else 0.0


def beyond_training(records: list[PointRecord]) -> list[str]:
    """A line per drafter whose K goes beyond what it was made for, as its servers' logs state that."""
    found: dict[tuple[str, int, str], list[int]] = {}
    for record in records:
        one, start = record.point.speculation, record.effective or {}
        block, stated = field(start, "drafter.trained_block"), field(start, "drafter.expected_acceptance")
        if isinstance(block, int):
            limit, why = block - 1, f"it was trained on blocks of {block}, the last token given included"
        elif isinstance(stated, dict) and stated:
            limit, why = max(map(int, stated)), "its card states acceptance up to there"
        else:
            continue
        lengths = found.setdefault((one.drafter, limit, why), [])
        if one.draft_tokens > limit and one.draft_tokens not in lengths:
            lengths.append(one.draft_tokens)
    return [
        f"{drafter} with K={', '.join(map(str, lengths))} goes beyond K={limit}, which it was made for ({why})."
        for (drafter, limit, why), lengths in found.items()
        if lengths
    ]


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

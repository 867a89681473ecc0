"""The summary as `report.html`, one file without any reference to another.

Formats only; every number comes from the summary.
"""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from paceline.measure.formats import milliseconds, number, percent
from paceline.measure.page import page, write_whole
from paceline.measure.plots import paradox_plot, position_plot, scaling_plot, waiting_plot, workload_plot
from paceline.measure.reqlog import field
from paceline.measure.stats import Positions
from paceline.measure.summary import Cell, Summary, speed

_CONFIG = (
    ("artifact", ("path", "target", "weights_id")),
    ("engine", ("device", "weights", "kv_cache", "max_context", "kv_capacity", "prefill_chunk", "threads")),
    ("environment", ("paceline", "python", "torch", "platform", "cpu")),
)
_CELL_COLUMNS = (
    "drafter", "K", "C", "tok/s", "vs no drafts", "tok/s per stream", "acceptance", "tokens /round", "average batch",
    "queue p50 / max", "TTFT p50 / p90", "equal", "client − server TTFT", "finish reasons",
)  # fmt: skip
_WORKLOAD_COLUMNS = (
    "workload", "drafter", "K", "C", "requests", "tokens", "tok/s per stream", "acceptance", "tokens/round", "TTFT p50",
)  # fmt: skip


def write_report(path: Path, summary: Summary) -> None:
    write_whole(path, _page(summary))


def _page(summary: Summary) -> str:
    measured = any(cell.figures for cell in summary.cells)
    title = f"{escape(Path(summary.settings.model).name)}: which drafter and K at which C"
    parts = [
        f"<h1>{title}</h1><p class='sub'>{_subtitle(summary)}</p>",
        f"<section class='advice'><h2>What to deploy</h2>{_advice(summary)}</section>",
        _warnings(summary),
        _heat_map(summary) if measured else "",
        _plots(summary) if measured else "",
        _cell_table(summary),
        _workload_table(summary) if measured else "",
        _configuration(summary),
        f"<footer>Made {escape(summary.made_at)} by paceline {escape(summary.paceline)} from the server's own request "
        f"logs; prompts {escape(summary.fixtures_hash)}. The figures are in <code>summary.json</code> beside this "
        "file.</footer>",
    ]
    return page(title, parts)


def _subtitle(summary: Summary) -> str:
    settings = summary.settings
    requests = max((cell.figures.requests for cell in summary.cells if cell.figures), default=0)
    heat = "greedy" if settings.temperature == 0 else f"temperature {settings.temperature:g}"
    seeds = "1 seed" if settings.seeds == 1 else f"{settings.seeds} seeds"
    return f"{requests} requests in each cell, {seeds}, {heat}"


def _advice(summary: Summary) -> str:
    return "".join(f"<p>{escape(line)}</p>" for line in summary.advice)


def _warnings(summary: Summary) -> str:
    if not summary.warnings:
        return ""
    items = "".join(f"<li>{escape(warning)}</li>" for warning in summary.warnings)
    return f"<section class='warn'><h2>Read with care</h2><ul>{items}</ul></section>"


def _heat_map(summary: Summary) -> str:
    measured = [speed(cell) for cell in summary.cells if cell.figures]
    slowest, fastest = min(measured), max(measured)
    head = "".join(f"<th>C = {c}</th>" for c in sorted(summary.settings.concurrency))
    rows = []
    for one in summary.settings.speculation:
        cells = [cell for cell in summary.cells if cell.point.speculation == one]
        body = "".join(_heat_cell(cell, cell.point in summary.fastest, slowest, fastest) for cell in cells)
        rows.append(f"<tr><th>{escape(one.label)}</th>{body}</tr>")
    return (
        "<section><h2>Throughput by drafter, draft length and concurrency</h2><p class='note'>tok/s of all streams "
        "together: completion tokens over the time from the first arrival to the last end. Marked is the fastest cell of "
        f"each C.</p><div class='scroll'><table class='heat'><tr><th></th>{head}</tr>{''.join(rows)}</table></div>"
        "</section>"
    )


def _heat_cell(cell: Cell, best: bool, slowest: float, fastest: float) -> str:
    figures = cell.figures
    if figures is None:
        return f"<td class='none' data-point='{escape(cell.point.name)}'>failed<small>see the warnings</small></td>"
    # 6 to 46 % of the heat colour: the text stays readable on every cell, in light and dark.
    share = 6 + 40 * (speed(cell) - slowest) / (fastest - slowest) if fastest > slowest else 6
    mark = "<em>fastest</em>" if best else ""
    detail = "no drafts"
    if figures.acceptance is not None:
        detail = f"{percent(figures.acceptance)} accepted<br>{number(figures.tokens_per_round, 2)} tokens/round"
    return (
        f"<td class='{'best' if best else 'plain'}' style='--p:{share:.0f}' data-point='{escape(cell.point.name)}'>"
        f"{mark}<b>{speed(cell):.1f}</b><small>{detail}</small></td>"
    )


def _plots(summary: Summary) -> str:
    c = (summary.best or summary.cells[0].point).concurrency
    parts = []
    if summary.drafting:
        parts.append(
            "<section><h2>Speed against acceptance</h2><p class='note'>A point per cell: the colour is its "
            "drafter, the shape its C, the number its K. Acceptance says how often a "
            "draft is right, not how much a round yields or costs: a cell that accepts a smaller share of its drafts can "
            "be the faster one, because it drafts more of them, or drafts them more cheaply.</p>"
            f"{paradox_plot(summary)}</section>"
        )
        parts.append(_positions(summary))
    parts.append(f"<section><h2>Scaling with C</h2>{scaling_plot(summary)}</section>")
    parts.append(f"<section><h2>Workloads at C = {c}</h2>{workload_plot(summary, c)}</section>")
    parts.append(f"<section><h2>Waiting</h2>{waiting_plot(summary)}</section>")
    return "".join(parts)


def _positions(summary: Summary) -> str:
    most = max(drafting.speculation.draft_tokens for drafting in summary.drafting)
    columns = ("workload", "drafter", "K", "rounds", "", *(str(place) for place in range(1, most + 1)))
    rows = []
    for name in dict.fromkeys(name for drafting in summary.drafting for name in drafting.workloads):
        for drafting in summary.drafting:
            if name in drafting.workloads:
                one, shares = drafting.speculation, drafting.workloads[name]
                lead = [name, one.drafter, str(one.draft_tokens), str(shares.rounds)]
                rows += _position_rows(lead, shares, most)
    return (
        "<section><h2>Acceptance by draft position</h2><p class='note'>Joint: the share of the decode rounds that "
        "accepted the draft at this position. The joint shares of a line add up to its tokens per round minus 1. "
        "Conditional: the share of those rounds that had accepted the draft before it. All C together.</p>"
        f"{position_plot(summary)}{_table(columns, rows)}</section>"
    )


def _position_rows(lead: list[str], shares: Positions, most: int) -> list[str]:
    """Two lines: joint and conditional, in whole percent."""
    lines: tuple[tuple[list[str], str, Sequence[float | None]], ...] = (
        (lead, "joint", shares.joint),
        ([""] * len(lead), "conditional", shares.conditional),
    )
    rows = []
    for head, kind, values in lines:
        texts = ["–" if value is None else f"{100 * value:.0f} %" for value in values]
        rows.append(_row([*head, kind, *texts, *[""] * (most - len(texts))], kind))
    return rows


def _cell_table(summary: Summary) -> str:
    rows = []
    for cell in summary.cells:
        look = "best" if cell.point in summary.fastest else "plain"
        rows.append(_failed_row(cell) if cell.figures is None else _row(_cell_texts(summary, cell), look))
    return (
        "<section><h2>Every cell</h2><p class='note'>Times are the server's. “equal” is the share of requests whose "
        "tokens are, one by one, those of the first cell: at 100 % every cell did the same work.</p>"
        f"{_table(_CELL_COLUMNS, rows)}</section>"
    )


def _cell_texts(summary: Summary, cell: Cell) -> list[str]:
    point, figures = cell.point, cell.figures
    assert figures is not None
    plain = speed(summary.plain(cell))
    return [
        point.drafter,
        str(point.draft_tokens),
        str(point.concurrency),
        number(figures.tokens_per_s, 1),
        f"{speed(cell) / plain:.2f}×" if plain else "–",
        number(figures.stream_tokens_per_s, 1),
        percent(figures.acceptance),
        number(figures.tokens_per_round, 2),
        number(figures.average_batch, 2),
        f"{milliseconds(figures.queue_p50_s)} / {milliseconds(figures.queue_max_s)}",
        f"{milliseconds(figures.ttft_p50_s)} / {milliseconds(figures.ttft_p90_s)}",
        percent(cell.equal_share),
        milliseconds(figures.clock_difference_s),
        ", ".join(f"{count} {name}" for name, count in figures.finish_reasons.items()),
    ]


def _failed_row(cell: Cell) -> str:
    point = cell.point
    lead = "".join(f"<td>{escape(str(text))}</td>" for text in (point.drafter, point.draft_tokens, point.concurrency))
    reason = f"<td class='left failed' colspan='{len(_CELL_COLUMNS) - 3}'>failed: {escape(cell.reason or '')}</td>"
    return f"<tr class='plain'>{lead}{reason}</tr>"


def _workload_table(summary: Summary) -> str:
    rows = [
        _row(_workload_texts(name, cell), "plain")
        for name in sorted({name for cell in summary.cells for name in cell.workloads})
        for cell in summary.cells
        if name in cell.workloads
    ]
    return f"<section><h2>Every workload</h2>{_table(_WORKLOAD_COLUMNS, rows)}</section>"


def _workload_texts(name: str, cell: Cell) -> list[str]:
    figures, point = cell.workloads[name], cell.point
    return [
        name,
        point.drafter,
        str(point.draft_tokens),
        str(point.concurrency),
        str(figures.requests),
        str(figures.completion_tokens),
        number(figures.stream_tokens_per_s, 1),
        percent(figures.acceptance),
        number(figures.tokens_per_round, 2),
        milliseconds(figures.ttft_p50_s),
    ]


def _table(columns: Sequence[str], rows: list[str]) -> str:
    head = "".join(f"<th>{name}</th>" for name in columns)
    return f"<div class='scroll'><table class='figures'><tr>{head}</tr>{''.join(rows)}</table></div>"


def _row(texts: list[str], look: str) -> str:
    return f"<tr class='{look}'>{''.join(f'<td>{escape(text)}</td>' for text in texts)}</tr>"


def _configuration(summary: Summary) -> str:
    if summary.effective is None:
        return ""
    pairs = [(f"{group}.{key}", field(summary.effective, f"{group}.{key}")) for group, keys in _CONFIG for key in keys]
    items = "".join(f"<div><dt>{path}</dt><dd>{escape(str(value))}</dd></div>" for path, value in pairs if value)
    return (
        "<section><h2>Effective configuration</h2><p class='note'>What the server said it ran at the first cell. "
        "Every other cell was checked against it, and for its own drafter, K and C.</p>"
        f"<dl class='config'>{items}</dl></section>"
    )

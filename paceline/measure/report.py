"""The summary for people: a table on the terminal, and `report.html`, one file without any reference to another.

Formats only; every number comes from the summary.
"""

from html import escape
from pathlib import Path

from rich.console import Console
from rich.table import Table

from paceline.measure.page import page, write_whole
from paceline.measure.plots import acceptance_plot, ideal_label, scaling_plot, series_index, waiting_plot, workload_plot
from paceline.measure.reqlog import field
from paceline.measure.summary import Cell, Summary, speed

_CONFIG = (
    ("artifact", ("path", "target", "weights_id")),
    ("engine", ("device", "weights", "kv_cache", "max_context", "kv_capacity", "prefill_chunk", "threads")),
    ("environment", ("paceline", "python", "torch", "platform", "cpu")),
)
_COLUMNS = (
    "drafter", "K", "C", "tok/s", "vs K=0", "tok/s per stream", "acceptance", "tokens /round", "average batch",
    "queue p50 / max", "TTFT p50 / p90", "equal",
)  # fmt: skip
_WORKLOAD_COLUMNS = (
    "workload", "K", "C", "requests", "tokens", "tok/s per stream", "acceptance", "tokens/round", "TTFT p50",
    "by position",
)  # fmt: skip


def print_summary(summary: Summary, console: Console) -> None:
    # Two columns of padding are what makes twelve columns fit into 120 characters.
    title = f"{summary.settings.model}: one row per point"
    table = Table(title=title, title_justify="left", padding=(0, 1, 0, 0), box=None)
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name == "drafter" else "right", overflow="fold")
    for cell in summary.cells:
        best = cell.point == summary.best
        style = "bold green" if best else "red" if cell.figures is None else None
        table.add_row(*_row_texts(summary, cell), style=style)
    console.print(table)
    console.print()
    for warning in summary.warnings:
        console.print(f"[yellow]![/] {warning}", highlight=False)
    console.print(summary.advice, highlight=False)


def write_report(path: Path, summary: Summary) -> None:
    write_whole(path, _page(summary))


def _row_texts(summary: Summary, cell: Cell) -> list[str]:
    point, figures = cell.point, cell.figures
    lead = [point.drafter, str(point.draft_tokens), str(point.concurrency)]
    if figures is None:
        return [*lead, "failed"] + ["–"] * (len(_COLUMNS) - 4)
    plain = speed(_plain(summary, cell))
    return [
        *lead,
        _number(figures.tokens_per_s, 1),
        f"{speed(cell) / plain:.2f}×" if plain else "–",
        _number(figures.stream_tokens_per_s, 1),
        _percent(figures.acceptance),
        _number(figures.tokens_per_round, 2),
        _number(figures.average_batch, 2),
        f"{_ms(figures.queue_p50_s)} / {_ms(figures.queue_max_s)}",
        f"{_ms(figures.ttft_p50_s)} / {_ms(figures.ttft_p90_s)}",
        _percent(cell.equal_share),
    ]


def _plain(summary: Summary, cell: Cell) -> Cell | None:
    """The cell without speculation at the same C."""
    c = cell.point.concurrency
    return next((o for o in summary.cells if o.point.concurrency == c and o.point.draft_tokens == 0), None)


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    """Rounded down at 100: only every single one of them is shown as 100 %."""
    if value is None:
        return "–"
    return f"{min(value * 100, 99.9 if value < 1 else 100):.{0 if value == 1 else 1}f} %"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"


def _page(summary: Summary) -> str:
    measured = any(cell.figures for cell in summary.cells)
    title = f"{escape(Path(summary.settings.model).name)}: which K at which C"
    parts = [
        f"<h1>{title}</h1><p class='sub'>{_subtitle(summary)}</p>",
        f"<section class='advice'><h2>What to deploy</h2><p>{escape(summary.advice)}</p></section>",
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
    return f"{requests} requests in each cell, {seeds}, {heat}, drafter {escape(settings.drafter)}"


def _warnings(summary: Summary) -> str:
    if not summary.warnings:
        return ""
    items = "".join(f"<li>{escape(warning)}</li>" for warning in summary.warnings)
    return f"<section class='warn'><h2>Read with care</h2><ul>{items}</ul></section>"


def _heat_map(summary: Summary) -> str:
    ks, cs = _ks(summary), sorted({cell.point.concurrency for cell in summary.cells})
    fastest = max(map(speed, summary.cells))
    slowest = min(speed(cell) for cell in summary.cells if cell.figures)
    head = "".join(f"<th>C = {c}</th>" for c in cs)
    rows = []
    for k in ks:
        cells = sorted(
            (cell for cell in summary.cells if cell.point.draft_tokens == k), key=lambda cell: cell.point.concurrency
        )
        body = "".join(_heat_cell(cell, cell.point == summary.best, slowest, fastest) for cell in cells)
        rows.append(f"<tr><th>K = {k}</th>{body}</tr>")
    return (
        "<section><h2>Throughput by draft length and concurrency</h2><p class='note'>tok/s of all streams together: "
        "completion tokens over the time from the first arrival to the last end.</p>"
        f"<div class='scroll'><table class='heat'><tr><th></th>{head}</tr>{''.join(rows)}</table></div></section>"
    )


def _heat_cell(cell: Cell, best: bool, slowest: float, fastest: float) -> str:
    figures = cell.figures
    if figures is None:
        return f"<td class='none' data-point='{escape(cell.point.name)}'>failed<small>see the warnings</small></td>"
    # 6 to 46 % of the heat colour: the text stays readable on every cell, in light and dark.
    share = 6 + 40 * (speed(cell) - slowest) / (fastest - slowest) if fastest > slowest else 6
    mark = "<em>best</em>" if best else ""
    detail = "no drafts"
    if figures.acceptance is not None:
        detail = f"{_percent(figures.acceptance)} accepted<br>{_number(figures.tokens_per_round, 2)} tokens/round"
    return (
        f"<td class='{'best' if best else 'plain'}' style='--p:{share:.0f}' data-point='{escape(cell.point.name)}'>"
        f"{mark}<b>{speed(cell):.1f}</b><small>{detail}</small></td>"
    )


def _plots(summary: Summary) -> str:
    ks = _ks(summary)
    legend = "".join(f"<span style='--c:var(--s{series_index(k, ks)})'>K = {k}</span>" for k in ks)
    keys = f"<div class='legend'>{legend}</div>"
    ideal = (
        f"<div class='legend'>{legend}<span class='dash' style='--c:var(--muted)'>{ideal_label(summary)}</span></div>"
    )
    c = (summary.best or summary.cells[0].point).concurrency
    return (
        f"<div class='pair'><section><h2>Scaling with C</h2>{ideal}{scaling_plot(summary)}</section>"
        f"<section><h2>Waiting</h2>{keys}{waiting_plot(summary)}</section></div>"
        "<section><h2>Speed against acceptance</h2><p class='note'>A dot per workload; the dashed line is where K = 0 "
        f"stands. Dots below it lose with speculation.</p>{keys}{acceptance_plot(summary)}</section>"
        f"<section><h2>Workloads at C = {c}</h2>{keys}{workload_plot(summary, c)}</section>"
    )


def _cell_table(summary: Summary) -> str:
    names = (*_COLUMNS, "client − server TTFT", "finish reasons")
    head = "".join(f"<th>{name}</th>" for name in names)
    rows = []
    for cell in summary.cells:
        texts = _row_texts(summary, cell)
        last = f"<td colspan='2' class='left failed'>{escape(cell.reason or '')}</td>"
        if cell.figures is not None:
            reasons = ", ".join(f"{count} {name}" for name, count in cell.figures.finish_reasons.items())
            last = f"<td>{_ms(cell.figures.clock_difference_s)}</td><td class='left'>{escape(reasons)}</td>"
        body = "".join(f"<td>{escape(text)}</td>" for text in texts)
        rows.append(f"<tr class='{'best' if cell.point == summary.best else 'plain'}'>{body}{last}</tr>")
    return (
        "<section><h2>Every cell</h2><p class='note'>Times are the server's. “equal” is the share of requests whose "
        "tokens are, one by one, those of the first cell: at 100 % every cell did the same work.</p>"
        f"<div class='scroll'><table class='figures'><tr>{head}</tr>{''.join(rows)}</table></div></section>"
    )


def _workload_table(summary: Summary) -> str:
    head = "".join(f"<th>{name}</th>" for name in _WORKLOAD_COLUMNS)
    rows = [
        "<tr>" + "".join(f"<td>{escape(text)}</td>" for text in _workload_texts(name, cell)) + "</tr>"
        for name in sorted({name for cell in summary.cells for name in cell.workloads})
        for cell in summary.cells
        if name in cell.workloads
    ]
    return (
        "<section><h2>Every workload</h2><p class='note'>“by position”: the share of the rounds in which the 1st, "
        "2nd, … draft was accepted.</p>"
        f"<div class='scroll'><table class='figures'><tr>{head}</tr>{''.join(rows)}</table></div></section>"
    )


def _workload_texts(name: str, cell: Cell) -> list[str]:
    figures = cell.workloads[name]
    shares = (
        " ".join(f"{100 * n / figures.rounds:.0f}" for n in figures.accepted_per_position) if figures.rounds else ""
    )
    return [
        name,
        str(cell.point.draft_tokens),
        str(cell.point.concurrency),
        str(figures.requests),
        str(figures.completion_tokens),
        _number(figures.stream_tokens_per_s, 1),
        _percent(figures.acceptance),
        _number(figures.tokens_per_round, 2),
        _ms(figures.ttft_p50_s),
        f"{shares} %" if shares else "–",
    ]


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


def _ks(summary: Summary) -> list[int]:
    return sorted({cell.point.draft_tokens for cell in summary.cells})

"""The report of a training run: plots/*.svg and report.html, one file without any reference to another.

Formats only; every number comes from the run's own files.
"""

from html import escape
from pathlib import Path
from typing import Any

from paceline.measure.drawing import file_text, page_element
from paceline.measure.page import page, write_whole
from paceline.measure.training_log import TrainingRun, read_run
from paceline.measure.training_plots import PLOTS

_STAGE_COLUMNS = ("stage", "parameters", "steps", "tokens", "seconds", "tokens/s", "loss", "tokens/round")
_STAGE_FIGURES = ("parameters", "steps", "tokens", "seconds", "tokens_per_second", "loss", "tokens_per_round")
_ACCEPTANCE_COLUMNS = ("drafter", "workload", "rounds", "acceptance", "tokens/round", "joint by position")


def write_training_report(folder: Path) -> None:
    """Writes what the folder's log has so far; a plot without figures is left out, and an older one of it removed."""
    run = read_run(folder)
    sections = []
    (folder / "plots").mkdir(exist_ok=True)
    for name, (title, note, draw) in PLOTS.items():
        svg = draw(run)
        file = folder / "plots" / f"{name}.svg"
        if svg is None:
            file.unlink(missing_ok=True)
            continue
        write_whole(file, file_text(svg))
        sections.append(f"<section><h2>{title}</h2><p class='note'>{note}</p>{page_element(svg, title)}</section>")
    title = f"{escape(run.name)}: training"
    seconds = sum(float(result.get("seconds", 0)) for result in run.results.values())
    parts = [
        f"<h1>{title}</h1><p class='sub'>{len(run.results)} stages made, {seconds / 60:.1f} minutes"
        f"{escape(', ' + run.start['device']) if run.start else ''}</p>",
        _stage_table(run),
        *sections,
        _acceptance_table(run),
        _settings(run),
        "<footer>The figures are in <code>summary.json</code> and <code>log.jsonl</code> beside this file; the plots are "
        "also in <code>plots</code>.</footer>",
    ]
    write_whole(folder / "report.html", page(title, parts))


def _stage_table(run: TrainingRun) -> str:
    rows = []
    for stage, result in run.results.items():
        cells = "".join(f"<td>{_text(result.get(name))}</td>" for name in _STAGE_FIGURES)
        rows.append(f"<tr><td>{escape(stage)}</td>{cells}</tr>")
    return _table(
        "Stages", "As each ended; loss and tokens/round are those of its last training batch.", _STAGE_COLUMNS, rows
    )


def _acceptance_table(run: TrainingRun) -> str:
    rows = []
    for drafter, reports in run.acceptance.items():
        for workload, report in reports.items():
            joint: list[float] = report["joint"]
            cells = (
                workload,
                _text(report["rounds"]),
                f"{100 * sum(joint) / max(len(joint), 1):.1f} %",
                f"{report['tokens_per_round']:.2f}",
                " ".join(f"{100 * share:.0f}" for share in joint) + " %",
            )
            kind = "best" if workload == "pooled" else "plain"
            body = "".join(f"<td>{escape(cell)}</td>" for cell in (drafter, *cells))
            rows.append(f"<tr class='{kind}'>{body}</tr>")
    note = "Greedy, on held-out prompts. Acceptance is accepted / proposed drafts."
    return _table("Acceptance", note, _ACCEPTANCE_COLUMNS, rows)


def _table(title: str, note: str, columns: tuple[str, ...], rows: list[str]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{column}</th>" for column in columns)
    return (
        f"<section><h2>{title}</h2><p class='note'>{note}</p>"
        f"<div class='scroll'><table class='figures'><tr>{head}</tr>{''.join(rows)}</table></div></section>"
    )


def _settings(run: TrainingRun) -> str:
    pairs: list[tuple[str, object]] = [(f"start.{key}", value) for key, value in run.start.items()]
    pairs += [pair for stage, settings in run.settings.items() for pair in _flat(f"{stage}.", settings)]
    if not pairs:
        return ""
    items = "".join(f"<div><dt>{escape(path)}</dt><dd>{escape(str(value))}</dd></div>" for path, value in pairs)
    return (
        "<section><h2>Settings</h2><p class='note'>What each stage was made with.</p>"
        f"<dl class='config'>{items}</dl></section>"
    )


def _flat(path: str, settings: dict[str, Any]) -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for key, value in settings.items():
        found += _flat(f"{path}{key}.", value) if isinstance(value, dict) else [(path + key, value)]
    return found


def _text(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else escape(str(value))

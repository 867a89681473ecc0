"""What the `paceline train` commands share: their common flags, the checks of numbers, and what a terminal shows of a build."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from paceline.core.errors import ConfigError

Out = Annotated[
    Path,
    typer.Option(
        help="Folder of the build: stages, checkpoints, log.jsonl, summary.json, plots, report.html and the finished model."
    ),
]
Stages = Annotated[
    str | None, typer.Option(help="Only these stages, with commas. Default: all that are not there yet.")
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N. Default: the GPU where torch finds one.")]


def check_above_zero(numbers: Iterable[tuple[str, float | None]]) -> None:
    """Raises ConfigError for the first (flag, value) that is not above 0 and finite; None is a flag that was not given."""
    for flag, value in numbers:
        if value is not None and not 0 < value < inf:
            raise ConfigError(flag, value, "must be above 0")


def check_at_least(numbers: Iterable[tuple[str, int | None, int]]) -> None:
    """Raises ConfigError for the first (flag, value, least) whose value is less."""
    for flag, value, least in numbers:
        if value is not None and value < least:
            raise ConfigError(flag, value, f"must be at least {least}")


def split_names(names: str | None) -> list[str] | None:
    return None if names is None else [name.strip() for name in names.split(",")]


class Terminal:
    """A screen for people: one moving line for the running stage, and a line of words for each of the log's that ends or
    changes something."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=None, figures="")

    def progress(self, fields: dict[str, Any]) -> None:
        if "done" not in fields:
            self._bar.reset(self._task, total=None, description=fields["stage"], figures="")
            return
        figures = [f"step {fields['step']:,}", f"loss {fields['loss']:.4f}"]
        if "tokens_per_round" in fields:
            figures.append(f"{fields['tokens_per_round']:.2f} tokens/round")
        minutes, seconds = divmod(round(fields["left_s"]), 60)
        figures.append(f"{minutes}:{seconds:02} left")
        self._bar.update(self._task, total=1.0, completed=fields["done"], figures=" · ".join(figures))

    def line(self, fields: dict[str, Any]) -> None:
        if "step" not in fields:
            stage = fields.get("stage", "start")
            self._bar.console.print(f"[bold]{stage}[/] {_words(fields)}", highlight=False)


def _words(fields: dict[str, Any]) -> str:
    """The figures of a line of the log, without those that come once for every position."""
    words = []
    for name, value in fields.items():
        if isinstance(value, dict) and "pooled" in value:
            words.append(f"{name} {value['pooled']['tokens_per_round']} tokens/round")
        elif isinstance(value, dict):
            words.append(_words(value))
        elif name not in ("stage", "done") and not name[-1].isdigit():
            text = f"{value:,}" if isinstance(value, int) else str(value)
            words.append(f"{name.replace('_', ' ')} {text}")
    return " · ".join(words)


@contextmanager
def screen(console: Console) -> Iterator[Terminal | None]:
    """A Terminal; None where the output is no terminal: there, the log's JSON lines are shown."""
    if not console.is_terminal:
        yield None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[figures]}"))
    with Progress(*columns, console=console, transient=True) as bar:
        yield Terminal(bar)

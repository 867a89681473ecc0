"""The engine's flags, declared once for every command that starts an engine."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from paceline.build import DRAFTERS, EngineOptions, configure
from paceline.core.config import EngineConfig

MODEL_HELP = (
    "A known name (embedded: the toy model of this package; smollm2: fetched, 98 MB), a Hugging Face model folder, or a "
    ".gguf file."
)
Model = Annotated[str, typer.Argument(help=MODEL_HELP)]
Weights = Annotated[
    str,
    typer.Option(
        help="Weight format: bf16, int8, int4 (the same tokens for any K and C), fp32 (the reference), or auto: what "
        "measures fastest on this machine.",
    ),
]
Drafter = Annotated[
    str,
    typer.Option(
        help=f"Who drafts, one of {', '.join(DRAFTERS)}: nobody, a lookup in the text, the model's own head, or a model of "
        "its own. auto: the drafter in the model's folder, or the lookup where there is none.",
    ),
]
DrafterPath = Annotated[
    str | None,
    typer.Option(
        help="Checkpoint folder of a drafter that is a model of its own. Default: the one in the model's folder."
    ),
]
DraftTokens = Annotated[
    int | None,
    typer.Option(help="Draft length K, 0 to 15: the most tokens guessed per round. Default 7; 0 with --drafter none."),
]
DraftHead = Annotated[
    str,
    typer.Option(
        help="Tokens that a model drafter chooses from: full, or shortlist:N, the N most frequent, which makes drafts cheaper "
        "and accepted less often. shortlist alone: half of the vocabulary. No reply depends on it.",
    ),
]
MaxContext = Annotated[
    int | None,
    typer.Option(help="Tokens of one request, prompt and output together. Default: the model's limit, at most 8192."),
]
Threads = Annotated[int | None, typer.Option(help="CPU threads of the engine. Default: all that this process may use.")]


Report = Callable[[str, int, int], None]


@contextmanager
def progress_bar(console: Console) -> Iterator[Report]:
    """A reporter of (what, bytes done, bytes in all): a bar on a terminal, a line elsewhere."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        tasks: dict[str, TaskID] = {}

        def report(line: str, done_bytes: int, total_bytes: int) -> None:
            if line not in tasks:
                tasks[line] = bar.add_task(line, total=total_bytes or None)
                if not console.is_terminal:
                    console.print(line, highlight=False)
            bar.update(tasks[line], completed=done_bytes, total=total_bytes or None)

        yield report


def resolve_config(options: EngineOptions) -> EngineConfig:
    """`configure`, with progress on stderr while a model is fetched or measured."""
    console = Console(stderr=True)
    with progress_bar(console) as report:
        return configure(options, report, lambda text: console.print(text, highlight=False))

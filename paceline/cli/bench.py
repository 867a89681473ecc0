"""`paceline bench`: which draft length and which concurrency to deploy a model with, measured.

Turns flags into settings and prints what comes back; the campaign itself is `measure/campaign.py`.
"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from paceline.core.errors import ConfigError


def bench(
    model: Annotated[str, typer.Argument(help="A known name (smollm2), a model folder, or a .gguf file.")],
    drafter: Annotated[str, typer.Option(help="Who proposes the draft tokens wherever K is above 0.")] = "ngram",
    draft_tokens: Annotated[
        str, typer.Option(help="Draft lengths K to compare. Keep 0: no speculation is what the others must beat.")
    ] = "0,3,7",
    concurrency: Annotated[
        str,
        typer.Option(help="Numbers C of requests at once. 1 is one user; more shows how the model shares the machine."),
    ] = "1,2,4",
    weights: Annotated[
        str, typer.Option(help="Weight format. auto lets the first server choose; all points then use that format.")
    ] = "auto",
    max_context: Annotated[
        int, typer.Option(help="Tokens of context per request that each server reserves for.")
    ] = 2048,
    max_tokens: Annotated[
        int | None, typer.Option(help="Cap on the output limits of the prompts (96 to 160 tokens) for a shorter run.")
    ] = None,
    prompts: Annotated[int, typer.Option(help="Prompts from each of the five workloads, 1 to 5.")] = 4,
    seeds: Annotated[int, typer.Option(help="Each prompt is sent this many times, with seeds 1, 2, …")] = 1,
    temperature: Annotated[float, typer.Option(help="0 is greedy. Drafts are accepted less often as it rises.")] = 0.0,
    out: Annotated[
        Path | None,
        typer.Option(help="Result folder. Default: the newest unfinished one of the same settings in runs/."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print summary.json instead of the table.")] = False,
) -> None:
    """Measure MODEL at every K × C, and say which to deploy.

    Each point boots a server, checks that it runs what was asked, and sends the same requests. Figures come from the
    server's own log. Ctrl-C stops; the same command goes on with the first point that is missing.

    The folder holds summary.json, report.html, and for each point its rows and the server's log. A failed point stays
    with its reason; delete its folder under points/ and repeat the command to try it again.
    """
    from paceline.measure.campaign import SUMMARY_FILE, run_bench
    from paceline.measure.settings import BenchSettings

    settings = BenchSettings(
        model=model,
        drafter=drafter,
        draft_tokens=_numbers("--draft-tokens", draft_tokens),
        concurrency=_numbers("--concurrency", concurrency),
        weights=weights,
        max_context=max_context,
        max_tokens=max_tokens,
        prompts=prompts,
        seeds=seeds,
        temperature=temperature,
    )
    try:
        folder = run_bench(settings, Console(stderr=json), out)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if json:
        typer.echo((folder / SUMMARY_FILE).read_text())


def _numbers(flag: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(flag, text, "write whole numbers with commas, such as 0,3,7") from None

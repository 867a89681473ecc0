"""`paceline bench`: which drafter, draft length and concurrency to deploy a model with, measured.

Turns flags into settings and prints what comes back; the campaign itself is `measure/campaign.py`.
"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from paceline.build import DEFAULT_MODEL, DRAFTERS, EngineOptions
from paceline.cli.options import Model, resolve_config
from paceline.measure.settings import (
    DEFAULT_DRAFT_TOKENS,
    BenchSettings,
    Speculation,
    parse_numbers,
    parse_speculation,
)


def bench(
    model: Model = DEFAULT_MODEL,
    drafter: Annotated[
        str,
        typer.Option(
            help=f"Who drafts: names with commas from {', '.join(DRAFTERS)}, auto (the one that serve takes). Each is "
            "measured with every K of --draft-tokens, or with its own: none,ngram,mtp:3,dflash2:7."
        ),
    ] = "auto",
    draft_tokens: Annotated[
        str | None,
        typer.Option(
            help=f"Draft lengths K to compare. Default: {DEFAULT_DRAFT_TOKENS}. Keep 0: no drafts is what the others "
            "must beat; it is measured once at each C."
        ),
    ] = None,
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
    """Measure MODEL at every drafter × K × C, and say which to deploy.

    Each point boots a server, checks that it runs what was asked, and sends the same requests. Figures come from the
    server's own log. Ctrl-C stops; the same command goes on with the first point that is missing.

    The folder holds summary.json, report.html, and for each point its rows and the server's log. A failed point stays
    with its reason; delete its folder under points/ and repeat the command to try it again.
    """
    from paceline.measure.campaign import SUMMARY_FILE, run_bench

    speculation = parse_speculation(drafter, draft_tokens)
    settings = BenchSettings(
        model=model,
        speculation=tuple(_checked(model, one, weights, max_context) for one in speculation),
        concurrency=parse_numbers("--concurrency", concurrency),
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


def _checked(model: str, one: Speculation, weights: str, max_context: int) -> Speculation:
    """Who would draft, "auto" decided; refuses before the first server what every server would refuse."""
    config = resolve_config(
        EngineOptions(
            model=model,
            drafter=one.drafter,
            draft_tokens=one.draft_tokens,
            # What auto means is for the first server to measure.
            weights="bf16" if weights == "auto" else weights,
            max_context=max_context,
        )
    )
    return Speculation(config.drafter, config.draft_tokens)

"""`paceline train drafter MODEL`: a DFlash or DFlash2 drafter for a model that paceline serves."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from paceline.cli.training import Device, Out, Stages, check_above_zero, check_at_least, screen, split_names
from paceline.core.errors import ConfigError


def drafter(
    model: Annotated[str, typer.Argument(help="Checkpoint folder, .gguf file or a known name: the target.")],
    out: Out,
    kind: Annotated[str, typer.Option(help="dflash or dflash2.")] = "dflash2",
    layers: Annotated[int, typer.Option(help="Layers of the drafter.")] = 3,
    block: Annotated[int, typer.Option(help="Trained block size γ; it serves K up to γ − 1.")] = 8,
    own_prompts: Annotated[
        int, typer.Option(help="Prompts to generate: structured output, code, translation, arithmetic, stories.")
    ] = 15000,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder with gsm8k_train.jsonl, humaneval_dev.jsonl or spec_bench_dev.jsonl: more prompts."),
    ] = None,
    minutes_answers: Annotated[float, typer.Option(help="Time for the target's answers to the prompts.")] = 0.75,
    minutes_drafter: Annotated[float, typer.Option(help="Training time of the drafter.")] = 2.0,
    rows: Annotated[int, typer.Option(help="Packed rows of 1,024 tokens per step.")] = 16,
    stages: Stages = None,
    device: Device = None,
) -> None:
    """Train a drafter on a model's own answers: prompts, target, answers, train, eval, export.

    The finished drafter is OUT/drafter: give it as --drafter-path. The defaults take about four minutes on one large GPU
    for a target of 135 M parameters.
    """
    check_above_zero((("--minutes-answers", minutes_answers), ("--minutes-drafter", minutes_drafter)))
    check_at_least(
        (("--layers", layers, 1), ("--block", block, 2), ("--own-prompts", own_prompts, 1), ("--rows", rows, 1))
    )

    from paceline.build import resolve_model, user_prompt_encoder
    from paceline.measure.training_report import write_training_report
    from paceline.train.drafter import KINDS, DrafterBuild, DrafterPlan
    from paceline.train.loop import Log
    from paceline.train.stages import LOG_FILE, Runner, open_folder, pick_device

    if kind not in KINDS:
        raise ConfigError("--kind", kind, f"choose one of {', '.join(KINDS)}")
    if data is not None and not data.is_dir():
        raise ConfigError(
            "--data", data, "no such folder; leave it out, or give one that holds the files named in --help"
        )
    plan = DrafterPlan(kind=kind, layers=layers, block=block, own_prompts=own_prompts, data=data, rows=rows)
    plan = replace(
        plan,
        answers=replace(plan.answers, minutes=minutes_answers),
        loop=replace(plan.loop, minutes=minutes_drafter),
    )
    found, source = pick_device(device), resolve_model(model)
    open_folder(out)
    with screen(Console()) as shown:
        runner = Runner(out, Log(out / LOG_FILE, shown), draw=lambda: write_training_report(out))
        DrafterBuild(runner, plan, found, source, user_prompt_encoder(source)).run(split_names(stages))
    Console(stderr=True).print(f"report: {out / 'report.html'}", highlight=False, soft_wrap=True)

"""`paceline train embedded`: the model that the package ships, with its drafters, from nothing."""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from paceline.cli.training import Device, Out, Stages, check_above_zero, check_at_least, screen, split_names


def embedded(
    out: Out,
    stages: Stages = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder with gsm8k_train.jsonl and tinyshakespeare.txt, to be added to the corpus."),
    ] = None,
    minutes_target: Annotated[float | None, typer.Option(help="Training time of the target. Default 7.")] = None,
    minutes_answers: Annotated[
        float | None, typer.Option(help="Time for the target's replies, which drafters are trained on. Default 1.")
    ] = None,
    minutes_mtp: Annotated[float | None, typer.Option(help="Training time of the MTP head. Default 2.")] = None,
    minutes_drafter: Annotated[
        float | None, typer.Option(help="Training time of each of DFlash and DFlash2. Default 3.")
    ] = None,
    chats: Annotated[int | None, typer.Option(help="Chats of the corpus. Default 1000000.")] = None,
    rows: Annotated[
        int | None,
        typer.Option(help="Packed rows of 1,024 tokens per step of the target; drafters take half. Default 64."),
    ] = None,
    matrix_rate: Annotated[
        float | None, typer.Option(help="Peak rate of the target's matrices; half of it for the rest. Default 0.008.")
    ] = None,
    device: Device = None,
    processes: Annotated[int | None, typer.Option(help="Processes for the corpus. Default: one per CPU.")] = None,
    toy: Annotated[
        bool, typer.Option("--toy", help="Toy sizes: all stages in seconds on a CPU, and a model that is no good.")
    ] = False,
) -> None:
    """Train the embedded model: tokenizer, corpus, target, answers, mtp, dflash, dflash2, eval, export.

    The finished model is OUT/embedded, a folder like any other model. It takes about 20 minutes on one GPU.

    Ctrl-C stops; the same command goes on from the last checkpoint (one a minute). What is there already is skipped. A stage
    is made again if it is named in --stages and its flags have changed, if its result was deleted, or if a stage that it
    was made from was made again.
    """
    check_above_zero(
        (
            ("--minutes-target", minutes_target),
            ("--minutes-answers", minutes_answers),
            ("--minutes-mtp", minutes_mtp),
            ("--minutes-drafter", minutes_drafter),
            ("--matrix-rate", matrix_rate),
        )
    )
    check_at_least((("--chats", chats, 1), ("--rows", rows, 2), ("--processes", processes, 1)))

    from paceline.measure.training_report import write_training_report
    from paceline.train.corpus import check_data
    from paceline.train.embedded import Build, Choices, chosen, full_plan, toy_plan
    from paceline.train.loop import Log
    from paceline.train.stages import LOG_FILE, Runner, open_folder, pick_device

    choices = Choices(
        data=str(data) if data else None,
        minutes_target=minutes_target,
        minutes_answers=minutes_answers,
        minutes_mtp=minutes_mtp,
        minutes_drafter=minutes_drafter,
        chats=chats,
        rows=rows,
        matrix_rate=matrix_rate,
    )
    if choices.data is not None:
        check_data(choices.data)
    found = pick_device(device)
    open_folder(out)
    with screen(Console()) as shown:
        runner = Runner(out, Log(out / LOG_FILE, shown), draw=lambda: write_training_report(out))
        plan = chosen(toy_plan() if toy else full_plan(), choices)
        Build(runner, plan, found, processes or len(os.sched_getaffinity(0))).run(split_names(stages))
    Console(stderr=True).print(f"report: {out / 'report.html'}", highlight=False, soft_wrap=True)

"""`paceline plan`: does it fit, what takes the memory, and what is the largest value of each flag. No device is touched."""

import re
from dataclasses import replace
from typing import Annotated

import msgspec
import typer

from paceline.build import DEFAULT_DRAFT_TOKENS, DEFAULT_DRAFTER, DEFAULT_MODEL, DRAFTERS
from paceline.cli.plan_text import Answer, missing, print_plan, to_json
from paceline.core.config import MAX_DRAFT_TOKENS, PAGE_TOKENS
from paceline.core.errors import CapacityError, ConfigError
from paceline.core.registry import choose
from paceline.core.units import parse_bytes
from paceline.memory.plan import Demand, check_demand
from paceline.memory.plan_fit import planned_law
from paceline.memory.plan_search import NONE, Planner
from paceline.planning import (
    DEFAULT_KV_DTYPE,
    KV_FORMATS,
    LAYOUTS,
    PROFILES,
    SHAPES,
    WEIGHT_FORMATS,
    SubjectOptions,
    brought_drafter,
    find_device,
    find_subject,
)

AUTO = "auto"
GRID_SLOTS, GRID_DRAFTS = (1, 2, 4, 8, 16), (0, 1, 3, 5, 7, 11, 15)


def plan(
    model: Annotated[
        str,
        typer.Argument(
            help=f"A config.json, a model folder, a .gguf file, or a shape that is known: {', '.join(SHAPES)}. "
            "Weights are not needed."
        ),
    ] = DEFAULT_MODEL,
    profile: Annotated[
        str | None, typer.Option(help=f"Plan for this device: {', '.join(PROFILES)}. Default: this machine.")
    ] = None,
    device_memory: Annotated[
        str | None, typer.Option(help="Plan for a GPU with this much memory, such as 32GB or 24GiB.")
    ] = None,
    available_after_weights: Annotated[
        str | None,
        typer.Option(help="Bytes that are free once driver and weights are loaded; replaces the device's figure."),
    ] = None,
    max_concurrency: Annotated[
        str,
        typer.Option(help="C: requests that run at once. A range, such as 1..16, shows each and plans the largest."),
    ] = "4",
    max_context: Annotated[
        str, typer.Option(help="Tokens of one request; auto: the largest that fits, in steps of 1,024.")
    ] = AUTO,
    kv_capacity: Annotated[
        str, typer.Option(help="Tokens of KV cache for all requests together; auto: all that fits.")
    ] = AUTO,
    kv_dtype: Annotated[str, typer.Option(help=f"KV cache format: {', '.join(KV_FORMATS)}.")] = DEFAULT_KV_DTYPE,
    weights: Annotated[
        str,
        typer.Option(
            help=f"Weight format: {', '.join(WEIGHT_FORMATS)}; auto: bf16 while the weights take at most half of a GPU, "
            "else nvfp4.",
        ),
    ] = AUTO,
    drafter: Annotated[
        str,
        typer.Option(
            help=f"Who drafts, one of {', '.join(DRAFTERS)}; auto: the drafter that MODEL brings, else the lookup in the text."
        ),
    ] = AUTO,
    drafter_config: Annotated[
        str | None,
        typer.Option(help="Config.json of a drafter that is a model of its own. Default: the one of MODEL."),
    ] = None,
    draft_tokens: Annotated[
        int | None, typer.Option(help="Draft length K, 0 to 15. Default 7; 0 with --drafter none.")
    ] = None,
    vision: Annotated[bool, typer.Option("--vision", help="Plan the vision tower and its workspace too.")] = False,
    state_checkpoints: Annotated[
        int | None,
        typer.Option(
            help="Copies of a slot's state kept on the device, from which a prefix or a pause goes on. Default: 8; 0 for the "
            "reference."
        ),
    ] = None,
    prefill_chunk: Annotated[
        int | None, typer.Option(help="Most prompt tokens per round, a multiple of 64. Default: the layout's own.")
    ] = None,
    safety_margin: Annotated[str, typer.Option(help="Memory to leave free besides the headroom of 1 GiB.")] = "0",
    layout: Annotated[
        str, typer.Option(help=f"Whose arithmetic: {' or '.join(LAYOUTS)} (NInfer, for comparison).")
    ] = "paceline",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Plan the memory of MODEL on a device that need not be there: the table of reservations and what fits.

    Exit code 1 when it does not fit; the error says how many bytes are missing and which flags would help.
    """
    rules = choose("--layout", layout, LAYOUTS)
    device = find_device(device_memory, profile, available_after_weights)
    if drafter == AUTO:
        drafter = _brought(model, drafter_config)
    if draft_tokens is None:
        draft_tokens = 0 if drafter == NONE else DEFAULT_DRAFT_TOKENS
    slots = _slots(max_concurrency)
    chunk = rules.prefill_chunk if prefill_chunk is None else prefill_chunk
    _check(draft_tokens, drafter, chunk)
    options = SubjectOptions(model, weights, kv_dtype, drafter, drafter_config)
    subject, form = find_subject(options, device)
    demand = Demand(
        max_concurrency=slots[-1],
        draft_tokens=draft_tokens,
        max_context=PAGE_TOKENS,
        kv_dtype=kv_dtype,
        drafter=options.drafter,
        prefill_chunk=chunk,
        vision=vision,
        state_checkpoints=rules.state_checkpoints if state_checkpoints is None else state_checkpoints,
        kv_capacity=None if kv_capacity == AUTO else _tokens("--kv-capacity", kv_capacity),
        safety_bytes=parse_bytes("--safety-margin", safety_margin),
    )
    check_demand(rules, subject, demand)
    planner = Planner(rules, subject, device)
    context = planner.auto_context(demand) if max_context == AUTO else _tokens("--max-context", max_context)
    demand = replace(demand, max_context=context)
    check_demand(rules, subject, demand)
    drafts = [k for k in sorted({*GRID_DRAFTS, draft_tokens}) if k <= planner.most_drafts(demand)]
    columns = slots if len(slots) > 1 else sorted({*GRID_SLOTS, *slots})
    answer = Answer(
        planner=planner,
        weights=form,
        layout=layout,
        plan=planner.plan(demand),
        largest=planner.largest(demand),
        law=planned_law(planner, demand),
        grid=list(planner.grid(demand, [c for c in columns if c <= rules.max_concurrency], drafts)),
    )
    if json:
        typer.echo(msgspec.json.encode(to_json(answer)).decode())
    else:
        print_plan(answer)
    if not answer.plan.fits:
        raise CapacityError(missing(answer))


def _brought(model: str, drafter_config: str | None) -> str:
    """What --drafter auto means here."""
    if drafter_config is not None:
        raise ConfigError("--drafter-config", drafter_config, "say whose it is: add --drafter")
    return brought_drafter(model) or DEFAULT_DRAFTER


def _slots(text: str) -> list[int]:
    """'8' → [8]; '1..16' → [1, …, 16]."""
    match = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", text)
    if match is None:
        raise ConfigError("--max-concurrency", text, "must be a whole number, or a range such as 1..16")
    first, last = int(match[1]), int(match[2] or match[1])
    if not 1 <= first <= last:
        raise ConfigError("--max-concurrency", text, "must start at 1 or more and not end before it starts")
    return list(range(first, last + 1))


def _tokens(flag: str, text: str) -> int:
    if not text.isdecimal():
        raise ConfigError(flag, text, f"must be a whole number of tokens, or {AUTO}")
    return int(text)


def _check(draft_tokens: int, drafter: str, chunk: int) -> None:
    if not 0 <= draft_tokens <= MAX_DRAFT_TOKENS:
        fix = f"must be from 0 (no speculation) to {MAX_DRAFT_TOKENS}"
        raise ConfigError("--draft-tokens", draft_tokens, fix)
    if draft_tokens and drafter == NONE:
        raise ConfigError(
            "--draft-tokens", draft_tokens, "the drafter none proposes nothing; use 0, or another --drafter"
        )
    if chunk < PAGE_TOKENS or chunk % PAGE_TOKENS:
        raise ConfigError("--prefill-chunk", chunk, f"must be a multiple of {PAGE_TOKENS}, such as 512")

"""`paceline doctor`: what this machine has, what would fail, and why."""

import importlib.metadata
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from paceline import __version__
from paceline.build import EngineOptions, cache_folder
from paceline.cli.acceptance import CONCURRENCY, CONTEXT_TOKENS, Measured, measure_acceptance
from paceline.cli.options import DrafterPath, DraftTokens, Weights, resolve_config
from paceline.core.config import EngineConfig
from paceline.core.errors import ConfigError, PacelineError
from paceline.core.units import format_bytes

Level = Literal["ok", "warn", "fail"]


class Check(msgspec.Struct, frozen=True):
    """`fix` is empty when nothing needs to be done."""

    name: str
    level: Level
    found: str
    fix: str = ""


def doctor(
    model: Annotated[
        str | None, typer.Argument(help="With --drafter: the model to check the drafter of, as in paceline serve.")
    ] = None,
    drafter: Annotated[
        str | None, typer.Option(help="Run a few prompts with this drafter, and say whether it really drafts.")
    ] = None,
    drafter_path: DrafterPath = None,
    draft_tokens: DraftTokens = None,
    weights: Weights = "auto",
    port: Annotated[int, typer.Option(help="The port that paceline serve would use.")] = 8080,
    json: Annotated[bool, typer.Option("--json", help="Print the checks as a JSON list.")] = False,
) -> None:
    """Check Python, torch, the CPU, GPU and driver, memory and who holds it, disk and port; say what would fail and why.

    With MODEL and --drafter also the drafter: a broken one changes no reply and raises no error, it is only slow. Its
    acceptance on built-in prompts is compared with what its config states. The exit code is 1 when a check fails.
    """
    config = _drafting(model, drafter, drafter_path, draft_tokens, weights)
    checks: list[Check] = []
    for look in (_python, _torch, _cpu, _kernels, _gpu, _memory, _disk, lambda: _port(port)):
        checks.extend(_guarded(look))
    if config is not None:
        checks.append(_drafter(config))
    if json:
        typer.echo(msgspec.json.encode(checks).decode())
    else:
        _print(checks)
    if any(check.level == "fail" for check in checks):
        raise typer.Exit(1)


def _guarded(look: Callable[[], list[Check]]) -> list[Check]:
    """A check that breaks is a finding, not the end of the report."""
    try:
        return look()
    except Exception as error:
        return [Check(look.__name__.strip("_"), "fail", f"{type(error).__name__}: {error}", "this check itself failed")]


def _print(checks: list[Check]) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("", "check", "found", "what to do"):
        table.add_column(heading, overflow="fold")
    marks = {"ok": "[green]ok[/]", "warn": "[yellow]warn[/]", "fail": "[red]FAIL[/]"}
    for check in checks:
        table.add_row(marks[check.level], check.name, check.found, check.fix)
    Console().print(table, highlight=False)


def _python() -> list[Check]:
    version = platform.python_version()
    good = sys.version_info >= (3, 11)
    found = f"Python {version} on {platform.platform()}, paceline {__version__}"
    return [Check("python", "ok" if good else "fail", found, "" if good else "install Python 3.11 or newer")]


def _torch() -> list[Check]:
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return [Check("torch", "fail", "not installed", "pip install 'torch>=2.11'")]
    major, minor = (int(part) for part in version.split(".")[:2])
    good = (major, minor) >= (2, 11)
    return [Check("torch", "ok" if good else "fail", version, "" if good else "pip install 'torch>=2.11'")]


def _cpu() -> list[Check]:
    flags, name = set[str](), platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        key, _, value = line.partition(":")
        if key.strip() == "flags":
            flags = set(value.split())
        elif key.strip() == "model name":
            name = value.strip()
    wanted = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
    have = [flag for flag in wanted if flag in flags]
    cores = len(os.sched_getaffinity(0))
    found = f"{name}, {cores} usable cores; {' '.join(have) or 'no vector extensions listed'}"
    if "avx512_bf16" in flags or "amx_bf16" in flags:
        return [Check("cpu", "ok", found)]
    return [Check("cpu", "warn", found, "no bf16 instructions: --weights bf16 is slow here, use int8 or int4")]


def _kernels() -> list[Check]:
    """The weight formats really run: torch's private CPU kernels may be missing in another version."""
    import torch

    from paceline.build import WEIGHT_CODECS

    checks = []
    for name in WEIGHT_CODECS:
        codec = WEIGHT_CODECS.get(name)
        weight = torch.randn(128, 64)
        planes = codec.encode(weight)
        x = torch.randn(3, 64).to(codec.dtype)
        try:
            got = codec.linear(planes)(x, 3).float()
        except (RuntimeError, AttributeError) as failure:
            fix = "this torch has no such kernel; choose another --weights or another torch"
            checks.append(Check(f"weights {name}", "warn", str(failure).splitlines()[0][:100], fix))
            continue
        want = x.float() @ codec.decode(planes).t()
        error = float((got - want).norm() / want.norm())
        level: Level = "ok" if error < 0.05 else "fail"
        checks.append(Check(f"weights {name}", level, f"runs, {error:.1e} from the reference", "" if level == "ok" else
                            "wrong results: do not use this format here"))  # fmt: skip
    return checks


def _gpu() -> list[Check]:
    if shutil.which("nvidia-smi") is None:
        return [Check("gpu", "ok", "no NVIDIA driver found; paceline runs on the CPU")]
    query = "--query-gpu=name,driver_version,memory.total,memory.free"
    gpus = _nvidia_smi(query).splitlines()
    holders = _nvidia_smi("--query-compute-apps=pid,process_name,used_memory").splitlines()
    found = "; ".join(gpus) + (f"; held by {'; '.join(holders)}" if holders else "; nothing holds its memory")
    return [Check("gpu", "ok", f"{found} (this version runs on the CPU)")]


def _nvidia_smi(query: str) -> str:
    command = ["nvidia-smi", query, "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()


def _memory() -> list[Check]:
    lines = Path("/proc/meminfo").read_text().splitlines()
    info = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    available, total = info["MemAvailable"], info["MemTotal"]
    holders = ", ".join(f"{name} (pid {pid}) {format_bytes(size)}" for size, pid, name in _largest_processes(3))
    found = f"{format_bytes(available)} free of {format_bytes(total)}; largest: {holders}"
    short = available < 2**31
    return [Check("memory", "warn" if short else "ok", found, "small models need about 2 GiB free" if short else "")]


def _largest_processes(count: int) -> list[tuple[int, int, str]]:
    """(resident bytes, pid, name) of the processes that hold the most memory; those that end meanwhile are left out."""
    page = os.sysconf("SC_PAGE_SIZE")
    found: list[tuple[int, int, str]] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                resident = int((folder / "statm").read_text().split()[1]) * page
                found.append((resident, int(folder.name), (folder / "comm").read_text().strip()))
            except (OSError, IndexError):
                continue
    return sorted(found, reverse=True)[:count]


def _disk() -> list[Check]:
    folder = cache_folder()
    place: Any = folder
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if not os.access(place, os.W_OK):
        return [Check("cache folder", "fail", f"{folder} cannot be written", "set PACELINE_CACHE to a folder that can")]
    short = free < 2**30
    fix = "less than 1 GiB: free some space, or set PACELINE_CACHE to another disk" if short else ""
    return [Check("cache folder", "warn" if short else "ok", f"{folder}, {format_bytes(free)} free", fix)]


def _port(port: int) -> list[Check]:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            fix = "stop what uses it, or serve with another --port"
            return [Check("port", "warn", f"{port}: {error.strerror}", fix)]
    return [Check("port", "ok", f"{port} is free")]


def _drafting(
    model: str | None, drafter: str | None, path: str | None, draft_tokens: int | None, weights: str
) -> EngineConfig | None:
    """The engine to check a drafter with; None where no check was asked for."""
    if model is None and drafter is None and path is None and draft_tokens is None:
        return None
    if model is None:
        raise ConfigError("MODEL", "nothing", "name the model that the drafter is for")
    if drafter is None or drafter == "none" or draft_tokens == 0:
        what, value = ("--draft-tokens", draft_tokens) if draft_tokens == 0 else ("--drafter", drafter or "nothing")
        raise ConfigError(what, value, "nothing would be drafted; name the drafter to check and a K of at least 1")
    return resolve_config(
        EngineOptions(
            model=model,
            weights=weights,
            drafter=drafter,
            drafter_path=path,
            draft_tokens=draft_tokens,
            max_concurrency=CONCURRENCY,
            max_context=CONTEXT_TOKENS,
        )
    )


def _drafter(config: EngineConfig) -> Check:
    name = f"drafter {config.drafter}"
    try:
        measured = measure_acceptance(config)
    except PacelineError as error:
        return Check(name, "fail", str(error), "correct or replace what is named there")
    found = _acceptance(measured, config.draft_tokens)
    if measured.dead:
        return Check(name, "fail", f"dead: {found}", _causes(config))
    if measured.low:
        fix = f"it may be weak at such text only; else {_causes(config)}"
        return Check(name, "warn", f"low: {found}", fix)
    return Check(name, "ok", f"ok: {found}")


def _acceptance(measured: Measured, k: int) -> str:
    stated = measured.stated
    says = "its config states nothing" if stated.k is None else f"its config states {stated.share:.1%} for K={stated.k}"
    per_round = 1 + measured.accepted / max(measured.rounds, 1)
    return (
        f"{measured.accepted} of {measured.proposed} drafts accepted ({measured.share:.1%}) at K={k}, "
        f"{per_round:.2f} tokens/round; {says}"
    )


def _causes(config: EngineConfig) -> str:
    """The likely ones first; which of them it is cannot be seen from the outside."""
    text = "it was trained with another chat template or thinking mode"
    if config.drafter_path is None:
        return f"likely causes: the head belongs to other weights than these (a fine-tune kept the old one); {text}"
    return (
        "likely causes: wrong taps in its config.json (target_layer_ids count blocks from 0, in training order); wrong "
        f"mask_token_id; it was trained for another target, or other weights of it; {text}"
    )

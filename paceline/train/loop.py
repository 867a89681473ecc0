"""One training loop for every stage: a budget of wall-clock time, cosine decay over it, checkpoints, JSON lines.

Hidden matrices are trained by Muon (AdamW's step size), everything else by AdamW; lookup tables can get a larger rate.
A stage that is interrupted resumes from its checkpoint with the time it had used and its generators as they were. Where
`max_steps` decides the rates (on the CPU), it ends with the same bits as without the interruption; rates that follow the
clock differ a little from run to run. Knows nothing of models.
"""

import json
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from paceline.core.errors import TrainingError

Figures = dict[str, torch.Tensor]
LossFn = Callable[[], tuple[torch.Tensor, Figures]]


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """`minutes` is the budget; `max_steps` ends earlier (tests). Rates are peaks; they fall to `floor` of it."""

    minutes: float
    max_steps: int | None = None
    matrix_rate: float = 4e-3
    rate: float = 3e-3
    table_rate: float = 1e-2
    weight_decay: float = 0.02
    warmup_steps: int = 100
    floor: float = 0.02
    clip: float = 1.0
    log_every: int = 50
    save_every_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Outcome:
    steps: int
    seconds: float
    loss: float
    figures: dict[str, float]


def optimizers(module: nn.Module, s: LoopSettings, tables: Iterable[str] = ()) -> list[torch.optim.Optimizer]:
    """Muon for 2-D weights of linears, AdamW for the rest; `tables` are name endings of lookup tables with `table_rate`."""
    matrices, tabled, decayed, plain = [], [], [], []
    for name, parameter in module.named_parameters():
        if name.endswith(tuple(tables)):
            tabled.append(parameter)
        elif parameter.ndim == 2 and "embed" not in name and min(parameter.shape) >= 32:
            matrices.append(parameter)
        elif parameter.ndim >= 2:
            decayed.append(parameter)
        else:
            plain.append(parameter)
    groups = [
        {"params": tabled, "lr": s.table_rate, "weight_decay": 0.0},
        {"params": decayed, "lr": s.rate, "weight_decay": s.weight_decay},
        {"params": plain, "lr": s.rate, "weight_decay": 0.0},
    ]
    adam = torch.optim.AdamW([g for g in groups if g["params"]], betas=(0.9, 0.95), fused=True)
    made: list[torch.optim.Optimizer] = [adam]
    if matrices:
        made.append(
            torch.optim.Muon(
                matrices, lr=s.matrix_rate, weight_decay=s.weight_decay, adjust_lr_fn="match_rms_adamw", momentum=0.95
            )
        )
    for optimizer in made:
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return made


def rate_share(done: float, step: int, s: LoopSettings) -> float:
    """Share of the peak rate: linear warm-up by steps, cosine by the share of the budget that is used."""
    warm = min(1.0, (step + 1) / s.warmup_steps)
    return warm * (s.floor + (1 - s.floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


class Screen(Protocol):
    """Where a person watches a build."""

    def line(self, fields: dict[str, object]) -> None:
        """One line of the log."""

    def progress(self, fields: dict[str, object]) -> None:
        """The stage that runs; while it trains also step, done (a share), left_s, loss and figures. Not in the log."""


class Lines:
    """The log's lines as they are, on stdout."""

    def line(self, fields: dict[str, object]) -> None:
        print(json.dumps(fields), flush=True)

    def progress(self, fields: dict[str, object]) -> None:
        pass


class Log:
    """JSON lines to a file and to the screen."""

    def __init__(self, path: Path, screen: Screen | None = None) -> None:
        self._path, self._screen = path, screen or Lines()
        path.parent.mkdir(parents=True, exist_ok=True)

    def __call__(self, **fields: object) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(fields) + "\n")
        self._screen.line(fields)

    def progress(self, **fields: object) -> None:
        self._screen.progress(fields)


def checkpoint_file(folder: Path, stage: str) -> Path:
    """Where an unfinished stage stands; gone when it is finished."""
    return folder / f"{stage}.checkpoint.pt"


def train(
    stage: str,
    module: nn.Module,
    loss_fn: LossFn,
    s: LoopSettings,
    folder: Path,
    log: Log,
    tables: Iterable[str] = (),
    noise: torch.Generator | None = None,
) -> Outcome:
    """Trains until the budget is used. `loss_fn` draws its own batch, from torch's default generators and from `noise`.

    Raises TrainingError when the loss is not finite.
    """
    made = optimizers(module, s, tables)
    checkpoint = checkpoint_file(folder, stage)
    step, used, figures, loss_value = 0, 0.0, {}, float("nan")
    if checkpoint.exists():
        step, used = _load(checkpoint, module, made, noise)
        log(stage=stage, resumed_at=step, used_s=round(used, 1))
    parameters = [p for p in module.parameters() if p.requires_grad]
    start, saved = time.monotonic() - used, time.monotonic()
    while True:
        used = time.monotonic() - start
        done = max(used / (60 * s.minutes), step / s.max_steps if s.max_steps else 0.0)
        if done >= 1.0:
            break
        share = rate_share(done, step, s)
        loss, seen = loss_fn()
        torch.autograd.backward(loss)
        norm = nn.utils.clip_grad_norm_(parameters, s.clip)
        for optimizer in made:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * share
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        step += 1
        logged = step % s.log_every == 0 or step == s.max_steps
        # Reading the loss waits for the device, so that the clock above tells the truth within a few steps.
        if step % 10 == 0 or logged:
            loss_value = float(loss.detach())
            if not math.isfinite(loss_value):
                raise TrainingError(f"{stage}: the loss is {loss_value} at step {step}; lower the rates")
            figures = {name: round(float(value), 4) for name, value in seen.items()}
            log.progress(stage=stage, step=step, done=done, left_s=used / done * (1 - done) if done else 60 * s.minutes,
                         loss=loss_value, **figures)  # fmt: skip
        if logged:
            log(stage=stage, step=step, used_s=round(time.monotonic() - start, 1), loss=round(loss_value, 4),
                norm=round(float(norm), 3), share=round(share, 4), **figures)  # fmt: skip
        if time.monotonic() - saved > s.save_every_s:
            _save(checkpoint, module, made, noise, step, time.monotonic() - start)
            saved = time.monotonic()
    checkpoint.unlink(missing_ok=True)
    return Outcome(step, used, loss_value, figures)


def _save(
    path: Path,
    module: nn.Module,
    made: list[torch.optim.Optimizer],
    noise: torch.Generator | None,
    step: int,
    used: float,
) -> None:
    state = {
        "module": module.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in made],
        "noise": [generator.get_state() for generator in _generators(module, noise)],
        "step": step,
        "used": used,
    }
    temporary = path.with_suffix(".part")
    torch.save(state, temporary)
    temporary.replace(path)


def _load(
    path: Path, module: nn.Module, made: list[torch.optim.Optimizer], noise: torch.Generator | None
) -> tuple[int, float]:
    """→ steps that were made, seconds that were used"""
    kept: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
    module.load_state_dict(kept["module"])
    for optimizer, state in zip(made, kept["optimizers"], strict=True):
        optimizer.load_state_dict(state)
    for generator, state in zip(_generators(module, noise), kept["noise"], strict=True):
        generator.set_state(state)
    return kept["step"], kept["used"]


def _generators(module: nn.Module, noise: torch.Generator | None) -> list[torch.Generator]:
    """All that a step may draw from: the CPU's default generator, the device's, and the feed's own."""
    device = next(module.parameters()).device
    defaults = [torch.default_generator]
    if device.type == "cuda":
        defaults.append(torch.cuda.default_generators[device.index or 0])
    return [*defaults, *([noise] if noise is not None else [])]

"""The training loop: an interruption changes nothing but the time, and a loss that is not finite ends it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from paceline.core.errors import TrainingError
from paceline.train.loop import Log, LoopSettings, train

SETTINGS = LoopSettings(5.0, max_steps=10, save_every_s=-1.0, log_every=5)


class Run:
    """A module, its noise, and how often its loss was asked for; interrupted at call `stop`."""

    def __init__(self, folder: Path, stop: int = 99) -> None:
        torch.manual_seed(0)
        self.module = nn.Linear(64, 64)
        self.noise = torch.Generator().manual_seed(1)
        self.folder, self.stop, self.calls = folder, stop, 0

    def loss(self) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        self.calls += 1
        if self.calls > self.stop:
            raise KeyboardInterrupt
        inputs = torch.rand(4, 64, generator=self.noise) + torch.rand(4, 64)
        return self.module(inputs).pow(2).mean(), {"own": inputs.mean()}

    def train(self) -> int:
        log = Log(self.folder / "log.jsonl")
        return train("x", self.module, self.loss, SETTINGS, self.folder, log, noise=self.noise).steps


def test_a_stage_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    whole = Run(tmp_path / "whole")
    assert whole.train() == 10
    with pytest.raises(KeyboardInterrupt):
        Run(tmp_path / "cut", stop=6).train()
    again = Run(tmp_path / "cut")
    assert (again.train(), again.calls) == (10, 4)
    assert torch.equal(again.module.weight, whole.module.weight)
    assert torch.equal(again.module.bias, whole.module.bias)
    assert not (tmp_path / "cut" / "x.checkpoint.pt").exists()
    lines = [json.loads(line) for line in (tmp_path / "cut" / "log.jsonl").read_text().splitlines()]
    assert [line.get("step", line.get("resumed_at")) for line in lines] == [5, 6, 10]


def test_a_loss_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    module = nn.Linear(4, 4)

    def loss() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return module.weight.sum() * float("nan"), {}

    with pytest.raises(TrainingError, match="x: the loss is nan at step 5; lower the rates"):
        train("x", module, loss, SETTINGS, tmp_path, Log(tmp_path / "log"))


def test_the_screen_follows_more_closely_than_the_log(tmp_path: Path) -> None:
    class Watcher:
        def __init__(self) -> None:
            self.lines: list[dict[str, object]] = []
            self.seen: list[dict[str, object]] = []

        def line(self, fields: dict[str, object]) -> None:
            self.lines.append(fields)

        def progress(self, fields: dict[str, object]) -> None:
            self.seen.append(fields)

    run, watcher = Run(tmp_path), Watcher()
    settings = replace(SETTINGS, max_steps=40, log_every=20)
    train("x", run.module, run.loss, settings, tmp_path, Log(tmp_path / "log", watcher))
    assert [line["step"] for line in watcher.lines] == [20, 40]
    assert [fields["step"] for fields in watcher.seen] == [10, 20, 30, 40]
    # The share of the step that just ended: 9 of 40 were made when the tenth began.
    assert [fields["done"] for fields in watcher.seen] == [9 / 40, 19 / 40, 29 / 40, 39 / 40]
    assert all({"stage", "loss", "own"} <= fields.keys() and fields["left_s"] >= 0 for fields in watcher.seen)  # type: ignore[operator]

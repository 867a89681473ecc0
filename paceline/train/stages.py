"""A build: stages over one folder, each made once for its settings, and made again when its inputs were.

summary.json holds what every finished stage reported; stages.json holds the settings it was started with, the number of
times it was made (`run`), and from which runs of other stages. Both are written before and after every stage, so that a
build that was killed goes on where it stood. log.jsonl is what happened. Knows nothing of what the stages make.
"""

import json
import os
import platform
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import paceline
from paceline.core.errors import ConfigError
from paceline.core.machine import cpu_name
from paceline.train.files import write_json
from paceline.train.loop import Log, checkpoint_file

SUMMARY_FILE, STAGES_FILE, LOG_FILE = "summary.json", "stages.json", "log.jsonl"
Report = dict[str, object]


@dataclass(frozen=True, slots=True)
class Stage:
    """`make` leaves `files` (relative to the folder) and returns what summary.json is to say.

    `settings` (anything that JSON can hold; tuples become lists) is all that decides the result besides the files of the
    stages in `needs`. `trains` if it has a loss worth drawing when it is done.
    """

    name: str
    make: Callable[[], Report]
    settings: dict[str, Any]
    files: tuple[str, ...]
    needs: tuple[str, ...] = ()
    trains: bool = False


class Runner:
    """The only writer of a build's summary.json and stages.json. `draw` is called after training stages and at the end."""

    def __init__(self, folder: Path, log: Log, draw: Callable[[], None] = lambda: None) -> None:
        self.folder, self.log, self._draw = folder, log, draw
        self.results: dict[str, Report] = _read(folder / SUMMARY_FILE)
        self._records: dict[str, dict[str, Any]] = _read(folder / STAGES_FILE)

    def run(self, stages: Sequence[Stage], device: torch.device, wanted: Iterable[str] | None = None) -> None:
        """The wanted stages (all by default) in the order of `stages`, in which a stage comes after those it needs.

        Raises ConfigError for a name that is no stage, for a stage whose inputs are neither there nor wanted, and for one that
        is there with other settings: only who names it means to lose it.
        """
        plan = self._plan(stages, wanted)
        self.log(start=_facts(device))
        for name, why in plan.items():
            stage = next(stage for stage in stages if stage.name == name)
            if why is None:
                self.log(stage=name, skipped="made before with the same settings")
                continue
            self._make(stage, why, stages)
            if stage.trains:
                self._draw()
        self._draw()

    def _plan(self, stages: Sequence[Stage], wanted: Iterable[str] | None) -> dict[str, str | None]:
        """The wanted stages, and why each must be made; None where it is there already."""
        names = [stage.name for stage in stages]
        chosen = set(names if wanted is None else wanted)
        for name in sorted(chosen - set(names)):
            raise ConfigError("--stages", name, f"must be of {', '.join(names)}")
        why: dict[str, str | None] = {}
        above: dict[str, list[str]] = {}
        for stage in stages:
            why[stage.name] = self._why(stage, why)
            above[stage.name] = [name for need in stage.needs for name in (*above[need], need)]
            change = self._change(stage)
            if wanted is None and change is not None:
                fix = f"give the flags of before, --stages {stage.name} to make it again, or another folder"
                raise ConfigError("--out", self.folder, f"{stage.name} is there with other settings ({change}); {fix}")
        for name in [name for name in names if name in chosen and why[name]]:
            lacking = [other for other in names if other in above[name] and other not in chosen and why[other]]
            if lacking:
                fix = f"needs {', '.join(lacking)} ({lacking[0]}: {why[lacking[0]]})"
                raise ConfigError("--stages", name, f"{fix}; add them, or give the flags that they were made with")
        return {name: reason for name, reason in why.items() if name in chosen}

    def _why(self, stage: Stage, before: dict[str, str | None]) -> str | None:
        """Why a stage must be made; `before` has the answers for the stages before it."""
        record, change = self._records.get(stage.name), self._change(stage)
        if record is None:
            return "not made yet"
        if change is not None:
            return change
        for need in stage.needs:
            if before[need] is not None:
                return f"it is made from {need}"
            if record["inputs"].get(need) != self._records[need]["run"]:
                return f"{need} was made again"
        if stage.name not in self.results:
            return "it was interrupted"
        missing = next((file for file in stage.files if not (self.folder / file).exists()), None)
        return missing and f"{missing} is missing"

    def _change(self, stage: Stage) -> str | None:
        """The first setting that is not what the stage was made or begun with."""
        record = self._records.get(stage.name)
        return _difference(record["settings"], _plain(stage.settings)) if record else None

    def _make(self, stage: Stage, why: str, stages: Sequence[Stage]) -> None:
        before = self._records.get(stage.name)
        inputs = {need: self._records[need]["run"] for need in stage.needs}
        record: dict[str, Any] = {
            "settings": _plain(stage.settings),
            "inputs": inputs,
            "run": before["run"] if before else 1,
        }
        if record != before or stage.name in self.results:
            checkpoint_file(self.folder, stage.name).unlink(missing_ok=True)
            if before is not None:
                record["run"] += 1
                self.log(stage=stage.name, again=why)
        # What was made from the old result no longer counts.
        stale = {stage.name}
        for other in stages:
            if stale & set(other.needs):
                stale.add(other.name)
        self.results = {name: result for name, result in self.results.items() if name not in stale}
        self._records[stage.name] = record
        self._write()
        self.log.progress(stage=stage.name)
        result = stage.make()
        self.results[stage.name] = result
        self._write()
        self.log(stage=stage.name, done=True, **result)

    def _write(self) -> None:
        # In this order: if it ends between the two, an old result must not stand beside a new record.
        write_json(self.folder / SUMMARY_FILE, self.results)
        write_json(self.folder / STAGES_FILE, self._records)


def open_folder(folder: Path) -> None:
    """Makes the folder of a build, or raises ConfigError if nothing can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".{os.getpid()}.part"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigError("--out", folder, f"cannot be written ({error.strerror}); choose another folder") from None


def pick_device(name: str | None) -> torch.device:
    """cpu, cuda or cuda:N; by default the GPU where there is one. Raises ConfigError for what torch cannot use here."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ConfigError("--device", name, "must be cpu, cuda or cuda:N")
    found = torch.cuda.device_count()
    if name != "cpu" and not found:
        raise ConfigError("--device", name, "torch finds no CUDA device here; use --device cpu, or a torch with CUDA")
    if name != "cpu" and int(name.partition(":")[2] or 0) >= found:
        raise ConfigError("--device", name, f"torch finds {found} CUDA devices here, counted from 0; name one of them")
    return torch.device(name)


def _facts(device: torch.device) -> dict[str, str]:
    named = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()
    return {
        "device": f"{device} ({named})",
        "paceline": paceline.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def _read(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError("--out", file, f"is not JSON ({error}); remove it, and its stages are made again") from None
    return content


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """As JSON gives them back, so that they can be compared with a record."""
    plain: dict[str, Any] = json.loads(json.dumps(settings))
    return plain


def _difference(old: dict[str, Any], new: dict[str, Any], path: str = "") -> str | None:
    """The first setting that differs, in words."""
    for key in [*new, *(key for key in old if key not in new)]:
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found = _difference(a, b, f"{path}{key}.")
            if found:
                return found
        elif a != b:
            return f"{path}{key} was {json.dumps(a)} and is {json.dumps(b)} now"
    return None

"""The log of a build as data: curves of its training stages, what they reported, and with which settings.

Reads log.jsonl, summary.json and stages.json of a folder that `paceline train` writes; knows no stage by name but `eval`,
whose report is {drafter: {workload or "pooled": {tokens_per_round, rounds, joint, conditional}}}.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(slots=True)
class Curve:
    """A stage while it trained. `figures` has one list per logged figure, as long as `steps`; NaN where a line lacked it."""

    steps: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    figures: dict[str, list[float]] = field(default_factory=dict)

    def add(self, line: dict[str, Any]) -> None:
        for name in line.keys() - {"stage", "step", "used_s"} - self.figures.keys():
            self.figures[name] = [float("nan")] * len(self.steps)
        self.steps.append(line["step"])
        self.seconds.append(line["used_s"])
        for name, values in self.figures.items():
            values.append(float(line.get(name, "nan")))

    def cut(self, step: int) -> None:
        """Forgets what came after this step."""
        keep = sum(s <= step for s in self.steps)
        del self.steps[keep:], self.seconds[keep:]
        for values in self.figures.values():
            del values[keep:]


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """`start` says what the newest call ran on; `results` and `settings` are by stage."""

    name: str
    start: dict[str, str]
    curves: dict[str, Curve]
    results: dict[str, dict[str, Any]]
    settings: dict[str, dict[str, Any]]

    @property
    def acceptance(self) -> dict[str, dict[str, Any]]:
        """{drafter: {workload: report}}; empty before the evaluation."""
        return self.results.get("eval", {})


def read_run(folder: Path) -> TrainingRun:
    start: dict[str, str] = {}
    curves: dict[str, Curve] = {}
    for line in _lines(folder / "log.jsonl"):
        start = line.get("start", start)
        stage = line.get("stage", "")
        if "step" in line:
            # A stage that starts anew, or goes on from a checkpoint, repeats steps.
            curve = curves.setdefault(stage, Curve())
            curve.cut(line["step"] - 1)
            curve.add(line)
        elif "again" in line:
            curves.pop(stage, None)
    records = _object(folder / "stages.json")
    settings = {stage: record["settings"] for stage, record in records.items()}
    return TrainingRun(folder.resolve().name, start, curves, _object(folder / "summary.json"), settings)


def _lines(file: Path) -> list[dict[str, Any]]:
    """A process that was killed may have left half a line; it is nobody's figure."""
    lines = []
    for text in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return lines


def _object(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return found

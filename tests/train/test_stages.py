"""The runner of a build, with stages that write one word: what is there is skipped, what its inputs outdate is made again."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from paceline.core.errors import ConfigError
from paceline.train.loop import Log
from paceline.train.stages import Report, Runner, Stage, open_folder, pick_device

CPU = torch.device("cpu")


class Build:
    """a → b → c and a → d; counts what was made, and how often the plots were drawn."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: list[str] = []
        self.drawn = 0
        self.fails = ""

    def _make(self, name: str) -> Callable[[], Report]:
        def make() -> Report:
            self.made.append(name)
            (self.folder / f"{name}.txt").write_text(name)
            if name == self.fails:
                raise KeyboardInterrupt
            return {"length": 1}

        return make

    def _draw(self) -> None:
        self.drawn += 1

    def run(self, wanted: list[str] | None = None, **settings: dict[str, object]) -> list[str]:
        """→ the stages that were made"""
        self.made.clear()
        self.drawn = 0
        needs = {"a": (), "b": ("a",), "c": ("b",), "d": ("a",)}
        stages = [
            Stage(n, self._make(n), {"size": 1, **settings.get(n, {})}, (f"{n}.txt",), needs[n], trains=n == "b")
            for n in "abcd"
        ]
        Runner(self.folder, Log(self.folder / "log.jsonl"), self._draw).run(stages, CPU, wanted)
        return list(self.made)

    def said(self, key: str) -> dict[str, str]:
        """What the last run's log says under this key, by stage."""
        found: dict[str, str] = {}
        for line in map(json.loads, (self.folder / "log.jsonl").read_text().splitlines()):
            if "start" in line:
                found.clear()
            elif key in line:
                found[line["stage"]] = line[key]
        return found

    def results(self) -> list[str]:
        return list(json.loads((self.folder / "summary.json").read_text()))


@pytest.fixture
def build(tmp_path: Path) -> Build:
    return Build(tmp_path)


def test_what_is_there_is_skipped(build: Build) -> None:
    assert build.run() == ["a", "b", "c", "d"]
    assert build.drawn == 2  # after the one that trains, and at the end
    assert build.run() == []
    assert set(build.said("skipped")) == set("abcd")


def test_a_changed_setting_is_refused_unless_the_stage_is_named(build: Build) -> None:
    build.run()
    with pytest.raises(ConfigError, match=r"--out = .*: b is there with other settings \(size was 1 and is 2 now\)"):
        build.run(b={"size": 2})
    assert build.made == [] and build.results() == list("abcd")
    assert build.run(["b"], b={"size": 2}) == ["b"]
    assert build.said("again") == {"b": "size was 1 and is 2 now"}
    assert build.run(b={"size": 2}) == ["c"]
    assert build.said("again") == {"c": "b was made again"}
    assert set(build.said("skipped")) == {"a", "b", "d"}
    assert build.run(["b", "c"], b={"size": 2, "deep": {"x": [1]}}) == ["b", "c"]
    assert build.run(["b", "c"], b={"size": 2, "deep": {"x": [2]}}) == ["b", "c"]
    assert build.said("again") == {"b": "deep.x was [1] and is [2] now", "c": "it is made from b"}


def test_a_missing_result_is_made_again(build: Build) -> None:
    build.run()
    (build.folder / "a.txt").unlink()
    assert build.run() == ["a", "b", "c", "d"]
    assert build.said("again")["a"] == "a.txt is missing"


def test_what_was_made_from_an_older_run_is_made_again(build: Build) -> None:
    """Also when its settings are the same, and the older result was replaced in another call."""
    build.run()
    build.run(["a"], a={"size": 2})
    assert build.results() == ["a"]  # nothing shows figures that were made from the old one
    assert build.run(a={"size": 2}) == ["b", "c", "d"]
    assert build.said("again")["b"] == "a was made again"


@pytest.mark.parametrize("changed", [False, True])
def test_a_checkpoint_is_kept_for_the_same_settings_only(build: Build, changed: bool) -> None:
    build.fails = "b"
    with pytest.raises(KeyboardInterrupt):
        build.run()
    checkpoint = build.folder / "b.checkpoint.pt"
    checkpoint.touch()
    with pytest.raises(KeyboardInterrupt):
        build.run(["b"], b={"size": 2 if changed else 1})
    assert checkpoint.exists() == (not changed)
    assert build.results() == ["a"]
    build.fails = ""
    assert build.run(b={"size": 2 if changed else 1}) == ["b", "c", "d"]


def test_a_checkpoint_from_another_input_is_dropped(build: Build) -> None:
    build.fails = "b"
    with pytest.raises(KeyboardInterrupt):
        build.run()
    checkpoint = build.folder / "b.checkpoint.pt"
    checkpoint.touch()
    with pytest.raises(KeyboardInterrupt):
        build.run(["a", "b"], a={"size": 2})
    assert build.made == ["a", "b"] and not checkpoint.exists()


def test_only_the_wanted_stages_run(build: Build) -> None:
    assert build.run(["b", "a"]) == ["a", "b"]
    assert build.run(["c"]) == ["c"]
    assert build.results() == ["a", "b", "c"]


@pytest.mark.parametrize(
    "wanted,message",
    [
        (["x"], "--stages = x: must be of a, b, c, d"),
        (["c"], r"--stages = c: needs a, b \(a: not made yet\); add them, or give the flags that they were made with"),
        (["a", "c"], r"--stages = c: needs b \(b: not made yet\)"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_does(build: Build, wanted: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build.run(wanted)
    assert build.made == [] and not (build.folder / "log.jsonl").exists()


def test_inputs_that_are_stale_are_refused(build: Build) -> None:
    build.run()
    with pytest.raises(ConfigError, match=r"--stages = c: needs b \(b: it is made from a\)"):
        build.run(["a", "c"], a={"size": 2})


def test_inputs_with_other_settings_are_refused(build: Build) -> None:
    build.run(["a"])
    with pytest.raises(ConfigError, match=r"--stages = b: needs a \(a: size was 1 and is 2 now\)"):
        build.run(["b"], a={"size": 2})


def test_records_that_are_no_json_are_refused(build: Build) -> None:
    (build.folder / "stages.json").write_text("{")
    with pytest.raises(ConfigError, match=r"--out = .*stages.json: is not JSON .*; remove it"):
        build.run()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for folder in (file, file / "below", Path("/proc/none")):
        with pytest.raises(ConfigError, match=f"--out = {folder}: cannot be written"):
            open_folder(folder)
    open_folder(tmp_path / "new" / "one")
    assert list((tmp_path / "new" / "one").iterdir()) == []


@pytest.mark.parametrize("name", ["cuda:99", "tpu", "cuda:", "cpu:0", "cuda:x", ""])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"--device = {name}: (torch finds|must be cpu)"):
        pick_device(name)

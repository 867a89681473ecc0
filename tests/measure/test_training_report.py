"""The report of a training run: it shows what the log's last word is, and needs no other file."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from paceline.measure.training_log import read_run
from paceline.measure.training_plots import conditional_shares
from paceline.measure.training_report import write_training_report
from tests.kit.html import Tags


def step(stage: str, step: int, loss: float, **figures: float) -> dict[str, object]:
    return {"stage": stage, "step": step, "used_s": step / 10, "loss": loss, **figures}


def write(folder: Path, *lines: dict[str, object]) -> None:
    with (folder / "log.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two stages have trained; nothing is evaluated."""
    out = tmp_path / "a<b"
    out.mkdir()
    write(
        out,
        {"start": {"device": "cpu <one>"}},
        *(step("base", n, 5 / n, answer_loss=4 / n) for n in (10, 20, 30)),
        {"stage": "base", "done": True},
        *(step("head", n, 3 / n, tokens_per_round=1 + n / 20) for n in (10, 20)),
    )
    (out / "summary.json").write_text(json.dumps({"base": {"steps": 30, "seconds": 3.0, "loss": 0.1667}}))
    (out / "stages.json").write_text(json.dumps({"base": {"settings": {"loop": {"minutes": 7.0}}, "run": 1}}))
    return out


def test_plots_come_as_their_figures_do(folder: Path) -> None:
    write_training_report(folder)
    assert {file.name for file in (folder / "plots").iterdir()} == {"loss.svg", "tokens_per_round.svg"}
    shares = {"tokens_per_round": 1.5, "rounds": 7, "joint": [0.4, 0.1], "conditional": [0.4, 0.25]}
    results = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(results | {"eval": {"head": {"story": shares, "pooled": shares}}}))
    write_training_report(folder)
    assert (folder / "plots" / "acceptance.svg").exists()
    page = (folder / "report.html").read_text()
    assert page.count("<svg") == 3 and ">25.0 %<" in page and ">40 10 %<" in page
    (folder / "summary.json").write_text(json.dumps(results))
    write_training_report(folder)
    assert not (folder / "plots" / "acceptance.svg").exists()


def test_the_page_and_the_files_need_nothing_else(folder: Path) -> None:
    write_training_report(folder)
    page = (folder / "report.html").read_text()
    assert "a&lt;b: training" in page and "cpu &lt;one&gt;" in page and "base.loop.minutes</dt><dd>7.0" in page
    assert "://" not in page and "@import" not in page
    tags = Tags()
    tags.feed(page)
    assert tags.open == [] and all(target.startswith("#") for target in tags.references)
    for file in (folder / "plots").iterdir():
        text = file.read_text()
        ElementTree.fromstring(text)
        # A viewer of files knows neither the page's variables nor the stand-ins.
        assert not re.search(r"var\(|#0[0-9a]0[0-9a]", text), file


def test_steps_that_were_lost_are_not_shown(folder: Path) -> None:
    write(folder, {"stage": "head", "resumed_at": 10}, step("head", 12, 0.5, tokens_per_round=3))
    assert read_run(folder).curves["head"].steps == [10, 12]
    assert read_run(folder).curves["head"].figures["loss"] == [0.3, 0.5]


def test_a_stage_that_was_made_again_forgets_the_first_time(folder: Path) -> None:
    write(folder, {"stage": "base", "again": "x"}, step("base", 40, 0.1))
    assert read_run(folder).curves["base"].steps == [40]
    write(folder, step("base", 20, 0.2, answer_loss=0.1))
    curve = read_run(folder).curves["base"]
    assert (curve.steps, curve.figures["loss"], curve.figures["answer_loss"]) == ([20], [0.2], [0.1])


def test_half_a_line_is_nobodys_figure(folder: Path) -> None:
    with (folder / "log.jsonl").open("a") as file:
        file.write('{"stage": "head", "step": 3')
    assert read_run(folder).curves["head"].steps == [10, 20]


def test_positions_that_no_round_reached_are_not_drawn() -> None:
    assert conditional_shares({"joint": [0.4, 0.0, 0.0], "conditional": [0.4, 0.0, 0.0]}) == [0.4, 0.0]


def test_nothing_trained_yet(tmp_path: Path) -> None:
    write_training_report(tmp_path)
    assert "0 stages made" in (tmp_path / "report.html").read_text()
    assert list((tmp_path / "plots").iterdir()) == []

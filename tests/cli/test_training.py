"""What a terminal shows of a build: words for what ended or changed, one moving line for what runs."""

import io
import json
from typing import Any

from rich.console import Console

from paceline.cli.training import screen, split_names

STEP = {
    "stage": "mtp",
    "step": 1200,
    "loss": 0.21234,
    "done": 0.5,
    "left_s": 61.6,
    "tokens_per_round": 3.456,
    "joint_1": 0.9,
}


def shown(*calls: tuple[str, dict[str, Any]]) -> str:
    out = io.StringIO()
    with screen(Console(file=out, force_terminal=True, width=200, no_color=True, highlight=False)) as terminal:
        assert terminal is not None
        for kind, fields in calls:
            getattr(terminal, kind)(json.loads(json.dumps(fields)))
            terminal._bar.refresh()
    return out.getvalue()


def test_a_training_stage_is_one_moving_line() -> None:
    text = shown(("progress", {"stage": "mtp"}), ("progress", STEP), ("line", STEP))
    assert "step 1,200 · loss 0.2123 · 3.46 tokens/round · 1:02 left" in text
    assert "joint" not in text and "0.5" not in text


def test_a_stage_that_begins_shows_nothing_of_the_last_one() -> None:
    text = shown(("progress", {"stage": "mtp"}), ("progress", STEP), ("progress", {"stage": "eval"}))
    assert "loss" not in text.rpartition("eval")[2]


def test_what_ended_or_changed_is_said_in_words() -> None:
    pooled = {"pooled": {"tokens_per_round": 3.8, "joint": [0.9]}, "story": {"tokens_per_round": 1.5}}
    text = shown(
        ("line", {"start": {"device": "cpu", "torch": "2"}}),
        ("line", {"stage": "corpus", "skipped": "made before with the same settings"}),
        ("line", {"stage": "mtp", "resumed_at": 1000, "used_s": 3.5}),
        ("line", {"stage": "mtp", "done": True, "parameters": 1234567, "accuracy_1": 0.9}),
        ("line", {"stage": "eval", "done": True, "mtp": pooled}),
    )
    for words in (
        "start device cpu · torch 2",
        "corpus skipped made before with the same settings",
        "mtp resumed at 1,000 · used s 3.5",
        "mtp parameters 1,234,567\n",
        "eval mtp 3.8 tokens/round\n",
    ):
        assert words in text.replace("\x1b[1m", "").replace("\x1b[0m", "").replace("\r", ""), words


def test_without_a_terminal_the_log_is_the_screen() -> None:
    with screen(Console(file=io.StringIO())) as nothing:
        assert nothing is None


def test_names_with_commas() -> None:
    assert split_names(None) is None
    assert split_names("a, b") == ["a", "b"]

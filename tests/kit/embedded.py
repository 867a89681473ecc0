"""The shipped model, loaded once: real drafters, and text that they were trained for."""

from functools import cache
from pathlib import Path

import paceline
from paceline.build import EngineOptions, configure, open_text
from paceline.drafters import DRAFTERS, WEIGHTS_FROM
from paceline.drafters.base import Drafter, Target, WeightsFrom
from paceline.runner.drafter import CheckpointSource
from tests.kit.run import Maker, Model, load

FOLDER = Path(paceline.__file__).parent / "embedded"
PROMPTS = (
    "Give me a JSON object for a person named Anna, age 31, living in Paris.",
    "Write a Python function that adds two numbers.",
    "Translate to French: the cat sleeps.",
    "Tom has 12 apples and buys 7 more. How many apples does he have?",
    "Tell me a short story about a fox and a raven.",
)


@cache
def model() -> Model:
    return load(FOLDER, "bf16")


@cache
def _text() -> tuple[object, ...]:
    return open_text(configure(EngineOptions(model="embedded", weights="bf16", drafter="none", threads=1)))


def chat(*turns: str) -> list[int]:
    """Token ids of a chat: user and assistant in turn, the user first and last."""
    tokenizer, template, _ = _text()
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]
    return tokenizer.encode(template.render(messages, {}))  # type: ignore[attr-defined,no-any-return]


def stop_ids() -> list[int]:
    return list(_text()[0].generation.eos_ids)  # type: ignore[attr-defined]


def maker(name: str) -> Maker:
    """Builds the drafter that ships with the model."""

    def make(target: Target) -> Drafter:
        source = None
        if WEIGHTS_FROM[name] is not WeightsFrom.NOTHING:
            home = FOLDER if WEIGHTS_FROM[name] is WeightsFrom.TARGET else FOLDER / "drafters" / name
            source = CheckpointSource(home)
        return DRAFTERS.get(name)(target, source)

    return make

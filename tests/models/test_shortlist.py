"""Shortened draft heads with the model that the package ships: other drafts, the same replies."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

import paceline
from paceline.build import EngineOptions, configure, open_text
from paceline.core.config import EngineConfig
from paceline.core.errors import CheckpointError
from paceline.core.messages import Event, Tokens
from paceline.core.request import Request
from paceline.engine.loop import Engine
from paceline.runner.backend import TorchBackend, make_backend
from tests.kit.run import sampling

EMBEDDED = Path(paceline.__file__).parent / "embedded"
PROMPTS = (
    "Give me a JSON object for a person named Anna, age 31, living in Paris.",
    "Translate to French: the cat sleeps.",
)
DRAFTERS = {"mtp": 3, "dflash": 7, "dflash2": 7}


def configured(drafter: str = "dflash2", head: str = "full", model: str = "embedded") -> EngineConfig:
    options = EngineOptions(model=model, weights="bf16", drafter=drafter, draft_head=head, max_concurrency=2, threads=1)
    return configure(options)


@dataclass
class Watched:
    """Replies, all drafts that were made, and whether a reply's last token was a draft that the target agreed to."""

    ids: list[list[int]] = field(default_factory=lambda: [[] for _ in PROMPTS])
    drafts: set[int] = field(default_factory=set)
    accepted: int = 0
    drafted_ends: int = 0


def run(config: EngineConfig, temperature: float, backend: TorchBackend | None = None) -> Watched:
    backend = backend or make_backend(config)
    tokenizer, template, _ = open_text(config)
    seen, ends = Watched(), tokenizer.generation.eos_ids

    def take(event: Event) -> None:
        if isinstance(event, Tokens):
            seen.ids[event.id] += event.ids
            seen.accepted += event.accepted
            seen.drafted_ends += event.ids[-1] in ends and event.accepted == len(event.ids)

    engine = Engine(backend, config, take)
    for i, text in enumerate(PROMPTS):
        prompt = tokenizer.encode(template.render([{"role": "user", "content": text}], {}))
        params = sampling(temperature=temperature, top_p=0.95, presence_penalty=1.0 if temperature else 0.0)
        engine.submit(Request(id=i, prompt=prompt, max_tokens=40, sampling=params, stop_ids=ends))
    while engine.busy:
        engine.step()
        for slot in backend.runner.slots.values():
            seen.drafts.update(slot.drafts)
    return seen


@pytest.fixture(scope="module")
def plain() -> dict[float, list[list[int]]]:
    return {temperature: run(configured("none"), temperature).ids for temperature in (0.0, 0.7)}


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_other_drafts_the_same_replies(drafter: str, plain: dict[float, list[list[int]]]) -> None:
    """Few tokens, so that much is missing: drafts keep to them, and nothing else changes."""
    short = configured(drafter, "shortlist:400")
    assert short.draft_head == "shortlist:400" and len(short.shortlist) == 400
    assert set(short.shortlist) < set(range(short.sampled_vocab))
    for temperature, expected in plain.items():
        whole, part = run(configured(drafter), temperature), run(short, temperature)
        assert whole.ids == part.ids == expected
        assert part.drafts <= set(short.shortlist) and not whole.drafts <= set(short.shortlist)
        assert 0 < part.accepted < whole.accepted


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_shortlist_of_everything_drafts_as_the_full_head(drafter: str) -> None:
    every = configured(drafter, "shortlist:4096")
    assert every.shortlist == tuple(range(4096))
    for temperature in (0.0, 0.7):
        whole, part = run(configured(drafter), temperature), run(every, temperature)
        assert (whole.ids, whole.accepted, whole.drafts) == (part.ids, part.accepted, part.drafts)


def test_ends_and_special_tokens_are_on_every_shortlist() -> None:
    config = configured(head="shortlist:16")
    tokenizer, _, _ = open_text(config)
    for text in ("<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>"):
        (special,) = tokenizer.encode(text)
        assert special in config.shortlist
    assert run(configured(head="shortlist:1500"), 0.0).drafted_ends > 0


@pytest.mark.parametrize("drafter", ["mtp", "dflash2"])
def test_the_heads_copy_counts_as_the_drafters(drafter: str) -> None:
    """bf16 rows of 256: as many bytes more as the tokens need; the target's own stay the same."""
    full, short = (make_backend(configured(drafter, head)).facts() for head in ("full", "shortlist:600"))
    assert short["drafter_weights_bytes"] - full["drafter_weights_bytes"] == 600 * 256 * 2  # type: ignore[operator]
    assert short["weights_bytes"] == full["weights_bytes"]


@pytest.mark.parametrize("weights", ["fp32", "bf16", "int8", "int4"])
def test_scores_are_those_of_the_whole_head(weights: str) -> None:
    """In every format: what the shortened head gives for its ids is what the model gives for them, up to rounding."""
    options = EngineOptions(model="embedded", weights=weights, drafter="mtp", draft_head="shortlist", threads=1)
    config = configure(options)
    backend = make_backend(config)
    head = backend.drafter.target.head  # type: ignore[attr-defined]
    assert head.ids.tolist() == list(config.shortlist) == sorted(config.shortlist) and len(head.ids) == 2048
    hidden = torch.randn(5, 256, generator=torch.Generator().manual_seed(1)).to(backend.runner.model.dtype)
    torch.testing.assert_close(
        head.logits(hidden), backend.runner.model.logits(hidden)[:, head.ids], rtol=1e-2, atol=1e-2
    )


def test_a_measured_ranking_goes_first_the_drafters_before_the_models(tmp_path: Path) -> None:
    model = tmp_path / "copy"
    shutil.copytree(EMBEDDED, model)
    special = list(range(16))

    def chosen(model_says: Sequence[int], drafter_says: Sequence[int]) -> list[int]:
        for folder, ids in ((model, model_says), (model / "drafters" / "dflash2", drafter_says)):
            (folder / "shortlist.json").unlink(missing_ok=True)
            if ids:
                (folder / "shortlist.json").write_text(json.dumps(ids))
        return list(configured(head="shortlist:19", model=str(model)).shortlist)

    assert chosen([4000, 3000, 2000, 1000], ()) == [*special, 2000, 3000, 4000]
    assert chosen([4000, 3000, 2000], [500, 400, 600]) == [*special, 400, 500, 600]
    assert set(chosen([4000], ())) > {*special, 4000}
    with pytest.raises(CheckpointError, match="4096"):
        chosen([4096], ())


def test_without_drafts_there_is_no_shortlist() -> None:
    options = EngineOptions(model="embedded", weights="bf16", drafter="mtp", draft_tokens=0, draft_head="shortlist")
    assert configure(options).draft_head == "full"

"""Invariant 1 for memory: the same tokens with and without pauses, with the prefix cache on and off, bit for bit."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from paceline.core.request import Request
from paceline.drafters import DRAFTERS
from paceline.drafters.ngram import NgramDrafter
from paceline.runner.drafter import CheckpointSource
from paceline.scheduler.queue import RequestQueue, Sequence
from tests.kit import drafter_files, models
from tests.kit.run import Maker, Reply, load, run, sampling

HYBRID = models.hybrid_config(values=6)
SAMPLINGS = {
    "greedy": sampling(),
    "drawn": sampling(temperature=0.8, seed=5, top_k=20, presence_penalty=1.0, repetition_penalty=1.1),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return drafter_files.write_targets_and_drafters(tmp_path_factory.mktemp("memory"), HYBRID)


def maker(name: str, folders: dict[str, Path]) -> Maker | None:
    if name == "none":
        return None
    if name == "ngram":
        return lambda target: NgramDrafter()
    return lambda target: DRAFTERS.get(name)(target, CheckpointSource(folders[name]))


def prompt(tokens: int, seed: int) -> list[int]:
    return torch.randint(1, 40, (tokens,), generator=torch.Generator().manual_seed(seed)).tolist()


def ask(request_id: int, tokens: list[int], kind: str, max_tokens: int) -> Request:
    return Request(id=request_id, prompt=tokens, max_tokens=max_tokens, sampling=SAMPLINGS[kind])


def outputs(replies: list[Reply]) -> list[tuple[list[int], str]]:
    return [(reply.ids, reply.reason) for reply in replies]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Of every pause the request and whether it was still on its prompt."""
    seen: list[tuple[int, bool]] = []
    inner: Callable[[RequestQueue, Sequence], None] = RequestQueue.pause

    def spy(queue: RequestQueue, sequence: Sequence) -> None:
        seen.append((sequence.request.id, not sequence.caught_up))
        inner(queue, sequence)

    monkeypatch.setattr(RequestQueue, "pause", spy)
    return seen


@pytest.mark.parametrize(
    "family,drafter,kind",
    [
        ("hybrid", "none", "greedy"),
        ("hybrid", "mtp", "drawn"),
        ("hybrid", "dflash2", "drawn"),
        ("llama", "ngram", "greedy"),
        ("llama", "dflash", "drawn"),
    ],
)
def test_pauses_change_nothing(
    family: str, drafter: str, kind: str, folders: dict[str, Path], pauses: list[tuple[int, bool]]
) -> None:
    """Two requests that together need more than the pool; with and without places for the paused one's state."""
    model, make = load(folders[family], "bf16"), maker(drafter, folders)
    work = [ask(i, prompt(n, i), kind, 40) for i, n in enumerate((50, 110))]
    calm = run(model, work, max_concurrency=1, max_context=192)
    assert pauses == []
    k = 0 if drafter == "none" else 3
    tight = {"draft_tokens": k, "max_concurrency": 2, "max_context": 192, "kv_capacity": 256}
    for checkpoints, chunk in ((0, 128), (4, 64)):
        before = len(pauses)
        paused = run(model, work, make, **tight, state_checkpoints=checkpoints, prefill_chunk=chunk)  # type: ignore[arg-type]
        assert len(pauses) > before, "nothing was paused: the test tests nothing"
        assert outputs(paused) == outputs(calm), checkpoints
    if drafter == "none":
        before = len(pauses)
        assert outputs(run(model, work, **tight, admission="reserve")) == outputs(calm)  # type: ignore[arg-type]
        assert len(pauses) == before


@pytest.mark.parametrize(
    "family,drafter,weights",
    [
        ("hybrid", "none", "bf16"),
        ("hybrid", "mtp", "bf16"),
        ("hybrid", "dflash", "int4"),
        ("hybrid", "dflash2", "bf16"),
        ("llama", "ngram", "int4"),
        ("llama", "dflash2", "bf16"),
    ],
)
def test_a_hit_changes_nothing(family: str, drafter: str, weights: str, folders: dict[str, Path]) -> None:
    """Prompts that share a beginning of 64n + r tokens, one after another on one slot, then beside each other."""
    model, shared = load(folders[family], weights), prompt(200, 9)
    prompts = [
        shared[:150],
        shared[:150],
        shared[:151],
        shared[:192],
        shared[:65] + prompt(70, 1),
        shared + prompt(9, 2),
    ]
    work = [ask(i, tokens, "drawn", 12) for i, tokens in enumerate(prompts)]
    k = 0 if drafter == "none" else 3
    make = maker(drafter, folders)
    cold = run(model, work, make, -1, draft_tokens=k, max_concurrency=1, prefix_cache=False)
    for concurrency, stagger in ((1, -1), (4, -1), (4, 3)):
        warm = run(
            model, work, make, stagger, draft_tokens=k, max_concurrency=concurrency, state_checkpoints=8, prefill_chunk=64
        )  # fmt: skip
        assert outputs(warm) == outputs(cold), (concurrency, stagger)
        if stagger < 0:
            assert [reply.cached for reply in warm] == [0, 128, 128, 128, 64, 192]
            # What the drafter knows of the prefix is restored too: it drafts as after a cold start.
            assert [reply.tally.at(12) for reply in warm] == [reply.tally.at(12) for reply in cold]
    assert [reply.miss for reply in cold] == ["disabled"] * 6


def test_without_checkpoints_a_recurrent_model_reuses_nothing(folders: dict[str, Path]) -> None:
    model = load(folders["hybrid"], "bf16")
    work = [ask(i, prompt(150, 9), "greedy", 3) for i in range(2)]
    replies = run(model, work, None, -1, state_checkpoints=0)
    assert [(reply.cached, reply.miss) for reply in replies] == [(0, "no_page"), (0, "no_checkpoint")]


def test_the_next_turn_goes_on_after_the_reply(folders: dict[str, Path]) -> None:
    """A conversation: the second prompt holds the first reply, and all of both but the last token is found."""
    model = load(folders["hybrid"], "bf16")
    first = ask(0, prompt(100, 3), "greedy", 20)
    (reply,) = run(model, [first], None)
    second = ask(1, first.prompt + reply.ids + prompt(30, 4), "greedy", 8)
    third = ask(2, first.prompt + reply.ids + prompt(31, 5), "greedy", 8)
    make = maker("mtp", folders)
    warm = run(model, [first, second, third], make, -1, draft_tokens=3, state_checkpoints=8)
    assert [r.cached for r in warm] == [0, 119, 119], "two branches go on from one end"
    cold = run(model, [first, second, third], make, -1, draft_tokens=3, prefix_cache=False)
    assert [len(r.ids) for r in warm] == [len(r.ids) for r in cold]

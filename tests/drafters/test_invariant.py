"""Invariant 1 with model drafters: same seed, same tokens, for every drafter, K, C and chunk size."""

from pathlib import Path

import pytest
import torch

from paceline.core.request import Request
from paceline.drafters import DRAFTERS
from paceline.drafters.base import Drafter, Observed, Target, Want
from paceline.runner.drafter import CheckpointSource
from tests.kit import cross, drafter_files, models
from tests.kit.drafters import ScriptedDrafter
from tests.kit.run import Maker, Model, load, run, sampling

SAMPLINGS = (
    sampling(),
    sampling(temperature=0.6, top_p=0.95, top_k=20, presence_penalty=1.0, seed=23),
)
LENGTHS = (1, 4, 16, 70, 2, 33, 65, 9)
LIMITS = (9, 10, 11, 12, 40, 9, 40, 10)  # 40: several windows of 16
HYBRID = models.hybrid_config()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return drafter_files.write_targets_and_drafters(tmp_path_factory.mktemp("invariant"), HYBRID)


class Helped:
    """A model drafter whose drafts are replaced by the answer's tokens; `kind` as ScriptedDrafter's: half accepts windows in
    part, right as a whole."""

    def __init__(
        self, inner: Drafter, answers: dict[tuple[int, ...], list[int]], vocab: int, kind: str = "half"
    ) -> None:
        self.inner, self.script = inner, ScriptedDrafter(answers, kind, vocab)
        self.spec = inner.spec

    def open(self, slot: int, tokens: list[int], filled: int) -> None:
        self.inner.open(slot, tokens, filled)
        self.script.open(slot, tokens, filled)

    def save(self, slot: int, place: int) -> None:
        self.inner.save(slot, place)

    def copy_page(self, source: int, target: int) -> None:
        self.inner.copy_page(source, target)

    def restore(self, slot: int, place: int) -> None:
        self.inner.restore(slot, place)

    def observe(self, rows: list[Observed]) -> None:
        self.inner.observe(rows)
        self.script.observe(rows)

    def propose(self, rows: list[Want]) -> list[list[int]]:
        own, told = self.inner.propose(rows), self.script.propose(rows)
        assert [len(drafts) for drafts in own] == [row.k for row in rows]
        return told

    def close(self, slot: int) -> None:
        self.inner.close(slot)
        self.script.close(slot)


def maker(name: str, folders: dict[str, Path]) -> Maker:
    return lambda target: DRAFTERS.get(name)(target, CheckpointSource(folders[name]))


def requests() -> list[Request]:
    prompts = [torch.randint(1, 40, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in LENGTHS]
    return [
        Request(id=i, prompt=p, max_tokens=m, sampling=SAMPLINGS[i % 2], stop_ids=[0], min_tokens=i // 2 % 2 * 3)
        for i, (p, m) in enumerate(zip(prompts, LIMITS, strict=True))
    ]


POINTS = {
    ("mtp", "hybrid"): cross.thin("mtp", 0),
    ("dflash", "hybrid"): cross.thin("dflash", 1),
    ("dflash2", "hybrid"): cross.whole("dflash2"),
    ("dflash2", "llama"): cross.thin("dflash2", 2),
}


@pytest.mark.parametrize("name,family", POINTS)
def test_same_tokens_with_every_drafter(name: str, family: str, folders: dict[str, Path]) -> None:
    """Random drafters draft nothing right, which rejects whole windows; helped ones get them accepted in part or whole."""
    model: Model = load(folders[family], "bf16")
    work = requests()
    base = run(model, work, max_concurrency=1, threads=1)
    expected = [(reply.ids, reply.reason) for reply in base]
    own = maker(name, folders)

    def helped(kind: str) -> Maker:
        answers = {tuple(r.prompt): reply.ids for r, reply in zip(work, base, strict=True)}
        return lambda target: Helped(own(target), answers, target.vocab, kind)

    def same(drafter: Maker, at: cross.Point) -> list[tuple[int, int, int]]:
        values = {"draft_tokens": at.k, "max_concurrency": at.c, "prefill_chunk": at.chunk}
        got = run(model, work, drafter, at.stagger, threads=1, **values)
        assert [(reply.ids, reply.reason) for reply in got] == expected, at
        return [each for reply in got for each in reply.rounds if each[1]]

    for point in POINTS[name, family]:
        assert same(own, point)
    for point in cross.thin(name, 3):
        rounds = same(helped("half"), point)
        assert point.k == 1 or any(0 < accepted < proposed for _, proposed, accepted in rounds)
    assert (16, 15, 15) in same(helped("right"), cross.Point(name, 15, 2, 64, 0))


def test_a_cut_and_a_new_request_on_its_slot(folders: dict[str, Path]) -> None:
    """A stop id inside a window ends a request; the next one on the slot drafts from a clean state."""
    model = load(folders["hybrid"], "bf16")
    (plain,) = run(model, [Request(id=0, prompt=[5, 6, 7], max_tokens=12, sampling=sampling())], threads=1)
    stop = plain.ids[6]
    work = [
        Request(id=i, prompt=[5, 6, 7], max_tokens=12, sampling=sampling(), stop_ids=[stop] if i % 2 == 0 else [])
        for i in range(4)
    ]
    answers = {(5, 6, 7): plain.ids}
    for name in ("mtp", "dflash", "dflash2"):

        def helped(target: Target, name: str = name) -> Helped:
            inner = Helped(maker(name, folders)(target), answers, target.vocab)
            inner.script.right = lambda at: at != 3
            return inner

        replies = run(model, work, helped, draft_tokens=7, max_concurrency=1, threads=1)
        first = plain.ids.index(stop)
        for i, reply in enumerate(replies):
            assert reply.ids == (plain.ids[: first + 1] if i % 2 == 0 else plain.ids)

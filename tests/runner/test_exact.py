"""Invariant 1: the same seed gives the same tokens for every drafter, K, C, chunk size and neighbour, bit for bit.

Compared are token ids and, for windows against single steps, the logits themselves: ids alone would hide small errors.
"""

from pathlib import Path

import pytest
import torch

from paceline.core.batch import Batch, Opened, Row
from paceline.core.request import Request
from paceline.drafters.base import Target
from paceline.drafters.ngram import NgramDrafter
from tests.kit import models
from tests.kit.drafters import ScriptedDrafter
from tests.kit.run import Maker, Model, backend, load, run, sampling

FORMATS = ("bf16", "int8", "int4")
FAMILIES = {"hybrid": models.hybrid_config(values=6), "llama": models.dense_config("llama", layers=3)}
SAMPLINGS = {
    "greedy": sampling(),
    "t0.8": sampling(temperature=0.8, seed=11),
    "penalties": sampling(
        temperature=0.8,
        seed=5,
        top_k=20,
        top_p=0.95,
        presence_penalty=1.0,
        frequency_penalty=0.2,
        repetition_penalty=1.1,
    ),
}
LENGTHS = [1, 2, 3, 4, 7, 8, 9, 16, 17, 63, 64, 65, 71, 121, 129, 200]  # around K + 1, 2K + 3, 64n and the chunks
TOKENS = 14


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("exact")
    return {name: models.save(models.build(config), root / name) for name, config in FAMILIES.items()}


def requests(lengths: list[int], kind: str) -> list[Request]:
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(1, 40, (n,), generator=generator).tolist() for n in lengths]
    limits = [TOKENS - (i % 4) for i in range(len(lengths))]
    return [
        Request(id=i, prompt=p, max_tokens=m, sampling=SAMPLINGS[kind], stop_ids=[0])
        for i, (p, m) in enumerate(zip(prompts, limits, strict=True))
    ]


@pytest.mark.parametrize(
    "weights,kind", [*((w, k) for w in FORMATS for k in ("greedy", "t0.8")), ("bf16", "penalties")]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_same_tokens_everywhere(family: str, weights: str, kind: str, folders: dict[str, Path]) -> None:
    model = load(folders[family], weights)
    work = requests(LENGTHS, kind)
    base = run(model, work, max_concurrency=1, prefill_chunk=512)
    expected = [(reply.ids, reply.reason) for reply in base]
    answers = {tuple(r.prompt): reply.ids for r, reply in zip(work, base, strict=True)}

    def scripted(drafts: str) -> Maker:
        return lambda target: ScriptedDrafter(answers, drafts, target.vocab)

    def ngram(target: Target) -> NgramDrafter:
        return NgramDrafter()

    for drafter, k, c, chunk, stagger in (
        (None, 0, 4, 64, 1),
        (scripted("right"), 1, 2, 128, 0),
        (scripted("right"), 7, 4, 64, 3),
        (scripted("wrong"), 3, 4, 128, 2),
        (scripted("half"), 3, 1, 512, 0),
        (scripted("half"), 15, 2, 64, 0),
        (ngram, 7, 4, 64, 1),
    ):
        got = run(model, work, drafter, stagger, draft_tokens=k, max_concurrency=c, prefill_chunk=chunk)
        for request, reply, want in zip(work, got, expected, strict=True):
            assert (reply.ids, reply.reason) == want, (drafter, k, c, chunk, len(request.prompt))


@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize("family", FAMILIES)
def test_window_logits_equal_single_steps(family: str, weights: str, folders: dict[str, Path]) -> None:
    """Windows of every size over the same tokens give the logits of single steps, bit for bit, after full rejections too."""
    model = load(folders[family], weights)
    (request,) = requests([70], "greedy")
    tokens = torch.randint(1, models.VOCAB, (48,), generator=torch.Generator().manual_seed(9)).tolist()
    single = forced_logits(model, request, tokens, 0, neighbours=0)
    for k, neighbours in ((1, 0), (3, 0), (7, 2), (15, 0), (15, 3)):
        assert torch.equal(forced_logits(model, request, tokens, k, neighbours), single), (k, neighbours)


def forced_logits(model: Model, request: Request, tokens: list[int], k: int, neighbours: int) -> torch.Tensor:
    """Feeds `tokens` as if they were sampled, in windows of up to k drafts of which the first few are right.

    `neighbours` other requests decode in the same batches.
    """
    subject = backend(model, draft_tokens=k, max_concurrency=4)
    seen: list[torch.Tensor] = []
    inner = subject.runner.model.logits

    def spy(hidden: torch.Tensor) -> torch.Tensor:
        seen.append(inner(hidden))
        return seen[-1]

    subject.runner.model.logits = spy  # type: ignore[method-assign]
    others = list(range(1, 1 + neighbours))
    pages = {slot: list(range(slot * 4, slot * 4 + 4)) for slot in (0, *others)}
    n = len(request.prompt)
    rows = [Row(slot, 0, n, n, n - 1, pages[slot], request.prompt) for slot in pages]
    subject.step(Batch(rows, [Opened(slot, request) for slot in pages]))
    done, out, turn = 0, [], 0
    while done < len(tokens):
        room = min(k, len(tokens) - done - 1)
        right = min((0, room, room // 2, 1, 0)[turn % 5], room)  # accepted drafts of this window
        turn += 1
        drafts = tokens[done + 1 : done + 1 + room]
        wrong = [(t + 1) % models.VOCAB if i >= right else t for i, t in enumerate(drafts)]
        slot = subject.runner.slots[0]
        slot.anchor, slot.drafts = tokens[done], wrong
        subject.step(
            Batch(
                [
                    Row(s, n + done if s == 0 else n + turn - 1, 1 + (room if s == 0 else 0), 1, 0, pages[s])
                    for s in pages
                ]
            )
        )
        out.append(seen[-1][: right + 1])
        slot.replay = right
        done += right + 1
    return torch.cat(out)

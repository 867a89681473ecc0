"""Drives a drafter by hand over a known sequence, as the runner would: prompt chunks, then rounds of given lengths."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from paceline.core.spec import ModelSpec
from paceline.drafters.base import Drafter, Observed, Target, Want
from paceline.quant import WEIGHT_CODECS
from paceline.runner.drafter import full_head, shortlist_head

VOCAB = 320
SLOT_PAGES = 6


def make_target(
    spec: ModelSpec,
    k: int,
    slots: int = 3,
    max_context: int = 300,
    vocab: int = VOCAB,
    shortlist: Sequence[int] = (),
) -> Target:
    codec, weight = WEIGHT_CODECS.get("fp32"), head_weight(spec)
    head = shortlist_head(shortlist, {"weight": weight}, codec) if shortlist else full_head(whole_head(spec), vocab)
    embed = torch.randn(spec.vocab, spec.hidden, generator=torch.Generator().manual_seed(17))
    return Target(spec, embed, head, vocab, codec, slots, max_context, k, slots * SLOT_PAGES, 2)


def head_weight(spec: ModelSpec) -> torch.Tensor:
    return torch.randn(spec.vocab, spec.hidden, generator=torch.Generator().manual_seed(18)) * 0.3


def whole_head(spec: ModelSpec) -> Callable[[torch.Tensor], torch.Tensor]:
    """All logits of the target that `make_target` makes."""
    weight = head_weight(spec)
    return lambda hidden: hidden.float() @ weight.T


@dataclass
class SpyView:
    """Stands in for a DraftView: keeps what it is asked to draw from, and takes the best."""

    seen: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def draw(self, logits: torch.Tensor, drafted: list[int], ids: torch.Tensor | None = None) -> int:
        ids = torch.arange(len(logits)) if ids is None else ids
        self.seen.append((logits.clone(), ids))
        return int(ids[logits.argmax()])


@dataclass(frozen=True)
class Truth:
    """Tokens of a sequence, and the features of every position."""

    tokens: list[int]
    taps: torch.Tensor
    hidden: torch.Tensor


def make_truth(length: int, taps: int, hidden: int = 64, seed: int = 3) -> Truth:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, VOCAB - 1, (length + 1,), generator=generator).tolist()
    shape = (length, taps * hidden)
    return Truth(
        tokens, torch.randn(shape, generator=generator), torch.randn(length, hidden, generator=generator) * 1.5
    )


def observed(slot: int, truth: Truth, start: int, n: int, prompt: bool, emits: bool) -> Observed:
    first = start if prompt else start + 1
    end = start + n + emits
    rows = slice(start, start + n)
    return Observed(slot, first, truth.tokens[first:end], start, truth.taps[rows], truth.hidden[rows], pages(slot))


def pages(slot: int) -> list[int]:
    """The pages of a slot, in an order that is no run."""
    return [SLOT_PAGES * slot + i for i in (0, 1, 3, 2, 5, 4)]


@torch.inference_mode()
def play(
    drafter: Drafter, slot: int, truth: Truth, prompt: int, chunk: int, accepted: list[int], k: int, start: int = 0
) -> tuple[SpyView, list[int], int]:
    """Returns the view and the drafts of the proposal after the last round, and the anchor's position there. From `start` on,
    which is not 0 where the slot was opened and restored before.

    The drafter proposes after every round, so what its proposals leave behind is there to be seen.
    """
    if not start:
        drafter.open(slot, [], 0)
    at = start
    while at < prompt:
        n = min(chunk, prompt - at)
        drafter.observe([observed(slot, truth, at, n, True, at + n == prompt)])
        at += n
    for count in accepted:
        drafter.propose([Want(slot, k, truth.tokens[at], at, SpyView(), pages(slot))])  # type: ignore[arg-type]
        drafter.observe([observed(slot, truth, at, count + 1, False, True)])
        at += count + 1
    view = SpyView()
    (drafts,) = drafter.propose([Want(slot, k, truth.tokens[at], at, view, pages(slot))])  # type: ignore[arg-type]
    return view, drafts, at

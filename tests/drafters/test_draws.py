"""Draws: a drafter that knew the target's logits would draw the target's tokens."""

import pytest
import torch

from paceline.sampling.draft import DraftView
from paceline.sampling.filters import Sampler
from paceline.sampling.verify import Limits, verify
from tests.kit.run import sampling

VOCAB, K = 64, 5


def window(seed: int) -> torch.Tensor:
    return torch.randn(K + 1, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def limits(min_tokens: int = 0) -> Limits:
    return Limits(max_tokens=100, reason="output_limit", min_tokens=min_tokens, stop_ids=frozenset((3, 9)))


def drawn(logits: torch.Tensor, sampler: Sampler, ends: Limits, index: int = 4) -> list[int]:
    view, drafts = DraftView(sampler, ends, index), []
    for line in logits[:K]:
        drafts.append(view.draw(line, drafts))
    return drafts


@pytest.mark.parametrize(
    "params",
    [
        sampling(),
        sampling(temperature=0.6, top_p=0.95, top_k=20, seed=4),
        sampling(temperature=1.0, min_p=0.05, seed=5),
        sampling(temperature=1.0, presence_penalty=1.5, frequency_penalty=0.3, repetition_penalty=1.3, seed=6),
        sampling(presence_penalty=1.5, repetition_penalty=1.3, logit_bias={7: 4.0, 8: -3.0}),
    ],
)
@pytest.mark.parametrize("min_tokens", [0, 6])
def test_the_targets_logits_give_the_targets_tokens(params, min_tokens: int) -> None:  # type: ignore[no-untyped-def]
    """A draw follows the target through penalties of the drafts themselves, bias and forbidden stop ids."""
    for seed in range(30):
        logits, sampler = window(seed), Sampler(params, [1, 2, 3, 5], VOCAB)
        for token in (11, 12, 12, 13):
            sampler.penalties.add(token)
        before = drawn(logits, sampler, limits(min_tokens))
        assert drawn(logits, sampler, limits(min_tokens)) == before, "a draw left a trace"
        verdict = verify(logits, before, sampler, 4, limits(min_tokens))
        assert verdict.accepted == min(len(verdict.ids), K), "every draft is the target's own sample"


def test_the_targets_noise_decides() -> None:
    """At temperature 0 the best logit is drawn; above it most windows hold a token that is not the best."""
    noisy = 0
    for seed in range(40):
        logits = window(seed)
        best = logits[:K].argmax(1).tolist()
        assert drawn(logits, Sampler(sampling(seed=1), [], VOCAB), limits()) == best
        noisy += drawn(logits, Sampler(sampling(seed=1, temperature=1.0), [], VOCAB), limits()) != best
    assert noisy > 20


def test_candidates_draw_with_the_noise_of_their_own_ids() -> None:
    """A short list in any order picks what the full vocabulary picks, where the winner is on the list."""
    params = sampling(temperature=0.9, presence_penalty=1.0, seed=8, logit_bias={7: 1.0})
    for seed in range(40):
        sampler = Sampler(params, [2], VOCAB)
        sampler.penalties.add(5)
        view, line = DraftView(sampler, limits(), 0), window(seed)[0]
        whole = view.draw(line, [20, 5])
        order = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(seed))
        ids = order[:40] if whole in order[:40].tolist() else order
        assert view.draw(line[ids], [20, 5], ids) == whole

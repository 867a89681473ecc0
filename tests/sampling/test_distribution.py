"""Invariant 3: sampled tokens follow the target's distribution, with and without drafts.

Chi-square over 20,000 seeds against probabilities that `reference.py` computes on its own in fp64. Seeds are fixed, so a
test gives the same p-value every time.
"""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from paceline.core.request import SamplingParams
from paceline.sampling.filters import Sampler
from tests.sampling import reference
from tests.sampling.toy import Toy, limits, run, scripted

DRAWS = 20_000
V = 50
LEAST = 1e-4
PROMPT = [1, 2, 2, 30]
OUTPUT = [4, 4, 4, 5, 30, 6]
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "hot": {"temperature": 1.7},
    "cold": {"temperature": 0.3},
    "top-k": {"temperature": 0.8, "top_k": 7},
    "top-p": {"top_p": 0.85},
    "min-p": {"temperature": 1.2, "min_p": 0.08},
    "all filters": {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.01},
    "penalties": {"repetition_penalty": 1.5, "presence_penalty": 0.8, "frequency_penalty": 0.4},
    "everything": {"temperature": 0.9, "top_p": 0.9, "repetition_penalty": 0.7, "frequency_penalty": -0.3,
                   "logit_bias": {9: 2.5, 10: -3.0}},
}  # fmt: skip


def params(seed: int, **changes: Any) -> SamplingParams:
    return SamplingParams(**{"seed": seed, **changes})


def p_value(counts: dict[Any, int], expected: dict[Any, float]) -> float:
    """Of Pearson's chi-square; outcomes that are expected less than five times are counted together."""
    total = sum(counts.values())
    assert sum(expected.values()) == pytest.approx(1.0)
    assert not [key for key in counts if expected.get(key, 0.0) == 0.0], "a token was drawn that cannot be"
    often = [key for key, share in expected.items() if share * total >= 5]
    observed = [counts.get(key, 0) for key in often]
    wanted = [expected[key] * total for key in often]
    rest = total - sum(wanted)
    if rest > 1e-6:
        observed.append(total - sum(observed))
        wanted.append(rest)
    if len(wanted) == 1:
        return 1.0 if observed == [total] else 0.0
    return float(stats.chisquare(observed, np.array(wanted) * (total / sum(wanted))).pvalue)


def logits_of(name: str) -> np.ndarray:
    return np.random.default_rng(len(name)).normal(size=V) * 1.5


@pytest.mark.parametrize("name", SETTINGS)
def test_draws_follow_the_distribution(name: str) -> None:
    """One position, 20,000 seeds, in the middle of an output."""
    logits, forbidden = logits_of(name), [11] if name == "everything" else []
    expected = reference.probabilities(logits, params(0, **SETTINGS[name]), PROMPT, OUTPUT, forbidden)
    counts: Counter[int] = Counter()
    row = torch.tensor(logits, dtype=torch.float32)
    sampler = Sampler(params(0, **SETTINGS[name]), PROMPT, V)
    for token in OUTPUT:
        sampler.penalties.add(token)
    for seed in range(DRAWS):
        sampler.params = params(seed, **SETTINGS[name])
        counts[sampler.draw(row, len(OUTPUT), forbidden)] += 1
    assert p_value(counts, dict(enumerate(expected))) > LEAST


def test_draws_of_one_request_follow_the_distribution() -> None:
    """One seed, 20,000 positions; and no position depends on the one before it."""
    logits = logits_of("one request")
    sampler = Sampler(params(77, temperature=0.8), [], V)
    row = torch.tensor(logits, dtype=torch.float32)
    drawn = [sampler.draw(row, index, []) for index in range(DRAWS)]
    expected = reference.probabilities(logits, sampler.params)
    assert p_value(Counter(drawn), dict(enumerate(expected))) > LEAST
    pairs = {(a, b): expected[a] * expected[b] for a in range(V) for b in range(V)}
    assert p_value(Counter(zip(drawn[::2], drawn[1::2], strict=True)), pairs) > LEAST


@pytest.mark.parametrize("vocab", [2, 3, 1000])
def test_equal_logits_give_equal_shares(vocab: int) -> None:
    sampler = Sampler(params(0), [], vocab)
    row = torch.zeros(vocab)
    counts: Counter[int] = Counter()
    for seed in range(DRAWS):
        sampler.params = params(seed)
        counts[sampler.draw(row, 3, [])] += 1
    assert p_value(counts, dict.fromkeys(range(vocab), 1 / vocab)) > LEAST


TOY = Toy(5, spread=1.2, seed=3)
PAIR = [0, 1]
LENGTH = 3
SEQUENCES: dict[str, dict[str, Any]] = {
    "plain": {"temperature": 0.9},
    "penalties": {"temperature": 1.0, "presence_penalty": 0.9, "repetition_penalty": 1.3, "top_p": 0.92},
}


def sequence_probabilities(setting: SamplingParams) -> dict[tuple[int, ...], float]:
    """Every output of LENGTH tokens after the prompt PAIR, one token after the other."""
    shares: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(LENGTH):
        longer: dict[tuple[int, ...], float] = {}
        for output, share in shares.items():
            logits = TOY.logits([*PAIR, *output]).double().numpy()
            for token, p in enumerate(reference.probabilities(logits, setting, PAIR, list(output))):
                longer[(*output, token)] = share * p
        shares = longer
    return shares


@pytest.mark.parametrize("name", SEQUENCES)
def test_outputs_with_drafts_follow_the_distribution(name: str) -> None:
    """Whole outputs through `verify`, with a window of drafts after the first token, equal to those without.

    `constant` drafts the same tokens whatever happens: a drafter that knows nothing of the noise. The others know what
    comes, which is the worst that a drafter could do to a distribution.
    """
    kinds = ("right", "wrong", "half", "constant")
    counts: Counter[tuple[int, ...]] = Counter()
    accepted: Counter[str] = Counter()
    for seed in range(DRAWS // 2):
        setting, kind = params(seed, **SEQUENCES[name]), kinds[seed % 4]
        answer = run(TOY, setting, PAIR, limits(max_tokens=LENGTH)).ids
        drafts = scripted([2, 4, 1, 3] if kind == "constant" else answer, kind.replace("constant", "right"), TOY.vocab)
        got = run(TOY, setting, PAIR, limits(max_tokens=LENGTH), LENGTH - 1, drafts)
        assert got.ids == answer
        counts[tuple(got.ids)] += 1
        accepted[kind] += sum(verdict.accepted for verdict in got.verdicts)
    assert p_value(counts, sequence_probabilities(params(0, **SEQUENCES[name]))) > LEAST
    assert accepted["right"] > accepted["half"] > accepted["constant"] > accepted["wrong"] == 0


def test_p_value_notices_a_wrong_distribution() -> None:
    """The test of the test: 2 % more of one token, or a temperature that is 10 % off, does not pass."""
    logits = logits_of("plain")
    true = reference.probabilities(logits, params(0))
    random = np.random.default_rng(1)
    for wrong in (true + 0.02 * (np.arange(V) == 3), reference.probabilities(logits, params(0, temperature=1.1))):
        counts = Counter(random.choice(V, size=DRAWS, p=wrong / wrong.sum()).tolist())
        assert p_value(counts, dict(enumerate(true))) < LEAST
    assert p_value(Counter(random.choice(V, size=DRAWS, p=true).tolist()), dict(enumerate(true))) > LEAST

"""The shared noise: its definition never changes, its law is Gumbel's, and nothing that should be independent is related."""

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from scipy import stats

from paceline.sampling import noise
from paceline.sampling.noise import bits, gumbel, key
from tests.sampling import reference

# (seed, index) → the bits of these ids. A change here changes every seeded reply that anybody has ever logged.
IDS = [0, 1, 2, 49151, 248319]
FROZEN = {
    (0, 0): [535004646, 1502751806, 354145622, 1883153062, 398913010],
    (1, 0): [3972987237, 1908035253, 3904019262, 542549304, 3711896007],
    (0, 1): [696737974, 3213363379, 2314700577, 283978066, 2466951326],
    (1234567890123456789, 41): [3198176271, 1193055234, 4245815731, 2896760874, 866638487],
    (2**64 - 1, 7): [3700651154, 1341257581, 4235282135, 4275553858, 573028711],
}
FROZEN_GUMBEL = {
    (0, 0): [-0.7337725740189767, -0.04892917917877635, -0.9144855148148379, 0.19298249346316046, -0.8656102373203881],
    (2**64 - 1, 7): [
        1.9042443087011207,
        -0.15172168087822194,
        4.2691269603748685,
        5.396969449451091,
        -0.7002535688456636,
    ],
}
N = 100_000
# |r| of two unrelated series of N numbers stays below this, but for one in half a million.
UNRELATED = 4.8 / math.sqrt(N)


def series(seed: int, index: int, ids: torch.Tensor) -> np.ndarray:
    return gumbel(key(seed, index), ids).numpy()


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.corrcoef(a, b)[0, 1])


@pytest.mark.parametrize("at", FROZEN)
def test_the_definition_never_changes(at: tuple[int, int]) -> None:
    assert bits(key(*at), torch.tensor(IDS)).tolist() == FROZEN[at]
    assert [reference.noise_bits(*at, token) for token in IDS] == FROZEN[at]


@pytest.mark.parametrize("at", FROZEN_GUMBEL)
def test_the_values_never_change(at: tuple[int, int]) -> None:
    got = gumbel(key(*at), torch.tensor(IDS)).tolist()
    assert got == pytest.approx(FROZEN_GUMBEL[at], rel=1e-14)
    assert got == pytest.approx([reference.noise(*at, token) for token in IDS], rel=1e-13)


def test_the_whole_range_follows_the_definition() -> None:
    random = np.random.default_rng(5)
    for _ in range(300):
        seed, index = int(random.integers(2**64, dtype=np.uint64)), int(random.integers(2**20))
        ids = random.integers(2**31, size=4)
        want = [reference.noise_bits(seed, index, int(token)) for token in ids]
        assert bits(key(seed, index), torch.from_numpy(ids)).tolist() == want


def test_it_has_no_state_and_no_order() -> None:
    ids = torch.arange(5000)
    halves = key(9, 3)
    first = gumbel(halves, ids)
    shuffled = torch.randperm(5000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(gumbel(halves, shuffled), first[shuffled])
    assert torch.equal(torch.cat([gumbel(halves, ids[i : i + 7]) for i in range(0, 5000, 7)]), first)
    assert torch.equal(ids, torch.arange(5000)), "the argument was changed"


@pytest.mark.parametrize("value", [0, 1, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1])
def test_u_is_never_0_or_1(value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At both ends of the bits the noise is finite and right to the last digits, by a 50-digit computation."""
    monkeypatch.setattr(noise, "bits", lambda halves, ids: torch.full_like(ids, value))
    got = float(gumbel(key(0, 0), torch.tensor([0]))[0])
    with localcontext() as context:
        context.prec = 50
        u = (Decimal(value) + Decimal("0.5")) / Decimal(2**32)
        want = -float((-(u.ln())).ln())
    assert math.isfinite(got)
    assert got == pytest.approx(want, rel=1e-13)


def test_the_ends_differ_from_their_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.tensor([0, 1, 2, 2**32 - 3, 2**32 - 2, 2**32 - 1])
    monkeypatch.setattr(noise, "bits", lambda halves, ids: values)
    got = gumbel(key(0, 0), torch.arange(6))
    assert (got.diff() > 0).all()


def test_no_two_tokens_share_their_noise() -> None:
    """For one key the bits are a permutation of the ids, so a tie between two noises cannot happen."""
    for at in ((0, 0), (7, 100), (2**63, 5)):
        assert len(set(bits(key(*at), torch.arange(248_320)).tolist())) == 248_320


@pytest.mark.parametrize("at", [(0, 0), (1, 0), (12345, 678)])
def test_its_law_is_gumbel(at: tuple[int, int]) -> None:
    values = series(*at, torch.arange(N))
    assert values.mean() == pytest.approx(np.euler_gamma, abs=5 * math.pi / math.sqrt(6 * N))
    assert values.var() == pytest.approx(math.pi**2 / 6, rel=0.03)
    assert stats.kstest(values, stats.gumbel_r.cdf).pvalue > 1e-4


@pytest.mark.parametrize("axis", ["seed", "index"])
def test_its_law_is_gumbel_along_every_axis(axis: str) -> None:
    """One token's noise over 20,000 seeds or indices, counted up from 0 as people choose them."""
    tokens = torch.tensor([0, 11, 49151])
    keys = [key(i, 0) if axis == "seed" else key(0, i) for i in range(20_000)]
    values = torch.stack([gumbel(halves, tokens) for halves in keys]).numpy()
    for column in values.T:
        assert stats.kstest(column, stats.gumbel_r.cdf).pvalue > 1e-4
        assert abs(np.corrcoef(column[1:], column[:-1])[0, 1]) < 5 / math.sqrt(len(keys))


def test_neighbouring_ids_are_unrelated() -> None:
    values = series(3, 4, torch.arange(N + 64))
    for lag in (1, 2, 3, 4, 8, 16, 64):
        assert abs(correlation(values[:N], values[lag : lag + N])) < UNRELATED, lag


@pytest.mark.parametrize(
    "step", [(1, 0), (0, 1), (1, -1), (2, 0), (0, 2), (2**32, 0), (2**63, 0), (-0x61C8864680B583EB, 0)]
)
def test_neighbouring_seeds_and_indices_are_unrelated(step: tuple[int, int]) -> None:
    """Token by token, and with ids shifted by one. The last step is the generator's own increment."""
    ids = torch.arange(N + 1)
    for seed, index in ((0, 5), (10**12, 50)):
        here = series(seed, index, ids)
        there = series((seed + step[0]) % 2**64, index + step[1], ids)
        assert abs(correlation(here[:-1], there[:-1])) < UNRELATED
        assert abs(correlation(here[:-1], there[1:])) < UNRELATED
        assert abs(correlation(here[1:], there[:-1])) < UNRELATED


def test_every_input_bit_moves_half_of_the_output_bits() -> None:
    flips: dict[str, list[int]] = {}
    for trial in range(40):
        seed, index, token = trial * 7919, trial * 31, trial * 1009
        base = bits_of(seed, index, token)
        for bit in range(64):
            flips.setdefault(f"seed {bit}", []).append(base ^ bits_of(seed ^ (1 << bit), index, token))
        for bit in range(20):
            flips.setdefault(f"index {bit}", []).append(base ^ bits_of(seed, index ^ (1 << bit), token))
            flips.setdefault(f"id {bit}", []).append(base ^ bits_of(seed, index, token ^ (1 << bit)))
    for where, changes in flips.items():
        share = sum(change.bit_count() for change in changes) / (32 * len(changes))
        assert 0.42 < share < 0.58, where


def bits_of(seed: int, index: int, token: int) -> int:
    return int(bits(key(seed, index), torch.tensor([token]))[0])

"""Penalties, bias, temperature, top-k, top-p and min-p: alone at their edges, together against the reference."""

import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from paceline.core.request import SamplingParams
from paceline.sampling.filters import Penalties, Sampler, _nucleus, keep
from tests.sampling import reference

V = 50


def params(**changes: Any) -> SamplingParams:
    return SamplingParams(**{"seed": 1, **changes})


def log(*probabilities: float) -> torch.Tensor:
    return torch.tensor(probabilities).log()


def ids_of(scaled: torch.Tensor, **changes: Any) -> list[int]:
    values, ids = keep(scaled, params(**changes))
    assert torch.equal(values, scaled[ids])
    assert len(set(ids.tolist())) == ids.numel()
    return sorted(ids.tolist())


def test_nothing_set_keeps_everything() -> None:
    values, ids = keep(log(0.5, 0.3, 0.2), params())
    assert ids.tolist() == [0, 1, 2]
    assert torch.equal(values, log(0.5, 0.3, 0.2))


@pytest.mark.parametrize(
    "k,kept",
    [(1, [2]), (2, [1, 2, 4, 5]), (3, [1, 2, 4, 5]), (4, [1, 2, 4, 5]), (5, [0, 1, 2, 3, 4, 5]), (6, [0, 1, 2, 3, 4, 5]),
     (7, [0, 1, 2, 3, 4, 5, 6]), (9, [0, 1, 2, 3, 4, 5, 6]), (0, [0, 1, 2, 3, 4, 5, 6])],
)  # fmt: skip
def test_top_k_keeps_what_ties_with_the_last(k: int, kept: list[int]) -> None:
    assert ids_of(torch.tensor([1.0, 2.0, 5.0, 1.0, 2.0, 2.0, -3.0]), top_k=k) == kept


@pytest.mark.parametrize(
    "p,kept",
    [(1e-9, [1]), (0.49, [1]), (0.51, [1, 3]), (0.74, [1, 3]), (0.76, [0, 1, 3]), (0.87, [0, 1, 3]), (0.88, [0, 1, 2, 3]),
     (0.999, [0, 1, 2, 3]), (1.0, [0, 1, 2, 3])],
)  # fmt: skip
def test_top_p_is_the_smallest_set_that_reaches_p(p: float, kept: list[int]) -> None:
    assert ids_of(log(0.125, 0.5, 0.125, 0.25), top_p=p) == kept


@pytest.mark.parametrize("p", [0.1, 0.25, 0.3, 0.5, 0.99])
def test_top_p_among_equals_takes_the_lowest_ids(p: float) -> None:
    for n in (8, 600, 40_000):
        kept = ids_of(torch.zeros(n), top_p=p)
        assert kept == list(range(len(kept)))
        assert abs(len(kept) - p * n) <= 1


@pytest.mark.parametrize(
    "m,kept", [(1e-6, [0, 1, 2]), (0.19, [0, 1, 2]), (0.21, [0, 1]), (0.59, [0, 1]), (0.61, [0]), (1.0, [0])]
)
def test_min_p_is_relative_to_the_best(m: float, kept: list[int]) -> None:
    assert ids_of(log(0.5, 0.3, 0.1), min_p=m) == kept
    assert ids_of(log(0.5, 0.3, 0.1) + 100, min_p=m) == kept


def test_top_p_counts_within_top_k() -> None:
    scaled = log(0.4, 0.3, 0.2, 0.1)
    assert ids_of(scaled, top_p=0.5) == [0, 1]
    assert ids_of(scaled, top_p=0.5, top_k=2) == [0]  # 0.4 of 0.7


def test_min_p_after_top_p_takes_no_more_away() -> None:
    assert ids_of(log(0.4, 0.3, 0.2, 0.1), top_p=0.65, min_p=0.45) == [0, 1]


def test_temperature_comes_before_top_p() -> None:
    """0.4 of the mass is enough at T = 1; at T = 2 the distribution is flatter, so two tokens are needed."""
    logits = log(0.45, 0.3, 0.15, 0.1)
    drawn = {t: {draw(logits, seed, temperature=t, top_p=0.4) for seed in range(200)} for t in (1.0, 2.0)}
    assert drawn == {1.0: {0}, 2.0: {0, 1}}


def draw(
    logits: torch.Tensor, seed: int = 1, index: int = 0, forbidden: list[int] | None = None, **changes: Any
) -> int:
    return Sampler(params(**{**changes, "seed": seed}), [], logits.shape[0]).draw(logits, index, forbidden or [])


# Peaked and flat logits, and such as a bf16 head gives: few distinct values, many ties.
SHAPES: dict[str, Callable[[torch.Generator, int], torch.Tensor]] = {
    "normal": lambda g, n: torch.randn(n, generator=g) * 3,
    "peaked": lambda g, n: torch.randn(n, generator=g) + 40 * (torch.arange(n) == n // 2),
    "flat": lambda g, n: torch.randn(n, generator=g) * 1e-3,
    "equal": lambda g, n: torch.full((n,), 2.5),
    "bf16": lambda g, n: (torch.randn(n, generator=g) * 3).to(torch.bfloat16).float(),
    "some forbidden": lambda g, n: torch.randn(n, generator=g).masked_fill(torch.arange(n) % 3 == 0, -math.inf),
}


@pytest.mark.parametrize("n", [2, 50, 511, 512, 513, 20_000])
@pytest.mark.parametrize("shape", SHAPES)
def test_nucleus_equals_a_full_sort(shape: str, n: int) -> None:
    """Also where the first look at the 512 best does not reach p."""
    scaled = SHAPES[shape](torch.Generator().manual_seed(n), n)
    order = np.argsort(-scaled.numpy(), kind="stable")
    reached = reference.softmax(scaled.double().numpy())[order].cumsum()
    for p in (1e-6, 0.05, 0.3, 0.5, 0.9, 0.95, 0.999, 1 - 1e-7):
        if np.abs(reached - p).min() < 1e-9:
            continue  # the last digit decides whether p is reached
        size = min(int((reached < p).sum()) + 1, n)
        assert sorted(_nucleus(scaled, p).tolist()) == sorted(order[:size].tolist()), p


def test_near_zero_temperatures_are_greedy() -> None:
    """Down to the smallest numbers there are; divided by them, logits would leave fp32's range."""
    for logits in ([1.0, 5.0, 0.0, -3.0, 4.0], [-5.0, -1.0, 0.0, -3.0, -4.0], [-5.0, -1.0, -7.0, -3.0, -4.0]):
        best = int(np.argmax(logits))
        for temperature in (0.0, 5e-324, 1e-300, 1e-46, 1e-39, 1e-30, 1e-6):
            for filters in ({}, {"top_k": 2}, {"top_p": 0.9}, {"min_p": 0.1}):
                assert draw(torch.tensor(logits), temperature=temperature, **filters) == best


@pytest.mark.parametrize("n", [50, 49_152])
def test_greedy_ties_go_to_the_lowest_id(n: int) -> None:
    logits = torch.zeros(n)
    logits[torch.tensor([n - 1, 7, n // 2])] = 3.0
    assert draw(logits, temperature=0.0) == 7


def test_penalties_equal_a_loop() -> None:
    generator = np.random.default_rng(0)
    for repetition, frequency, presence in (
        (1.3, 0.0, 0.0),
        (0.8, 0.0, 0.0),
        (1.0, 0.7, 0.0),
        (1.0, 0.0, -1.5),
        (1.2, 0.3, 1.1),
    ):
        changes = params(repetition_penalty=repetition, frequency_penalty=frequency, presence_penalty=presence)
        prompt = generator.integers(V, size=12).tolist()
        output: list[int] = []
        subject = Penalties(changes, [*prompt, V, V + 7], V)  # ids that cannot be sampled count nowhere
        for token in generator.integers(V, size=40).tolist():
            logits = generator.normal(size=V) * 4
            logits[3] = 0.0
            got = subject.apply(torch.tensor(logits, dtype=torch.float32)).numpy()
            assert np.allclose(got, reference.penalised(logits, changes, prompt, output), atol=1e-5)
            subject.add(token)
            output.append(token)


def test_repetition_counts_the_prompt_and_the_others_do_not() -> None:
    logits = torch.tensor([2.0, -2.0, 2.0, -2.0, 2.0])
    subject = Penalties(params(repetition_penalty=2.0), [0, 1], 5)
    assert subject.apply(logits).tolist() == [1.0, -4.0, 2.0, -2.0, 2.0]
    subject.add(2)
    subject.add(3)
    assert subject.apply(logits).tolist() == [1.0, -4.0, 1.0, -4.0, 2.0]
    for name, after in (("frequency_penalty", 0.0), ("presence_penalty", 1.0)):
        only = Penalties(params(**{name: 1.0}), [0, 1], 5)
        assert only.apply(logits).tolist() == logits.tolist()
        only.add(2)
        only.add(2)
        assert only.apply(logits).tolist() == [2.0, -2.0, after, -2.0, 2.0]


def test_logits_are_not_changed() -> None:
    logits = torch.randn(V)
    before = logits.clone()
    sampler = Sampler(params(repetition_penalty=1.5, logit_bias={2: 9.0}, top_k=5, presence_penalty=1.0), [1, 2], V)
    for index in range(5):
        sampler.penalties.add(sampler.draw(logits, index, [4]))
    assert torch.equal(logits, before)


def test_bias_comes_after_penalties_and_before_the_temperature() -> None:
    """2 / 2 + 2 = 3 is just above 2.9; (2 + 2) / 2 = 2 would be below. The bias is divided by T, as the logits are."""
    logits = torch.tensor([2.0, 2.9, -9.0])
    sampler = Sampler(params(temperature=0.0, repetition_penalty=2.0, logit_bias={0: 2.0}), [0], 3)
    assert sampler.draw(logits, 0, []) == 0
    drawn = [draw(torch.zeros(2), seed, temperature=0.5, logit_bias={0: 1.0}) for seed in range(4000)]
    assert drawn.count(0) / 4000 == pytest.approx(1 / (1 + math.exp(-2.0)), abs=0.02)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bias_forces_and_forbids(temperature: float) -> None:
    logits = torch.linspace(-2, 2, V)
    for seed in range(50):
        assert draw(logits, seed, temperature=temperature, logit_bias={3: 100.0, V + 5: 100.0}) == 3
        assert draw(logits, seed, temperature=temperature, logit_bias=dict.fromkeys(range(1, V), -100.0)) == 0


@pytest.mark.parametrize("changes", [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 2},
                                     {"temperature": 1.0, "top_p": 0.5}, {"logit_bias": {3: 100.0}}])  # fmt: skip
def test_forbidden_ids_are_never_drawn(changes: dict[str, Any]) -> None:
    """Not even where bias or top-k would leave nothing else."""
    logits = log(0.02, 0.02, 0.02, 0.9, 0.02, 0.02)
    for seed in range(100):
        assert draw(logits, seed, 0, [3, 5], **changes) not in (3, 5)
        assert draw(logits, seed, 0, [0, 1, 2, 3, 5], **changes) == 4


def random_params(generator: np.random.Generator) -> SamplingParams:
    def maybe(low: float, high: float, off: float) -> float:
        return float(generator.uniform(low, high)) if generator.random() < 0.5 else off

    return params(
        seed=int(generator.integers(2**63)),
        temperature=float(generator.uniform(0.2, 2.0)),
        top_k=int(generator.integers(0, V + 10)) if generator.random() < 0.5 else 0,
        top_p=maybe(0.05, 1.0, 1.0),
        min_p=maybe(0.0, 0.5, 0.0),
        presence_penalty=maybe(-2.0, 2.0, 0.0),
        frequency_penalty=maybe(-2.0, 2.0, 0.0),
        repetition_penalty=maybe(0.5, 2.0, 1.0),
        logit_bias={int(i): float(generator.uniform(-5, 5)) for i in generator.integers(V + 5, size=3)},
    )


def test_a_draw_is_the_reference_argmax_of_logits_and_noise() -> None:
    """2,000 random settings: the kept set, and the token that wins among it."""
    generator = np.random.default_rng(11)
    for trial in range(2000):
        setting = random_params(generator)
        logits = generator.normal(size=V) * generator.choice([0.1, 1.0, 4.0])
        prompt, output = (generator.integers(V, size=n).tolist() for n in (5, 7))
        forbidden = sorted(set(generator.integers(V, size=2).tolist())) if trial % 3 == 0 else []
        scaled = reference.scaled(logits, setting, prompt, output, forbidden)
        kept = reference.kept(scaled, setting)
        index = int(generator.integers(1000))
        noisy = {token: scaled[token] + reference.noise(setting.seed, index, token) for token in kept}
        sampler = Sampler(setting, prompt, V)
        for token in output:
            sampler.penalties.add(token)
        drawn = sampler.draw(torch.tensor(logits, dtype=torch.float32), index, forbidden)
        assert drawn == max(noisy, key=noisy.__getitem__), trial


def test_every_field_changes_the_outcome() -> None:
    """A parameter that the sampler forgot would pass every test that does not set it alone."""
    changed = {"seed": 2, "temperature": 0.1, "top_k": 3, "top_p": 0.2, "min_p": 0.6, "presence_penalty": 2.0,
               "frequency_penalty": 1.0, "repetition_penalty": 1.9, "logit_bias": {5: 4.0}}  # fmt: skip
    assert set(changed) == {field.name for field in msgspec.structs.fields(SamplingParams)}
    logits = torch.randn(V, generator=torch.Generator().manual_seed(0)) * 0.7

    def outcome(setting: SamplingParams) -> list[int]:
        sampler, drawn = Sampler(setting, [1, 2, 3], V), []
        for index in range(60):
            drawn.append(sampler.draw(logits, index, []))
            sampler.penalties.add(drawn[-1])
        return drawn

    base = outcome(params())
    for name, value in changed.items():
        assert outcome(params(**{name: value})) != base, name

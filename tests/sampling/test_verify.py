"""Verification of windows: the same tokens as single steps for any drafts, the right counts, and every end at its place."""

from typing import Any

import pytest
import torch

from paceline.core.batch import Opened
from paceline.core.request import Request, SamplingParams
from paceline.runner.slots import open_slot
from paceline.sampling.filters import Sampler
from paceline.sampling.verify import verify
from tests.kit.run import config
from tests.sampling.toy import Run, Toy, limits, run, scripted

V = 50
TOY = Toy(V)
PROMPT = [3, 4, 5, 3, 4]
KINDS = ("right", "wrong", "half", "first", "padding")
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "plain": {"temperature": 1.0},
    "filters": {"temperature": 0.8, "top_k": 12, "top_p": 0.9, "min_p": 0.02},
    "penalties": {"temperature": 0.9, "repetition_penalty": 1.4, "presence_penalty": 1.0, "frequency_penalty": 0.5},
    "greedy penalties": {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 1.5},
    "bias": {"temperature": 1.0, "top_p": 0.8, "logit_bias": {7: 4.0, 8: -100.0}},
}


def params(seed: int, **changes: Any) -> SamplingParams:
    return SamplingParams(**{"seed": seed, **changes})


def check_counts(result: Run) -> None:
    """Accepted are the leading drafts that equal the output, up to its end; a window emits them and one token more."""
    at = 0
    for verdict, drafts in zip(result.verdicts, result.proposed, strict=True):
        agree = 0
        while agree < len(drafts) and result.ids[at + agree : at + agree + 1] == [drafts[agree]]:
            agree += 1
        assert verdict.accepted == agree
        assert 1 <= len(verdict.ids) <= len(drafts) + 1
        last = verdict is result.verdicts[-1]
        assert len(verdict.ids) == agree + 1 or (last and len(verdict.ids) == agree)
        assert (verdict.finish is not None) == last
        at += len(verdict.ids)
    assert at == len(result.ids)


@pytest.mark.parametrize("name", SETTINGS)
def test_drafts_change_no_token(name: str) -> None:
    """40 seeds: right, wrong and half-right drafts, padding, every K; token for token, end for end, and the counts."""
    for seed in range(40):
        limit = limits(max_tokens=14 + seed % 9, min_tokens=seed % 5, stop_ids=(0, 9) if seed % 2 else ())
        setting = params(seed, **SETTINGS[name])
        single = run(TOY, setting, PROMPT, limit)
        assert all(len(verdict.ids) == 1 and verdict.accepted == 0 for verdict in single.verdicts)
        for kind in KINDS:
            for k in (1, 3, 7):
                got = run(TOY, setting, PROMPT, limit, k, scripted(single.ids, kind, V))
                assert (got.ids, got.finish) == (single.ids, single.finish), (seed, kind, k)
                check_counts(got)


@pytest.mark.parametrize("name", SETTINGS)
def test_right_and_wrong_drafts_take_the_rounds_they_should(name: str) -> None:
    setting = params(5, **SETTINGS[name])
    single = run(TOY, setting, PROMPT, limits(max_tokens=25))
    assert len(single.ids) == 25
    right = run(TOY, setting, PROMPT, limits(max_tokens=25), 5, scripted(single.ids, "right", V))
    assert [len(v.ids) for v in right.verdicts] == [1, 6, 6, 6, 6]
    assert [v.accepted for v in right.verdicts] == [0, 5, 5, 5, 5]
    wrong = run(TOY, setting, PROMPT, limits(max_tokens=25), 5, scripted(single.ids, "wrong", V))
    assert [len(v.ids) for v in wrong.verdicts] == [1] * 25
    assert sum(v.accepted for v in wrong.verdicts) == 0


def test_penalties_count_the_drafted_prefix() -> None:
    """The same logits at every position: only what was drafted before can make the second token another one."""
    logits = torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0, 0.0]).repeat(6, 1)
    for name, value in (("presence_penalty", 2.0), ("frequency_penalty", 2.0), ("repetition_penalty", 2.0)):
        sampler = Sampler(params(1, temperature=0.0, **{name: value}), [], 6)
        single = []
        for index in range(6):
            single += verify(logits[:1], [], sampler, index, limits()).ids
        assert single[0] == 0 and single[1] == 1
        window = Sampler(params(1, temperature=0.0, **{name: value}), [], 6)
        verdict = verify(logits, single[:5], window, 0, limits())
        assert (verdict.ids, verdict.accepted) == (single, 5), name
        assert torch.equal(window.penalties.counts, sampler.penalties.counts)
        assert torch.equal(window.penalties.seen, sampler.penalties.seen)


def test_rejected_drafts_are_not_counted() -> None:
    """After any windows the counts are those of the emitted tokens, each of them once, and of nothing else."""
    for seed in range(10):
        setting = params(seed, presence_penalty=0.5, repetition_penalty=1.2)
        single = run(TOY, setting, PROMPT, limits())
        for kind in KINDS:
            got = run(TOY, setting, PROMPT, limits(), 7, scripted(single.ids, kind, V))
            assert got.sampler is not None
            counts = torch.bincount(torch.tensor(got.ids), minlength=V).float()
            assert torch.equal(got.sampler.penalties.counts, counts)
            assert set(got.sampler.penalties.seen.nonzero().flatten().tolist()) == {*got.ids, *PROMPT}


K = 5
OFFSETS = range(K + 1)


def certain(tokens: list[int]) -> torch.Tensor:
    """Logits that leave no doubt about the next token: position i gives tokens[i]."""
    logits = torch.full((len(tokens), V), -20.0)
    logits[torch.arange(len(tokens)), torch.tensor(tokens)] = 20.0
    return logits


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("offset", OFFSETS)
def test_a_stop_id_ends_the_window_where_it_stands(offset: int, temperature: float) -> None:
    tokens = [10 + i for i in range(K + 1)]
    tokens[offset] = 9
    sampler = Sampler(params(1, temperature=temperature), [], V)
    verdict = verify(certain(tokens), tokens[:K], sampler, 30, limits(100, 0, (8, 9)))
    assert verdict.ids == tokens[: offset + 1]
    assert verdict.finish == "stop_token"
    assert verdict.accepted == min(offset + 1, K)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("offset", OFFSETS)
def test_the_limit_ends_the_window_where_it_stands(offset: int, temperature: float) -> None:
    tokens = [10 + i for i in range(K + 1)]
    sampler = Sampler(params(1, temperature=temperature), [], V)
    verdict = verify(certain(tokens), tokens[:K], sampler, 30, limits(30 + offset + 1))
    assert verdict.ids == tokens[: offset + 1]
    assert verdict.finish == "output_limit"
    assert verdict.accepted == min(offset + 1, K)
    tokens[offset] = 9  # both at once: the stop id is the reason
    assert verify(certain(tokens), tokens[:K], sampler, 30, limits(30 + offset + 1, 0, (9,))).finish == "stop_token"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("offset", range(-1, K + 2))
def test_stop_ids_cannot_be_drawn_before_min_tokens(offset: int, temperature: float) -> None:
    """The target wants to stop at every position; it may from the offset on. The second choice fills the places before."""
    logits = certain([9] * (K + 1))
    logits[:, 11] = 15.0
    sampler = Sampler(params(1, temperature=temperature), [], V)
    verdict = verify(logits, [11] * K, sampler, 30, limits(100, 30 + offset, (9,)))
    if offset <= K:
        assert verdict.ids == [11] * max(offset, 0) + [9]
        assert verdict.finish == "stop_token"
        assert verdict.accepted == max(offset, 0)
    else:
        assert (verdict.ids, verdict.finish, verdict.accepted) == ([11] * (K + 1), None, K)


def test_a_wrong_draft_ends_the_window_and_is_replaced() -> None:
    tokens = [10 + i for i in range(K + 1)]
    for offset in range(K):
        drafts = list(tokens[:K])
        drafts[offset] = 40
        verdict = verify(certain(tokens), drafts, Sampler(params(1), [], V), 0, limits())
        assert (verdict.ids, verdict.accepted, verdict.finish) == (tokens[: offset + 1], offset, None)


def test_the_context_end_is_named_as_the_reason() -> None:
    request = Request(id=1, prompt=[1] * 60, max_tokens=10, sampling=params(1, temperature=0.0))
    for room, reason in ((4, "context_capacity"), (10, "output_limit"), (11, "output_limit")):
        slot = open_slot(Opened(0, request), config(max_context=60 + room), V)
        verdict = verify(certain([10] * 16), [10] * 15, slot.sampler, 0, slot.limits)
        assert (len(verdict.ids), verdict.finish) == (min(room, 10), reason)


def test_stop_ids_beyond_the_sampled_vocabulary_are_harmless() -> None:
    request = Request(id=1, prompt=[1], max_tokens=9, min_tokens=2, stop_ids=[9, V, V + 300], sampling=params(1))
    slot = open_slot(Opened(0, request), config(), V)
    assert verify(certain([9]), [], slot.sampler, 0, slot.limits).finish is None

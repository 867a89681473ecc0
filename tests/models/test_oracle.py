"""Invariant 2: greedy output and prefill logits equal transformers' on the same weights in fp32, for every family."""

from pathlib import Path

import pytest
import torch

from paceline.core.batch import Batch, Opened, Row
from paceline.core.request import Request
from tests.kit import models
from tests.kit.run import Model, backend, load, run, sampling

HYBRID = {
    "hybrid-4": models.hybrid_config(),
    "hybrid-8-untied": models.hybrid_config(layers=8, tied=False),
    "hybrid-heads-6-1": models.hybrid_config(heads=6, kv_heads=1, values=2),
    "hybrid-values-6": models.hybrid_config(layers=5, values=6),
}
DENSE = {
    f"{kind}-{layers}-{heads}-{kv}-{'tied' if tied else 'untied'}": models.dense_config(kind, layers, heads, kv, tied)
    for kind, layers, heads, kv, tied in (
        ("llama", 2, 4, 2, True),
        ("llama", 3, 8, 2, False),
        ("qwen3", 2, 4, 4, True),
        ("qwen3", 3, 4, 1, False),
    )
}
CONFIGS = {**HYBRID, **DENSE}
LENGTHS = (1, 3, 63, 64, 65, 200)


def prompt_of(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(1, models.VOCAB, (length,), generator=generator).tolist()


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_equals_transformers(name: str, tmp_path: Path) -> None:
    oracle = models.build(CONFIGS[name])
    model = load(models.save(oracle, tmp_path / name), "fp32")
    for length in LENGTHS:
        prompt = prompt_of(length)
        expected = oracle.generate(
            torch.tensor([prompt]), max_new_tokens=64, do_sample=False, eos_token_id=None, pad_token_id=0
        )[0, length:].tolist()
        request = Request(id=1, prompt=prompt, max_tokens=64, sampling=sampling())
        for chunk in (64, 512):
            (reply,) = run(model, [request], prefill_chunk=chunk)
            assert reply.ids == expected, (length, chunk)
            assert reply.reason == "output_limit"


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("length", LENGTHS)
def test_logits_equal_for_any_cut(name: str, length: int, tmp_path: Path) -> None:
    """Prefill in two rows, cut anywhere (also where chunks never end), gives the oracle's logits at every position."""
    oracle = models.build(CONFIGS[name])
    model = load(models.save(oracle, tmp_path / name), "fp32")
    prompt = prompt_of(length)
    with torch.no_grad():
        expected = oracle(torch.tensor([prompt])).logits[0]
    for cut in sorted({c for c in (1, 2, 3, 4, 17, 62, 63, 64, 65, 66, 130, length - 1) if 0 < c < length} | {length}):
        got = logits_in_two_rows(model, prompt, cut)
        error = (got - expected).abs().max() / expected.abs().max()
        assert error < 1e-4, (length, cut, float(error))


def logits_in_two_rows(model: Model, prompt: list[int], cut: int) -> torch.Tensor:
    subject = backend(model)
    seen = []
    inner = subject.runner.model.logits
    subject.runner.model.logits = lambda hidden: seen.append(inner(hidden)) or seen[-1]  # type: ignore[func-returns-value]
    request = Request(id=1, prompt=prompt, max_tokens=4, sampling=sampling())
    pages = [7, 3, 5, 4, 11]  # not contiguous
    opened = [Opened(2, request)]
    for start, end in ((0, cut), (cut, len(prompt))):
        if end > start:
            known = end - start
            subject.step(Batch([Row(2, start, known, known, 0, pages, prompt[start:end])], opened))
            opened = []
    return torch.cat(seen)

"""Sampling written down a second time, in plain Python and numpy fp64: slow, obvious, and without a line of the subject.

`probabilities` is the distribution that a draw must follow; `noise` is the definition of the shared noise.
"""

import math

import numpy as np
from numpy.typing import NDArray

from paceline.core.request import SamplingParams

Logits = NDArray[np.float64]
MASK32 = 2**32 - 1


def splitmix(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


def lowbias(x: int) -> int:
    x = (x ^ (x >> 16)) * 0x7FEB352D % 2**32
    x = (x ^ (x >> 15)) * 0x846CA68B % 2**32
    return x ^ (x >> 16)


def noise_bits(seed: int, index: int, token: int) -> int:
    golden = 0x9E3779B97F4A7C15
    both = splitmix((splitmix((seed + golden) % 2**64) + (index + 1) * golden) % 2**64)
    return lowbias((lowbias(token ^ (both & MASK32)) + (both >> 32)) % 2**32)


def noise(seed: int, index: int, token: int) -> float:
    return -math.log(-math.log1p((noise_bits(seed, index, token) + 0.5) / 2**32 - 1))


def penalised(logits: Logits, params: SamplingParams, prompt: list[int], output: list[int]) -> Logits:
    """One token after the other: repetition for what was seen anywhere, frequency and presence for the output."""
    result = logits.copy()
    for token in range(len(logits)):
        count = output.count(token)
        if count or token in prompt:
            if result[token] > 0:
                result[token] /= params.repetition_penalty
            else:
                result[token] *= params.repetition_penalty
        result[token] -= params.frequency_penalty * count
        if count:
            result[token] -= params.presence_penalty
    return result


def scaled(
    logits: Logits, params: SamplingParams, prompt: list[int], output: list[int], forbidden: list[int]
) -> Logits:
    """Penalties, then bias, then what is forbidden, then the temperature (not 0)."""
    result = penalised(logits, params, prompt, output)
    for token, bias in params.logit_bias.items():
        if token < len(result):
            result[token] += bias
    result[forbidden] = -math.inf
    return result / params.temperature


def softmax(logits: Logits) -> Logits:
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def kept(logits: Logits, params: SamplingParams) -> list[int]:
    """The ids that top-k, then top-p, then min-p leave of logits/T, in order of likelihood (then of id)."""
    ids = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if 0 < params.top_k < len(ids):
        floor = logits[ids[params.top_k - 1]]
        ids = [token for token in ids if logits[token] >= floor]
    shares = softmax(logits[ids])
    if params.top_p < 1:
        total, size = 0.0, 0
        while size < len(ids) and total < params.top_p:
            total += shares[size]
            size += 1
        ids, shares = ids[:size], shares[:size]
    return [token for token, share in zip(ids, shares, strict=True) if share >= params.min_p * shares[0]]


def probabilities(
    logits: Logits,
    params: SamplingParams,
    prompt: list[int] | None = None,
    output: list[int] | None = None,
    forbidden: list[int] | None = None,
) -> Logits:
    """[V]: how likely each token is to be drawn next."""
    final = scaled(logits, params, prompt or [], output or [], forbidden or [])
    ids = kept(final, params)
    result = np.zeros(len(logits))
    result[ids] = softmax(final[ids])
    return result

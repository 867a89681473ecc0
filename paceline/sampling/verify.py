"""Verify a window: sample every position from the target until a draft differs, a stop id comes, or a limit is reached.

The target's own samples are the output, so a draft can only save forwards, never change a token. Penalties count the
drafted prefix by themselves: a draft that was accepted *is* the token that was sampled, and is counted as such.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from paceline.core.request import FinishReason
from paceline.sampling.filters import Sampler


@dataclass(frozen=True, slots=True)
class Limits:
    """Where a request's output ends: after `max_tokens` outputs (`reason` says whose limit that is) or at a stop id.

    The stop ids cannot be sampled before `min_tokens` outputs.
    """

    max_tokens: int
    reason: FinishReason
    min_tokens: int
    stop_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The tokens emitted, how many of them were drafts, and why the request ended, if it did."""

    ids: list[int]
    accepted: int
    finish: FinishReason | None


def verify(logits: torch.Tensor, drafts: Sequence[int], sampler: Sampler, produced: int, limits: Limits) -> Verdict:
    """logits [1 + len(drafts), V] fp32: position i follows the i-th draft. `produced` tokens were output before."""
    stop_ids = limits.stop_ids
    greedy = logits.argmax(1).tolist() if sampler.plain_greedy and produced >= limits.min_tokens else None
    ids: list[int] = []
    accepted = 0
    for i in range(logits.shape[0]):
        index = produced + i
        if greedy is not None:
            token = int(greedy[i])
        else:
            forbidden = sorted(stop_ids) if index < limits.min_tokens else []
            token = sampler.draw(logits[i], index, forbidden)
            sampler.penalties.add(token)
        ids.append(token)
        drafted = i < len(drafts) and drafts[i] == token
        accepted += drafted
        if token in stop_ids:
            return Verdict(ids, accepted, "stop_token")
        if index + 1 >= limits.max_tokens:
            return Verdict(ids, accepted, limits.reason)
        if not drafted:
            break
    return Verdict(ids, accepted, None)

"""How a drafter draws its tokens: its own logits under all of the request's rules, with the same noise as the target.

Where drafter and target see the same noise they pick the same token nearly as often as two samplers can agree. A draft is
never checked against a probability, so every way to draw is lossless; this one is accepted most (docs/draft-rules.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from paceline.sampling.filters import Sampler, keep, pick
from paceline.sampling.verify import Limits


@dataclass(frozen=True, slots=True)
class DraftView:
    """One slot's sampling as its drafter sees it: read only. `index` is the output index of the first draft."""

    sampler: Sampler
    limits: Limits
    index: int

    def draw(self, logits: torch.Tensor, drafted: Sequence[int], ids: torch.Tensor | None = None) -> int:
        """The draft that follows `drafted`. logits [n] fp32 of the tokens `ids` [n]; of tokens 0 … n − 1 where None."""
        if ids is None:
            ids = torch.arange(logits.shape[0])
        params, index = self.sampler.params, self.index + len(drafted)
        logits = self._penalised(logits, drafted, ids, index)
        if self.sampler.greedy:
            return int(ids[logits.argmax()])
        values, kept = keep(logits / params.temperature, params)
        return pick(values, ids[kept], params.seed, index)

    def _penalised(self, logits: torch.Tensor, drafted: Sequence[int], ids: torch.Tensor, index: int) -> torch.Tensor:
        """Penalties that count `drafted` as generated, then bias and forbidden ids; these hold at temperature 0 too."""
        sampler = self.sampler
        if sampler.penalties.active:
            logits = sampler.penalties.apply_ahead(logits, ids, drafted)
        if sampler.bias_ids is not None and sampler.bias is not None:
            logits = logits + (ids[:, None] == sampler.bias_ids).float() @ sampler.bias
        if index < self.limits.min_tokens:
            stops = torch.tensor(sorted(self.limits.stop_ids), dtype=torch.int64)
            allowed = logits.masked_fill(torch.isin(ids, stops), float("-inf"))
            logits = allowed if allowed.isfinite().any() else logits
        return logits

"""From one position's logits to the one token that the seed picks.

Order: penalties → logit bias and forbidden ids → temperature → top-k → top-p and min-p → argmax of logit/T + noise. All
work is on one row [V] at a time: a sum over a batch of rows could change with their number. Ties go to the lowest id.

Penalties (as in vLLM): repetition r divides positive and multiplies negative logits of ids seen in prompt or output;
frequency subtracts f per earlier output, presence p once if there was any.
"""

from collections.abc import Sequence

import torch

from paceline.core.request import SamplingParams
from paceline.sampling.noise import gumbel, key

# top-p alone keeps few tokens on real logits: a partial sort usually holds them all.
_FIRST_LOOK = 512
# Below this a draw differs from greedy only among logits 1e-4 apart, and logits/T may leave fp32's range.
_GREEDY_BELOW = 1e-5


class Penalties:
    """The counts of one request: which ids its prompt held, and how often each was generated. Not active: all no-ops."""

    def __init__(self, params: SamplingParams, prompt: list[int], vocab: int) -> None:
        self.repetition = params.repetition_penalty
        self.frequency, self.presence = params.frequency_penalty, params.presence_penalty
        self.active = self.repetition != 1.0 or self.frequency != 0.0 or self.presence != 0.0
        if self.active:
            self.counts = torch.zeros(vocab, dtype=torch.float32)
            self.seen = torch.zeros(vocab, dtype=torch.bool)
            self.seen[torch.tensor([t for t in prompt if t < vocab], dtype=torch.int64)] = True

    def add(self, token: int) -> None:
        """A generated token counts from the next position on."""
        if self.active:
            self.counts[token] += 1.0
            self.seen[token] = True

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """logits [V] fp32 → a new [V]."""
        return self._apply(logits, self.counts, self.seen)

    def apply_ahead(self, logits: torch.Tensor, ids: torch.Tensor, ahead: Sequence[int]) -> torch.Tensor:
        """logits [n] fp32 of the tokens `ids` [n] → a new [n], as if `ahead` had been generated already."""
        more = (ids[:, None] == torch.tensor(ahead, dtype=torch.int64)).sum(1)
        return self._apply(logits, self.counts[ids] + more, self.seen[ids] | (more > 0))

    def _apply(self, logits: torch.Tensor, counts: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        if self.repetition != 1.0:
            scaled = torch.where(logits > 0, logits / self.repetition, logits * self.repetition)
            logits = torch.where(seen, scaled, logits)
        if self.frequency != 0.0:
            logits = logits - self.frequency * counts
        if self.presence != 0.0:
            logits = logits - self.presence * (counts > 0)
        return logits


class Sampler:
    """Draws the tokens of one request. `draw` is a function of its arguments, the penalties' counts, and the seed."""

    def __init__(self, params: SamplingParams, prompt: list[int], vocab: int) -> None:
        self.params, self.vocab = params, vocab
        self.penalties = Penalties(params, prompt, vocab)
        usable = {i: v for i, v in params.logit_bias.items() if i < vocab}
        self.bias_ids = torch.tensor(list(usable), dtype=torch.int64) if usable else None
        self.bias = torch.tensor(list(usable.values()), dtype=torch.float32) if usable else None
        self.greedy = params.temperature < _GREEDY_BELOW
        self.plain_greedy = self.greedy and not self.penalties.active and self.bias_ids is None

    def draw(self, logits: torch.Tensor, index: int, forbidden: list[int]) -> int:
        """logits [V] fp32 (not changed); `index` of the token being sampled; ids that may not be sampled here."""
        if self.penalties.active:
            logits = self.penalties.apply(logits)
        if self.bias_ids is not None and self.bias is not None:
            logits = logits.index_add(0, self.bias_ids, self.bias)
        if forbidden:
            logits = logits.index_fill(0, torch.tensor(forbidden, dtype=torch.int64), float("-inf"))
        if self.greedy:
            return int(logits.argmax())
        values, ids = keep(logits / self.params.temperature, self.params)
        return pick(values, ids, self.params.seed, index)


def pick(values: torch.Tensor, ids: torch.Tensor, seed: int, index: int) -> int:
    """argmax of logit/T [n] + noise of the tokens `ids` [n] at an output index; ties go to the lowest id."""
    noisy = values.double() + gumbel(key(seed, index), ids)
    best = noisy.max()
    return int(ids[noisy == best].min())


def keep(scaled: torch.Tensor, params: SamplingParams) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens that top-k, top-p and min-p leave of logits/T [V]: (values [n], ids [n]).

    top-k keeps everything that ties with the k-th value. top-p keeps the smallest set of the most likely tokens whose
    probability (within top-k) reaches p. min-p keeps what is at least min_p times as likely as the best.
    """
    vocab = scaled.shape[0]
    if 0 < params.top_k < vocab:
        floor = torch.topk(scaled, params.top_k).values[-1]
        ids = torch.nonzero(scaled >= floor).squeeze(1)
        scaled = scaled[ids]
    else:
        ids = torch.arange(vocab)
    if params.top_p < 1.0:
        kept = _nucleus(scaled, params.top_p)
        scaled, ids = scaled[kept], ids[kept]
    if params.min_p > 0.0:
        kept = torch.nonzero(scaled >= scaled.max() + torch.log(torch.tensor(params.min_p))).squeeze(1)
        scaled, ids = scaled[kept], ids[kept]
    return scaled, ids


def _nucleus(scaled: torch.Tensor, top_p: float) -> torch.Tensor:
    """Indices of the top-p set of logits [n]; of tokens that tie at its edge, those with the lowest indices."""
    total = torch.logsumexp(scaled.double(), 0)
    look = min(_FIRST_LOOK, scaled.shape[0])
    while True:
        values, order = torch.topk(scaled, look)
        before = torch.exp(values.double() - total).cumsum(0)
        if look == scaled.shape[0] or before[-1] >= top_p:
            size = min(int((before < top_p).sum()) + 1, look)
            if size < look and values[size] < values[size - 1]:
                return order[:size]
            edge = values[size - 1]
            above = order[: int((values > edge).sum())]  # topk's order among equal values is arbitrary
            return torch.cat([above, torch.nonzero(scaled == edge).squeeze(1)[: size - above.shape[0]]])
        look = min(look * 16, scaled.shape[0])

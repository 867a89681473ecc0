"""A toy target whose logits are a function of the last two tokens, and requests run over it through `verify`, window by window.

What a window sees is what a real forward would give it: position i's logits follow the drafted prefix.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from paceline.core.request import FinishReason, SamplingParams
from paceline.sampling.filters import Sampler
from paceline.sampling.verify import Limits, Verdict, verify

Drafts = Callable[[int, int], list[int]]  # (tokens output so far, k) → drafts


class Toy:
    """`spread` is the standard deviation of its logits: small for near-uniform tokens, large for nearly certain ones."""

    def __init__(self, vocab: int, spread: float = 2.0, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.vocab = vocab
        self.table = torch.randn(vocab, vocab, vocab, generator=generator) * spread

    def logits(self, text: list[int]) -> torch.Tensor:
        """[V] after `text`, which has at least two tokens."""
        return self.table[text[-2], text[-1]]

    def window(self, text: list[int], drafts: list[int]) -> torch.Tensor:
        """[1 + drafts, V]. Drafts outside of the vocabulary stand for padding; what follows them is never looked at."""
        rows, seen = [self.logits(text)], list(text)
        for draft in drafts:
            seen.append(draft % self.vocab)
            rows.append(self.logits(seen))
        return torch.stack(rows)


@dataclass
class Run:
    ids: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    verdicts: list[Verdict] = field(default_factory=list)
    proposed: list[list[int]] = field(default_factory=list)
    sampler: Sampler | None = None


def limits(max_tokens: int = 24, min_tokens: int = 0, stop_ids: tuple[int, ...] = ()) -> Limits:
    return Limits(max_tokens, "output_limit", min_tokens, frozenset(stop_ids))


def run(
    toy: Toy, params: SamplingParams, prompt: list[int], limit: Limits, k: int = 0, drafts: Drafts | None = None
) -> Run:
    """The whole output, in windows of up to k drafts; the first window has none, as a prompt's last chunk has none."""
    result = Run(sampler=Sampler(params, prompt, toy.vocab))
    assert result.sampler is not None
    while result.finish is None:
        proposed = drafts(len(result.ids), k) if drafts is not None and result.ids else []
        window = toy.window([*prompt, *result.ids], proposed)
        verdict = verify(window, proposed, result.sampler, len(result.ids), limit)
        result.ids += verdict.ids
        result.finish = verdict.finish
        result.verdicts.append(verdict)
        result.proposed.append(proposed)
    return result


def scripted(answer: list[int], kind: str, vocab: int) -> Drafts:
    """Drafts from a known answer: `right`, `wrong`, `half` (every second position of the output), `first` (then wrong),
    `padding` (ids that do not exist)."""

    def draft(at: int, k: int) -> list[int]:
        known = [*answer[at : at + k], *[1] * k][:k]
        right = [kind == "right" or kind == ("first" if i == 0 else "") for i in range(k)]
        if kind == "half":
            right = [(at + i) % 2 == 0 for i in range(k)]
        wrong = [-1 if kind == "padding" else (token + 1) % vocab for token in known]
        return [known[i] if right[i] else wrong[i] for i in range(k)]

    return draft

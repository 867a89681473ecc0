"""Prompt lookup: the tokens that followed the last occurrence of the sequence's current ending.

Endings of 4, 3 and 2 tokens are tried, the longest first, over prompt and output. Costs no forward, so it pays wherever
text repeats: code edits, quotations, tables. A continuation that reaches the end of the text goes on with the drafts made
so far, which carries a repetition forward.
"""

from dataclasses import dataclass, field

from paceline.core.spec import DrafterSpec
from paceline.drafters.base import Observed, Target, TensorSource, TokensOnly, Want

LONGEST, SHORTEST = 4, 2


@dataclass(slots=True)
class _History:
    """All tokens of a slot, and for each n-gram that has a successor where its latest occurrence's successor stands."""

    tokens: list[int] = field(default_factory=list)
    follows: dict[tuple[int, ...], int] = field(default_factory=dict)

    def extend(self, tokens: list[int]) -> None:
        for token in tokens:
            at = len(self.tokens)
            for n in range(SHORTEST, min(LONGEST, at) + 1):
                self.follows[tuple(self.tokens[at - n :])] = at
            self.tokens.append(token)

    def continuation(self, k: int) -> list[int]:
        size = len(self.tokens)
        for n in range(min(LONGEST, size), SHORTEST - 1, -1):
            at = self.follows.get(tuple(self.tokens[size - n :]))
            if at is not None:
                drafts: list[int] = []
                for i in range(at, at + k):
                    drafts.append(self.tokens[i] if i < size else drafts[i - size])
                return drafts
        return []


class NgramDrafter(TokensOnly):
    spec = DrafterSpec()

    def __init__(self) -> None:
        self._slots: dict[int, _History] = {}

    def open(self, slot: int, tokens: list[int], filled: int) -> None:
        self._slots[slot] = _History()
        self._slots[slot].extend(tokens)

    def observe(self, rows: list[Observed]) -> None:
        for row in rows:
            self._slots[row.slot].extend(row.tokens)

    def propose(self, rows: list[Want]) -> list[list[int]]:
        return [self._slots[row.slot].continuation(row.k) for row in rows]

    def close(self, slot: int) -> None:
        self._slots.pop(slot, None)


def build(target: Target, source: TensorSource | None) -> NgramDrafter:
    return NgramDrafter()

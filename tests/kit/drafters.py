"""Drafters that know the answer: always right, always wrong, or right at every second position.

`answers` maps a request's prompt to its output, as an earlier run without drafts gave it. After its end they draft on.
"""

from paceline.core.spec import DrafterSpec
from paceline.drafters.base import Observed, TokensOnly, Want


class ScriptedDrafter(TokensOnly):
    """`right(position in the output)` says whether that draft is the answer's token; the others are off by one."""

    spec = DrafterSpec()

    def __init__(self, answers: dict[tuple[int, ...], list[int]], kind: str, vocab: int) -> None:
        self.answers, self.vocab = answers, vocab
        self.right = {"right": lambda at: True, "wrong": lambda at: False, "half": lambda at: at % 2 == 0}[kind]
        self.seen: dict[int, list[int]] = {}

    def open(self, slot: int, tokens: list[int], filled: int) -> None:
        self.seen[slot] = list(tokens)

    def observe(self, rows: list[Observed]) -> None:
        for row in rows:
            self.seen[row.slot] += row.tokens

    def propose(self, rows: list[Want]) -> list[list[int]]:
        return [self._drafts(self.seen[row.slot], row.k) for row in rows]

    def _drafts(self, seen: list[int], k: int) -> list[int]:
        prompt = max((p for p in self.answers if tuple(seen[: len(p)]) == p), key=len)
        answer, at = self.answers[prompt], len(seen) - len(prompt)
        drafts = [*answer[at : at + k], *[1] * k][:k]
        return [t if self.right(at + i) else (t + 1) % self.vocab for i, t in enumerate(drafts)]

    def close(self, slot: int) -> None:
        del self.seen[slot]

"""Says when a drafter is dead: acceptance of zero, or far below what its card states, without any error anywhere.

A wrong tap, norm or position changes no token, only the speed; this is what makes it visible. Counts are of drafts.
"""

from collections.abc import Mapping
from dataclasses import dataclass

FIRST_DRAFTS = 1000
# Workloads differ by about a factor of two around a card's average; a broken head accepts next to nothing.
_DEAD_SHARE = 0.4


@dataclass(frozen=True, slots=True)
class Stated:
    """What a drafter's card states: accepted / proposed at draft length `k`. k None and share 0 where it states nothing."""

    k: int | None
    share: float

    @classmethod
    def nearest(cls, expected: object, draft_tokens: int) -> "Stated":
        """`expected` maps K (also as text, as JSON has it) to accepted / proposed; the K nearest to the engine's counts."""
        by_k = {int(k): float(v) for k, v in expected.items()} if isinstance(expected, Mapping) else {}
        k = min(by_k, key=lambda each: abs(each - draft_tokens)) if by_k else None
        return cls(k, 0.0 if k is None else by_k[k])

    def is_dead(self, share: float) -> bool:
        """Whether a drafter of which `share` is accepted must be broken or unfit, whatever the text."""
        return share <= _DEAD_SHARE * self.share


class AcceptanceWatch:
    """Judges an engine's drafter after every 1,000 drafts; `expected` as in Stated.nearest.

    A card speaks of the full head: with another `draft_head` (as the flag takes it), that is the first suspect.
    """

    def __init__(self, expected: object, draft_tokens: int, draft_head: str = "full") -> None:
        self._stated = Stated.nearest(expected, draft_tokens)
        self._fix = "check that it was made for this model"
        if draft_head != "full":
            self._fix = f"--draft-head {draft_head} may be too short; if not, {self._fix}"
        self._proposed = self._accepted = 0
        self.warning: str | None = None

    def add(self, proposed: int, accepted: int) -> bool:
        """True when the warning has just come up. It is judged again after every 1,000 drafts, and may go away."""
        self._proposed += proposed
        self._accepted += accepted
        if self._proposed < FIRST_DRAFTS:
            return False
        before, self.warning = self.warning, self._judge(self._accepted / self._proposed)
        self._proposed = self._accepted = 0
        return before is None and self.warning is not None

    def _judge(self, share: float) -> str | None:
        stated = self._stated
        if not stated.is_dead(share):
            return None
        found = f"{share:.1%} of the last {self._proposed} drafts were accepted"
        if stated.k is None:
            return f"{found}; the drafter does not fit this model or text: choose another --drafter, or none"
        return f"{found}, the drafter's card states {stated.share:.1%} for K = {stated.k}; {self._fix}"

"""Says when a drafter is dead: acceptance of zero, or far below what its card states, without any error anywhere.

A wrong tap, norm or position changes no token, only the speed; this is what makes it visible. Counts are of drafts.
"""

from collections.abc import Mapping

FIRST_DRAFTS = 1000
# Workloads differ by about a factor of two around a card's average; a broken head accepts next to nothing.
_LOW_SHARE = 0.4


class AcceptanceWatch:
    """`expected` maps K (also as text, as JSON has it) to accepted / proposed; the nearest K to the engine's counts.

    A card speaks of the full head: with another `draft_head` (as the flag takes it), that is the first suspect.
    """

    def __init__(self, expected: object, draft_tokens: int, draft_head: str = "full") -> None:
        stated = {int(k): float(v) for k, v in expected.items()} if isinstance(expected, Mapping) else {}
        self._k = min(stated, key=lambda k: abs(k - draft_tokens)) if stated else None
        self._share = stated[self._k] if self._k is not None else 0.0
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
        if share > _LOW_SHARE * self._share:
            return None
        found = f"{share:.1%} of the last {self._proposed} drafts were accepted"
        if self._k is None:
            return f"{found}; the drafter does not fit this model or text: choose another --drafter, or none"
        return f"{found}, the drafter's card states {self._share:.1%} for K = {self._k}; {self._fix}"

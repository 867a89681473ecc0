"""What a drafter is: it watches the tokens that became facts, and proposes the next ones.

The order in a slot's life is open, then observe after every round, propose when a window is wanted, close. A drafter may
propose fewer than k tokens, also none; the round then verifies a shorter window. Drafts carry no probabilities: one counts
while it equals the target's own sample, so a drafter can be slow or wrong but never change the output.
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Observed:
    """Tokens of `slot` that became facts in this round: a prompt chunk's, then those that were emitted. The last emitted
    one is the next window's anchor."""

    slot: int
    tokens: list[int]


class Drafter(Protocol):
    def open(self, slot: int) -> None:
        """A new request takes the slot; whatever a former one left must not be seen."""
        ...

    def observe(self, rows: list[Observed]) -> None: ...

    def propose(self, rows: list[tuple[int, int]]) -> list[list[int]]:
        """rows of (slot, k) → at most k drafts each, continuing after the last observed token."""
        ...

    def close(self, slot: int) -> None: ...

"""State checkpoints by index: which of the N places of the device's store are taken, and which to keep when all are.

A checkpoint is the recurrent and drafter state after `position` tokens of some token sequence. The pool knows how
checkpoints follow each other along sequences (`parent` is the nearest earlier one), but neither tokens nor pages
(`prefix.py`) nor bytes. Positions and distances are in tokens, times are counted in opened leases.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import pairwise

from paceline.core.config import PAGE_TOKENS

# A sequence keeps at least one checkpoint in so many tokens before it takes one from another sequence.
SPACING_TOKENS = 16384
# How likely the next request of a conversation renders the last reply in other tokens than the model produced, and how
# likely it edits a given token of what came before. Rough on purpose: they only rank checkpoints.
REPLY_CHANGES = 1 / 4
TOKEN_CHANGES = 1 / 2**20


class CheckpointKind(Enum):
    """Where in a request a checkpoint lies. All but the end of a reply lie at multiples of 64."""

    MESSAGE = "message"
    CHUNK = "chunk"
    PROMPT_END = "prompt_end"
    REPLY_END = "reply_end"


class Checkpoint:
    """One taken place. `parent` is the nearest earlier checkpoint of the same sequence; while `pins` > 0 it stays."""

    __slots__ = ("index", "kind", "last_use", "parent", "pins", "position")

    def __init__(self, position: int, kind: CheckpointKind, parent: "Checkpoint | None", now: int) -> None:
        self.index = -1
        self.position = position
        self.kind = kind
        self.parent = parent
        self.pins = 0
        self.last_use = now

    @property
    def at_stake(self) -> int:
        """Tokens to compute again where this checkpoint is missed."""
        return self.position - (self.parent.position if self.parent else 0)


class CheckpointPool:
    """`len(pool)` of `total` places are taken. One that was dropped has index −1."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.evictions = 0
        self._free = list(range(total - 1, -1, -1))
        self._taken: dict[int, Checkpoint] = {}

    def __len__(self) -> int:
        return len(self._taken)

    def __iter__(self) -> Iterator[Checkpoint]:
        return iter(self._taken.values())

    @property
    def full(self) -> bool:
        return not self._free

    def add(self, checkpoint: Checkpoint, later: Iterable[Checkpoint]) -> None:
        """Gives `checkpoint` a free place; `later` are those whose nearest earlier one it now is."""
        checkpoint.index = self._free.pop()
        self._taken[checkpoint.index] = checkpoint
        for other in later:
            other.parent = checkpoint

    def drop(self, checkpoint: Checkpoint) -> None:
        if checkpoint.pins:
            raise ValueError(f"checkpoint {checkpoint.index} is in use and cannot be dropped")
        del self._taken[checkpoint.index]
        self._free.append(checkpoint.index)
        checkpoint.index = -1
        for other in self._taken.values():
            if other.parent is checkpoint:
                other.parent = checkpoint.parent

    def victim(self, new: Checkpoint, now: int) -> Checkpoint | None:
        """Which checkpoint must go for `new`, at the time `now`; None when `new` is worth less than all others.

        A sequence thins its own first, down to one in 16k tokens. Then goes what is expected to cost least: the tokens
        at stake × the chance that the next request of that conversation resumes right there ÷ the age², which is what
        makes conversations that nobody continues leave.
        """
        followers: dict[Checkpoint, list[Checkpoint]] = defaultdict(list)
        for checkpoint in [*self._taken.values(), new]:
            if checkpoint.parent:
                followers[checkpoint.parent].append(checkpoint)
        own = _thinnable(new, followers)
        if own is not None:
            return own

        def cost(checkpoint: Checkpoint) -> float:
            age = now - checkpoint.last_use + 1
            return checkpoint.at_stake * _chance(checkpoint, followers) / age**2

        cheapest = min((c for c in self._taken.values() if not c.pins), key=cost, default=None)
        return cheapest if cheapest is not None and cost(cheapest) <= cost(new) else None


def chain(last: Checkpoint | None) -> Iterator[Checkpoint]:
    """The checkpoints of one sequence that are still held, from `last` back to the first."""
    while last is not None:
        if last.index >= 0:
            yield last
        last = last.parent


def plan_checkpoints(
    prompt_tokens: int, reused: int, message_boundaries: Sequence[int], chunk: int
) -> dict[int, CheckpointKind]:
    """Positions at which prompt chunks should end, ascending, and the kind of checkpoint to ask for at each.

    All are multiples of 64 in reused + 1 … prompt_tokens − 1. `message_boundaries` are token positions, rounded down
    here. A cut costs a step, so boundaries less than `chunk` apart share one (the later one of the prompt wins), except
    that the first and the last always have theirs: prompts of other conversations leave at the first, and the last
    stands for the prompt's end when the template renders that otherwise once a reply follows. The kind of any other
    chunk end is CHUNK.
    """
    end = (prompt_tokens - 1) // PAGE_TOKENS * PAGE_TOKENS
    rounded = sorted({boundary // PAGE_TOKENS * PAGE_TOKENS for boundary in message_boundaries} - {0})
    plan: dict[int, CheckpointKind] = {}
    kept = end
    for position in reversed(rounded):
        if not reused < position < end:
            continue
        if position in (rounded[0], rounded[-1]) or kept - position >= chunk:
            plan[position] = CheckpointKind.MESSAGE
            kept = position
    if end > reused:
        plan[end] = CheckpointKind.PROMPT_END
    for position in range((reused // SPACING_TOKENS + 1) * SPACING_TOKENS, end, SPACING_TOKENS):
        if all(abs(position - other) >= chunk for other in plan):
            plan[position] = CheckpointKind.CHUNK
    return dict(sorted(plan.items()))


def _thinnable(new: Checkpoint, followers: dict[Checkpoint, list[Checkpoint]]) -> Checkpoint | None:
    """Of the sequence of `new`, the checkpoint whose loss leaves the smallest gap, of at most 16k tokens; chunk edges
    before others. The two newest stay, and so do those that several sequences share."""
    own = [new, *chain(new.parent)]
    best: tuple[bool, int] | None = None
    found = None
    for after, checkpoint in pairwise(own[1:]):
        gap = after.position - checkpoint.position + checkpoint.at_stake
        if checkpoint.pins or len(followers[checkpoint]) > 1 or gap > SPACING_TOKENS:
            continue
        order = (checkpoint.kind is not CheckpointKind.CHUNK, gap)
        if best is None or order < best:
            best, found = order, checkpoint
    return found


def _chance(checkpoint: Checkpoint, followers: dict[Checkpoint, list[Checkpoint]]) -> float:
    """How likely the next request of its conversation resumes at `checkpoint`, as far as the neighbours tell."""
    after = followers.get(checkpoint, [])
    if len(after) != 1:
        # The newest of its conversation, or the root of several.
        return 1.0
    follower = after[0]
    if follower.kind is CheckpointKind.REPLY_END and follower not in followers:
        return REPLY_CHANGES
    return (follower.position - checkpoint.position) * TOKEN_CHANGES

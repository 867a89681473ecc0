"""One step's work and its result: what crosses the Backend protocol.

A row is one sequence's part of a batch. There is no phase: a prompt chunk is a row whose tokens are all known, a decode
window is a row with one known token (the anchor) and up to K drafts, which the backend holds for the slot.
"""

from dataclasses import dataclass, field

from paceline.core.request import FinishReason, Request


@dataclass(frozen=True, slots=True)
class Row:
    """`q_len` tokens of the sequence in `slot`, at positions start … start + q_len − 1.

    `known` leading tokens are facts, the rest are drafts. `tokens` are the known tokens where the host has them (prompt
    chunks, and output that is computed again); None means the anchor, the last token that was sampled. `sample_from` is the
    first position of the row that needs logits, q_len for none. `pages` are the physical pages of the sequence, in order,
    enough for every position.
    """

    slot: int
    start: int
    q_len: int
    known: int
    sample_from: int
    pages: list[int]
    tokens: list[int] | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """A request takes a slot. `output` came out before it was paused; `filled` tokens of prompt and output are in its pages.

    `restore` is the checkpoint that holds the state at `filled`; None where there is no state to hold (a fresh start, or a
    model without any). `copy` names a page to copy, source and destination, before anything is written.
    """

    slot: int
    request: Request
    output: list[int] = field(default_factory=list)
    filled: int = 0
    restore: int | None = None
    copy: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one step, and the requests whose slot is opened by it (each slot is opened before its first row)."""

    rows: list[Row]
    opened: list[Opened] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RowOut:
    """What a row emitted. `ids` is empty for an inner prompt chunk.

    `accepted` drafts of `proposed` were emitted. `finish` is set when the backend ended the row (stop id, token limit,
    context end). `next_drafts` is how many drafts the drafter has ready for the slot's next window.
    """

    ids: list[int]
    proposed: int
    accepted: int
    finish: FinishReason | None
    next_drafts: int


@dataclass(frozen=True, slots=True)
class StepOut:
    """One RowOut per row of the batch, in order, and the seconds the device took."""

    rows: list[RowOut]
    step_s: float

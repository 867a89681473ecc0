"""The messages between the HTTP process and the engine process, and the counts both sides agree on.

Data goes down as commands and comes up as events; token ids only. `t` is CLOCK_MONOTONIC in seconds, which all
processes of one machine share. The order for one request is Admitted, Tokens…, then exactly one Finished.
"""

import msgspec

from paceline.core.request import CancelCause, FinishReason, Request


class Submit(msgspec.Struct, frozen=True, tag=True):
    request: Request


class Cut(msgspec.Struct, frozen=True, tag=True):
    """A stop string was found: only the first `n` output tokens count. The engine frees the slot."""

    id: int
    n: int


class Cancel(msgspec.Struct, frozen=True, tag=True):
    id: int
    cause: CancelCause


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """Cancel what runs and what waits (cause `shutdown`), then leave."""


Command = Submit | Cut | Cancel | Shutdown


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The engine is up; `facts` is what the backend measured or decided (bytes, formats, devices)."""

    facts: dict[str, object]


class Admitted(msgspec.Struct, frozen=True, tag=True):
    """The request has a slot and pages; its prefill begins after the `cached` tokens of its prompt that were found.

    `miss` says why no more were found, "" where nothing was missing; `differs_at` is the first position that differs from
    what is cached, where that is known.
    """

    id: int
    t: float
    cached: int = 0
    miss: str = ""
    differs_at: int | None = None


class Tokens(msgspec.Struct, frozen=True, tag=True):
    """What one round emitted for one request: `accepted` drafts out of `proposed`, then the target's own token.

    When a stop id or a limit cuts the round short, `ids` is shorter than accepted + 1 would be; `accepted` already
    counts only drafts that were emitted.
    """

    id: int
    ids: list[int]
    proposed: int
    accepted: int
    t: float


class Finished(msgspec.Struct, frozen=True, tag=True):
    """The one terminal event. `n` output tokens count; `cause` is set for cancelled, `error` for error."""

    id: int
    reason: FinishReason
    n: int
    t: float
    cause: CancelCause | None = None
    error: str | None = None


class Stats(msgspec.Struct, frozen=True, tag=True):
    """What the engine did in the last interval (seconds and tokens); sent when it did something, and when it becomes idle.

    `rounds` counts forwards that held at least one decode row, `row_rounds` the decode rows in them, so
    row_rounds / rounds is the average decode batch. `decode_tokens` leaves out each request's first token, which
    belongs to its prefill. At the end of the interval: `running` requests hold a slot, `prefilling` of these are still
    on their prompt, and `pages_used` of `pages_total` are held by running requests; cached
    pages that can be evicted are not among them.
    """

    interval_s: float
    prefill_tokens: int
    decode_tokens: int
    rounds: int
    row_rounds: int
    proposed: int
    accepted: int
    running: int
    prefilling: int
    waiting: int
    pages_used: int
    pages_total: int
    step_s: float


class Fault(msgspec.Struct, frozen=True, tag=True):
    """The engine cannot go on (or could not start); it leaves after this."""

    error: str


Event = Ready | Admitted | Tokens | Finished | Stats | Fault


class Tally:
    """Speculation counts of one request, for any cut point.

    `at(n)` counts the rounds, proposals and accepted drafts that produced the first n output tokens, so the figures do
    not depend on how far past a stop string the engine had already gone.
    """

    __slots__ = ("_rounds",)

    def __init__(self) -> None:
        self._rounds: list[tuple[int, int, int]] = []  # emitted, proposed, accepted

    def add(self, emitted: int, proposed: int, accepted: int) -> None:
        self._rounds.append((emitted, proposed, accepted))

    def at(self, n: int) -> "Counts":
        left = n
        rounds = proposed_all = accepted_all = 0
        per_position: list[int] = []
        for index, (emitted, proposed, accepted) in enumerate(self._rounds):
            if left <= 0:
                break
            kept = min(accepted, left)
            left -= emitted
            if index == 0:
                continue  # the first token comes from the prompt's last chunk: no window, no drafts
            rounds += 1
            proposed_all += proposed
            accepted_all += kept
            per_position.extend([0] * (proposed - len(per_position)))
            for i in range(kept):
                per_position[i] += 1
        return Counts(rounds, proposed_all, accepted_all, per_position)


class Counts(msgspec.Struct, frozen=True):
    """Decode rounds, proposed and accepted drafts, and accepted drafts by draft position (index 0 = first draft)."""

    rounds: int
    proposed: int
    accepted: int
    accepted_per_position: list[int]

"""Sums of what the engine did since its last Stats message. Tokens and seconds; it reads no clock itself."""

from dataclasses import dataclass

from paceline.core.batch import Row, StepOut
from paceline.core.messages import Stats


@dataclass(slots=True)
class _Sums:
    prefill_tokens: int = 0
    decode_tokens: int = 0
    rounds: int = 0
    row_rounds: int = 0
    proposed: int = 0
    accepted: int = 0
    step_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Load:
    """How full the engine is at one moment: requests and pages, as in Stats."""

    running: int
    prefilling: int
    waiting: int
    pages_used: int
    pages_total: int


class Meter:
    """One interval at a time, from `restart` or the last `take`."""

    def __init__(self) -> None:
        self._sums = _Sums()
        self._steps = 0
        self._since = 0.0

    def restart(self, now: float) -> None:
        """Work begins after an idle time, which must not count as part of the interval."""
        self._since = now

    def add(self, rows: list[Row], out: StepOut) -> None:
        sums = self._sums
        windows = 0
        for row, row_out in zip(rows, out.rows, strict=True):
            if row.tokens is not None:
                sums.prefill_tokens += row.q_len
                continue
            windows += 1
            sums.decode_tokens += len(row_out.ids)
            sums.proposed += row_out.proposed
            sums.accepted += row_out.accepted
        sums.rounds += windows > 0
        sums.row_rounds += windows
        sums.step_s += out.step_s
        self._steps += 1

    def elapsed_s(self, now: float) -> float:
        return now - self._since

    def take(self, now: float, load: Load) -> Stats | None:
        """The interval up to now, which ends here; None when no step ran in it and the engine is not idle either.

        Whoever waits for the engine to be idle relies on that last message, also after a cancel without a step.
        """
        sums, steps, interval_s = self._sums, self._steps, self.elapsed_s(now)
        self._sums, self._steps, self._since = _Sums(), 0, now
        if steps == 0 and (load.running or load.waiting):
            return None
        return Stats(
            interval_s=interval_s,
            prefill_tokens=sums.prefill_tokens,
            decode_tokens=sums.decode_tokens,
            rounds=sums.rounds,
            row_rounds=sums.row_rounds,
            proposed=sums.proposed,
            accepted=sums.accepted,
            running=load.running,
            prefilling=load.prefilling,
            waiting=load.waiting,
            pages_used=load.pages_used,
            pages_total=load.pages_total,
            step_s=sums.step_s,
        )

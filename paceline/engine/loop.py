"""The engine's rounds: commands in, one step of the backend at a time, events out.

`step` admits, schedules (`scheduler/`), runs the backend and applies what it returned. Commands take effect between
steps. Every submitted request ends in exactly one Finished. It trusts the backend's finish reasons (stop ids, limits,
context end) and knows nothing of text, sockets or processes (`process.py`). Lengths in tokens, times from `clock` in s.
"""

import time
from collections.abc import Callable

from paceline.core.backend import Backend
from paceline.core.batch import Batch, Row, RowOut, StepOut
from paceline.core.config import EngineConfig
from paceline.core.errors import EngineError
from paceline.core.messages import Admitted, Event, Finished, Tokens
from paceline.core.request import CancelCause, FinishReason, Request
from paceline.engine.meter import Load, Meter
from paceline.scheduler.queue import RequestQueue, Sequence
from paceline.scheduler.schedule import schedule


class Engine:
    """One backend and the requests on it. A raise from `step` means that the engine is lost."""

    def __init__(
        self,
        backend: Backend,
        config: EngineConfig,
        publish: Callable[[Event], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend = backend
        self._config = config
        self._publish = publish
        self._clock = clock
        self._queue = RequestQueue(config)
        self._meter = Meter()

    @property
    def busy(self) -> bool:
        """Something runs or waits: another `step` is due."""
        return bool(self._queue.running or self._queue.waiting)

    @property
    def facts(self) -> dict[str, object]:
        """What the backend measured or decided; as in Ready."""
        return self._backend.facts()

    def submit(self, request: Request) -> None:
        refusal = self._queue.refusal(request)
        if refusal is not None:
            self._publish(Finished(request.id, "error", 0, self._clock(), error=refusal))
            return
        if not self.busy:
            self._meter.restart(self._clock())
        self._queue.submit(request)

    def cut(self, request_id: int, n: int) -> None:
        """A stop string ended the request after n output tokens. Unknown ids are those that ended meanwhile."""
        if self._remove(request_id) is not None:
            self._publish(Finished(request_id, "stop_string", n, self._clock()))
            self._report()

    def cancel(self, request_id: int, cause: CancelCause) -> None:
        produced = self._remove(request_id)
        if produced is not None:
            self._publish(Finished(request_id, "cancelled", produced, self._clock(), cause=cause))
            self._report()

    def shutdown(self) -> None:
        """Cancels whatever waits or runs."""
        for request_id in [*self._queue.waiting, *self._queue.running]:
            self.cancel(request_id, "shutdown")

    def check(self) -> None:
        """Raises unless the engine is empty and every slot and page is free."""
        self._queue.check()

    def step(self) -> None:
        """One round, or nothing when idle."""
        if not self.busy:
            return
        admitted = self._queue.admit()
        for sequence in admitted:
            self._publish(Admitted(sequence.request.id, self._clock()))
        running = self._queue.running.values()
        rows = schedule(running, self._config.prefill_chunk, self._config.max_context)
        out = self._backend.step(Batch(rows, [(sequence.slot, sequence.request) for sequence in admitted]))
        by_slot = {sequence.slot: sequence for sequence in running}
        sequences = [by_slot[row.slot] for row in rows]
        _check_step(sequences, rows, out)
        self._meter.add(rows, out)
        now = self._clock()
        for sequence, row, row_out in zip(sequences, rows, out.rows, strict=True):
            self._apply(sequence, row, row_out, now)
        self._report()

    def _apply(self, sequence: Sequence, row: Row, out: RowOut, now: float) -> None:
        sequence.prefilled += len(row.tokens or ())
        if row.sample_from == row.q_len:
            return
        request = sequence.request
        if min(request.max_tokens, self._config.max_context - len(request.prompt)) == 0:
            # The request asked for its prefill only, or its prompt fills the context: the sampled token does not count.
            self._finish(sequence, "output_limit" if request.max_tokens == 0 else "context_capacity", now)
            return
        sequence.produced += len(out.ids)
        sequence.next_drafts = out.next_drafts
        self._publish(Tokens(request.id, out.ids, out.proposed, out.accepted, now))
        if out.finish is not None:
            self._finish(sequence, out.finish, now)

    def _finish(self, sequence: Sequence, reason: FinishReason, now: float) -> None:
        self._release(sequence)
        self._publish(Finished(sequence.request.id, reason, sequence.produced, now))

    def _remove(self, request_id: int) -> int | None:
        """Takes a request out wherever it is. Its output tokens so far, or None when it is not here."""
        if self._queue.waiting.pop(request_id, None) is not None:
            return 0
        sequence = self._queue.running.get(request_id)
        if sequence is None:
            return None
        self._release(sequence)
        return sequence.produced

    def _release(self, sequence: Sequence) -> None:
        self._backend.close_slot(sequence.slot)
        self._queue.release(sequence)

    def _report(self) -> None:
        """Sends Stats when the interval is over, and at once when nothing is left to do."""
        now = self._clock()
        if self.busy and self._meter.elapsed_s(now) < self._config.log_stats_interval_s:
            return
        running, pool = self._queue.running, self._queue.pool
        prefilling = sum(not sequence.prompt_done for sequence in running.values())
        load = Load(len(running), prefilling, len(self._queue.waiting), pool.used, pool.total)
        stats = self._meter.take(now, load)
        if stats is not None:
            self._publish(stats)


def _check_step(sequences: list[Sequence], rows: list[Row], out: StepOut) -> None:
    """Raises on output that cannot be applied, before any of it was: the backend broke its contract."""
    if len(out.rows) != len(rows):
        raise EngineError(f"the backend returned {len(out.rows)} rows for {len(rows)}")
    for sequence, row, row_out in zip(sequences, rows, out.rows, strict=True):
        request_id, limit = sequence.request.id, sequence.request.max_tokens
        if bool(row_out.ids) != (row.sample_from < row.q_len):
            raise EngineError(f"request {request_id}: the backend emitted {len(row_out.ids)} tokens for {row}")
        # A limit of 0 still samples once at the prompt's end; that token is dropped.
        if sequence.produced + len(row_out.ids) > max(limit, 1):
            raise EngineError(f"request {request_id}: the backend went past max_tokens = {limit}")

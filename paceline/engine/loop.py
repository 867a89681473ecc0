"""The engine's rounds: commands in, one step of the backend at a time, events out.

`step` admits, pauses what has no pages, schedules (`scheduler/`), runs the backend and applies what it returned. Commands
take effect between steps. Every submitted request ends in exactly one Finished. It trusts the backend's finish reasons
(stop ids, limits, context end) and knows nothing of text, sockets or processes (`process.py`). Lengths in tokens, times
from `clock` in s.
"""

import time
from collections.abc import Callable

from paceline.core.backend import Backend
from paceline.core.batch import Batch, Opened, Row, RowOut, StepOut
from paceline.core.config import PAGE_TOKENS, EngineConfig
from paceline.core.errors import EngineError
from paceline.core.messages import Admitted, Event, Finished, Tokens
from paceline.core.request import CancelCause, FinishReason, Request
from paceline.engine.meter import Load, Meter
from paceline.memory.checkpoints import CheckpointKind
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
        self._queue = RequestQueue(config, backend.stateful)
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
        """Raises unless the engine is empty, every slot is free and every page is free or cached."""
        self._queue.check()

    def step(self) -> None:
        """One round, or nothing when idle."""
        if not self.busy:
            return
        self._make_room()
        opened = [self._open(sequence) for sequence in self._queue.admit()]
        running = self._queue.by_arrival()
        rows = schedule(running, self._config.prefill_chunk, self._config.max_context)
        out = self._backend.step(Batch(rows, opened))
        by_slot = {sequence.slot: sequence for sequence in running}
        sequences = [by_slot[row.slot] for row in rows]
        _check_step(sequences, rows, out)
        self._meter.add(rows, out)
        now = self._clock()
        for sequence, row, row_out in zip(sequences, rows, out.rows, strict=True):
            self._apply(sequence, row, row_out, now)
        self._report()

    def _make_room(self) -> None:
        """Pages for every next window. The oldest come first; where none are left, the newest request is paused."""
        for sequence in self._queue.by_arrival():
            while sequence.slot >= 0 and not self._queue.grow(sequence):
                self._pause(self._queue.by_arrival()[-1])

    def _open(self, sequence: Sequence) -> Opened:
        lease, request = sequence.lease, sequence.request
        assert lease is not None
        if not sequence.told:
            sequence.told = True
            reason, at = (lease.miss.reason.value, lease.miss.position) if lease.miss else ("", None)
            self._publish(Admitted(request.id, self._clock(), lease.reused, reason, at))
        output = sequence.tokens[len(request.prompt) :]
        return Opened(sequence.slot, request, output, lease.reused, lease.restore, lease.copy_tail)

    def _pause(self, sequence: Sequence) -> None:
        self._keep(sequence, CheckpointKind.REPLY_END)
        self._backend.close_slot(sequence.slot)
        self._queue.pause(sequence)

    def _keep(self, sequence: Sequence, kind: CheckpointKind) -> None:
        """A checkpoint of where the sequence stands, if the policy gives it a place."""
        assert sequence.lease is not None
        place = sequence.lease.checkpoint(sequence.filled, kind)
        if place is not None:
            self._backend.save(sequence.slot, place)

    def _apply(self, sequence: Sequence, row: Row, out: RowOut, now: float) -> None:
        lease, request = sequence.lease, sequence.request
        assert lease is not None
        lease.restored()
        if row.tokens is not None:
            sequence.filled += len(row.tokens)
            lease.commit(sequence.tokens, sequence.filled)
            self._keep_prompt(sequence)
        if row.sample_from == row.q_len:
            return
        if min(request.max_tokens, self._config.max_context - len(request.prompt)) == 0:
            # The request asked for its prefill only, or its prompt fills the context: the sampled token does not count.
            self._finish(sequence, "output_limit" if request.max_tokens == 0 else "context_capacity", now)
            return
        sequence.tokens += out.ids
        sequence.next_drafts = out.next_drafts
        if row.tokens is None:
            sequence.filled += len(out.ids)
            lease.commit(sequence.tokens, sequence.filled)
        self._publish(Tokens(request.id, out.ids, out.proposed, out.accepted, now))
        if out.finish is not None:
            self._finish(sequence, out.finish, now)

    def _keep_prompt(self, sequence: Sequence) -> None:
        """A checkpoint where a prompt's chunk has ended, if it is wanted there."""
        if sequence.filled % PAGE_TOKENS == 0 and sequence.filled <= len(sequence.request.prompt):
            self._keep(sequence, sequence.cuts.get(sequence.filled, CheckpointKind.CHUNK))

    def _finish(self, sequence: Sequence, reason: FinishReason, now: float) -> None:
        if sequence.caught_up:
            self._keep(sequence, CheckpointKind.REPLY_END)
        self._release(sequence)
        self._publish(Finished(sequence.request.id, reason, sequence.produced, now))

    def _remove(self, request_id: int) -> int | None:
        """Takes a request out wherever it is. Its output tokens so far, or None when it is not here."""
        waiting = self._queue.waiting.pop(request_id, None)
        if waiting is not None:
            return waiting.produced
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
        running, pages = self._queue.running, self._queue.pool.total
        prefilling = sum(not sequence.caught_up for sequence in running.values())
        load = Load(len(running), prefilling, len(self._queue.waiting), pages - self._queue.cache.available(), pages)
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

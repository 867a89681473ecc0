"""One accepted request's life on the HTTP side: engine events in, text out, one terminal line at the end.

The engine side never waits for the client: events are taken as they come, text piles up here for a slow reader, a stop
string is cut at once. Who sends the text is `app.py`'s part (through `sse.py`), accepting requests `service.py`'s.
Times are CLOCK_MONOTONIC in seconds, counts in tokens.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from time import monotonic

from paceline.core.messages import Admitted, Finished, Tally, Tokens
from paceline.core.request import CancelCause, FinishReason, Request
from paceline.engine.api import EngineClient, RequestHandle
from paceline.server.reqlog import End, RequestLog, Timings
from paceline.text.stream import TextStream

_problems = logging.getLogger("paceline.server")


class Generation:
    """`end` is None until the request is over; then nothing changes any more."""

    def __init__(
        self,
        request: Request,
        text: TextStream,
        engine: EngineClient,
        log: RequestLog,
        arrived_s: float,
        submitted_s: float,
        pending_timeout_s: float,
    ) -> None:
        self.request = request
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()
        self.end: End | None = None
        self._text, self._engine, self._log = text, engine, log
        self._pending: list[str] = []
        self._wake = asyncio.Event()
        self._ids: list[int] = []
        self._tally = Tally()
        self._arrived, self._submitted = arrived_s, submitted_s
        self._admitted = self._first = self._last = 0.0
        self._found = Admitted(request.id, 0.0)
        self._timer = asyncio.get_running_loop().call_later(pending_timeout_s, self.cancel, "pending_timeout")

    async def run(self, handle: RequestHandle | None, refusal: str = "") -> None:
        """Follows the engine to the end. Without a handle the engine would not take the request."""
        finished = Finished(self.request.id, "error", 0, monotonic(), error=refusal)
        try:
            if handle is not None:
                async for event in handle:
                    match event:
                        case Admitted():
                            self._admit(event)
                        case Tokens():
                            self._take(event)
                        case Finished():
                            finished = event
        except Exception as error:
            # Whatever goes wrong here, the request has its terminal line and the engine its slot back.
            _problems.exception("request %d", self.request.id)
            self._engine.cancel(self.request.id, "admin")
            problem = f"{type(error).__name__}: {error}"
            finished = Finished(self.request.id, "error", self._text.n, monotonic(), error=problem)
        self._finish(finished)

    def cancel(self, cause: CancelCause) -> None:
        if self.end is None:
            self._engine.cancel(self.request.id, cause)

    async def texts(self, patience_s: float) -> AsyncIterator[str]:
        """Text as it becomes safe to send, all there is at once; an empty one after `patience_s` without any."""
        while True:
            try:
                async with asyncio.timeout(patience_s):
                    await self._wake.wait()
            except TimeoutError:
                yield ""
                continue
            self._wake.clear()
            ended = self.end is not None
            text = "".join(self._pending)
            self._pending.clear()
            if text:
                yield text
            if ended:
                return

    def whole_text(self) -> str:
        return "".join(self._pending)

    def _admit(self, event: Admitted) -> None:
        self._timer.cancel()
        self._admitted = event.t
        self._found = event
        self.begun.set()

    def _take(self, event: Tokens) -> None:
        if self._text.stopped:
            return  # the engine had gone on before it heard of the cut
        before = self._text.n
        self._put(self._text.push(event.ids))
        self._ids.extend(event.ids[: self._text.n - before])
        self._tally.add(len(event.ids), event.proposed, event.accepted)
        self._first = self._first or event.t
        self._last = event.t
        if self._text.stopped:
            self._engine.cut(self.request.id, self._text.n)

    def _put(self, text: str) -> None:
        if text:
            self._pending.append(text)
            self._wake.set()

    def _finish(self, finished: Finished) -> None:
        self._timer.cancel()
        reason: FinishReason = "stop_string" if self._text.stopped else finished.reason
        self._put(self._text.finish())
        now = monotonic()
        self.end = End(
            request_id=self.request.id,
            reason=reason,
            phase="decode" if self._first else "prefill" if self._admitted else "queue",
            prompt_tokens=len(self.request.prompt),
            computed_prefill_tokens=len(self.request.prompt) - self._found.cached if self._first else 0,
            found=self._found,
            output_ids=self._ids,
            timings=self._timings(now),
            counts=self._tally.at(len(self._ids)),
            cause=finished.cause if reason == "cancelled" else None,
            error=finished.error if reason == "error" else None,
        )
        self._log.request_end(self.end)
        self.begun.set()
        self._wake.set()
        self.ended.set()

    def _timings(self, now: float) -> Timings:
        waited_until = self._admitted or now
        return Timings(
            prepare=self._submitted - self._arrived,
            queue=waited_until - self._submitted,
            prefill=(self._first or now) - self._admitted if self._admitted else 0.0,
            decode=self._last - self._first,
            ttft=self._first - self._arrived if self._first else 0.0,
            total=now - self._arrived,
        )

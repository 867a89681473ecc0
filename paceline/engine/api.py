"""The engine as the HTTP process sees it: submit, cut, cancel, and the events of each request.

One `EngineClient` keeps one engine process running (`child.py`), and starts another when it dies. Every request that was
in flight then ends with an error. It neither reads text nor writes the log; callbacks tell its owner what to log.
All methods belong to one event loop and none of them blocks it.
"""

import asyncio
import contextlib
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Literal

import zmq.asyncio

from paceline.core.config import EngineConfig
from paceline.core.errors import EngineError
from paceline.core.messages import Admitted, Cancel, Cut, Fault, Finished, Ready, Shutdown, Stats, Submit, Tokens
from paceline.core.request import CancelCause, Request
from paceline.engine.child import Child
from paceline.engine.watch import AcceptanceWatch

State = Literal["starting", "ready", "restarting", "failed", "stopped"]
RequestEvent = Admitted | Tokens | Finished

FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 5.0
# An engine that dies this often within the window without becoming ready once is not started again.
MAX_YOUNG_DEATHS = 5
YOUNG_DEATH_WINDOW_S = 60.0
# Messages that a dead process had sent are still on their way through the socket's own thread.
DRAIN_S = 0.1
# How long the engine may take to leave after Shutdown (a long step may be under way), and after it reported a fault.
SHUTDOWN_S = 10.0
LEAVE_S = 1.0


class RequestHandle:
    """An async iterator over one request's events. It ends after Finished, which always comes.

    Whoever stops reading early calls `EngineClient.cancel`; the handle holds nothing else open.
    """

    def __init__(self, request_id: int) -> None:
        self.id = request_id
        self.tokens_received = 0
        self._events: deque[RequestEvent] = deque()
        self._wake = asyncio.Event()
        self._over = False

    def __aiter__(self) -> AsyncIterator[RequestEvent]:
        return self

    async def __anext__(self) -> RequestEvent:
        while not self._events:
            if self._over:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        return self._events.popleft()

    def put(self, event: RequestEvent, last: bool) -> None:
        """For the client only."""
        self._events.append(event)
        self._over = last
        self._wake.set()


class EngineClient:
    """One engine, kept alive from `start` to `stop`.

    `on_stats` gets every Stats. `on_restart(reason, restarts, requests_failed)` is called at each death after the first
    successful start; `state` then says whether another start follows (restarting) or not (failed).
    """

    def __init__(
        self,
        config: EngineConfig,
        backend_factory: str,
        on_stats: Callable[[Stats], None],
        on_restart: Callable[[str, int, int], None],
    ) -> None:
        self._config = config
        self._factory = backend_factory
        self._on_stats = on_stats
        self._on_restart = on_restart
        self._handles: dict[int, RequestHandle] = {}
        self._child: Child | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._first_ready: asyncio.Future[None] | None = None
        self._failure = ""
        self.state: State = "starting"
        self.facts: dict[str, object] = {}
        self.restarts = 0
        self._watch = AcceptanceWatch({}, config.draft_tokens)

    @property
    def drafter_warning(self) -> str | None:
        """Set while the drafter's acceptance is far below what its card states, or zero."""
        return self._watch.warning

    async def start(self) -> None:
        """Returns when the engine is ready; raises EngineError with its own words when it cannot start."""
        self._first_ready = asyncio.get_running_loop().create_future()
        self._supervisor = asyncio.create_task(self._supervise(), name="engine-supervisor")
        await self._first_ready

    async def stop(self) -> None:
        """Ends the engine process. What still runs is cancelled (cause `shutdown`)."""
        if self.state != "failed":
            self.state = "stopped"
        self._stopping.set()
        if self._supervisor is not None:
            await asyncio.wait({self._supervisor})
        self.state = "stopped"

    def submit(self, request: Request) -> RequestHandle:
        """Queues the request; raises EngineError when no engine is there to take it. Ids must never repeat."""
        if self.state != "ready" or self._child is None:
            raise EngineError(self._refusal())
        if request.id in self._handles:
            raise ValueError(f"request id {request.id} is in flight")
        self._child.send(Submit(request))
        handle = self._handles[request.id] = RequestHandle(request.id)
        return handle

    def cut(self, request_id: int, n: int) -> None:
        """A stop string ended the request's output after n tokens. Ignored when the request has ended."""
        if request_id in self._handles and self._child is not None:
            self._child.send(Cut(request_id, n))

    def cancel(self, request_id: int, cause: CancelCause) -> None:
        """Ignored when the request has ended."""
        if request_id in self._handles and self._child is not None:
            self._child.send(Cancel(request_id, cause))

    def _refusal(self) -> str:
        match self.state:
            case "failed":
                return f"engine failed: {self._failure}"
            case "stopped":
                return "engine is stopped"
            case state:
                return f"engine is {state}, try again"

    async def _supervise(self) -> None:
        """Runs incarnations until told to stop or until one more start makes no sense."""
        context = zmq.asyncio.Context()
        try:
            await self._incarnations(context)
        except Exception as error:
            # A fault of this process: the requests must still end, and the owner of start() must hear of it.
            self._give_up(f"{type(error).__name__}: {error}")
            raise
        finally:
            context.destroy(linger=0)

    async def _incarnations(self, context: zmq.asyncio.Context) -> None:
        young_deaths: deque[float] = deque(maxlen=MAX_YOUNG_DEATHS)
        backoff_s = FIRST_BACKOFF_S
        while True:
            was_ready, reason = await self._live(context)
            if self._stopping.is_set():
                self._end_in_flight()
                return
            if self._first_ready is not None and not self._first_ready.done():
                self._give_up(reason)
                return
            requests_failed = self._fail_in_flight(reason)
            if was_ready:
                young_deaths.clear()
                backoff_s = FIRST_BACKOFF_S
            else:
                young_deaths.append(time.monotonic())
            if len(young_deaths) == MAX_YOUNG_DEATHS and young_deaths[-1] - young_deaths[0] <= YOUNG_DEATH_WINDOW_S:
                self._give_up(reason)
                self._on_restart(reason, self.restarts, requests_failed)
                return
            self.restarts += 1
            self._on_restart(reason, self.restarts, requests_failed)
            await self._pause(backoff_s)
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    async def _live(self, context: zmq.asyncio.Context) -> tuple[bool, str]:
        """One process from start to end: whether it became ready, and why it ended."""
        child = Child(context, self._factory, self._config)
        fault, grace_s = None, 0.0
        try:
            await child.start()
            fault, grace_s = await self._converse(child)
        finally:
            was_ready = self._child is child
            self._child = None
            self._close_door()
            ending = await child.close(grace_s)
        return was_ready, fault or ending

    async def _converse(self, child: Child) -> tuple[str | None, float]:
        """Until the process ends or has to: its fault if it reported one, and how long it may take to leave."""
        receiver = asyncio.create_task(self._receive(child))
        exited = asyncio.create_task(child.wait_exit())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({receiver, exited, stopping}, return_when=asyncio.FIRST_COMPLETED)
            self._close_door()
            if self._stopping.is_set():
                if self._child is not child:
                    return None, 0.0  # still loading: it reads no commands, and nothing would be lost
                child.send(Shutdown())
                await asyncio.wait({exited}, timeout=SHUTDOWN_S)
            await asyncio.wait({receiver}, timeout=DRAIN_S)
            fault = receiver.result() if receiver.done() else None
            return fault, LEAVE_S if receiver.done() or exited.done() else 0.0
        finally:
            for task in (receiver, exited, stopping):
                task.cancel()
            await asyncio.wait({receiver, exited, stopping})

    def _close_door(self) -> None:
        """No more submissions to an engine that is known to be gone."""
        if self.state == "ready":
            self.state = "restarting"

    async def _receive(self, child: Child) -> str:
        """Hands events on until the engine reports a fault; returns that fault."""
        while True:
            match await child.receive():
                case Fault(error):
                    return error
                case Ready(facts):
                    self._child = child
                    self.facts = facts
                    self._watch = AcceptanceWatch(
                        facts.get("expected_acceptance"), self._config.draft_tokens, self._config.draft_head
                    )
                    if not self._stopping.is_set():
                        self.state = "ready"
                    if self._first_ready is not None and not self._first_ready.done():
                        self._first_ready.set_result(None)
                case Stats() as stats:
                    self._on_stats(stats)
                    if self._watch.add(stats.proposed, stats.accepted):
                        print(f"warning: {self._watch.warning}", file=sys.stderr, flush=True)
                case event:
                    self._deliver(event)

    def _deliver(self, event: RequestEvent) -> None:
        handle = self._handles[event.id]
        match event:
            case Tokens(ids=ids):
                handle.tokens_received += len(ids)
                handle.put(event, last=False)
            case Finished():
                del self._handles[event.id]
                handle.put(event, last=True)
            case _:
                handle.put(event, last=False)

    def _fail_in_flight(self, reason: str) -> int:
        """Ends every request with an error; how many there were."""
        now = time.monotonic()
        handles = list(self._handles.values())
        for handle in handles:
            self._deliver(Finished(handle.id, "error", handle.tokens_received, now, error=f"engine died: {reason}"))
        return len(handles)

    def _give_up(self, reason: str) -> None:
        self.state = "failed"
        self._failure = reason
        self._fail_in_flight(reason)
        if self._first_ready is not None and not self._first_ready.done():
            self._first_ready.set_exception(EngineError(reason))

    def _end_in_flight(self) -> None:
        """After stop(): whatever the engine had no time to cancel, and a start() that still waits."""
        now = time.monotonic()
        for handle in list(self._handles.values()):
            self._deliver(Finished(handle.id, "cancelled", handle.tokens_received, now, cause="shutdown"))
        if self._first_ready is not None and not self._first_ready.done():
            self._first_ready.set_exception(EngineError("engine is stopped"))

    async def _pause(self, seconds: float) -> None:
        """Sleeps, but not through a stop()."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

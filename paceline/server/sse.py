"""What a client gets of a generation: the whole reply, or server-sent events with OpenAI chunks as the text comes.

A stream ends with `[DONE]` in every case; a failure in the middle is a data event with `error`. The client's going away
cancels the request. The shapes are `replies.py`'s.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from paceline.core.errors import RequestError
from paceline.server.generation import Generation
from paceline.server.replies import Json, Reply, Usage, error_body
from paceline.server.reqlog import End

# A client that leaves a full send buffer unread for so long is given up.
SLOW_READER_S = 60.0
# Proxies close connections on which nothing moves, as during a long prefill.
KEEP_ALIVE_S = 5.0
_KEEP_ALIVE = b": keep-alive\n\n"
_DONE = b"data: [DONE]\n\n"


@asynccontextmanager
async def cancelled_with_client(generation: Generation, receive: Receive) -> AsyncIterator[None]:
    """Inside, the client's disconnect cancels the generation, and so does any way out but the regular one."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        generation.cancel("client_disconnect")

    watcher = asyncio.create_task(watch())
    try:
        yield
    except BaseException:
        generation.cancel("client_disconnect")
        raise
    finally:
        watcher.cancel()


def whole_body(generation: Generation, reply: Reply) -> Json:
    end = _end(generation)
    return reply.whole(generation.whole_text(), end.reason, _usage(end))


class EventStream(Response):
    """Streams a generation that has begun."""

    media_type = "text/event-stream"

    def __init__(self, generation: Generation, reply: Reply) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._generation, self._reply = generation, reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with cancelled_with_client(self._generation, receive):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            try:
                async for data in self._data():
                    async with asyncio.timeout(SLOW_READER_S):
                        await send({"type": "http.response.body", "body": data, "more_body": True})
            except TimeoutError:
                # Leaving the response incomplete makes the HTTP layer close the connection.
                self._generation.cancel("slow_reader")
                return
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _data(self) -> AsyncIterator[bytes]:
        if opening := self._reply.opening():
            yield _events(opening)
        async for text in self._generation.texts(KEEP_ALIVE_S):
            yield _events([self._reply.delta(text)]) if text else _KEEP_ALIVE
        if problem := failure(self._generation):
            # ASCII, because the message may quote anything.
            yield b"data: " + json.dumps(error_body(problem)).encode() + b"\n\n" + _DONE
            return
        end = _end(self._generation)
        yield _events(self._reply.closing(end.reason, _usage(end))) + _DONE


def failure(generation: Generation) -> RequestError | None:
    """What to tell the client of a request that ended by itself with an error or was cancelled; None for a good end."""
    end = generation.end
    if end is None or end.reason not in ("error", "cancelled"):
        return None
    if end.reason == "error" and end.phase == "queue":
        message = f"{end.error}; nothing was computed yet, send the request again"
        return RequestError(message, code="engine_restarting", status=503, kind="server_error")
    if end.reason == "error":
        return RequestError(f"the engine failed: {end.error}", code="engine_error", status=500, kind="server_error")
    if end.cause == "pending_timeout":
        message = f"no free slot after {end.timings.queue:.1f} s in the queue; try again later"
        return RequestError(message, code="request_queue_timeout", status=503, kind="server_error")
    message = f"the request was cancelled: {end.cause}"
    return RequestError(message, code="request_cancelled", status=503, kind="server_error")


def _events(chunks: list[Json]) -> bytes:
    return b"".join(b"data: " + msgspec.json.encode(chunk) + b"\n\n" for chunk in chunks)


def _end(generation: Generation) -> End:
    assert generation.end is not None  # callers have waited for it
    return generation.end


def _usage(end: End) -> Usage:
    return Usage(end.prompt_tokens, len(end.output_ids), end.found.cached, end.found.miss)

"""Reads a server's request log (docs/request-log.md): only the lines and fields that the figures need, typed.

Times are in seconds, timestamps in Unix milliseconds. `server_start` is kept whole as plain data, because it is stored
beside every result and compared field by field.
"""

from pathlib import Path

import msgspec


class Result(msgspec.Struct, frozen=True):
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    generated_token_ids: list[int] | None = None


class Timings(msgspec.Struct, frozen=True):
    queue: float
    prefill: float
    decode: float
    ttft: float
    total: float


class Speculative(msgspec.Struct, frozen=True):
    rounds: int
    drafted_tokens: int
    accepted_tokens: int
    accepted_per_position: list[int]


class RequestStart(msgspec.Struct, frozen=True, tag_field="event", tag="request_start"):
    request_id: int
    timestamp_unix_ms: int


class RequestDone(msgspec.Struct, frozen=True, tag_field="event", tag="request_done"):
    request_id: int
    timestamp_unix_ms: int
    result: Result
    timings_seconds: Timings
    speculative: Speculative


class Failure(msgspec.Struct, frozen=True):
    message: str


class RequestError(msgspec.Struct, frozen=True, tag_field="event", tag="request_error"):
    request_id: int
    error: Failure


class DecodeBatch(msgspec.Struct, frozen=True):
    rounds: int
    row_rounds: int


class SchedulerState(msgspec.Struct, frozen=True):
    running: int
    prefilling: int
    waiting: int


class Throughput(msgspec.Struct, frozen=True, tag_field="event", tag="throughput"):
    scheduler: SchedulerState
    decode_batch: DecodeBatch

    @property
    def idle(self) -> bool:
        state = self.scheduler
        return state.running + state.prefilling + state.waiting == 0


class _Event(msgspec.Struct, frozen=True):
    event: str


Line = RequestStart | RequestDone | RequestError | Throughput
_LINES = msgspec.json.Decoder(Line)
_EVENTS = msgspec.json.Decoder(_Event)
_WANTED = ("request_start", "request_done", "request_error", "throughput")
_SPOILING = ("engine_restart", "request_rejected")


class RequestLog:
    """The whole lines of a log so far; a last line that is still being written is left out.

    `spoiled_by` names the events after which the figures are not those of an undisturbed server.
    """

    def __init__(self, path: Path) -> None:
        self.server_start: dict[str, object] | None = None
        self.lines: list[Line] = []
        self.spoiled_by: list[str] = []
        text = path.read_bytes() if path.exists() else b""
        for raw in text[: text.rfind(b"\n") + 1].splitlines():
            event = _EVENTS.decode(raw).event
            if event in _WANTED:
                self.lines.append(_LINES.decode(raw))
            elif event == "server_start":
                self.server_start = msgspec.json.decode(raw, type=dict[str, object])
            elif event in _SPOILING:
                self.spoiled_by.append(event)

    def done(self) -> dict[int, RequestDone]:
        return {line.request_id: line for line in self.lines if isinstance(line, RequestDone)}

    def started(self) -> list[int]:
        return [line.request_id for line in self.lines if isinstance(line, RequestStart)]

    def idle_after_last_request(self) -> bool:
        """True when the engine has reported, after the last terminal line, that nothing runs or waits."""
        for line in reversed(self.lines):
            if isinstance(line, Throughput):
                if line.idle:
                    return True
            else:
                return False
        return False

    def throughput_from(self, first_request_id: int) -> list[Throughput]:
        """The throughput lines since that request started: the warm-up's are not among them."""
        for index, line in enumerate(self.lines):
            if isinstance(line, RequestStart) and line.request_id == first_request_id:
                return [later for later in self.lines[index:] if isinstance(later, Throughput)]
        return []


def field(record: dict[str, object], path: str) -> object:
    """The value at a dotted path such as `engine.max_context`; None where it is missing."""
    value: object = record
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value

"""The request log: one JSON line per event, appended and flushed at once. `docs/request-log.md` has the schema.

The last stop of a request. Everything that a figure comes from is in these lines, so this file alone knows their field
names. It never stops serving: a write that fails switches the log off, with one line on stderr. Times are in seconds.
"""

import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import BinaryIO

import msgspec

from paceline import __version__
from paceline.core.config import EngineConfig
from paceline.core.errors import ConfigError, RequestError
from paceline.core.machine import cpu_name
from paceline.core.messages import Admitted, Counts, Stats
from paceline.core.request import CancelCause, FinishReason, Request
from paceline.server.config import ServerConfig
from paceline.text.tokenizer import SamplingDefaults

ARTIFACT_TYPE = "paceline_request_log"
SCHEMA_VERSION = 1
_SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
)  # fmt: skip

Json = dict[str, object]


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a request when it is submitted."""

    request: Request
    protocol: str
    stream: bool
    message_count: int
    requested_tokens: int
    requested_by_client: bool
    user: str | None
    prepare_s: float
    tokenize_s: float


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """As in the schema: phases that were not reached are 0."""

    prepare: float
    queue: float
    prefill: float
    decode: float
    ttft: float
    total: float


class End(msgspec.Struct, frozen=True, kw_only=True):
    """How a request ended. `output_ids` are the counted tokens; `error` or `cause` say more about those reasons.

    `found` is what the prefix cache had of the prompt."""

    request_id: int
    reason: FinishReason
    phase: str
    prompt_tokens: int
    computed_prefill_tokens: int
    found: Admitted
    output_ids: list[int]
    timings: Timings
    counts: Counts
    cause: CancelCause | None = None
    error: str | None = None


class RequestLog:
    """The only writer of one log file. `path` None writes nothing."""

    def __init__(self, server: ServerConfig, engine: EngineConfig) -> None:
        self.instance_id = f"serve-{os.getpid()}-{time.time_ns() // 1000}"
        self._server, self._engine = server, engine
        self._open_requests: set[int] = set()
        self._held: list[Json] = []
        self._file: BinaryIO | None = None
        if server.log_path is not None:
            try:
                self._file = open(server.log_path, "ab", buffering=0)  # noqa: SIM115
            except OSError as error:
                fix = f"cannot append to it ({error.strerror}); name a file in a folder that exists"
                raise ConfigError("--request-log", server.log_path, fix) from None

    def server_start(self, defaults: SamplingDefaults, facts: Json) -> None:
        server, engine = self._server, self._engine
        source = _source(engine.model_folder)
        self._write(
            "server_start",
            {
                "server": {
                    "host": server.host,
                    "port": server.port,
                    "public_model_id": server.public_model_id,
                    "max_request_bytes": server.max_request_bytes,
                    "max_pending_requests": server.max_pending,
                    "pending_timeout_ms": round(server.pending_timeout_s * 1000),
                    "request_log_jsonl": server.log_path,
                    "default_output_tokens": server.default_max_tokens,
                },
                "artifact": {
                    "path": source.get("path", engine.model_folder),
                    "target": facts.get("architecture"),
                    "weights_id": source.get("weights_id"),
                },
                "engine": {**_engine_values(engine), **_measured(facts, _engine_values(engine))},
                "drafter": {
                    "path": _own_path(engine, source),
                    "weights_bytes": facts.get("drafter_weights_bytes"),
                    "state_bytes": facts.get("drafter_state_bytes"),
                    "trained_block": facts.get("trained_block"),
                    "expected_acceptance": facts.get("expected_acceptance"),
                },
                "sampling_defaults": {**msgspec.structs.asdict(defaults), "omitted_seed": "random"},
                "memory": {name: value for name, value in facts.items() if name.endswith("_bytes")},
                "environment": {
                    "paceline": __version__,
                    "python": platform.python_version(),
                    "torch": facts.get("torch"),
                    "platform": platform.platform(),
                    "cpu": cpu_name(),
                },
                "argv": sys.argv,
            },
        )

    def request_start(self, start: Start) -> None:
        sampling = start.request.sampling
        self._open_requests.add(start.request.id)
        self._write(
            "request_start",
            {
                "request_id": start.request.id,
                "request": {
                    "protocol": start.protocol,
                    "model": self._server.public_model_id,
                    "stream": start.stream,
                    "message_count": start.message_count,
                    "prompt_tokens": len(start.request.prompt),
                    # Readers hold 64-bit integers; no context is longer than this.
                    "requested_output_tokens": min(start.requested_tokens, 2**53),
                    "requested_output_tokens_source": "client" if start.requested_by_client else "server_default",
                    "user": start.user,
                    "sampling": {**{name: getattr(sampling, name) for name in _SAMPLING}, "seed": sampling.seed},
                },
                "preparation_seconds": {"total": start.prepare_s, "tokenize": start.tokenize_s},
            },
        )

    def request_end(self, end: End) -> None:
        result: Json = {
            "finish_reason": end.reason,
            "prompt_tokens": end.prompt_tokens,
            "completion_tokens": len(end.output_ids),
            "computed_prefill_tokens": end.computed_prefill_tokens,
            "prefix_cache_hit_tokens": end.found.cached,
            "prefix_cache_miss": {"reason": end.found.miss, "differs_at": end.found.differs_at},
        }
        if end.cause is not None:
            result |= {"cancel_cause": end.cause, "cancel_phase": end.phase}
        if self._server.log_token_ids:
            result["generated_token_ids"] = end.output_ids
        fields: Json = {"request_id": end.request_id, "result": result, "timings_seconds": end.timings}
        if end.reason == "error":
            fields["error"] = {"message": end.error, "phase": end.phase}
        else:
            fields["speculative"] = {
                "backend": self._engine.drafter,
                "draft_window": self._engine.draft_tokens,
                "rounds": end.counts.rounds,
                "drafted_tokens": end.counts.proposed,
                "accepted_tokens": end.counts.accepted,
                "accepted_per_position": self._per_position(end.counts),
            }
        self._write("request_error" if end.reason == "error" else "request_done", fields)
        self._open_requests.discard(end.request_id)
        if not self._open_requests:
            self._write_held()

    def request_rejected(self, protocol: str, error: RequestError) -> None:
        body = {
            "status": error.status,
            "code": error.code,
            "type": error.kind,
            "param": error.param,
            "message": error.message,
        }
        self._write("request_rejected", {"error": body, "protocol": protocol})

    def throughput(self, stats: Stats) -> None:
        self._write_held()
        seconds = stats.interval_s
        self._held.append(
            {
                "interval_seconds": seconds,
                "tokens": {"computed_prefill": stats.prefill_tokens, "committed_decode": stats.decode_tokens},
                "throughput_tokens_per_second": {
                    "prefill": stats.prefill_tokens / seconds if seconds else 0.0,
                    "decode": stats.decode_tokens / seconds if seconds else 0.0,
                },
                "scheduler": {"running": stats.running, "prefilling": stats.prefilling, "waiting": stats.waiting},
                "decode_batch": {
                    "rounds": stats.rounds,
                    "row_rounds": stats.row_rounds,
                    "average_size": stats.row_rounds / stats.rounds if stats.rounds else 0.0,
                },
                "speculative": {"drafted_tokens": stats.proposed, "accepted_tokens": stats.accepted},
                "kv_pages": {"used": stats.pages_used, "total": stats.pages_total},
                "step_seconds": stats.step_s,
            }
        )
        # The line of an engine that became idle closes the work: it must come after the last request's terminal line.
        if stats.running or stats.waiting or not self._open_requests:
            self._write_held()

    def engine_restart(self, reason: str, restarts: int, requests_failed: int) -> None:
        self._write("engine_restart", {"reason": reason, "restarts": restarts, "requests_failed": requests_failed})

    def server_stop(self, reason: str) -> None:
        self._write_held()
        self._write("server_stop", {"reason": reason})
        if self._file is not None:
            self._file.close()
            self._file = None

    def _per_position(self, counts: Counts) -> list[int]:
        missing = self._engine.draft_tokens - len(counts.accepted_per_position)
        return [*counts.accepted_per_position, *[0] * missing]

    def _write_held(self) -> None:
        for fields in self._held:
            self._write("throughput", fields)
        self._held.clear()

    def _write(self, event: str, fields: Json) -> None:
        if self._file is None:
            return
        line = {
            "artifact_type": ARTIFACT_TYPE,
            "schema_version": SCHEMA_VERSION,
            "event": event,
            "timestamp_unix_ms": time.time_ns() // 1_000_000,
            "server_instance_id": self.instance_id,
            **fields,
        }
        try:
            # ASCII, because an error message may quote what is not valid Unicode.
            data = json.dumps(line, default=msgspec.structs.asdict).encode("ascii") + b"\n"
            if self._file.write(data) != len(data):
                raise OSError("the line was cut short")
        except OSError as error:
            print(f"request log {self._server.log_path} is switched off: {error}", file=sys.stderr, flush=True)
            self._file.close()
            self._file = None


def _engine_values(engine: EngineConfig) -> Json:
    return {
        "device": engine.device,
        "max_context": engine.max_context,
        "kv_capacity": engine.kv_capacity,
        "kv_capacity_page_groups": engine.pages,
        "max_concurrency": engine.max_concurrency,
        "admission": engine.admission,
        "prefix_reuse": engine.prefix_cache,
        "state_checkpoints": engine.state_checkpoints,
        "prefill_chunk": engine.prefill_chunk,
        "log_stats_interval_ms": round(engine.log_stats_interval_s * 1000),
        "kv_cache": engine.kv_dtype,
        "weights": engine.weights,
        "threads": engine.threads,
        "speculative_backend": engine.drafter,
        "speculative_draft_window": engine.draft_tokens,
        "draft_head": engine.draft_head,
    }


def _measured(facts: Json, configured: Json) -> Json:
    """What the engine says that it runs goes before what it was told to run."""
    return {name: facts[name] for name in configured if facts.get(name) is not None}


def _own_path(engine: EngineConfig, source: Json) -> str | None:
    """The drafter's folder where a person gave one; None where model or package bring the drafter, or it has no files."""
    if engine.drafter_path is None:
        return None
    home = Path(str(source.get("path", engine.model_folder))).resolve()
    shipped = ((home.parent if home.is_file() else home) / "drafters", Path(__file__).resolve().parents[1])
    return None if any(map(Path(engine.drafter_path).is_relative_to, shipped)) else engine.drafter_path


def _source(model_folder: str) -> Json:
    """What the prepared folder says of the checkpoint that it was made from."""
    path = Path(model_folder) / "source.json"
    return msgspec.json.decode(path.read_bytes(), type=dict[str, object]) if path.exists() else {}

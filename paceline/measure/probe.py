"""One point of a campaign: boot a server, prove that it runs what was asked, load it, check the totals, write the rows.

The point's folder receives the server's log and output, the rows, and `point.json`. A point that cannot be trusted is
refused with a reason; it never yields figures.
"""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from paceline.core.errors import PacelineError
from paceline.measure.child import ServerFailed, ServerProcess, free_port
from paceline.measure.client import LoadError, Reply, run_load
from paceline.measure.fixtures import Job
from paceline.measure.record import (
    POINT_FILE,
    ROWS_FILE,
    SERVER_LOG,
    SERVER_OUTPUT,
    PointRecord,
    Row,
    hash_tokens,
    write_json,
    write_rows,
)
from paceline.measure.reqlog import RequestDone, RequestLog, field
from paceline.measure.settings import BenchSettings, Point

# Nobody asks for these, but the cells of one table must agree on them: each point must equal the first.
PINNED = (
    "artifact.target",
    "artifact.weights_id",
    "engine.device",
    "engine.kv_cache",
    "engine.prefill_chunk",
    "engine.threads",
    "engine.weights",
    "environment.paceline",
    "environment.torch",
    "environment.cpu",
)
_WARM_UP = Job(-1, "warm-up", "hello", "Name three rivers and one thing about each of them.", 24, 0)


class PointRefused(PacelineError):
    """The server runs, but its figures would not be those of the point that was asked for."""


class Probe:
    """Measures points with the same settings and jobs. `serve` is the command up to the model argument."""

    def __init__(self, settings: BenchSettings, jobs: list[Job], serve: tuple[str, ...]) -> None:
        self._settings, self._jobs, self._serve = settings, jobs, serve

    def measure(
        self, point: Point, folder: Path, first: dict[str, object] | None, on_reply: Callable[[], None]
    ) -> PointRecord:
        """`first` is the `server_start` of the campaign's first good point. A failure is in the record, not raised."""
        log, port = folder / SERVER_LOG, free_port()
        requested = self.requested(point, first)
        command = self._command(point, str(requested.get("engine.weights", "auto")), port, log)
        begun_ms, begun = time.time_ns() // 1_000_000, time.monotonic()
        reason: str | None = None
        start: dict[str, object] | None = None
        boot_s = load_s = 0.0
        try:
            with ServerProcess(command, port, log, folder / SERVER_OUTPUT) as server:
                start = server.wait_ready()
                boot_s = time.monotonic() - begun
                check_configuration(requested, start)
                load_s, warm_up, replies = self._load(server, start, point, on_reply)
            rows = join(self._jobs, replies, warm_up, RequestLog(log))
            write_rows(folder / ROWS_FILE, rows)
        except (PointRefused, ServerFailed, LoadError, msgspec.DecodeError) as error:
            reason = str(error)
        record = PointRecord(
            point=point,
            status="done" if reason is None else "failed",
            reason=reason,
            command=command,
            requested=requested,
            effective=start,
            started_unix_ms=begun_ms,
            boot_s=boot_s,
            load_s=load_s,
        )
        write_json(folder / POINT_FILE, record)
        return record

    def _load(
        self, server: ServerProcess, start: dict[str, object], point: Point, on_reply: Callable[[], None]
    ) -> tuple[float, Reply, list[Reply]]:
        """Seconds of the load, the reply of the warm-up, and those of the jobs in their order."""
        model = str(field(start, "server.public_model_id"))
        idle_s = _number(field(start, "engine.log_stats_interval_ms")) / 1000 + 2
        temperature = self._settings.temperature
        try:
            [warm_up] = run_load(server.url, model, [_WARM_UP], 1, temperature, lambda: None)
            server.wait_idle(idle_s)
            begun = time.monotonic()
            replies = run_load(server.url, model, self._jobs, point.concurrency, temperature, on_reply)
            load_s = time.monotonic() - begun
            server.wait_idle(idle_s)
        except LoadError:
            # A dead server makes every request fail: its own last words say more than the broken connection.
            time.sleep(0.2)
            server.check_alive()
            raise
        return load_s, warm_up, replies

    def requested(self, point: Point, first: dict[str, object] | None) -> dict[str, object]:
        """Dotted paths of `server_start` and the values that they must have for this point."""
        requested: dict[str, object] = {
            "engine.speculative_backend": point.drafter,
            "engine.speculative_draft_window": point.draft_tokens,
            "engine.max_concurrency": point.concurrency,
            "engine.max_context": self._settings.max_context,
            "engine.prefix_reuse": False,
        }
        if self._settings.weights != "auto":
            requested["engine.weights"] = self._settings.weights
        if first is not None:
            requested |= {path: field(first, path) for path in PINNED}
        return requested

    def _command(self, point: Point, weights: str, port: int, log: Path) -> list[str]:
        return [
            *self._serve, self._settings.model,
            "--host", "127.0.0.1",
            "--port", str(port),
            "--drafter", point.drafter,
            "--draft-tokens", str(point.draft_tokens),
            "--max-concurrency", str(point.concurrency),
            "--max-context", str(self._settings.max_context),
            "--weights", weights,
            "--request-log", str(log),
            # A prompt that comes again would not be computed again: another work than the first one's.
            "--no-prefix-cache",
            "--log-token-ids",
        ]  # fmt: skip


def check_configuration(requested: dict[str, object], start: dict[str, object]) -> None:
    """Refuses the point, naming the first field in which the server does not run what was requested."""
    for path, wanted in requested.items():
        runs = field(start, path)
        if runs != wanted:
            raise PointRefused(f"{path}: requested {wanted}, the server runs {runs}")


def join(jobs: list[Job], replies: list[Reply], warm_up: Reply, log: RequestLog) -> list[Row]:
    """One row per job from the log and the client's clocks; refuses logs that hold other or different work."""
    if log.spoiled_by:
        raise PointRefused(f"the server logged {log.spoiled_by[0]} during the run; see {SERVER_LOG}")
    expected = sorted(reply.request_id for reply in (warm_up, *replies))
    if sorted(log.started()) != expected:
        raise PointRefused(f"the log holds {len(log.started())} requests, this program sent {len(expected)}")
    done = log.done()
    return [_row(job, reply, done.get(reply.request_id)) for job, reply in zip(jobs, replies, strict=True)]


def _row(job: Job, reply: Reply, done: RequestDone | None) -> Row:
    label = f"req-{reply.request_id} ({job.workload}/{job.fixture})"
    if done is None:
        raise PointRefused(f"{label} has no request_done line in the log")
    result, times, speculative = done.result, done.timings_seconds, done.speculative
    if result.finish_reason == "cancelled":
        raise PointRefused(f"{label} was cancelled by the server")
    if reply.completion_tokens != result.completion_tokens:
        told = f"the client was told {reply.completion_tokens} completion tokens"
        raise PointRefused(f"{label}: {told}, the log says {result.completion_tokens}")
    ids = result.generated_token_ids
    if ids is None or len(ids) != result.completion_tokens:
        count = "no" if ids is None else len(ids)
        raise PointRefused(f"{label}: the log holds {count} token ids for {result.completion_tokens} completion tokens")
    return Row(
        index=job.index,
        workload=job.workload,
        fixture=job.fixture,
        seed=job.seed,
        request_id=reply.request_id,
        finish_reason=result.finish_reason,
        prompt_tokens=result.prompt_tokens,
        completion_tokens=result.completion_tokens,
        rounds=speculative.rounds,
        drafted_tokens=speculative.drafted_tokens,
        accepted_tokens=speculative.accepted_tokens,
        accepted_per_position=speculative.accepted_per_position,
        queue_s=times.queue,
        prefill_s=times.prefill,
        decode_s=times.decode,
        ttft_s=times.ttft,
        total_s=times.total,
        done_unix_ms=done.timestamp_unix_ms,
        client_ttft_s=reply.ttft_s,
        client_total_s=reply.total_s,
        tokens_hash=hash_tokens(ids),
    )


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0

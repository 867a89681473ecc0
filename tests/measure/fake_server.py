"""A stand-in for `paceline serve`: a real process that speaks HTTP and writes the log of docs/request-log.md.

It makes up tokens from the prompt and the seed, so replies do not depend on K or C. FAKE_SERVER holds JSON that makes
it misbehave: `report` (dotted paths of server_start to overwrite, only `when` flags have these values), `fail_boot`,
`extra_tokens` (added to what the log says), `salt_when_k` (other tokens at that K), `die_after` (requests), `tick_s`,
`drafter` (by name, what server_start says of it), `reply` ("refuse" with HTTP 400, "no_id" in the header, "break" the
stream with an error), `stubborn` (ignores SIGTERM).
"""

import argparse
import hashlib
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BEHAVIOUR = json.loads(os.environ.get("FAKE_SERVER", "{}"))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    for flag in ("--host", "--drafter", "--weights", "--request-log"):
        parser.add_argument(flag)
    for flag in ("--port", "--draft-tokens", "--max-concurrency", "--max-context"):
        parser.add_argument(flag, type=int)
    parser.add_argument("--log-token-ids", action="store_true")
    parser.add_argument("--no-prefix-cache", action="store_true")
    return parser.parse_args()


class Engine:
    """Counts, slots and the log; one lock for all of it."""

    def __init__(self, flags: argparse.Namespace) -> None:
        self.flags = flags
        self.lock = threading.Lock()
        self.slots = threading.Semaphore(flags.max_concurrency)
        self.log = open(flags.request_log, "a", buffering=1)  # noqa: SIM115
        self.requests = self.active = self.rounds = self.row_rounds = 0

    def write(self, event: str, **fields: object) -> None:
        head = {
            "artifact_type": "paceline_request_log",
            "schema_version": 1,
            "event": event,
            "timestamp_unix_ms": time.time_ns() // 1_000_000,
            "server_instance_id": f"serve-{os.getpid()}-1",
        }
        self.log.write(json.dumps(head | fields) + "\n")

    def start(self) -> None:
        flags = self.flags
        start: dict[str, dict[str, object]] = {
            "server": {"host": flags.host, "port": flags.port, "public_model_id": "fake"},
            "artifact": {"path": flags.model, "target": "fake", "weights_id": "abc"},
            "engine": {
                "device": "cpu", "max_context": flags.max_context, "max_concurrency": flags.max_concurrency,
                "prefix_reuse": not flags.no_prefix_cache,
                "prefill_chunk": 256, "log_stats_interval_ms": 200, "kv_cache": "bf16", "threads": 2,
                "weights": "int8" if flags.weights == "auto" else flags.weights,
                "speculative_backend": flags.drafter, "speculative_draft_window": flags.draft_tokens,
            },
            "drafter": BEHAVIOUR.get("drafter", {}).get(flags.drafter, {}),
            "environment": {"paceline": "0", "python": "3", "torch": "none", "cpu": "fake"},
        }  # fmt: skip
        report = BEHAVIOUR.get("report", {})
        when = BEHAVIOUR.get("when", {})
        if all(getattr(flags, key) == value for key, value in when.items()):
            for path, value in report.items():
                group, key = path.split(".")
                start[group][key] = value
        self.write("server_start", **start)

    def done(self, request_id: int, ids: list[int], hits: list[int], clocks: dict[str, float]) -> None:
        """`hits` holds the accepted drafts of each round."""
        k, rounds = self.flags.draft_tokens, len(hits)
        self.write(
            "request_done",
            request_id=request_id,
            result={
                "finish_reason": "output_limit", "prompt_tokens": 12, "computed_prefill_tokens": 12,
                "completion_tokens": len(ids) + BEHAVIOUR.get("extra_tokens", 0), "generated_token_ids": ids,
            },
            timings_seconds=clocks,
            speculative={
                "backend": self.flags.drafter, "draft_window": k, "rounds": rounds, "drafted_tokens": rounds * k,
                "accepted_tokens": sum(hits), "accepted_per_position": [sum(n > i for n in hits) for i in range(k)],
            },
        )  # fmt: skip

    def throughput(self, running: int) -> None:
        rounds, self.rounds = self.rounds, 0
        row_rounds, self.row_rounds = self.row_rounds, 0
        self.write(
            "throughput",
            interval_seconds=0.2,
            scheduler={"running": running, "prefilling": 0, "waiting": 0},
            decode_batch={"rounds": rounds, "row_rounds": row_rounds, "average_size": 0},
        )


def tokens(prompt: str, seed: int, count: int, k: int) -> list[int]:
    salt = "x" if BEHAVIOUR.get("salt_when_k") == k and k else ""
    digest = hashlib.sha256(f"{salt}{prompt}{seed}".encode()).digest()
    return [digest[i % 32] for i in range(count)]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: Engine

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def do_POST(self) -> None:
        begun, engine = time.monotonic(), self.engine
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with engine.lock:
            engine.requests += 1
            request_id = engine.requests
            engine.write("request_start", request_id=request_id)
        if request_id > BEHAVIOUR.get("die_after", 10**9):
            print("fake: out of luck", flush=True)
            os._exit(3)
        reply = BEHAVIOUR.get("reply")
        self.send_response(400 if reply == "refuse" else 200)
        self.send_header("x-request-id", "" if reply == "no_id" else f"req-{request_id}")
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        if reply in ("refuse", "break"):
            self.event({"error": {"message": "fake: will not"}})
            return
        engine.slots.acquire()
        with engine.lock:
            engine.active += 1
        self.generate(request_id, body, begun, time.monotonic() - begun)

    def generate(self, request_id: int, body: dict[str, Any], begun: float, queue_s: float) -> None:
        engine, k = self.engine, self.engine.flags.draft_tokens
        prompt = body["messages"][0]["content"]
        ids = tokens(prompt, body["seed"], body["max_tokens"], k)
        self.event({"choices": [{"delta": {"role": "assistant"}}]})
        time.sleep(BEHAVIOUR.get("tick_s", 0.001))
        first, sent = time.monotonic(), 1
        rounds: list[int] = []
        self.event({"choices": [{"delta": {"content": "a"}}]})
        while sent < len(ids):
            time.sleep(BEHAVIOUR.get("tick_s", 0.001))
            hits = min(min(k, ids[sent] % 4), len(ids) - sent - 1)
            with engine.lock:
                engine.row_rounds += 1
                engine.rounds += len(rounds) % engine.active == 0
            rounds.append(hits)
            sent += hits + 1
            self.event({"choices": [{"delta": {"content": "a" * (hits + 1)}}], "usage": None})
        now = time.monotonic()
        self.event({"choices": [], "usage": {"completion_tokens": len(ids), "prompt_tokens": 12}})
        self.wfile.write(b"data: [DONE]\n\n")
        clocks = {"prepare": 0.0, "queue": queue_s, "prefill": first - begun - queue_s, "decode": now - first}
        with engine.lock:
            engine.active -= 1
            engine.done(request_id, ids, rounds, clocks | {"ttft": first - begun, "total": now - begun})
            if engine.active == 0:
                engine.throughput(0)
        engine.slots.release()

    def event(self, data: dict[str, object]) -> None:
        self.wfile.write(f"data: {json.dumps(data)}\n\n".encode())
        self.wfile.flush()


def main() -> None:
    flags = parse()
    if BEHAVIOUR.get("fail_boot"):
        sys.exit("fake: no such model\nfake: try another")
    Handler.engine = Engine(flags)
    server = ThreadingHTTPServer((flags.host, flags.port), Handler)
    server.daemon_threads = True

    def leave(*_: object) -> None:
        Handler.engine.write("server_stop", reason="signal")
        os._exit(0)

    signal.signal(signal.SIGTERM, signal.SIG_IGN if BEHAVIOUR.get("stubborn") else leave)
    Handler.engine.start()
    server.serve_forever()


if __name__ == "__main__":
    main()

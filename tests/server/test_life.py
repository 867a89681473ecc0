"""Requests that do not end by themselves: clients that leave, full queues, deadlines, slow readers."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.kit import text_model
from tests.kit.live_server import MODEL, Line, LiveServer
from tests.kit.scripted import Script

LONG_PROMPT = [1] * 3000
ENDLESS = {"model": MODEL, "prompt": [5], "max_tokens": 3000, "ignore_eos": True}


def leave(server: LiveServer, body: dict[str, Any], when: float | bytes) -> Line:
    """Sends a request and closes the connection after some seconds or at some bytes; its terminal line."""
    before = len(server.terminal())
    data = json.dumps(body).encode()
    with server.connect() as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
        connection.sendall(head.encode() + data)
        if isinstance(when, float):
            time.sleep(when)
        else:
            received = b""
            while when not in received:
                received += connection.recv(4096)
    server.wait(lambda: len(server.terminal()) > before)
    return server.terminal()[-1]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_client_that_leaves_cancels(slow: LiveServer, stream: bool, phase: str) -> None:
    body = {**ENDLESS, "stream": stream} if phase == "decode" else {**ENDLESS, "stream": stream, "prompt": LONG_PROMPT}
    line = leave(slow, body, 0.3)
    result = line["result"]
    assert (result["finish_reason"], result["cancel_cause"]) == ("cancelled", "client_disconnect")
    assert result["cancel_phase"] == phase
    assert line["timings_seconds"]["total"] < 2
    assert (result["completion_tokens"] > 0) == (phase == "decode")
    assert line["timings_seconds"]["prefill"] > 0


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_the_queue(slow: LiveServer, stream: bool) -> None:
    with _busy(slow):
        result = leave(slow, {**ENDLESS, "stream": stream}, 0.2)["result"]
    assert (result["cancel_cause"], result["cancel_phase"]) == ("client_disconnect", "queue")
    slow.wait_idle()


def test_a_client_that_leaves_in_the_middle_of_a_stream(slow: LiveServer) -> None:
    line = leave(slow, {**ENDLESS, "stream": True}, b"text_completion")
    assert line["result"]["cancel_phase"] == "decode"
    assert line["result"]["completion_tokens"] < 100


def test_a_client_that_leaves_in_the_middle_of_its_body(slow: LiveServer) -> None:
    before = len(slow.log())
    with slow.connect() as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
        time.sleep(0.1)
    time.sleep(0.1)
    assert len(slow.log()) == before
    assert slow.http.get("/health").json()["requests"] == 0
    assert "Traceback" not in slow.output()


@pytest.mark.parametrize("stream", [True, False])
def test_no_slot_in_time(slow: LiveServer, stream: bool) -> None:
    with _busy(slow), pytest.raises(openai.InternalServerError) as caught:
        slow.client.completions.create(model=MODEL, prompt="x", stream=stream)
    assert (caught.value.status_code, caught.value.code) == (503, "request_queue_timeout")
    slow.wait_idle()
    [line] = [one for one in slow.terminal()[-2:] if one["result"].get("cancel_cause") == "pending_timeout"]
    assert line["result"]["cancel_phase"] == "queue"
    assert line["timings_seconds"]["queue"] == pytest.approx(0.5, abs=0.2)
    assert caught.value.response.headers["x-request-id"] == f"req-{line['request_id']}"


def test_a_full_queue(slow: LiveServer) -> None:
    def status() -> int:
        response = httpx.post(f"{slow.url}/v1/completions", json={**ENDLESS, "max_tokens": 1}, trust_env=False)
        return response.status_code

    with _busy(slow), ThreadPoolExecutor(6) as pool:
        statuses = sorted(one.result() for one in [pool.submit(status) for _ in range(6)])
    # One runs, two may wait, and these wait in vain.
    assert statuses == [429] * 4 + [503] * 2
    rejected = slow.log("request_rejected")[-1]["error"]
    assert (rejected["status"], rejected["code"], rejected["type"]) == (429, "server_overloaded", "rate_limit_error")
    slow.wait_idle()


def test_a_refused_request_gives_its_place_back(slow: LiveServer) -> None:
    for _ in range(5):
        assert slow.http.post("/v1/completions", json={**ENDLESS, "prompt": [1] * 5000}).status_code == 400
    assert slow.http.get("/health").json()["requests"] == 0
    assert slow.http.post("/v1/completions", json={**ENDLESS, "max_tokens": 1}).status_code == 200


def test_a_slow_reader_stalls_nobody(tmp_path: Path) -> None:
    script = Script(vocab=text_model.VOCAB)
    engine = {"max_context": 40_000, "kv_capacity": 90_000}
    with LiveServer(tmp_path, script, engine, {}) as server:
        body = json.dumps({**ENDLESS, "stream": True, "max_tokens": 20_000}).encode()
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(30)
            connection.connect(("127.0.0.1", int(server.url.rsplit(":", 1)[1])))
            head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            begun = time.monotonic()
            reply = server.http.post("/v1/completions", json={**ENDLESS, "max_tokens": 50})
            assert reply.status_code == 200
            assert time.monotonic() - begun < 2
            # The engine's part is over although hardly anything was read.
            server.wait(lambda: len(server.terminal()) == 2)
            received = b""
            while b"data: [DONE]\n\n" not in received[-200:]:
                received += connection.recv(1 << 20)
        assert {line["result"]["finish_reason"] for line in server.terminal()} == {"output_limit"}
        chunks = [json.loads(line[6:]) for line in received.split(b"\n") if line.startswith(b"data: {")]
        rounds = server.terminal()[-1]["speculative"]["rounds"]
        assert len(chunks) < rounds, "the reader was never behind"


class _busy:
    """Keeps the only slot taken while inside."""

    def __init__(self, server: LiveServer) -> None:
        self._server = server
        self._stop = threading.Event()

    def __enter__(self) -> None:
        started = len(self._server.log("request_start"))
        self._thread = threading.Thread(target=self._hold)
        self._thread.start()
        self._server.wait(lambda: len(self._server.log("request_start")) > started)
        time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _hold(self) -> None:
        for _ in self._chunks():
            if self._stop.is_set():
                return

    def _chunks(self) -> Iterator[str]:
        body = {**ENDLESS, "stream": True}
        with httpx.stream(
            "POST", f"{self._server.url}/v1/completions", json=body, trust_env=False, timeout=30
        ) as reply:
            yield from reply.iter_lines()

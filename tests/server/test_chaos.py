"""A thousand requests with random cancels, disconnects and bad bodies: nothing leaks, nothing is lost, no 5xx."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

from tests.kit import text_model
from tests.kit.live_server import MODEL, LiveServer
from tests.kit.scripted import Script

REQUESTS = 1000
AT_ONCE = 12
BAD: list[bytes] = [
    b"", b"{", b"[[[[", b"\xff", b'{"model": "scripted-model"}', b'{"model": "other", "prompt": "x"}',
    b'{"model": "scripted-model", "prompt": "\\ud800"}', b'{"model": "scripted-model", "prompt": "x", "top_p": 0}',
    b'{"model": "scripted-model", "prompt": [1, 2, 99999]}',
    json.dumps({"model": MODEL, "prompt": [1] * 5000}).encode(),
]  # fmt: skip


def test_a_thousand_requests(tmp_path: Path) -> None:
    script = Script(vocab=text_model.VOCAB, step_delay_s=0.001, drafts=[3, 0, 1, 2])
    engine = {"max_concurrency": 4, "prefill_chunk": 64, "max_context": 4096, "kv_capacity": 6400}
    with LiveServer(tmp_path, script, engine, {"max_pending": AT_ONCE, "pending_timeout_s": 60.0}) as server:
        statuses = asyncio.run(_storm(server))
        server.check_empty()
        server.check_log()
        assert "Traceback" not in server.output()
        reasons = [line["result"]["finish_reason"] for line in server.terminal()]
        causes = {line["result"].get("cancel_cause") for line in server.terminal()}
        phases = {line["result"].get("cancel_phase") for line in server.terminal()}
    assert len(statuses) == REQUESTS
    assert set(statuses) == {0, 200, 400, 404}
    assert set(reasons) >= {"output_limit", "stop_string", "stop_token", "cancelled"}
    assert causes == {None, "client_disconnect"}
    assert phases == {None, "queue", "prefill", "decode"}


async def _storm(server: LiveServer) -> list[int]:
    luck = random.Random(20)
    jobs = [_job(luck) for _ in range(REQUESTS)]
    gate = asyncio.Semaphore(AT_ONCE)
    port = int(server.url.rsplit(":", 1)[1])

    async def one(raw: bytes, leave_s: float | None, abort: bool) -> int:
        async with gate:
            return await _send(port, raw, leave_s, abort)

    return await asyncio.gather(*[one(*job) for job in jobs])


def _job(luck: random.Random) -> tuple[bytes, float | None, bool]:
    """The bytes to send, seconds until the client leaves (None: stays), and whether it resets the connection."""
    body = luck.choice(BAD) if luck.random() < 0.2 else json.dumps(_fields(luck)).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    raw = head.encode() + body
    leaves = luck.random() < 0.4
    if leaves and luck.random() < 0.1:
        raw = raw[: luck.randrange(len(raw))]
    return raw, luck.random() ** 2 * 0.3 if leaves else None, luck.random() < 0.5


def _fields(luck: random.Random) -> dict[str, Any]:
    return {
        "model": MODEL,
        "prompt": [luck.randrange(text_model.VOCAB) for _ in range(luck.choice([1, 2, 5, 63, 64, 65, 700, 3000]))],
        "max_tokens": luck.choice([1, 2, 5, 20, 60, 500]),
        "stream": luck.random() < 0.5,
        "stop": luck.choice([None, None, "a", ["th", "e"]]),
        "ignore_eos": luck.random() < 0.7,
    }


async def _send(port: int, raw: bytes, leave_s: float | None, abort: bool) -> int:
    """The status, 0 when the client left before there was one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    received = b""
    try:
        writer.write(raw)
        async with asyncio.timeout(leave_s):
            while piece := await reader.read(65536):
                received += piece
    except TimeoutError:
        pass
    finally:
        if abort:
            writer.transport.abort()
        writer.close()
    return int(received[9:12] or 0)

"""A real server in a process of its own, over a scripted engine: start it, talk to it, stop it, read its log.

`python -m tests.kit.live_server FILE` is the child; the file holds the Settings. Times are in seconds.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import msgspec
import openai

from paceline.core.config import EngineConfig
from paceline.server.config import ServerConfig
from paceline.server.run import run
from tests.kit import text_model
from tests.kit.scripted import FACTORY, Script, engine_config

MODEL = "scripted-model"
Line = dict[str, Any]


class Settings(msgspec.Struct, frozen=True):
    engine: EngineConfig
    server: ServerConfig


class LiveServer:
    """Use it in a `with` block. `log()` is what the request log holds so far."""

    def __init__(self, folder: Path, script: Script, engine: dict[str, Any], server: dict[str, Any]) -> None:
        self.model_folder = text_model.build(folder / "model")
        self.log_path = folder / "requests.jsonl"
        values: dict[str, Any] = {
            "port": 0,
            "public_model_id": MODEL,
            "log_path": str(self.log_path),
            "log_token_ids": True,
            **server,
        }
        config = engine_config(script, model_folder=str(self.model_folder), log_stats_interval_s=0.2, **engine)
        settings = Settings(config, ServerConfig(**values))
        self._file = folder / "settings.json"
        self._file.write_bytes(msgspec.json.encode(settings))
        self._output = folder / "output.txt"
        self.url = ""

    def __enter__(self) -> "LiveServer":
        command = [sys.executable, "-m", "tests.kit.live_server", str(self._file)]
        with self._output.open("wb") as sink:
            self.process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT)
        self.wait(lambda: "paceline serves" in self.output() or self.process.poll() is not None, 120)
        assert self.process.poll() is None, self.output()
        self.url = self.output().rsplit(" at ", 1)[1].strip().removesuffix("/v1")
        self.http = httpx.Client(base_url=self.url, timeout=60, trust_env=False)
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, http_client=self._plain())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.http.close()
        self.client.close()
        if self.process.poll() is None:
            self.stop()

    def stop(self, which: signal.Signals = signal.SIGTERM) -> int:
        """The exit code."""
        self.process.send_signal(which)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()
            raise

    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def connect(self) -> socket.socket:
        """A bare connection, for what no client library would do."""
        host, port = self.url.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=30)

    def log(self, event: str | None = None) -> list[Line]:
        lines = [json.loads(line) for line in self.log_path.read_text().splitlines()]
        return [line for line in lines if event in (None, line["event"])]

    def terminal(self) -> list[Line]:
        return [line for line in self.log() if line["event"] in ("request_done", "request_error")]

    def wait(self, condition: Callable[[], bool], limit_s: float = 60) -> None:
        deadline = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline, "the condition never came true"
            time.sleep(0.01)

    def wait_idle(self) -> None:
        """Until every request has its terminal line."""
        self.wait(lambda: len(self.log("request_start")) == len(self.terminal()), 60)

    def check_empty(self) -> None:
        """Nothing runs, waits or holds a page. Asks for one token, so that the engine has something to report."""
        self.wait_idle()
        reported = len(self.log("throughput"))
        self.client.completions.create(model=MODEL, prompt="x", max_tokens=1)
        self.wait(lambda: len(self.log("throughput")) > reported)
        line = self.log("throughput")[-1]
        assert line["scheduler"] == {"running": 0, "prefilling": 0, "waiting": 0}
        assert line["kv_pages"]["used"] == 0
        assert self.http.get("/health").json()["requests"] == 0

    def check_log(self) -> None:
        """Every started request has exactly one terminal line, and nothing else has one."""
        started = Counter(line["request_id"] for line in self.log("request_start"))
        ended = Counter(line["request_id"] for line in self.terminal())
        assert started == ended
        assert all(count == 1 for count in started.values())

    def _plain(self) -> openai.DefaultHttpxClient:
        return openai.DefaultHttpxClient(trust_env=False)


if __name__ == "__main__":
    loaded = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Settings)
    run(loaded.engine, FACTORY, loaded.server)

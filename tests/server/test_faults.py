"""Starting, stopping, and what happens when the engine or the log fails."""

import json
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from paceline.core.errors import ConfigError, EngineError
from paceline.server.config import ServerConfig
from paceline.server.run import bind, run
from tests.kit import text_model
from tests.kit.live_server import MODEL, LiveServer
from tests.kit.scripted import FACTORY, Life, Script, engine_config
from tests.server.scripts import SLOW_FACTORY

SLOW = Script(vocab=text_model.VOCAB, step_delay_s=0.02)


def ask(server: LiveServer, stream: bool) -> Any:
    return server.client.completions.create(
        model=MODEL, prompt=[5], max_tokens=900, stream=stream, extra_body={"ignore_eos": True}
    )


def in_background(server: LiveServer, stream: bool) -> tuple[threading.Thread, list[object]]:
    """An endless request; what comes of it, an exception or the chunks."""
    found: list[object] = []

    def work() -> None:
        try:
            reply = ask(server, stream)
            found.append(list(reply) if stream else reply)
        except openai.APIError as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, found


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT])
def test_a_graceful_stop(tmp_path: Path, which: signal.Signals) -> None:
    with LiveServer(tmp_path, SLOW, {"max_concurrency": 2}, {}) as server:
        threads = [in_background(server, stream) for stream in (True, False, True)]
        server.wait(lambda: len(server.log("request_start")) == 3)
        time.sleep(0.2)
        begun = time.monotonic()
        assert server.stop(which) == 0
        assert time.monotonic() - begun < 8
        for thread, _ in threads:
            thread.join()
        failures = [found[0] for _, found in threads]
        assert all(isinstance(failure, openai.APIError) for failure in failures), failures
        assert all("shutdown" in str(failure) for failure in failures)
        assert "Traceback" not in server.output()
    ends = server.log("request_done")
    assert {line["result"]["cancel_cause"] for line in ends} == {"shutdown"}
    assert {line["result"]["cancel_phase"] for line in ends} == {"decode", "queue"}
    server.check_log()
    assert server.log()[-1]["event"] == "server_stop"
    assert server.log()[-1]["reason"] == which.name


def test_the_engine_dies(tmp_path: Path) -> None:
    lives = [Life(die_after=20), Life()]
    script = Script(vocab=text_model.VOCAB, step_delay_s=0.02, lives=lives, lives_file=str(tmp_path / "lives"))
    with LiveServer(tmp_path, script, {}, {}) as server:
        threads = [in_background(server, stream) for stream in (True, False)]
        statuses = set()
        while not all(found for _, found in threads) or "ok" not in statuses:
            statuses.add(server.http.get("/health").json()["status"])
            time.sleep(0.005)
        server.wait(
            lambda: server.http.get("/health").json() == {"status": "ok", "model": MODEL, "restarts": 1, "requests": 0}
        )
        for thread, _ in threads:
            thread.join()
        streamed, whole = (found[0] for _, found in threads)
        assert isinstance(streamed, openai.APIError)
        assert "engine" in str(streamed)
        assert isinstance(whole, openai.InternalServerError)
        assert whole.code == "engine_error"
        assert statuses <= {"ok", "restarting"}
        assert server.client.completions.create(model=MODEL, prompt="x", max_tokens=2).usage is not None
        server.wait_idle()
        server.check_log()
        errors = server.log("request_error")
        assert len(errors) == 2
        assert all(line["error"]["message"] and line["error"]["phase"] == "decode" for line in errors)
        assert all(line["result"]["completion_tokens"] > 0 for line in errors)
        [restart] = server.log("engine_restart")
        assert (restart["restarts"], restart["requests_failed"]) == (1, 2)
        assert len(server.log("server_start")) == 1


def test_while_no_engine_is_there(tmp_path: Path) -> None:
    lives = [Life(die_after=2), Life(start_error="no luck"), Life(start_error="no luck"), Life()]
    script = Script(vocab=text_model.VOCAB, lives=lives, lives_file=str(tmp_path / "lives"))
    with LiveServer(tmp_path, script, {}, {}) as server:
        with pytest.raises(openai.InternalServerError):
            ask(server, False)
        response = server.http.get("/health")
        assert (response.status_code, response.json()["status"]) == (503, "restarting")
        with pytest.raises(openai.InternalServerError) as caught:
            ask(server, False)
        assert (caught.value.status_code, caught.value.code) == (503, "service_unavailable")
        assert server.log("request_rejected")[-1]["error"]["status"] == 503
        server.wait(lambda: server.http.get("/health").status_code == 200)
        server.check_log()


@pytest.mark.parametrize("last", ["starting", "ok"])
def test_health_while_starting(tmp_path: Path, last: str) -> None:
    """HTTP answers before the engine does; a signal is obeyed before and after."""
    with bind("127.0.0.1", 0) as probe:
        port = probe.getsockname()[1]
    folder = text_model.build(tmp_path / "model")
    log = tmp_path / "log.jsonl"
    answers: list[tuple[int, str]] = []

    def watch() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and (not answers or answers[-1][1] != last):
            try:
                response = httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False)
                answers.append((response.status_code, response.json()["status"]))
            except httpx.TransportError:
                pass
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=watch)
    thread.start()
    config = ServerConfig(port=port, public_model_id=MODEL, log_path=str(log))
    run(engine_config(SLOW, model_folder=str(folder)), SLOW_FACTORY, config)
    thread.join()
    assert answers[0] == (503, "starting")
    assert answers[-1] == ((200, "ok") if last == "ok" else (503, "starting"))
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert events == (["server_start", "server_stop"] if last == "ok" else ["server_stop"])


def test_an_engine_that_cannot_start(tmp_path: Path) -> None:
    folder = text_model.build(tmp_path / "model")
    script = Script(lives=[Life(start_error="the weights are upside down")])
    log = tmp_path / "log.jsonl"
    config = ServerConfig(port=0, public_model_id=MODEL, log_path=str(log))
    with pytest.raises(EngineError, match="the weights are upside down"):
        run(engine_config(script, model_folder=str(folder)), FACTORY, config)
    assert [json.loads(line)["event"] for line in log.read_text().splitlines()] == ["server_stop"]


def test_a_port_in_use(tmp_path: Path) -> None:
    folder = text_model.build(tmp_path / "model")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError) as caught:
            run(engine_config(model_folder=str(folder)), FACTORY, ServerConfig(port=port, public_model_id=MODEL))
    assert str(caught.value).startswith(f"--port = {port}: ")
    assert "another --port" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_servers_cannot_share_a_port() -> None:
    with bind("127.0.0.1", 0) as first, pytest.raises(ConfigError):
        bind("127.0.0.1", first.getsockname()[1])


def test_a_host_that_is_not_here() -> None:
    with pytest.raises(ConfigError, match=r"--port|--host"):
        bind("192.0.2.1", 0)
    with pytest.raises(ConfigError, match="--host"):
        bind("no such host.invalid", 0)


def test_a_log_that_cannot_be_opened(tmp_path: Path) -> None:
    folder = text_model.build(tmp_path / "model")
    config = ServerConfig(port=0, public_model_id=MODEL, log_path=str(tmp_path / "missing" / "log"))
    with pytest.raises(ConfigError, match="--request-log"):
        run(engine_config(model_folder=str(folder)), FACTORY, config)


def test_a_log_that_fails_does_not_stop_the_server(tmp_path: Path) -> None:
    with LiveServer(tmp_path, Script(vocab=text_model.VOCAB), {}, {"log_path": "/dev/full"}) as server:
        for _ in range(3):
            assert (
                server.http.post("/v1/completions", json={"model": MODEL, "prompt": [5], "max_tokens": 2}).status_code
                == 200
            )
        assert server.stop() == 0
        assert server.output().count("request log /dev/full is switched off") == 1

"""The engine in a real child process: events, deaths, restarts, start-up faults, stop. The backend is scripted."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from random import Random

import pytest

from paceline.core.config import EngineConfig
from paceline.core.errors import EngineError
from paceline.core.messages import Admitted, Finished, Stats, Tokens
from paceline.core.request import Request, SamplingParams
from paceline.engine import api, child
from paceline.engine.api import EngineClient, RequestHandle
from tests.kit.scripted import FACTORY, Life, Script, default_token, engine_config

DEADLINE_S = 20


def make(request_id: int, max_tokens: int = 20) -> Request:
    return Request(
        id=request_id,
        prompt=[request_id, 5, 6],
        max_tokens=max_tokens,
        sampling=SamplingParams(seed=0, logit_bias={3: 1}),
    )


def reply(request: Request, n: int) -> list[int]:
    return [default_token(request.prompt, i, 1000) for i in range(n)]


class Log:
    def __init__(self) -> None:
        self.stats: list[Stats] = []
        self.restarts: list[tuple[str, int, int]] = []

    def client(self, config: EngineConfig, factory: str = FACTORY) -> EngineClient:
        return EngineClient(config, factory, self.stats.append, lambda *death: self.restarts.append(death))


@contextlib.asynccontextmanager
async def running(log: Log, config: EngineConfig) -> AsyncIterator[EngineClient]:
    client = log.client(config)
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


async def collect(handle: RequestHandle) -> tuple[list[int], Finished]:
    """The tokens and the end; the order of events is checked on the way."""
    ids: list[int] = []
    ends: list[Finished] = []
    admitted = 0
    async for event in handle:
        assert not ends, "an event after the end"
        match event:
            case Admitted():
                admitted += 1
            case Tokens(ids=new):
                assert admitted == 1
                ids += new
            case Finished():
                ends.append(event)
    assert len(ends) == 1
    with pytest.raises(StopAsyncIteration):
        await anext(handle)
    return ids, ends[0]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def run(test: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(test, DEADLINE_S))


def pid_of(client: EngineClient) -> int:
    pid = client.facts["pid"]
    assert isinstance(pid, int)
    return pid


def state_of(client: EngineClient) -> str:
    return client.state  # through a call, or the type checker takes the first answer for good


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.fixture
def temp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temp folder of this test's own, to see that nothing stays in it; short, for a socket path has a length limit."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_requests_cut_cancel_and_stop(temp: Path) -> None:
    async def test() -> None:
        log = Log()
        async with running(log, engine_config(Script(step_delay_s=0.01), max_concurrency=3)) as client:
            assert state_of(client) == "ready" and client.facts["backend"] == "scripted" and client.restarts == 0
            whole, cut, cancelled, waiting = (client.submit(make(i, 20 if i == 0 else 900)) for i in range(4))
            gone = client.submit(make(4, 900))
            client.cancel(gone.id, "client_disconnect")
            assert [type(await anext(cut)) for _ in range(2)] == [Admitted, Tokens]
            client.cut(cut.id, 1)
            client.cancel(cancelled.id, "admin")
            client.cancel(77, "admin")
            ids, end = await collect(whole)
            assert (ids, end.reason, end.n) == (reply(make(0), 20), "output_limit", 20)
            assert (await until_end(cut)).n == 1
            end = await until_end(cancelled)
            assert (end.reason, end.cause) == ("cancelled", "admin")
            end = await until_end(gone)
            assert (end.reason, end.cause, end.n) == ("cancelled", "client_disconnect", 0)
            await anext(waiting)
            pid = pid_of(client)
            await client.stop()
            end = await until_end(waiting)
            assert (end.reason, end.cause) == ("cancelled", "shutdown")
            assert not alive(pid)
            with pytest.raises(EngineError, match="stopped"):
                client.submit(make(9))
        assert state_of(client) == "stopped" and log.restarts == []
        assert log.stats and log.stats[-1].running == 0
        assert list(temp.iterdir()) == []

    run(test())


async def until_end(handle: RequestHandle) -> Finished:
    async for event in handle:
        if isinstance(event, Finished):
            return event
    raise AssertionError("no end")


def test_kill_in_flight_then_restart(temp: Path) -> None:
    async def test() -> None:
        log = Log()
        async with running(log, engine_config(Script(step_delay_s=0.02, run=1), max_concurrency=2)) as client:
            handles = [client.submit(make(i, 900)) for i in range(3)]
            assert [type(await anext(handles[0])) for _ in range(3)] == [Admitted, Tokens, Tokens]
            pid = pid_of(client)
            os.kill(pid, signal.SIGKILL)
            ends = await asyncio.gather(*(until_end(handle) for handle in handles))
            assert [end.reason for end in ends] == ["error"] * 3
            assert all(end.error == "engine died: engine process killed by SIGKILL" for end in ends)
            assert ends[0].n == handles[0].tokens_received >= 2 and ends[2].n == 0
            assert state_of(client) == "restarting"
            with pytest.raises(EngineError, match="engine is restarting, try again"):
                client.submit(make(10))
            await until(lambda: state_of(client) == "ready")
            assert pid_of(client) != pid and client.restarts == 1
            assert log.restarts == [("engine process killed by SIGKILL", 1, 3)]
            ids, end = await collect(client.submit(make(11)))
            assert (ids, end.reason) == (reply(make(11), 20), "output_limit")
        assert list(temp.iterdir()) == []

    run(test())


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("raise", "engine died: RuntimeError: scripted death"),
        ("exit", "engine died: engine process left with exit code 3"),
    ],
)
def test_death_in_a_step(how: str, error: str, tmp_path: Path) -> None:
    async def test() -> None:
        log = Log()
        life = Life(die_after=2, die_how=how)  # type: ignore[arg-type]
        script = Script(lives=[life, Life()], lives_file=str(tmp_path / "lives"), run=1)
        async with running(log, engine_config(script)) as client:
            ids, end = await collect(client.submit(make(0)))
            # A sudden exit may take the last messages with it; a fault is the last message itself.
            assert len(ids) == 2 or how == "exit"
            assert (ids, end.reason, end.n, end.error) == (reply(make(0), len(ids)), "error", len(ids), error)
            await until(lambda: state_of(client) == "ready")
            _, end = await collect(client.submit(make(1)))
            assert end.reason == "output_limit"

    run(test())


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (FACTORY, "no such device"),
        ("tests.kit.nowhere:make", "ModuleNotFoundError: No module named 'tests.kit.nowhere'"),
        ("posix:_exit", "TypeError"),
    ],
)
def test_start_fault(factory: str, message: str, temp: Path) -> None:
    async def test() -> None:
        log = Log()
        client = log.client(engine_config(Script(lives=[Life(start_error="no such\ndevice")])), factory)
        assert state_of(client) == "starting"
        with pytest.raises(EngineError) as caught:
            await client.start()
        assert message in str(caught.value) and "\n" not in str(caught.value)
        assert state_of(client) == "failed" and log.restarts == []
        with pytest.raises(EngineError, match="engine failed: "):
            client.submit(make(0))
        await client.stop()
        assert state_of(client) == "stopped"
        assert list(temp.iterdir()) == []

    run(test())


def test_gives_up_after_five_starts_in_vain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "FIRST_BACKOFF_S", 0.01)

    async def test() -> None:
        log = Log()
        lives = [Life(die_after=1), Life(start_error="no device")]
        script = Script(lives=lives, lives_file=str(tmp_path / "lives"), run=1)
        async with running(log, engine_config(script)) as client:
            await collect(client.submit(make(0)))
            await until(lambda: state_of(client) == "failed")
            assert (tmp_path / "lives").read_text() == "." * 6
            assert [reason for reason, *_ in log.restarts] == ["engine process left with exit code 3"] + [
                "no device"
            ] * 5
            assert client.restarts == 5
            with pytest.raises(EngineError, match="engine failed: no device"):
                client.submit(make(1))

    run(test())


@contextlib.asynccontextmanager
async def never_blocked() -> AsyncIterator[None]:
    """Asserts that the event loop ran all the time."""
    gaps: list[float] = []

    async def tick() -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.01)
            gaps.append(time.monotonic() - last)
            last = time.monotonic()

    ticker = asyncio.create_task(tick())
    yield
    ticker.cancel()
    assert max(gaps) < 0.8, "the event loop was blocked"


@pytest.mark.parametrize("frozen", [False, True])
def test_stop_of_an_engine_that_hangs(frozen: bool, monkeypatch: pytest.MonkeyPatch, temp: Path) -> None:
    """In a step it can be terminated; frozen by SIGSTOP only SIGKILL helps, after a wait that must not block the loop."""
    monkeypatch.setattr(api, "SHUTDOWN_S", 0.2)
    monkeypatch.setattr(child, "TERMINATE_S", 1.0 if frozen else 30.0)

    async def test() -> None:
        log = Log()
        config = engine_config(Script(lives=[Life(die_after=2, die_how="hang")], run=1))
        async with never_blocked(), running(log, config) as client:
            handle = client.submit(make(0))
            await until(lambda: handle.tokens_received == 2)
            pid = pid_of(client)
            if frozen:
                os.kill(pid, signal.SIGSTOP)
            await asyncio.wait_for(client.stop(), 60)
        end = await until_end(handle)
        assert (end.reason, end.cause, end.n) == ("cancelled", "shutdown", 2)
        assert not alive(pid)
        assert list(temp.iterdir()) == []

    run(test())


def test_stop_during_start_and_during_restart(monkeypatch: pytest.MonkeyPatch, temp: Path) -> None:
    monkeypatch.setattr(api, "FIRST_BACKOFF_S", 60)

    async def test() -> None:
        log = Log()
        client = log.client(engine_config())
        starting = asyncio.create_task(client.start())
        await asyncio.sleep(0.05)
        with pytest.raises(EngineError, match="engine is starting, try again"):
            client.submit(make(0))
        await client.stop()
        with pytest.raises(EngineError, match="stopped"):
            await starting
        assert state_of(client) == "stopped"

        async with running(log, engine_config()) as client:
            os.kill(pid_of(client), signal.SIGKILL)
            await until(lambda: len(log.restarts) == 1)
            await client.stop()
        assert state_of(client) == "stopped"
        assert list(temp.iterdir()) == []

    run(test())


def test_ctrl_c_is_the_parents_business() -> None:
    async def test() -> None:
        async with running(Log(), engine_config()) as client:
            os.kill(pid_of(client), signal.SIGINT)
            _, end = await collect(client.submit(make(0)))
            assert end.reason == "output_limit" and client.restarts == 0

    run(test())


PARENT = """
import asyncio
from tests.engine.test_client import Log, make
from tests.kit.scripted import Life, Script, engine_config

async def main():
    client = Log().client(engine_config(Script(lives=[Life(die_after=0, die_how="hang")])))
    await client.start()
    client.submit(make(0))
    print(client.facts["pid"], flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_engine_leaves_with_its_parent_even_in_a_step(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    parent = subprocess.Popen([sys.executable, "-c", PARENT], cwd=root, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    time.sleep(0.2)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 30
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(pid) or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]


def test_finished_handles_are_forgotten() -> None:
    async def test() -> None:
        async with running(Log(), engine_config()) as client:
            for i in range(3):
                await collect(client.submit(make(i)))
                client.cancel(i, "admin")
                client.cut(i, 1)
            handle = client.submit(make(3, 900))
            with pytest.raises(ValueError, match="in flight"):
                client.submit(make(3))
            client.cancel(3, "slow_reader")
            end = await until_end(handle)
            assert end.reason in ("cancelled", "output_limit")
            assert client._handles == {}

    run(test())


def test_every_request_ends_once_whatever_happens() -> None:
    async def test() -> None:
        random = Random(7)
        log = Log()
        async with running(log, engine_config(Script(step_delay_s=0.001, run=2), max_concurrency=4)) as client:
            ends: list[asyncio.Task[tuple[list[int], Finished]]] = []
            for i in range(120):
                await until(lambda: state_of(client) == "ready")
                ends.append(asyncio.create_task(collect(client.submit(make(i, random.randrange(60))))))
                if i in (40, 80):
                    await asyncio.sleep(0.02)
                    os.kill(pid_of(client), signal.SIGKILL)
                await asyncio.sleep(random.choice([0, 0, 0.003]))
                client.cancel(random.randrange(i + 1), "admin")
                client.cut(random.randrange(i + 1), 0)
            results = await asyncio.gather(*ends)
            reasons = Counter(end.reason for _, end in results)
            assert reasons["error"] == sum(failed for *_, failed in log.restarts) > 0
            assert reasons["output_limit"] and reasons["cancelled"] and reasons["stop_string"]
            assert client.restarts == 2 and client._handles == {}

    run(test())

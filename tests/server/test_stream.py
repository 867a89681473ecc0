"""One generation and its stream in this process, over a fake engine: what a real one cannot be made to do."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from paceline.core.messages import Admitted, Finished, Stats, Tokens
from paceline.core.request import CancelCause, Request, SamplingParams
from paceline.server import sse
from paceline.server.config import ServerConfig
from paceline.server.generation import Generation
from paceline.server.replies import CompletionReply
from paceline.server.reqlog import RequestLog, Start
from paceline.server.sse import EventStream
from paceline.text.stream import TextStream
from tests.kit.scripted import engine_config
from tests.server.scripts import Dialogue

REQUEST = Request(id=1, prompt=[1, 2], max_tokens=9, sampling=SamplingParams(seed=0))
IDLE = Stats(
    interval_s=1.0, prefill_tokens=0, decode_tokens=0, rounds=0, row_rounds=0, proposed=0, accepted=0, running=0,
    prefilling=0, waiting=0, pages_used=0, pages_total=9, step_s=0.0,
)  # fmt: skip


class FakeEngine:
    """Client and handle of one request. Gives the events that the test puts in; a cancel ends the request."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[Admitted | Tokens | Finished] = asyncio.Queue()
        self.cuts: list[int] = []

    async def __aiter__(self) -> AsyncIterator[Admitted | Tokens | Finished]:
        while True:
            event = await self.events.get()
            yield event
            if isinstance(event, Finished):
                return

    def cut(self, request_id: int, n: int) -> None:
        self.cuts.append(n)

    def cancel(self, request_id: int, cause: CancelCause) -> None:
        self.events.put_nowait(Finished(request_id, "cancelled", 0, 9.0, cause=cause))

    def say(self, dialogue: Dialogue, text: str, t: float = 5.0) -> None:
        self.events.put_nowait(Tokens(1, dialogue.reply_ids(text), 0, 0, t))


class Scene:
    def __init__(self, dialogue: Dialogue, folder: Path, stop: list[str]) -> None:
        self.path = folder / "log.jsonl"
        config = ServerConfig(public_model_id="m", log_path=str(self.path), log_token_ids=True)
        self.log = RequestLog(config, engine_config())
        self.engine = FakeEngine()
        text = TextStream(dialogue.tokenizer, stop)
        self.generation = Generation(REQUEST, text, cast(Any, self.engine), self.log, 1.0, 2.0, 60)
        self.log.request_start(
            Start(
                request=REQUEST, protocol="p", stream=True, message_count=0, requested_tokens=9,
                requested_by_client=True, user=None, prepare_s=0.0, tokenize_s=0.0,
            )
        )  # fmt: skip
        self.run = asyncio.create_task(self.generation.run(cast(Any, self.engine)))
        self.engine.events.put_nowait(Admitted(1, 3.0))

    def lines(self, event: str) -> list[dict[str, Any]]:
        return [line for line in map(json.loads, self.path.read_text().splitlines()) if line["event"] == event]


def play(
    dialogue: Dialogue, folder: Path, act: Callable[[Scene], Awaitable[None]], stop: list[str] | None = None
) -> Scene:
    async def main() -> Scene:
        scene = Scene(dialogue, folder, stop or [])
        await act(scene)
        return scene

    return asyncio.run(main())


async def never() -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError


def test_times(dialogue: Dialogue, tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        scene.engine.say(dialogue, "a", 5.0)
        scene.engine.say(dialogue, "b", 8.5)
        scene.engine.events.put_nowait(Finished(1, "output_limit", 2, 9.0))
        await scene.run

    [line] = play(dialogue, tmp_path, act).lines("request_done")
    times = line["timings_seconds"]
    assert times["total"] > 9
    del times["total"]
    assert times == {"prepare": 1.0, "queue": 1.0, "prefill": 2.0, "decode": 3.5, "ttft": 4.0}


def test_a_stop_string_cuts_at_once_and_what_follows_does_not_count(dialogue: Dialogue, tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        scene.engine.say(dialogue, "abXYcd", 5.0)
        await asyncio.sleep(0.01)
        assert scene.engine.cuts == [4]
        scene.engine.say(dialogue, "more", 7.0)
        scene.engine.events.put_nowait(Finished(1, "output_limit", 10, 9.0))
        await scene.run
        assert scene.generation.whole_text() == "ab"

    [line] = play(dialogue, tmp_path, act, ["XY"]).lines("request_done")
    assert line["result"]["finish_reason"] == "stop_string"
    assert line["result"]["generated_token_ids"] == dialogue.reply_ids("abXY")
    assert line["timings_seconds"]["decode"] == 0


def test_an_engine_death_after_the_stop_string_harms_nobody(dialogue: Dialogue, tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        scene.engine.say(dialogue, "aX")
        scene.engine.events.put_nowait(Finished(1, "error", 0, 9.0, error="gone"))
        await scene.run

    scene = play(dialogue, tmp_path, act, ["X"])
    assert scene.lines("request_error") == []
    assert scene.lines("request_done")[0]["result"]["finish_reason"] == "stop_string"


def test_a_fault_on_this_side_still_ends_the_request(dialogue: Dialogue, tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        scene.engine.events.put_nowait(Tokens(1, ["not an id"], 0, 0, 5.0))  # type: ignore[list-item]
        scene.engine.events.put_nowait(Tokens(1, [[]], 0, 0, 5.0))  # type: ignore[list-item]
        await scene.run

    [line] = play(dialogue, tmp_path, act).lines("request_error")
    assert "TypeError" in line["error"]["message"]


def test_a_reader_that_never_reads_is_given_up(
    dialogue: Dialogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "SLOW_READER_S", 0.05)

    async def act(scene: Scene) -> None:
        sent = 0

        async def send(message: Any) -> None:
            nonlocal sent
            sent += 1
            if sent > 1:
                await never()

        scene.engine.say(dialogue, "text")
        await EventStream(scene.generation, CompletionReply("k", 0, "m", False))({}, never, send)
        await scene.run

    [line] = play(dialogue, tmp_path, act).lines("request_done")
    assert (line["result"]["finish_reason"], line["result"]["cancel_cause"]) == ("cancelled", "slow_reader")


def test_silence_is_filled_with_comments(dialogue: Dialogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_S", 0.02)
    bodies: list[bytes] = []

    async def act(scene: Scene) -> None:
        async def send(message: Any) -> None:
            bodies.append(message.get("body", b""))

        async def speak() -> None:
            await asyncio.sleep(0.1)
            scene.engine.say(dialogue, "text")
            scene.engine.events.put_nowait(Finished(1, "output_limit", 4, 9.0))

        speaking = asyncio.create_task(speak())
        await EventStream(scene.generation, CompletionReply("k", 0, "m", False))({}, never, send)
        await speaking

    play(dialogue, tmp_path, act)
    assert bodies.count(b": keep-alive\n\n") >= 2
    assert b'"text":"text"' in bodies[-3]


def test_the_idle_line_closes_the_work(dialogue: Dialogue, tmp_path: Path) -> None:
    """Figures over a window need the last throughput line after the last terminal line."""

    async def act(scene: Scene) -> None:
        scene.log.throughput(IDLE)
        assert scene.lines("throughput") == []
        scene.engine.events.put_nowait(Finished(1, "output_limit", 0, 9.0))
        await scene.run
        assert len(scene.lines("throughput")) == 1
        scene.log.throughput(IDLE)
        assert len(scene.lines("throughput")) == 2

    scene = play(dialogue, tmp_path, act)
    events = [json.loads(line)["event"] for line in scene.path.read_text().splitlines()]
    assert events == ["request_start", "request_done", "throughput", "throughput"]

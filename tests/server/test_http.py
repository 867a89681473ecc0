"""A real server with the real openai client: shapes, limits, and bad input of every kind."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.kit.live_server import MODEL, LiveServer
from tests.server.scripts import STORY, Dialogue

STORY_MESSAGES: Any = [{"role": "user", "content": "story"}]
HELLO: Any = [{"role": "user", "content": "hello"}]

# The scripted tokens may happen upon a stop id.
IGNORE_EOS = {"ignore_eos": True}


def post(live: LiveServer, path: str = "chat/completions", **fields: Any) -> httpx.Response:
    body = {"model": MODEL, **({"messages": HELLO} if path.startswith("chat") else {"prompt": "hi"}), **fields}
    return live.http.post(f"/v1/{path}", content=json.dumps(body).encode())


def error(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error object, after checking what every error response has."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    found: dict[str, Any] = response.json()["error"]
    assert found.keys() == {"message", "type", "param", "code"}
    assert found["message"]
    return found


def events(live: LiveServer, path: str, body: dict[str, Any]) -> list[Any]:
    """The data events of a stream, decoded; the last one is the string [DONE]."""
    with live.http.stream("POST", f"/v1/{path}", json={"model": MODEL, "stream": True, **body}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        blocks = "".join(response.iter_text()).split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    data = [block.removeprefix("data: ") for block in blocks]
    return [*(json.loads(one) for one in data[:-1]), data[-1]]


def test_health(live: LiveServer) -> None:
    response = live.http.get("/health")
    assert response.status_code == 200
    assert response.json()["status"] == "ok"
    assert response.json()["restarts"] == 0


def test_models(live: LiveServer) -> None:
    [model] = live.client.models.list().data
    assert (model.id, model.object, model.owned_by) == (MODEL, "model", "paceline")
    assert live.client.models.retrieve(MODEL).model_dump()["max_model_len"] == 1024
    with pytest.raises(openai.NotFoundError) as caught:
        live.client.models.retrieve("some/other")
    assert caught.value.code == "model_not_found"


def test_chat(live: LiveServer, dialogue: Dialogue) -> None:
    reply = live.client.chat.completions.create(model=MODEL, messages=STORY_MESSAGES)
    choice = reply.choices[0]
    assert (choice.message.content, choice.message.role, choice.finish_reason) == (STORY, "assistant", "stop")
    assert (reply.object, reply.model) == ("chat.completion", MODEL)
    assert reply.id.startswith("chatcmpl-")
    assert reply.usage is not None
    # The stop token counts, and gives no text.
    assert reply.usage.completion_tokens == len(dialogue.reply_ids(STORY)) + 1
    assert reply.usage.prompt_tokens == len(dialogue.chat_ids("story"))
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.usage.prompt_tokens_details is not None
    assert reply.usage.prompt_tokens_details.cached_tokens == 0


def test_stream_with_usage(live: LiveServer, dialogue: Dialogue) -> None:
    stream = live.client.chat.completions.create(
        model=MODEL, messages=STORY_MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert len({chunk.id for chunk in chunks}) == 1
    *texts, last, usage = chunks
    assert "".join(chunk.choices[0].delta.content or "" for chunk in texts) == STORY
    assert [chunk.choices[0].delta.role for chunk in texts] == ["assistant"] + [None] * (len(texts) - 1)
    assert all(chunk.choices[0].finish_reason is None and chunk.usage is None for chunk in texts)
    assert last.choices[0].finish_reason == "stop"
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.completion_tokens == len(dialogue.reply_ids(STORY)) + 1


def test_raw_stream(live: LiveServer) -> None:
    *chunks, done = events(live, "chat/completions", {"messages": STORY_MESSAGES})
    assert done == "[DONE]"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(chunk["object"] == "chat.completion.chunk" and len(chunk["choices"]) == 1 for chunk in chunks)
    assert all("usage" not in chunk for chunk in chunks)
    assert chunks[-1]["choices"][0]["delta"] == {}
    assert all(set(chunk["choices"][0]["delta"]) == {"content"} for chunk in chunks[1:-1])
    *_, last, usage, _ = events(
        live, "chat/completions", {"messages": STORY_MESSAGES, "stream_options": {"include_usage": True}}
    )
    assert last["usage"] is None
    assert (usage["choices"], usage["usage"]["total_tokens"] > 0) == ([], True)


def test_completions(live: LiveServer, dialogue: Dialogue) -> None:
    reply = live.client.completions.create(model=MODEL, prompt="story")
    assert (reply.choices[0].text, reply.choices[0].finish_reason, reply.object) == (STORY, "stop", "text_completion")
    ids = dialogue.tokenizer.encode("story")
    assert live.client.completions.create(model=MODEL, prompt=ids).choices[0].text == STORY
    assert live.client.completions.create(model=MODEL, prompt=["story"]).choices[0].text == STORY
    stream = live.client.completions.create(model=MODEL, prompt="story", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == STORY


def test_stop_strings(live: LiveServer, dialogue: Dialogue) -> None:
    for stop, text in (("Stop", STORY.split("Stop")[0]), (["nowhere", "日本", "END"], STORY.split("日本")[0])):
        reply = live.client.chat.completions.create(model=MODEL, messages=STORY_MESSAGES, stop=stop)
        assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == (text, "stop")
        assert reply.usage is not None
        found = "Stop" if stop == "Stop" else "日本"
        assert reply.usage.completion_tokens == len(dialogue.reply_ids(text + found))


def test_limits_finish_with_length(live: LiveServer) -> None:
    reply = live.client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=7)
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 7
    for huge in (10**6, 2**64, 10**30):
        reply = live.client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=huge, extra_body=IGNORE_EOS)
        assert reply.choices[0].finish_reason == "length"
        assert reply.usage is not None
        assert reply.usage.total_tokens == 1024
    reasons = {line["result"]["finish_reason"] for line in live.log("request_done")[-3:]}
    assert reasons == {"context_capacity"}


def test_seeds_are_logged(live: LiveServer) -> None:
    for seed in (5, -5, None):
        live.client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=1, seed=seed)
    given, negative, drawn = (line["request"]["sampling"]["seed"] for line in live.log("request_start")[-3:])
    assert (given, negative) == (5, 2**64 - 5)
    assert 0 <= drawn < 2**63


def test_the_request_id_joins_reply_and_log(live: LiveServer) -> None:
    response = post(live, max_tokens=3, user="me", min_tokens=2, temperature=0.25)
    line = live.log("request_start")[-1]
    assert response.headers["x-request-id"] == f"req-{line['request_id']}"
    request = line["request"]
    assert (request["protocol"], request["stream"], request["message_count"]) == ("openai.chat", False, 1)
    assert (request["user"], request["requested_output_tokens"]) == ("me", 3)
    assert (request["requested_output_tokens_source"], request["sampling"]["temperature"]) == ("client", 0.25)
    live.wait_idle()
    done = live.log("request_done")[-1]
    assert done["request_id"] == line["request_id"]
    assert done["result"]["completion_tokens"] == len(done["result"]["generated_token_ids"]) == 3
    times = done["timings_seconds"]
    assert times["total"] >= times["ttft"] >= times["prepare"] > 0
    assert times["ttft"] == pytest.approx(times["prepare"] + times["queue"] + times["prefill"], abs=1e-3)


def test_context_length(live: LiveServer) -> None:
    for size, path in ((1024, "completions"), (100_000, "completions")):
        found = error(post(live, path, prompt=[1] * size), 400)
        assert (found["code"], found["param"]) == ("context_length_exceeded", "prompt")
        assert str(size) in found["message"]
        assert "1024" in found["message"]
    found = error(post(live, messages=[{"role": "user", "content": "word " * 200_000}]), 400)
    assert (found["code"], found["param"]) == ("context_length_exceeded", "messages")
    reply = post(live, "completions", prompt=[1] * 1023)
    assert reply.json()["usage"] == reply.json()["usage"] | {"prompt_tokens": 1023, "completion_tokens": 1}
    assert error(post(live, "completions", prompt=""), 400)["param"] == "prompt"


BAD_FIELDS: list[tuple[dict[str, Any], int, str | None]] = [
    ({"messages": []}, 400, "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, 400, "messages[0].role"),
    ({"messages": HELLO + HELLO}, 400, "messages"),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, 400, "messages[0].content"),
    ({"chat_template_kwargs": {"add_generation_prompt": "\ud800"}, "max_tokens": 1}, 200, None),
    ({"chat_template_kwargs": {"messages": 3}}, 400, "chat_template_kwargs"),
    ({"max_tokens": 0}, 400, "max_tokens"),
    ({"max_tokens": -1}, 400, "max_tokens"),
    ({"temperature": -1}, 400, "temperature"),
    ({"top_p": 0}, 400, "top_p"),
    ({"n": 2}, 400, "n"),
    ({"tools": [{}]}, 400, "tools"),
    ({"unknown": 1}, 400, "unknown"),
    ({"\ud800": 1}, 400, "\ud800"),
    ({"model": "other"}, 404, "model"),
    ({"stream": True, "top_p": 0}, 400, "top_p"),
]


@pytest.mark.parametrize(("fields", "status", "param"), BAD_FIELDS)
def test_bad_fields(live: LiveServer, fields: dict[str, Any], status: int, param: str | None) -> None:
    response = post(live, **fields)
    if status == 200:
        assert response.status_code == 200
        return
    assert error(response, status)["param"] == param
    rejected = live.log("request_rejected")[-1]
    assert (rejected["error"]["status"], rejected["error"]["param"]) == (status, param)
    assert rejected["protocol"] == "openai.chat"


NESTED = 100_000
BAD_BODIES: list[bytes] = [
    b"", b"{", b"[]", b"3", b"null", b'"x"', b"\xff\xfe{", b"\x00" * 10, b"{'a': 1}", b'{"model": NaN}',
    b'{"model": "scripted-model", "messages": [{"role": "user", "content": "x"}], "metadata": NaN}',
    b'{"temperature": Infinity}', b'{"temperature": -Infinity}', b'{"seed": ' + b"9" * 5000 + b"}",
    b"[" * NESTED, b'{"messages":' + b"[" * NESTED + b"]" * NESTED + b"}", b'{"a":' * NESTED,
    b'{"model": "scripted-model", "messages": [{"role": "user", "content": "x"}], "temperature": 1e999}',
    b'{"model": "scripted-model", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1e2}',
    b'{"model": "scripted-model", "messages": ' + b"[" * 900 + b"]" * 900 + b"}",
]  # fmt: skip


@pytest.mark.parametrize("body", BAD_BODIES, ids=lambda body: repr(body[:20]))
def test_bad_bodies(live: LiveServer, body: bytes) -> None:
    assert error(live.http.post("/v1/chat/completions", content=body), 400)["type"] == "invalid_request_error"


def test_a_50_mb_body(live: LiveServer) -> None:
    def chunks() -> Iterator[bytes]:
        yield from (b"x" * 500_000 for _ in range(100))

    for content in (b"x" * 50_000_000, chunks()):
        found = error(live.http.post("/v1/chat/completions", content=content), 413)
        assert found["code"] == "request_too_large"
        assert "--max-request-mib" in found["message"]
    assert live.http.get("/health").status_code == 200


def test_a_declared_length_is_enough_to_refuse(live: LiveServer) -> None:
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 20000000000\r\n\r\n"
    with live.connect() as connection:
        connection.sendall(head.encode() + b"{")
        assert connection.recv(1000).startswith(b"HTTP/1.1 413 ")


def test_unknown_routes_and_methods(live: LiveServer) -> None:
    assert error(live.http.get("/v1/nothing"), 404)["code"] == "unknown_url"
    assert error(live.http.post("/v1/responses", json={}), 404)["code"] == "unknown_url"
    response = live.http.get("/v1/chat/completions")
    assert error(response, 405)["code"] == "method_not_allowed"
    assert response.headers["allow"] == "POST"
    assert error(live.http.delete("/v1/models"), 405)


def test_the_sdk_maps_errors(live: LiveServer) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        live.client.chat.completions.create(model=MODEL, messages=HELLO, temperature=3)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as missing:
        live.client.chat.completions.create(model="other", messages=HELLO, stream=True)
    assert missing.value.code == "model_not_found"


def test_special_tokens_give_no_text(live: LiveServer, dialogue: Dialogue) -> None:
    """`ignore_eos` lets the scripted reply run on, past stop ids."""
    response = post(live, messages=STORY_MESSAGES, ignore_eos=True, max_tokens=len(dialogue.reply_ids(STORY)) + 5)
    assert response.json()["choices"][0]["finish_reason"] == "length"
    assert response.json()["choices"][0]["message"]["content"].startswith(STORY)


def test_server_start_says_what_runs(live: LiveServer) -> None:
    first, *others = live.log()
    assert first["event"] == "server_start"
    assert not [line for line in others if line["event"] == "server_start"]
    assert first["server"]["port"] == int(live.url.rsplit(":", 1)[1])
    assert first["engine"]["speculative_draft_window"] == 3 and first["engine"]["draft_head"] == "full"
    assert first["engine"]["max_context"] == 1024
    assert (first["artifact"]["path"], first["artifact"]["weights_id"]) == ("/models/scripted", "abc123")
    assert first["sampling_defaults"]["omitted_seed"] == "random"
    assert {line["server_instance_id"] for line in others} == {first["server_instance_id"]}
    assert {(line["artifact_type"], line["schema_version"]) for line in others} == {("paceline_request_log", 1)}

"""Limits that a text must keep, without HTTP: what would hurt the engine never reaches it."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from paceline.core.errors import RequestError
from paceline.server.config import ServerConfig
from paceline.server.openai import parse_completion
from paceline.server.reqlog import RequestLog
from paceline.server.service import Service
from tests.kit import text_model
from tests.kit.scripted import engine_config
from tests.server.scripts import Dialogue


def refusal(dialogue: Dialogue, engine: dict[str, Any], prompt: object, **fields: object) -> RequestError:
    config, server = engine_config(**engine), ServerConfig(public_model_id="m")
    ready = cast(Any, SimpleNamespace(state="ready"))
    log = RequestLog(server, config)
    service = Service(ready, dialogue.tokenizer, dialogue.template, config, server, log)
    ask = parse_completion({"model": "m", "prompt": prompt, **fields}, service.context)
    with pytest.raises(RequestError) as caught:
        asyncio.run(service.open(ask, 0.0))
    assert service.outstanding == 0
    return caught.value


def test_tokens_that_the_model_does_not_have(dialogue: Dialogue) -> None:
    engine = {"sampled_vocab": text_model.VOCAB - 1}
    error = refusal(dialogue, engine, "see </think>")
    assert (error.param, error.code) == ("prompt", "invalid_prompt")
    with pytest.raises(RequestError, match="0 to 412"):
        refusal(dialogue, engine, [text_model.VOCAB - 1])


def test_more_kv_than_there_is(dialogue: Dialogue) -> None:
    error = refusal(dialogue, {"kv_capacity": 640}, "hello", max_tokens=1000)
    assert (error.param, error.code, error.status) == ("max_tokens", "kv_capacity_exceeded", 400)
    assert "640" in error.message


def test_an_engine_that_is_not_there(dialogue: Dialogue) -> None:
    config, server = engine_config(), ServerConfig(public_model_id="m")
    engine = cast(Any, SimpleNamespace(state="restarting"))
    service = Service(engine, dialogue.tokenizer, dialogue.template, config, server, RequestLog(server, config))
    ask = parse_completion({"model": "m", "prompt": "x"}, service.context)
    with pytest.raises(RequestError, match="restarting") as caught:
        asyncio.run(service.open(ask, 0.0))
    assert (caught.value.status, caught.value.code) == (503, "service_unavailable")

"""Results → OpenAI's response shapes, streaming and not. Pure functions of text and counts; `sse.py` sends them.

`role` comes once and first, `finish_reason` only at the end, `choices` is always there, and usage comes in a chunk of
its own, only when it was asked for.
"""

import msgspec

from paceline.core.errors import RequestError
from paceline.core.request import FinishReason

_FINISH: dict[FinishReason, str] = {
    "stop_token": "stop",
    "stop_string": "stop",
    "output_limit": "length",
    "context_capacity": "length",
}

Json = dict[str, object]


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cache_miss: str

    def body(self) -> Json:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens, "cache_miss": self.cache_miss},
            "completion_tokens_details": {"reasoning_tokens": 0},
        }


class Reply:
    """The shapes of one response. `with_usage` says that its stream ends with a usage chunk."""

    prefix: str
    object_whole: str
    object_chunk: str

    def __init__(self, key: str, created: int, model: str, with_usage: bool) -> None:
        self._id = f"{self.prefix}-{key}"
        self._created, self._model, self._with_usage = created, model, with_usage

    def opening(self) -> list[Json]:
        """Sent when the request has its slot, before there is text."""
        return []

    def delta(self, text: str) -> Json:
        return self._chunk([self._choice_chunk(text, None)])

    def closing(self, reason: FinishReason, usage: Usage) -> list[Json]:
        chunks = [self._chunk([self._choice_chunk(None, _FINISH[reason])])]
        if self._with_usage:
            chunks.append(self._chunk([]) | {"usage": usage.body()})
        return chunks

    def whole(self, text: str, reason: FinishReason, usage: Usage) -> Json:
        choice = {"index": 0, **self._message(text), "logprobs": None, "finish_reason": _FINISH[reason]}
        return self._head(self.object_whole) | {"choices": [choice], "usage": usage.body()}

    def _head(self, kind: str) -> Json:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def _chunk(self, choices: list[Json]) -> Json:
        chunk = self._head(self.object_chunk) | {"choices": choices}
        return chunk | {"usage": None} if self._with_usage else chunk

    def _choice_chunk(self, text: str | None, finish: str | None) -> Json:
        raise NotImplementedError

    def _message(self, text: str) -> Json:
        raise NotImplementedError


class ChatReply(Reply):
    prefix, object_whole, object_chunk = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def opening(self) -> list[Json]:
        delta = {"role": "assistant", "content": ""}
        return [self._chunk([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}])]

    def _choice_chunk(self, text: str | None, finish: str | None) -> Json:
        delta = {} if text is None else {"content": text}
        return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}

    def _message(self, text: str) -> Json:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}


class CompletionReply(Reply):
    prefix, object_whole, object_chunk = "cmpl", "text_completion", "text_completion"

    def _choice_chunk(self, text: str | None, finish: str | None) -> Json:
        return {"index": 0, "text": text or "", "logprobs": None, "finish_reason": finish}

    def _message(self, text: str) -> Json:
        return {"text": text}


def error_body(error: RequestError) -> Json:
    return {"error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}}


def model_body(model: str, created: int, max_context: int) -> Json:
    return {
        "id": model,
        "object": "model",
        "created": created,
        "owned_by": "paceline",
        "root": model,
        "max_model_len": max_context,
    }

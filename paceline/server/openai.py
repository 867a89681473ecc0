"""OpenAI request bodies → one `Ask` that the service can run, or a RequestError that names the field. Pure functions.

Nothing is dropped silently: a field that would change the reply and is not supported is refused, and so is one that
nobody knows. Fields that cannot change anything here are accepted. Replies are `replies.py`'s; ids `service.py`'s.
"""

import secrets
from typing import Annotated, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from paceline.core.errors import RequestError
from paceline.core.request import SamplingParams
from paceline.text.tokenizer import SamplingDefaults, require_unicode

MAX_STOP_STRINGS = 4
_U64 = 2**64 - 1


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What a client asks for, checked and complete, before there are token ids. Exactly one of the prompt forms is set.

    `requested_tokens` is as the client or the server's default said, not yet limited by the context.
    """

    protocol: str
    stream: bool
    include_usage: bool
    sampling: SamplingParams
    requested_tokens: int
    requested_by_client: bool
    min_tokens: int
    ignore_eos: bool
    stop: list[str]
    user: str | None
    messages: list[dict[str, object]] | None = None
    template_options: dict[str, object] = {}
    prompt_text: str | None = None
    prompt_ids: list[int] | None = None


class AskContext(msgspec.Struct, frozen=True, kw_only=True):
    """What the server brings to a body: its model and the values that count when the client names none."""

    public_model_id: str
    vocab_size: int
    default_max_tokens: int
    sampling: SamplingDefaults


class _StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


_Penalty = Annotated[float, Field(ge=-2, le=2)]


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    model: str
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=_U64)] | None = None
    stop: object = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    ignore_eos: bool | None = None
    user: str | None = None


class _ChatBody(_Body):
    messages: list[object]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    chat_template_kwargs: dict[str, object] | None = None


class _CompletionBody(_Body):
    prompt: object


B = TypeVar("B", bound=_Body)

_NO_EFFECT = (
    "metadata", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_retention", "safety_identifier",
    "service_tier",
)  # fmt: skip
# Known fields that are not supported → the values, besides null, with which they change nothing.
_UNSUPPORTED: dict[str, tuple[object, ...]] = {"n": (1,), "store": (False,)}
_UNSUPPORTED_CHAT: dict[str, tuple[object, ...]] = {
    **_UNSUPPORTED,
    "audio": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logprobs": (False,),
    "modalities": (["text"],),
    "prediction": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": (),
    "web_search_options": (),
}
_UNSUPPORTED_COMPLETION: dict[str, tuple[object, ...]] = {
    **_UNSUPPORTED,
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (),
    "suffix": ("",),
}
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TEXT_PART = '{"type": "text", "text": "..."}'
_TEXT_LIKE = ("input_text", "output_text")
_MEDIA = {
    "images": ("image_url", "image", "input_image"),
    "audio": ("input_audio", "audio", "audio_url"),
    "video": ("video_url", "video", "input_video"),
    "files": ("file", "input_file"),
}
# Clients send an assistant's earlier message back as they received it.
_UNSUPPORTED_ASSISTANT: dict[str, tuple[object, ...]] = {
    "refusal": (),
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "tool_calls": ([],),
}


def parse_chat(body: dict[str, object], context: AskContext) -> Ask:
    fields = _validated(_ChatBody, body, _UNSUPPORTED_CHAT, context)
    if fields.max_tokens is not None and fields.max_completion_tokens not in (None, fields.max_tokens):
        raise RequestError(
            f"max_tokens = {fields.max_tokens} and max_completion_tokens = {fields.max_completion_tokens} disagree; "
            "send one of them",
            "max_completion_tokens",
        )
    if not fields.messages:
        raise RequestError("messages: empty; send at least one message", "messages")
    return _ask(
        fields,
        context,
        "openai.chat",
        fields.max_completion_tokens or fields.max_tokens,
        messages=[_message(raw, f"messages[{i}]") for i, raw in enumerate(fields.messages)],
        template_options=fields.chat_template_kwargs or {},
    )


def parse_completion(body: dict[str, object], context: AskContext) -> Ask:
    fields = _validated(_CompletionBody, body, _UNSUPPORTED_COMPLETION, context)
    text, ids = _prompt(fields.prompt, context.vocab_size)
    return _ask(fields, context, "openai.completions", fields.max_tokens, prompt_text=text, prompt_ids=ids)


def _validated(
    kind: type[B], body: dict[str, object], unsupported: dict[str, tuple[object, ...]], context: AskContext
) -> B:
    kept = {name: value for name, value in _without_idle(body, unsupported, "").items() if name not in _NO_EFFECT}
    for name in kept:
        if name not in kind.model_fields:
            raise RequestError(f"{shown(name)}: unknown field; leave it out", name[:100], "unknown_parameter")
    try:
        fields = kind.model_validate(kept)
    except ValidationError as error:
        raise _first_problem(error) from None
    if fields.model != context.public_model_id:
        raise RequestError(
            f"model {shown(fields.model)} is not served here; use {context.public_model_id!r}",
            "model",
            "model_not_found",
            status=404,
        )
    return fields


def _without_idle(
    given: dict[str, object], unsupported: dict[str, tuple[object, ...]], prefix: str
) -> dict[str, object]:
    for name, idle in unsupported.items():
        value = given.get(name)
        # `True == 1` and `False == 0` in Python, not in JSON.
        if value is not None and not any(type(value) is type(other) and value == other for other in idle):
            only = " or ".join(msgspec.json.encode(other).decode() for other in (*idle, None))
            raise RequestError(
                f"{prefix}{name} = {shown(value)}: not supported by this server; leave it out (accepted: {only})",
                f"{prefix}{name}",
                "unsupported_parameter",
            )
    return {name: value for name, value in given.items() if name not in unsupported}


def _first_problem(error: ValidationError) -> RequestError:
    problem = error.errors(include_url=False)[0]
    param = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"]).lstrip(".")[:200]
    if problem["type"] == "extra_forbidden":
        return RequestError(f"{shown(param)}: unknown field; leave it out", param, "unknown_parameter")
    if problem["type"] == "missing":
        return RequestError(f"{param}: required", param, "missing_required_parameter")
    return RequestError(f"{param} = {shown(problem['input'])}: {problem['msg']}", param, "invalid_value")


def _ask(
    fields: _Body,
    context: AskContext,
    protocol: str,
    max_tokens: int | None,
    messages: list[dict[str, object]] | None = None,
    template_options: dict[str, object] | None = None,
    prompt_text: str | None = None,
    prompt_ids: list[int] | None = None,
) -> Ask:
    requested = context.default_max_tokens if max_tokens is None else max_tokens
    min_tokens = fields.min_tokens or 0
    if min_tokens > requested:
        message = f"min_tokens = {shown(min_tokens)}: more than the output limit of {shown(requested)} tokens"
        raise RequestError(message, "min_tokens", "invalid_value")
    if fields.user is not None:
        require_unicode(fields.user, "user")
    return Ask(
        protocol=protocol,
        stream=bool(fields.stream),
        include_usage=bool(fields.stream_options and fields.stream_options.include_usage),
        sampling=_sampling(fields, context),
        requested_tokens=requested,
        requested_by_client=max_tokens is not None,
        min_tokens=min_tokens,
        ignore_eos=bool(fields.ignore_eos),
        stop=_stop(fields.stop),
        user=fields.user,
        messages=messages,
        template_options=template_options or {},
        prompt_text=prompt_text,
        prompt_ids=prompt_ids,
    )


def _sampling(fields: _Body, context: AskContext) -> SamplingParams:
    default = context.sampling

    def chosen(value: float | None, otherwise: float) -> float:
        return otherwise if value is None else float(value)

    top_k = default.top_k if fields.top_k is None else fields.top_k
    return SamplingParams(
        seed=secrets.randbits(63) if fields.seed is None else fields.seed & _U64,
        temperature=chosen(fields.temperature, default.temperature),
        top_k=min(max(top_k, 0), context.vocab_size),
        top_p=chosen(fields.top_p, default.top_p),
        min_p=chosen(fields.min_p, default.min_p),
        presence_penalty=chosen(fields.presence_penalty, default.presence_penalty),
        frequency_penalty=chosen(fields.frequency_penalty, default.frequency_penalty),
        repetition_penalty=chosen(fields.repetition_penalty, default.repetition_penalty),
        logit_bias={_bias_key(key, context.vocab_size): bias for key, bias in (fields.logit_bias or {}).items()},
    )


def _bias_key(key: str, vocab_size: int) -> int:
    # The length is checked first: Python refuses to convert very long numbers.
    if key.isascii() and key.isdigit() and len(key) <= 9 and str(int(key)) == key and int(key) < vocab_size:
        return int(key)
    message = f"logit_bias key {shown(key)}: not a token id of this model (0 to {vocab_size - 1})"
    raise RequestError(message, "logit_bias", "invalid_value")


def _stop(value: object) -> list[str]:
    texts = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or len(texts) > MAX_STOP_STRINGS:
        raise RequestError(f"stop = {shown(value)}: a string or at most {MAX_STOP_STRINGS} of them", "stop")
    return [_text(text, "stop" if isinstance(value, str) else f"stop[{i}]") for i, text in enumerate(texts)]


def _text(value: object, param: str) -> str:
    if not isinstance(value, str) or not value:
        raise RequestError(f"{param} = {shown(value)}: must be a string that is not empty", param, "invalid_value")
    require_unicode(value, param)
    return value


def _message(raw: object, param: str) -> dict[str, object]:
    if not isinstance(raw, dict):
        raise RequestError(f"{param} = {shown(raw)}: must be an object with role and content", param)
    role = raw.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        fix = "not supported by this server" if role in ("tool", "function") else f"must be one of {', '.join(_ROLES)}"
        raise RequestError(f"{param}.role = {shown(role)}: {fix}", f"{param}.role", "invalid_value")
    if role == "assistant":
        raw = _without_idle(raw, _UNSUPPORTED_ASSISTANT, f"{param}.")
    message: dict[str, object] = {"role": _ROLES[role], "content": _content(raw.get("content"), f"{param}.content")}
    for name, value in raw.items():
        if name in ("reasoning", "reasoning_content") and role == "assistant":
            if value:
                message["reasoning_content"] = _text(value, f"{param}.{name}")
        elif name == "name":
            if value is not None:
                message["name"] = _text(value, f"{param}.name")
        elif name not in ("role", "content"):
            raise RequestError(
                f"{param}.{shown(name)}: unknown field; leave it out", f"{param}.{name[:100]}", "unknown_parameter"
            )
    return message


def _content(value: object, param: str) -> str:
    if isinstance(value, str):
        require_unicode(value, param)
        return value
    if not isinstance(value, list):
        fix = f"put the part into a list, as [{_TEXT_PART}]" if isinstance(value, dict) else 'write "" for no text'
        message = f"{param} = {shown(value)}: must be a string or a list of text parts; {fix}"
        raise RequestError(message, param, "invalid_value")
    return "".join(_part(part, f"{param}[{i}]") for i, part in enumerate(value))


def _part(part: object, param: str) -> str:
    if not isinstance(part, dict):
        message = f"{param} = {shown(part)}: a content part must be an object, as {_TEXT_PART}"
        raise RequestError(message, param, "invalid_value")
    if part.get("type") != "text":
        message = f"{param}.type = {shown(part.get('type'))}: {_about_type(part)}"
        raise RequestError(message, f"{param}.type", "invalid_value")
    if unknown := part.keys() - {"type", "text"}:
        name = min(unknown)
        message = f"{param}.{shown(name)}: unknown field; leave it out (a text part holds type and text)"
        raise RequestError(message, f"{param}.{name[:100]}", "unknown_parameter")
    text = part.get("text")
    if not isinstance(text, str):
        message = f'{param}.text = {shown(text)}: must be a string; write "" for no text'
        raise RequestError(message, f"{param}.text", "invalid_value")
    require_unicode(text, f"{param}.text")
    return text


def _about_type(part: dict[str, object]) -> str:
    """What to do about a content part that is no text part."""
    kind = part.get("type")
    if not isinstance(kind, str):
        return f"the type of a content part is a string; a text part is {_TEXT_PART}"
    if kind in _TEXT_LIKE:
        return "that is another API's name; the type is 'text' here"
    for media, kinds in _MEDIA.items():
        if kind in kinds:
            return f"{media} cannot be read by this server; leave the part out, or put its content into words"
    return f"not a type that this server knows; only text parts are supported, as {_TEXT_PART}"


def _prompt(value: object, vocab_size: int) -> tuple[str | None, list[int] | None]:
    """One prompt as text or as token ids; OpenAI also allows a list that holds it."""
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        if len(value) > 1:
            raise RequestError(f"prompt: {len(value)} prompts; send one per request", "prompt", "unsupported_parameter")
        value = value[0]
    if isinstance(value, str):
        require_unicode(value, "prompt")
        return value, None
    if not isinstance(value, list) or not value:
        raise RequestError(f"prompt = {shown(value)}: must be text or a list of token ids", "prompt", "invalid_value")
    for token in value:
        if type(token) is not int or not 0 <= token < vocab_size:
            message = f"prompt holds {shown(token)}: not a token id of this model (0 to {vocab_size - 1})"
            raise RequestError(message, "prompt", "invalid_value")
    return None, value


def shown(value: object) -> str:
    """A client's value in a message: short, whatever it was."""
    try:
        named = {list: "an array", dict: "an object", type(None): "null", bool: str(value).lower()}
        text = named.get(type(value)) or repr(value)
    except ValueError:  # an integer too long to print
        return "a very large number"
    return text if len(text) <= 60 else f"{text[:57]}..."

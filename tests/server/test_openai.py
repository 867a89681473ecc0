"""Bodies → Ask: what is accepted, with which values, and how each wrong field is refused."""

from typing import Any

import pytest

from paceline.core.errors import RequestError
from paceline.server.openai import Ask, AskContext, parse_chat, parse_completion
from paceline.text.tokenizer import SamplingDefaults

CONTEXT = AskContext(
    public_model_id="m",
    vocab_size=100,
    default_max_tokens=77,
    sampling=SamplingDefaults(temperature=0.5, top_p=0.9, top_k=20, min_p=0.1),
)
HELLO = [{"role": "user", "content": "hello"}]


def chat(**fields: Any) -> Ask:
    return parse_chat({"model": "m", "messages": HELLO, **fields}, CONTEXT)


def completion(**fields: Any) -> Ask:
    return parse_completion({"model": "m", "prompt": "hi", **fields}, CONTEXT)


def test_defaults() -> None:
    ask = chat()
    assert (ask.stream, ask.include_usage, ask.stop, ask.user, ask.min_tokens) == (False, False, [], None, 0)
    assert (ask.requested_tokens, ask.requested_by_client) == (77, False)
    sampling = ask.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 20, 0.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (0, 0, 1)


def test_an_omitted_seed_is_drawn() -> None:
    assert chat().sampling.seed != chat().sampling.seed


@pytest.mark.parametrize(
    ("given", "taken"), [(0, 0), (7, 7), (-1, 2**64 - 1), (-(2**63), 2**63), (2**64 - 1, 2**64 - 1)]
)
def test_seeds_of_64_bits(given: int, taken: int) -> None:
    assert chat(seed=given).sampling.seed == taken


def test_every_sampling_field() -> None:
    sampling = chat(
        temperature=2, top_p=1, top_k=5, min_p=0, presence_penalty=-2, frequency_penalty=2, repetition_penalty=1.5,
        logit_bias={"0": -100, "99": 100.0},
    ).sampling  # fmt: skip
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (2, 1, 5, 0)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (-2, 2, 1.5)
    assert sampling.logit_bias == {0: -100, 99: 100}


@pytest.mark.parametrize(("given", "taken"), [(-1, 0), (0, 0), (10**30, 100)])
def test_top_k_off_and_huge(given: int, taken: int) -> None:
    assert chat(top_k=given).sampling.top_k == taken


def test_output_limits() -> None:
    assert chat(max_tokens=5).requested_tokens == 5
    assert chat(max_completion_tokens=6).requested_tokens == 6
    assert chat(max_tokens=5, max_completion_tokens=5).requested_tokens == 5
    assert chat(max_tokens=None, max_completion_tokens=10**30).requested_tokens == 10**30
    assert completion(max_tokens=9, min_tokens=9, ignore_eos=True).min_tokens == 9


def test_messages() -> None:
    earlier = {
        "role": "assistant", "content": "hi", "refusal": None, "annotations": None, "audio": None,
        "function_call": None, "tool_calls": None, "reasoning": None, "reasoning_content": "hm",
    }  # fmt: skip
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": ""}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": "be"}, {"role": "user", "content": parts, "name": "jo"}, earlier]
    assert chat(messages=messages).messages == [
        {"role": "system", "content": "be"},
        {"role": "user", "content": "ab", "name": "jo"},
        {"role": "assistant", "content": "hi", "reasoning_content": "hm"},
    ]


@pytest.mark.parametrize("stop", ["x", ["x"], ["a", "b", "c", "d"]])
def test_stop(stop: Any) -> None:
    assert chat(stop=stop).stop == ([stop] if isinstance(stop, str) else stop)


@pytest.mark.parametrize(
    ("prompt", "text", "ids"),
    [("hi", "hi", None), (["hi"], "hi", None), ([1, 2], None, [1, 2]), ([[1, 2]], None, [1, 2]), ("", "", None)],
)
def test_prompts(prompt: Any, text: str | None, ids: list[int] | None) -> None:
    ask = completion(prompt=prompt)
    assert (ask.prompt_text, ask.prompt_ids, ask.messages) == (text, ids, None)


HARMLESS = {
    "n": 1, "logprobs": False, "top_logprobs": 0, "tools": [], "tool_choice": "auto", "functions": [],
    "parallel_tool_calls": True, "response_format": {"type": "text"}, "modalities": ["text"], "store": False,
    "metadata": {"a": "b"}, "service_tier": "auto", "user": "me", "safety_identifier": "x", "prompt_cache_key": "y",
    "stream_options": {"include_usage": True, "include_obfuscation": False}, "stop": None, "seed": None,
    "chat_template_kwargs": {"enable_thinking": False}, "audio": None, "prediction": None, "stream": False,
}  # fmt: skip


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_fields_are_accepted(name: str) -> None:
    chat(**{name: HARMLESS[name]})
    chat(**{name: None})


def test_all_harmless_fields_at_once() -> None:
    ask = chat(**HARMLESS)
    assert (ask.user, ask.include_usage, ask.template_options) == ("me", True, {"enable_thinking": False})


UNSUPPORTED = [
    ("n", 2), ("n", True), ("n", 0), ("logprobs", True), ("top_logprobs", 3), ("tools", [{"type": "function"}]),
    ("tool_choice", "required"), ("functions", [{}]), ("response_format", {"type": "json_object"}), ("store", True),
    ("modalities", ["text", "audio"]), ("audio", {"voice": "x"}), ("prediction", {}), ("reasoning_effort", "low"),
    ("web_search_options", {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), UNSUPPORTED)
def test_unsupported_fields_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=f"^{name}.*not supported") as caught:
        chat(**{name: value})
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, name, "unsupported_parameter")


@pytest.mark.parametrize(
    ("name", "value"), [("best_of", 2), ("echo", True), ("suffix", "x"), ("logprobs", 0), ("n", 3)]
)
def test_unsupported_completion_fields(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        completion(**{name: value})
    assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")


USER = {"role": "user", "content": "x"}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"temprature": 1}, "temprature"),
    ({"ab\ud800": 1}, "ab\ud800"),
    ({"stream_options": {"usage": True}}, "stream_options.usage"),
    ({"model": 3}, "model"),
    ({"stream": "yes"}, "stream"),
    ({"messages": []}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": ["hello"]}, "messages[0]"),
    ({"messages": [USER, {"content": "x"}]}, "messages[1].role"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "\udfff"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{**USER, "nmae": 1}]}, "messages[0].nmae"),
    ({"messages": [{**USER, "name": "\ud800"}]}, "messages[0].name"),
    ({"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_tokens": 4, "max_completion_tokens": 5}, "max_completion_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 78}, "min_tokens"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"temperature": float("inf")}, "temperature"),
    ({"temperature": 10**400}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.01}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": -0.1}, "min_p"),
    ({"presence_penalty": 2.5}, "presence_penalty"),
    ({"frequency_penalty": -2.5}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"seed": 2**64}, "seed"),
    ({"seed": -(2**63) - 1}, "seed"),
    ({"seed": 1.0}, "seed"),
    ({"logit_bias": {"100": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"²": 1}}, "logit_bias"),
    ({"logit_bias": {"1" * 5000: 1}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias.1"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop[1]"),
    ({"stop": ["a", 3]}, "stop[1]"),
    ({"stop": 3}, "stop"),
    ({"stop": ["a"] * 5}, "stop"),
    ({"stop": ["\ud800"]}, "stop[0]"),
    ({"user": "\ud800"}, "user"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG)
def test_wrong_values_name_their_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert len(caught.value.message) < 300
    assert param.split(".")[0].encode("ascii", "backslashreplace").decode() in caught.value.message


CONTENTS: list[tuple[Any, str, str]] = [
    (None, "", ' = null: must be a string or a list of text parts; write "" for no text'),
    (3, "", " = 3: must be a string or a list"),
    (
        {"type": "text", "text": "x"},
        "",
        " = an object: must be a string or a list of text parts; put the part into a list",
    ),
    (["x"], "[0]", '[0] = \'x\': a content part must be an object, as {"type": "text"'),
    ([[]], "[0]", "[0] = an array: a content part must be an object"),
    ([{"type": "text", "text": "a"}, None], "[1]", "[1] = null: a content part must be an object"),
    ([{"text": "x"}], "[0].type", "[0].type = null: the type of a content part is a string; a text part is {"),
    ([{"type": 3}], "[0].type", "[0].type = 3: the type of a content part is a string"),
    (
        [{"type": "image_url", "image_url": {}}],
        "[0].type",
        "[0].type = 'image_url': images cannot be read by this server",
    ),
    ([{"type": "input_image"}], "[0].type", "[0].type = 'input_image': images cannot be read by this server; leave"),
    ([{"type": "input_audio"}], "[0].type", "[0].type = 'input_audio': audio cannot be read by this server"),
    ([{"type": "video_url"}], "[0].type", "[0].type = 'video_url': video cannot be read by this server"),
    ([{"type": "file"}], "[0].type", "[0].type = 'file': files cannot be read by this server"),
    (
        [{"type": "input_text", "text": "x"}],
        "[0].type",
        "[0].type = 'input_text': that is another API's name; the type is",
    ),
    (
        [{"type": "Text", "text": "x"}],
        "[0].type",
        "[0].type = 'Text': not a type that this server knows; only text parts",
    ),
    ([{"type": "text"}], "[0].text", '[0].text = null: must be a string; write "" for no text'),
    ([{"type": "text", "text": ["x"]}], "[0].text", "[0].text = an array: must be a string"),
    (
        [{"type": "text", "text": "x", "b": 1, "a": 1}],
        "[0].a",
        "[0].'a': unknown field; leave it out (a text part holds",
    ),
]


@pytest.mark.parametrize(("content", "where", "words"), CONTENTS)
def test_wrong_content_says_what_and_how(content: Any, where: str, words: str) -> None:
    """The field, the value, and what to send instead, for every message of the list."""
    with pytest.raises(RequestError) as caught:
        chat(messages=[USER, {"role": "user", "content": content}])
    assert caught.value.param == f"messages[1].content{where}"
    assert caught.value.message.startswith(f"messages[1].content{words}")
    assert "\n" not in caught.value.message and len(caught.value.message) < 200
    assert caught.value.code in ("invalid_value", "unknown_parameter")


@pytest.mark.parametrize(
    "prompt", [None, 3, [], [[]], [1, -1], [100], [True], [1.0], ["a", "b"], [[1], [2]], ["a", 1], "\ud800"]
)
def test_wrong_prompts(prompt: Any) -> None:
    with pytest.raises(RequestError) as caught:
        completion(prompt=prompt)
    assert (caught.value.status, caught.value.param) == (400, "prompt")


def test_models() -> None:
    with pytest.raises(RequestError, match="use 'm'") as caught:
        chat(model="other")
    assert (caught.value.status, caught.value.code, caught.value.param) == (404, "model_not_found", "model")
    with pytest.raises(RequestError) as caught:
        parse_chat({"messages": HELLO}, CONTEXT)
    assert (caught.value.status, caught.value.param) == (400, "model")

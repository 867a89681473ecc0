"""The template's helpers, and every way in which it can fail."""

import json
from pathlib import Path

import pytest

from paceline.core.errors import CheckpointError, RequestError
from paceline.text.template import ChatTemplate
from paceline.text.tokenizer import Tokenizer
from tests.kit import text_model

HELLO: list[dict[str, object]] = [{"role": "user", "content": "hello"}]


def render(source: str, messages: list[dict[str, object]] = HELLO, **options: object) -> str:
    return ChatTemplate(source, "<s>", "</s>").render(messages, options)


def test_the_folders_template(folder: Path, tokenizer: Tokenizer) -> None:
    text = ChatTemplate.load(folder, tokenizer).render(HELLO, {})
    assert text == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


def test_what_templates_use() -> None:
    assert render("{{ bos_token }}{{ eos_token }}") == "<s></s>"
    assert render("{{ add_generation_prompt }} {{ tools is none }}") == "True True"
    assert render("{{ enable_thinking }}", enable_thinking=False) == "False"
    assert render("{% generation %}[{{ messages[0].content }}]{% endgeneration %}") == "[hello]"
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert len(render("{{ strftime_now('%Y-%m-%d') }}")) == 10
    assert render("  {% if true %}\nx\n  {% endif %}\n") == "x\n"


def test_tojson_is_json_not_html() -> None:
    value = {"b": "<é>'&", "a": [1, None]}
    assert render("{{ v | tojson }}", v=value) == json.dumps(value, ensure_ascii=False)
    assert render("{{ v | tojson(indent=2) }}", v=value) == json.dumps(value, ensure_ascii=False, indent=2)


def test_a_refusal_carries_the_templates_words() -> None:
    with pytest.raises(RequestError, match="only user, please") as caught:
        render("{{ raise_exception('only user, please') }}")
    assert (caught.value.status, caught.value.param) == (400, "messages")


NESTED: list[object] = []
for _ in range(5000):
    NESTED = [NESTED]


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].nothing.more }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 // 0 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ v | tojson }}",
        "{{ messages | tojson(indent='x' * 2, separators=3) }}",
        "{{ cycler.__init__.__globals__.os.getcwd() }}",
        "{{ undefined_function() }}",
    ],
)
def test_failures_are_the_requests(source: str) -> None:
    with pytest.raises(RequestError) as caught:
        render(source, v=NESTED)
    assert caught.value.param == "messages"


def test_no_template(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(text_model.build(tmp_path, template=None))
    with pytest.raises(RequestError, match="no chat template; send a plain prompt"):
        ChatTemplate.load(tmp_path, tokenizer).render(HELLO, {})


def test_a_broken_template_stops_the_start() -> None:
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja line 2"):
        ChatTemplate("x\n{% for %}", None, None)

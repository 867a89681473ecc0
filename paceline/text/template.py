"""Chat messages → the prompt text, by the model's own `chat_template.jinja`, in a sandbox.

The template is the model's, the messages are the client's: whatever goes wrong while rendering is answered as an error
of the request. Knows nothing of token ids (`tokenizer.py`).
"""

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from paceline.core.errors import CheckpointError, RequestError
from paceline.text.tokenizer import Tokenizer


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks what a trainer should learn from; for serving its body counts as if it were bare."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it as an instance variable)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _TemplateRefusal(jinja2.TemplateError):
    """Raised by a template's own `raise_exception`."""


def _raise_exception(message: object) -> NoReturn:
    raise _TemplateRefusal(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which would change the prompt.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class ChatTemplate:
    """One model's chat format. A model without one still serves completions."""

    def __init__(self, source: str | None, bos_token: str | None, eos_token: str | None) -> None:
        self._special = {"bos_token": bos_token or "", "eos_token": eos_token or ""}
        self._template = None if source is None else _compile(source)

    @classmethod
    def load(cls, folder: str | Path, tokenizer: Tokenizer) -> "ChatTemplate":
        path = Path(folder) / "chat_template.jinja"
        source = path.read_text(encoding="utf-8") if path.exists() else None
        return cls(source, tokenizer.generation.bos_token, tokenizer.generation.eos_token)

    def render(self, messages: list[dict[str, object]], options: dict[str, object]) -> str:
        """The prompt that ends where the assistant's reply begins. `options` are variables of this template."""
        if self._template is None:
            raise RequestError(
                "this model has no chat template; send a plain prompt (/v1/completions, or generate --raw)",
                "messages",
                "no_chat_template",
            )
        if "messages" in options:
            raise RequestError(
                "chat_template_kwargs.messages: the messages are set by the request", "chat_template_kwargs"
            )
        variables = {"add_generation_prompt": True, "tools": None, **self._special, **options, "messages": messages}
        try:
            return self._template.render(variables)
        except _TemplateRefusal as error:
            raise RequestError(f"messages: the chat template refuses: {error}", "messages") from error
        except Exception as error:  # template code can raise anything, and what it does depends on the messages alone
            message = f"messages: the chat template fails on them: {type(error).__name__}: {str(error)[:200]}"
            raise RequestError(message, "messages") from error


def _compile(source: str) -> jinja2.Template:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _GenerationTag]
    )
    helpers: dict[str, Callable[..., object]] = {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    environment.globals.update(helpers)
    environment.filters["tojson"] = _tojson
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise CheckpointError(f"chat_template.jinja line {error.lineno}: {error.message}") from error

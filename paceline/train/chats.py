"""A chat, its text in the embedded model's chat format, and that format as a Jinja template.

ChatML in the manner of Qwen3.5, simpler: the reply starts after `<think>\\n\\n</think>\\n\\n`, or after `<think>\\n` where
`enable_thinking` is true. `render` and TEMPLATE agree (a test compares them).
"""

import json
from dataclasses import dataclass

SPECIALS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<|mask|>",
    *(f"<|spare_{i}|>" for i in range(6)),
)
MASK_ID = SPECIALS.index("<|mask|>")
END_ID, PAD_ID = SPECIALS.index("<|im_end|>"), SPECIALS.index("<|endoftext|>")

_TOOLS_HEAD = "# Tools\n\nYou can call these functions:\n\n<tools>\n"
_TOOLS_TAIL = (
    "</tools>\n\nTo call one, reply in this form and with nothing after it:\n\n<tool_call>\n<function=NAME>\n"
    "<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>"
)

TEMPLATE = (
    "{%- set head = messages[0].content if messages and messages[0].role == 'system' else none -%}\n"
    "{%- if tools -%}\n"
    "{{- '<|im_start|>system\\n' + " + json.dumps(_TOOLS_HEAD) + " -}}\n"
    "{%- for tool in tools -%}{{- (tool | tojson) + '\\n' -}}{%- endfor -%}\n"
    "{{- " + json.dumps(_TOOLS_TAIL) + " -}}\n"
    "{%- if head -%}{{- '\\n\\n' + head -}}{%- endif -%}\n"
    "{{- '<|im_end|>\\n' -}}\n"
    "{%- elif head is not none -%}\n"
    "{{- '<|im_start|>system\\n' + head + '<|im_end|>\\n' -}}\n"
    "{%- endif -%}\n"
    "{%- for message in messages -%}\n"
    "{%- if message.role == 'user' -%}\n"
    "{{- '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' -}}\n"
    "{%- elif message.role == 'tool' -%}\n"
    "{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' -}}\n"
    "{%- elif message.role == 'assistant' -%}\n"
    "{{- '<|im_start|>assistant\\n' + (message.content or '') -}}\n"
    "{%- for call in message.tool_calls or [] -%}\n"
    "{%- if message.content or not loop.first -%}{{- '\\n' -}}{%- endif -%}\n"
    "{{- '<tool_call>\\n<function=' + call.function.name + '>\\n' -}}\n"
    "{%- for key, value in call.function.arguments.items() -%}\n"
    "{{- '<parameter=' + key + '>\\n' + (value if value is string else value | tojson) + '\\n</parameter>\\n' -}}\n"
    "{%- endfor -%}\n"
    "{{- '</function>\\n</tool_call>' -}}\n"
    "{%- endfor -%}\n"
    "{{- '<|im_end|>\\n' -}}\n"
    "{%- elif message.role != 'system' or not loop.first -%}\n"
    "{{- raise_exception('a message with role ' + message.role + ' cannot stand here') -}}\n"
    "{%- endif -%}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}\n"
    "{{- '<|im_start|>assistant\\n<think>\\n' -}}\n"
    "{%- if not (enable_thinking is defined and enable_thinking) -%}{{- '\\n</think>\\n\\n' -}}{%- endif -%}\n"
    "{%- endif -%}\n"
)


@dataclass(frozen=True, slots=True)
class Chat:
    """`turns` are (role, content), roles user, assistant and tool, ending with user or tool; `answer` is the reply to learn.

    `thinking` is the text before the answer, None where the chat has none. `tools` are function descriptions."""

    turns: tuple[tuple[str, str], ...]
    answer: str
    thinking: str | None = None
    system: str | None = None
    tools: tuple[dict[str, object], ...] = ()


def ask(prompt: str, answer: str, thinking: str | None = None) -> Chat:
    return Chat((("user", prompt),), answer, thinking)


def render(chat: Chat) -> tuple[str, str]:
    """→ prompt text up to where the model starts, and the reply's text with its end mark."""
    parts = []
    if chat.tools:
        listed = "".join(json.dumps(tool, ensure_ascii=False) + "\n" for tool in chat.tools)
        more = f"\n\n{chat.system}" if chat.system else ""
        parts.append(f"<|im_start|>system\n{_TOOLS_HEAD}{listed}{_TOOLS_TAIL}{more}<|im_end|>\n")
    elif chat.system is not None:
        parts.append(f"<|im_start|>system\n{chat.system}<|im_end|>\n")
    for role, content in chat.turns:
        if role == "tool":
            role, content = "user", f"<tool_response>\n{content}\n</tool_response>"
        parts.append(f"<|im_start|>{role}\n{content}<|im_end|>\n")
    parts.append("<|im_start|>assistant\n<think>\n")
    if chat.thinking is None:
        parts.append("\n</think>\n\n")
        return "".join(parts), f"{chat.answer}<|im_end|>"
    return "".join(parts), f"{chat.thinking}\n</think>\n\n{chat.answer}<|im_end|>"

"""A prepared model folder without weights: a real byte-level BPE tokenizer, generation settings, a chat template.

Small enough to build in a test, and awkward on purpose: its tokens split characters, and some hold several.
"""

import json
from functools import cache
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCAB = 414
TEMPLATE = """
{%- for message in messages %}
    {%- if loop.index0 > 0 and messages[loop.index0 - 1].role == message.role %}
        {{- raise_exception("roles must alternate") }}
    {%- endif %}
    {{- "<|im_start|>" + message.role + "\\n" + message.content + "<|im_end|>\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant\\n" }}{% endif %}
"""
_CORPUS = [
    "the quick brown fox jumps over the lazy dog. Stop! here is the END of the text\n",
    "def add(a, b):\n    return a + b\n",
    "Grüße aus Köln, naïve café, größer als groß",
    "日本語のテキスト、日本の文字",
    "emoji 🙂🙃 and 👩‍👩‍👧 family",
]


def build(folder: Path, template: str | None = TEMPLATE, **generation: object) -> Path:
    """Writes the folder; `generation` are fields of generation.json."""
    folder.mkdir(parents=True, exist_ok=True)
    codec = tokenizers.Tokenizer.from_str(_trained())
    codec.save(str(folder / "tokenizer.json"))
    settings = {
        "eos_ids": [codec.token_to_id("<|im_end|>"), codec.token_to_id("<|endoftext|>")],
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "pad_token": None,
        "add_bos": False,
        **generation,
    }
    (folder / "generation.json").write_text(json.dumps(settings))
    (folder / "source.json").write_text(json.dumps({"path": "/models/scripted", "weights_id": "abc123"}))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


@cache
def _trained() -> str:
    codec = tokenizers.Tokenizer(models.BPE())
    codec.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    codec.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(SPECIAL),
        show_progress=False,
    )
    codec.train_from_iterator(_CORPUS * 4, trainer)
    codec.add_tokens(["<think>", "</think>"])
    return str(codec.to_str())

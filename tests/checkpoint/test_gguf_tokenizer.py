"""GGUF tokenizers: ids equal to those of transformers' own conversion, and the split rules per family."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from paceline.checkpoint.base import open_checkpoint
from paceline.core.errors import CheckpointError
from tests.checkpoint import tiny

TEXTS = [
    "def add(a, b):\n    return a + b  # 12345\n\n\n\tprint(add(1, 2))",
    "The year 2024 had 366 days; 3.14159 and 1,000,000.",
    "我喜欢吃北京烤鸭。今天是2024年5月。",
    "Emoji: 👩‍👩‍👧‍👦 🏳️‍🌈 é é ñ (½)",
    "   leading,  double   triple    and trailing   \n \n  \t x",
    "<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n",
    "it's we'll I'VE <|endoftext|>tail",
    "",
]


def tokenizer_of(path: Path) -> Tokenizer:
    parts = open_checkpoint(path).text()
    assert parts.tokenizer is not None
    return Tokenizer.from_str(parts.tokenizer.decode())


def test_smollm2_ids_equal_transformers(smollm2: Path) -> None:
    from transformers import AutoTokenizer

    theirs, ours = AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name), tokenizer_of(smollm2)
    for text in TEXTS:
        ids = ours.encode(text, add_special_tokens=False).ids
        assert ids == theirs.encode(text, add_special_tokens=False), text
        assert ids == ours.encode(text, add_special_tokens=True).ids, "the tokenizer must add nothing by itself"
        assert ours.decode(ids, skip_special_tokens=False) == text


def test_smollm2_ends_and_template(smollm2: Path) -> None:
    parts = open_checkpoint(smollm2).text()
    assert parts.generation.eos_ids == (2, 0)
    assert parts.generation.bos_token == "<|im_start|>"
    assert parts.generation.add_bos is False
    assert parts.chat_template is not None and "You are a helpful AI assistant named SmolLM" in parts.chat_template


def test_kinds_of_tokens(small_gguf: Path) -> None:
    tokenizer = tokenizer_of(small_gguf)
    ids = tokenizer.encode("abc ab<think><|im_end|>10", add_special_tokens=False).ids
    assert [tiny.TOKENS[i] for i in ids] == ["abc", "Ġ", "ab", "<think>", "<|im_end|>", "1", "0"]
    # Control tokens are special, user-defined ones are text.
    assert tokenizer.decode(ids, skip_special_tokens=True) == "abc ab<think>10"


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("smollm", "abc 123", ["abc", "Ġ", "1", "2", "3"]),
        # Every \p{N} stands alone, not only ASCII digits; transformers' own GGUF conversion leaves this step out.
        ("smollm", "a Ⅷ½ ٣", ["a", "Ġ", "âħ§", "Â½", "Ġ", "Ù£"]),
        ("gpt-2", "abc 123", ["abc", "Ġ123"]),
        ("qwen2", "abc 123", ["abc", "Ġ", "1", "2", "3"]),
        ("qwen35", "abc 123", ["abc", "Ġ", "1", "2", "3"]),
        ("llama-bpe", "abc 1230", ["abc", "Ġ", "123", "0"]),
        ("qwen2", "ab's  \n\n c", ["ab", "'s", "ĠĠĊĊ", "Ġc"]),
        # A combining mark ends a word for qwen2, and belongs to it for qwen35.
        ("qwen2", "a\u0300\u0315b", ["Ãł", "Ìķb"]),
        ("qwen35", "a\u0300\u0315b", ["ÃłÌķb"]),
    ],
)
def test_split_rules(pre: str, text: str, pieces: list[str], tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tiny.write_llama(tmp_path / "pre.gguf", pre=pre))
    if tokenizer.normalizer is not None:
        text = tokenizer.normalizer.normalize_str(text)
    assert [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)] == pieces


def test_hybrid_split_equals_transformers(tmp_path: Path) -> None:
    from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer

    vocab = {token: i for i, token in enumerate(tiny.TOKENS)}
    theirs = Qwen3_5Tokenizer(vocab=vocab, merges=[tuple(merge.split()) for merge in tiny.MERGES])._tokenizer
    ours = tokenizer_of(tiny.write_llama(tmp_path / "pre.gguf", pre="qwen35"))
    for text in TEXTS:
        text = theirs.normalizer.normalize_str(text)
        assert ours.pre_tokenizer.pre_tokenize_str(text) == theirs.pre_tokenizer.pre_tokenize_str(text)


def test_llama3_adds_bos_unless_told_otherwise(tmp_path: Path) -> None:
    assert open_checkpoint(tiny.write_llama(tmp_path / "a.gguf", pre="llama-bpe")).text().generation.add_bos is True
    assert open_checkpoint(tiny.write_llama(tmp_path / "b.gguf", pre="smollm")).text().generation.add_bos is False


def test_unknown_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer.ggml.pre 'martian' is unknown \(known: default"):
        open_checkpoint(tiny.write_llama(tmp_path / "pre.gguf", pre="martian")).text()

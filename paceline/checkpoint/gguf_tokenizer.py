"""GGUF tokenizer metadata → tokenizer.json, chat template and the ids that end a reply.

Byte-level BPE only (`tokenizer.ggml.model` gpt2). The tokenizer adds no special tokens by itself: whether a prompt gets
a BOS is said by `Generation.add_bos`. The split patterns are those that the models were trained with.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from paceline.checkpoint.base import Generation, TextParts
from paceline.checkpoint.gguf_header import Header
from paceline.core.errors import CheckpointError

_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5

# Tokens that end a turn in the chat formats of these families; files often name only one of them as eos.
_END_TOKENS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>")

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _pattern(letters: str, digits: str, symbols: str) -> str:
    return rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?{letters}+|{digits}| ?{symbols}+[\r\n]*|{_TAIL}"


@dataclass(frozen=True, slots=True)
class _Pre:
    """How text is split before BPE. Without `pattern` the GPT-2 split of the ByteLevel step is used."""

    pattern: str | None = None
    single_digits: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False


_QWEN2 = _Pre(_pattern(r"\p{L}", r"\p{N}", r"[^\s\p{L}\p{N}]"), nfc=True)
_LLAMA3 = _Pre(_pattern(r"\p{L}", r"\p{N}{1,3}", r"[^\s\p{L}\p{N}]"), ignore_merges=True, adds_bos=True)

_PRES = {
    "default": _Pre(),
    "gpt-2": _Pre(),
    "smollm": _Pre(single_digits=True),
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "qwen35": _Pre(_pattern(r"[\p{L}\p{M}]", r"\p{N}", r"[^\s\p{L}\p{M}\p{N}]"), nfc=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
}


def end_ids(header: Header) -> tuple[int, ...]:
    """The ids that end a reply: eos first, then eot, eom and the known end tokens that the vocabulary holds."""
    named = [f"tokenizer.ggml.{key}_token_id" for key in ("eos", "eot", "eom")]
    ids = [header.whole(key) for key in named if key in header.metadata]
    if "tokenizer.ggml.tokens" in header.metadata and "tokenizer.ggml.token_type" in header.metadata:
        tokens, kinds = header.strings("tokenizer.ggml.tokens"), header.wholes("tokenizer.ggml.token_type")
        control = {token: i for i, (token, kind) in enumerate(zip(tokens, kinds, strict=False)) if kind == _CONTROL}
        ids += [control[token] for token in _END_TOKENS if token in control]
    return tuple(dict.fromkeys(ids))


def text_parts(header: Header) -> TextParts:
    template = header.metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise CheckpointError(f"{header.path}: tokenizer.chat_template is not a string; convert the model again")
    if header.string("tokenizer.ggml.model", "none") in ("none", "no_vocab"):
        return TextParts(None, template, Generation(eos_ids=end_ids(header)))
    pre = _pre(header)
    tokens = header.strings("tokenizer.ggml.tokens")
    bos = _named(header, tokens, "bos")
    generation = Generation(
        eos_ids=end_ids(header),
        bos_token=bos,
        eos_token=_named(header, tokens, "eos"),
        pad_token=_named(header, tokens, "padding"),
        add_bos=bos is not None and header.flag("tokenizer.ggml.add_bos_token", pre.adds_bos),
    )
    return TextParts(_tokenizer(header, tokens, pre).to_str().encode(), template, generation)


def _pre(header: Header) -> _Pre:
    model = header.string("tokenizer.ggml.model")
    if model != "gpt2":
        raise CheckpointError(
            f"{header.path}: tokenizer model {model!r} is not supported (only byte-level BPE, gpt2);"
            " use the model's safetensors folder"
        )
    name = header.string("tokenizer.ggml.pre", "default")
    if name not in _PRES:
        raise CheckpointError(
            f"{header.path}: tokenizer.ggml.pre {name!r} is unknown (known: {', '.join(_PRES)});"
            " use the model's safetensors folder"
        )
    return _PRES[name]


def _named(header: Header, tokens: list[str], role: str) -> str | None:
    key = f"tokenizer.ggml.{role}_token_id"
    if key not in header.metadata:
        return None
    index = header.whole(key)
    if index >= len(tokens):
        raise CheckpointError(f"{header.path}: {key} = {index}, but there are {len(tokens)} tokens; convert it again")
    return tokens[index]


def _tokenizer(header: Header, tokens: list[str], pre: _Pre) -> Tokenizer:
    kinds = header.wholes("tokenizer.ggml.token_type")
    if len(kinds) != len(tokens) or len(set(tokens)) != len(tokens):
        raise CheckpointError(
            f"{header.path}: {len(tokens)} tokens ({len(set(tokens))} different) with {len(kinds)} types do not fit;"
            " download or convert the file again"
        )
    # Rows that pad the vocabulary are no tokens: text must never turn into them.
    padding = {i for i, kind in enumerate(kinds) if kind == _UNUSED and tokens[i] == f"[PAD{i}]"}
    vocab = {token: i for i, token in enumerate(tokens) if i not in padding}
    merges = [_pair(header, merge) for merge in header.strings("tokenizer.ggml.merges")]
    for left, right in merges:
        if left not in vocab or right not in vocab or left + right not in vocab:
            raise CheckpointError(
                f"{header.path}: merge {left!r} + {right!r} is not in the vocabulary; convert it again"
            )
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre.ignore_merges))
    tokenizer.normalizer = normalizers.NFC() if pre.nfc else None
    tokenizer.pre_tokenizer = _splitter(pre, header.flag("tokenizer.ggml.add_space_prefix", False))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(_added(tokens, kinds, _CONTROL))
    tokenizer.add_tokens(_added(tokens, kinds, _USER_DEFINED))
    return tokenizer


def _added(tokens: list[str], kinds: list[int], kind: int) -> list[AddedToken]:
    """Tokens that are matched in the text as they stand, before it is normalised or split."""
    chosen = [token for token, k in zip(tokens, kinds, strict=True) if k == kind]
    return [AddedToken(token, normalized=False, special=kind == _CONTROL) for token in chosen]


def _pair(header: Header, merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not left or not right or " " in right:
        raise CheckpointError(
            f"{header.path}: merge {merge[:40]!r} is not two tokens; download or convert the file again"
        )
    return left, right


def _splitter(pre: _Pre, space_prefix: bool) -> pre_tokenizers.PreTokenizer:
    steps: list[pre_tokenizers.PreTokenizer] = []
    if pre.single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if pre.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(pre.pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=space_prefix, use_regex=pre.pattern is None))
    return pre_tokenizers.Sequence(steps)

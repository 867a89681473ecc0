"""Text → token ids and token ids → bytes, from the `tokenizer.json` and `generation.json` of a prepared model folder.

Ids are turned into bytes one by one, so that a reply can be assembled from any grouping of its tokens; making valid
Unicode of the bytes is `stream.py`'s part. Chat templates are `template.py`'s. Lengths are in tokens.

`generation.json`: eos_ids, bos_token, eos_token, pad_token, add_bos, and temperature, top_p, top_k, min_p where given.
"""

import re
from pathlib import Path

import msgspec
import tokenizers

from paceline.core.errors import CheckpointError, RequestError


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What a request that names no value gets."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """The model's `generation.json`: how a reply starts and ends, and the model's own sampling where it recommends one.

    `eos_ids` end a reply; `add_bos` says that a bare prompt starts with `bos_token`.
    """

    eos_ids: list[int] = []
    bos_token: str | None = None
    eos_token: str | None = None
    pad_token: str | None = None
    add_bos: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    @property
    def sampling(self) -> SamplingDefaults:
        return SamplingDefaults(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, min_p=self.min_p)


class Tokenizer:
    """One model's tokenizer; all its ids are below `vocab_size`. `added_ids` are those of special tokens and other additions.

    Reading only: safe to use from several threads.
    """

    def __init__(self, codec: tokenizers.Tokenizer, generation: Generation) -> None:
        self.generation = generation
        self._codec = codec
        self._bytes = _token_table(codec)
        self.added_ids = sorted(codec.get_added_tokens_decoder())
        # Ids may have gaps, so that the number of tokens would be too small.
        self.vocab_size = max(self._bytes, default=-1) + 1
        self._bos_id = codec.token_to_id(generation.bos_token) if generation.bos_token else None

    @classmethod
    def load(cls, folder: str | Path) -> "Tokenizer":
        path = Path(folder)
        try:
            generation = msgspec.json.decode((path / "generation.json").read_bytes(), type=Generation)
            codec = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror}; prepare the model again with `paceline pull`") from error
        except Exception as error:  # tokenizers raises plain Exception for a file that it cannot parse
            raise CheckpointError(f"{path}: tokenizer.json or generation.json cannot be read: {error}") from error
        return cls(codec, generation)

    def encode(self, text: str, param: str = "prompt", bos: bool = False) -> list[int]:
        """Ids of `text`; special tokens written out in it become their ids, as chat templates need.

        `bos` puts the model's first token in front where the model wants one and the text does not bring it. `param`
        is the request field that an error names.
        """
        require_unicode(text, param)
        # The batch call releases the interpreter lock, so a long prompt in a worker thread stalls nobody.
        ids = self._codec.encode_batch_fast([text], add_special_tokens=False)[0].ids
        if bos and self.generation.add_bos and self._bos_id is not None and ids[:1] != [self._bos_id]:
            return [self._bos_id, *ids]
        return ids

    def message_starts(self, ids: list[int]) -> list[int]:
        """Where messages begin in a chat prompt: wherever the special token that begins it comes again.

        Only a hint on which prefixes later prompts may share; templates that begin with something else give none."""
        mark = ids[0] if ids and not self.token_bytes(ids[0]) else None
        return [i for i, token in enumerate(ids) if token == mark and i] if mark is not None else []

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes of one token, perhaps a part of a character; none for special tokens and unused ids."""
        return self._bytes.get(token_id, b"")

    def merges(self) -> list[tuple[int, int, int]]:
        """(left, right, joined) ids of the byte-pair merges, as training found them: the most frequent pair first.

        None for tokenizers of other kinds.
        """
        model = msgspec.json.decode(self._codec.to_str())["model"]
        vocab = model["vocab"]
        return [(vocab[left], vocab[right], vocab[left + right]) for left, right in model.get("merges", ())]

    def decode(self, ids: list[int]) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(self.token_bytes(i) for i in ids).decode("utf-8", errors="replace")


def require_unicode(text: str, param: str) -> None:
    """Refuse lone surrogates: JSON can carry them, UTF-8 and every tokenizer cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        found = f"lone surrogate U+{ord(text[error.start]):04X} at character {error.start}"
        message = f"{param}: {found}; send valid Unicode"
        raise RequestError(message, param) from None


def _token_table(codec: tokenizers.Tokenizer) -> dict[int, bytes]:
    added = codec.get_added_tokens_decoder()
    to_bytes = _byte_level if _uses_byte_level(codec) else _byte_fallback
    table = {i: to_bytes(text) for text, i in codec.get_vocab(with_added_tokens=False).items()}
    for i, token in added.items():
        table[i] = b"" if token.special else token.content.encode("utf-8")
    return table


def _uses_byte_level(codec: tokenizers.Tokenizer) -> bool:
    state = msgspec.json.decode(codec.to_str())
    decoder = state.get("decoder") or {}
    kinds = {d["type"] for d in (decoder, *decoder.get("decoders", ())) if "type" in d}
    if "ByteLevel" in kinds:
        return True
    if "ByteFallback" in kinds:
        return False
    raise CheckpointError(
        f"tokenizer.json: decoder {sorted(kinds) or None} is not supported; byte-level and byte-fallback tokenizers are"
    )


def _byte_alphabet() -> dict[str, int]:
    """Character → byte of byte-level BPE: printable Latin-1 stands for itself, other bytes for U+0100 upwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


_ALPHABET = _byte_alphabet()
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_level(token: str) -> bytes:
    if all(c in _ALPHABET for c in token):
        return bytes(_ALPHABET[c] for c in token)
    return token.encode("utf-8")


def _byte_fallback(token: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else token.replace("\u2581", " ").encode("utf-8")

"""Reads a Hugging Face folder: config.json, one or several .safetensors files, tokenizer and template beside them.

Headers are checked here before the safetensors library sees them, so that a lie is refused in one line that names the
file. Names are normalised to the plain `model.…` form. Quantised folders are refused: their formats have readers of
their own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from paceline.checkpoint.base import Config, TextParts, content_id, unreadable
from paceline.checkpoint.folder_text import folder_text, read_json, token_ids
from paceline.core.errors import CheckpointError

if TYPE_CHECKING:
    import torch

_DTYPE_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "BOOL": 8,
    "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8, "C64": 64,
}  # fmt: skip
_MAX_HEADER_BYTES = 100_000_000
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class _Stored:
    """One tensor as the file has it; `begin` and `end` are bytes after the header."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsReader:
    """See `Reader`. Files are mapped when the first tensor is read and stay mapped."""

    format = "safetensors"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._config = _flat_config(path)
        self._tensors: dict[str, _Stored] = {}
        for stored in _stored_tensors(path):
            name = plain_name(stored.name)
            if name in self._tensors:
                raise CheckpointError(
                    f"{stored.file}: {stored.name} and another tensor both stand for {name}; remove one"
                )
            self._tensors[name] = stored
        self._config.setdefault("tie_word_embeddings", "lm_head.weight" not in self._tensors)
        self._open: dict[Path, Any] = {}

    def config(self) -> Config:
        return dict(self._config)

    def names(self) -> list[str]:
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._stored(name).shape

    def read(self, name: str) -> torch.Tensor:
        from safetensors import SafetensorError, safe_open

        stored = self._stored(name)
        try:
            if stored.file not in self._open:
                self._open[stored.file] = safe_open(stored.file, framework="pt")
            tensor: torch.Tensor = self._open[stored.file].get_tensor(stored.name)
            return tensor
        except OSError as error:
            raise unreadable(stored.file, error) from error
        except SafetensorError as error:
            raise CheckpointError(
                f"{stored.file}: {stored.name} cannot be read ({error}); download it again"
            ) from error

    def text(self) -> TextParts:
        return folder_text(self.path, self._config)

    def files(self) -> list[Path]:
        return sorted({stored.file for stored in self._tensors.values()})

    def weights_id(self) -> str:
        table = [(name, stored.dtype, stored.shape) for name, stored in self._tensors.items()]
        return content_id(self._config, table, self.files())

    def _stored(self, name: str) -> _Stored:
        if name not in self._tensors:
            raise CheckpointError(f"{self.path}: tensor {name} is missing; download the folder again")
        return self._tensors[name]


def plain_name(name: str) -> str:
    """`model.language_model.layers.…` → `model.layers.…`; `model.mtp.…` → `mtp.…`; the rest as it is."""
    if name.startswith("model.language_model."):
        return "model." + name.removeprefix("model.language_model.")
    return name.removeprefix("model.") if name.startswith("model.mtp.") else name


def _flat_config(folder: Path) -> Config:
    """The folder's config.json, flat. Ids that end a reply are those of both levels."""
    config = read_json(folder / "config.json")
    if config is None:
        raise CheckpointError(f"{folder}: config.json is missing; download the whole folder")
    if "quantization_config" in config:
        scheme = config["quantization_config"]
        method = scheme.get("quant_method") if isinstance(scheme, dict) else scheme
        raise CheckpointError(
            f"{folder}: weights are quantised ({method}), which is not supported; use the bf16 folder or a .gguf file"
        )
    return flat_config(config)


def flat_config(config: Config) -> Config:
    """A config.json's content with `text_config` lifted to the top level."""
    text = config.pop("text_config", None)
    if not isinstance(text, dict):
        return config
    for part in ("vision_config", "model_type"):
        config.pop(part, None)
    ends = [*token_ids(config.get("eos_token_id")), *token_ids(text.get("eos_token_id"))]
    return config | text | ({"eos_token_id": list(dict.fromkeys(ends))} if ends else {})


def _stored_tensors(folder: Path) -> Iterator[_Stored]:
    single, index_file = folder / "model.safetensors", folder / _INDEX
    if single.exists():
        yield from read_table(single).values()
    elif index_file.exists():
        yield from _sharded(index_file)
    else:
        files = sorted(folder.glob("*.safetensors"))
        if len(files) != 1:
            raise CheckpointError(f"{folder}: {len(files)} .safetensors files but no {_INDEX}; download the index too")
        yield from read_table(files[0]).values()


def _sharded(index_file: Path) -> Iterator[_Stored]:
    index = read_json(index_file) or {}
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index_file}: has no weight_map; download it again")
    tables: dict[str, dict[str, _Stored]] = {}
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise CheckpointError(f"{index_file}: {name} is in {shard!r}, which is no file name; download it again")
        if shard not in tables:
            if not (index_file.parent / shard).exists():
                raise CheckpointError(f"{index_file.parent / shard}: shard is missing; download the missing file")
            tables[shard] = read_table(index_file.parent / shard)
        if name not in tables[shard]:
            raise CheckpointError(f"{index_file}: {name} should be in {shard} but is not; download both again")
        yield tables[shard][name]


def read_table(file: Path) -> dict[str, _Stored]:
    """The checked header of one file: every extent inside the file, of the size its shape says, end to end."""
    header, data_bytes = _header(file)
    header.pop("__metadata__", None)
    table = {name: _entry(file, name, entry) for name, entry in header.items()}
    at = 0
    for stored in sorted(table.values(), key=lambda stored: (stored.begin, stored.end)):
        if stored.end > data_bytes:
            raise CheckpointError(
                f"{file}: {stored.name} ends at data byte {stored.end}, the file has {data_bytes}: it was cut short,"
                " download it again"
            )
        if stored.begin != at:
            what = "overlaps the tensor before it" if stored.begin < at else "leaves a gap before it"
            raise CheckpointError(f"{file}: {stored.name} {what} (data byte {stored.begin}); download the file again")
        at = stored.end
    if at != data_bytes:
        raise CheckpointError(f"{file}: {data_bytes - at} bytes after the last tensor; download the file again")
    return table


def _header(file: Path) -> tuple[dict[str, Any], int]:
    try:
        with file.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(0)
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
                raise CheckpointError(
                    f"{file}: header of {length} bytes in a file of {size}: it was cut short, download it again"
                )
            raw = stream.read(length)
    except OSError as error:
        raise unreadable(file, error) from error
    try:
        header = json.loads(raw, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: header is not JSON ({error}); download the file again") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{file}: header is not a JSON object; download the file again")
    return header, size - 8 - length


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a name appears twice")
    return out


def _entry(file: Path, name: str, entry: object) -> _Stored:
    entry = entry if isinstance(entry, dict) else {}
    dtype, shape, extent = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or not _wholes(shape) or not _wholes(extent) or len(extent) != 2:
        raise CheckpointError(f"{file}: header entry of {name} is malformed; download the file again")
    if dtype not in _DTYPE_BITS:
        raise CheckpointError(f"{file}: {name} has unknown dtype {dtype}; save it as BF16, F16 or F32")
    bits, n_bytes = math.prod(shape) * _DTYPE_BITS[dtype], extent[1] - extent[0]
    if bits != 8 * n_bytes:
        raise CheckpointError(
            f"{file}: {name} is {dtype} {list(shape)} = {bits // 8} bytes, its extent has {n_bytes}; download it again"
        )
    return _Stored(file, name, dtype, tuple(shape), extent[0], extent[1])


def _wholes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 62 for item in value)

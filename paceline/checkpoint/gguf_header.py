"""The GGUF header, versions 2 and 3, little-endian: metadata and tensor table, checked against the file's size.

Reads no tensor data and interprets no key. Every count, length and offset is checked before it is used, so a damaged
file ends in a CheckpointError and never in a crash or a huge allocation. Offsets and sizes are bytes from the file's
start; shapes are (out, in), the reverse of the file's order.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from paceline.checkpoint.base import unreadable
from paceline.core.errors import CheckpointError

Scalar = int | float | bool | str
Value = Scalar | list[Scalar]

# GGUF value types that are not strings (8) or arrays (9), as struct codes.
_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_ITEMS = 1 << 24
_MAX_DIMS = 4


@dataclass(frozen=True, slots=True)
class Tensor:
    """One row of the tensor table. `rows` of `row_bytes` each lie at `offset`."""

    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    rows: int
    row_bytes: int

    @property
    def size_bytes(self) -> int:
        return self.rows * self.row_bytes


@dataclass(frozen=True, slots=True)
class Header:
    """Metadata and tensors of one file; the getters refuse a missing key or a value of the wrong type in one line."""

    path: Path
    metadata: Mapping[str, Value]
    tensors: Mapping[str, Tensor]

    def whole(self, key: str, default: int | None = None) -> int:
        value = self.metadata.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
            raise self._bad(key, value, "a whole number")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """A positive number; a list (one entry a layer) must hold one value, zeros aside."""
        value = self.metadata.get(key, default)
        if isinstance(value, list):
            different = {item for item in value if item != 0}
            value = different.pop() if len(different) == 1 else None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
            raise self._bad(key, self.metadata.get(key), "one positive number for all layers")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.metadata.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._bad(key, value, "a number")
        return float(value)

    def string(self, key: str, default: str | None = None) -> str:
        value = self.metadata.get(key, default)
        if not isinstance(value, str):
            raise self._bad(key, value, "a string")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.metadata.get(key, default)
        if not isinstance(value, bool):
            raise self._bad(key, value, "true or false")
        return value

    def strings(self, key: str) -> list[str]:
        value = self.metadata.get(key)
        if not isinstance(value, list):
            raise self._bad(key, value, "a list of strings")
        out = [item for item in value if isinstance(item, str)]
        if len(out) != len(value):
            raise self._bad(key, "a list of numbers", "a list of strings")
        return out

    def wholes(self, key: str) -> list[int]:
        value = self.metadata.get(key)
        if not isinstance(value, list):
            raise self._bad(key, value, "a list of whole numbers")
        out = [item for item in value if isinstance(item, int)]
        if len(out) != len(value):
            raise self._bad(key, "another list", "a list of whole numbers")
        return out

    def _bad(self, key: str, value: object, expected: str) -> CheckpointError:
        found = "is missing" if value is None else f"= {str(value)[:60]}"
        return CheckpointError(f"{self.path}: {key} {found}, expected {expected}; download or convert the file again")


class _Cursor:
    """Bounds-checked reads that move forward through the mapped file."""

    __slots__ = ("_data", "_end", "_path", "at")

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path, self._data, self._end, self.at = path, data, len(data), 0

    def fail(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self._path}: {what} at byte {self.at}; the file is damaged, download it again")

    def need(self, n_bytes: int) -> None:
        if n_bytes > self._end - self.at:
            raise self.fail(f"the header ends early ({self._end} bytes in the file)")

    def scalar(self, code: str) -> int | float | bool:
        size = struct.calcsize("<" + code)
        self.need(size)
        value: int | float | bool = struct.unpack_from("<" + code, self._data, self.at)[0]
        self.at += size
        return value

    def whole(self, code: str) -> int:
        return int(self.scalar(code))

    def strings(self, count: int, errors: str = "replace") -> list[str]:
        """`errors` is strict for names; in values a stray byte (a damaged description) is no reason to refuse a file."""
        self.need(8 * count)
        data, at, end, unpack = self._data, self.at, self._end, struct.Struct("<Q").unpack_from
        out = []
        for _ in range(count):
            stop = at + 8 + unpack(data, at)[0] if at + 8 <= end else end + 1
            if stop > end:
                self.at = at
                raise self.fail(f"a string runs past the end of the file ({end} bytes)")
            try:
                out.append(str(data[at + 8 : stop], "utf-8", errors))
            except UnicodeDecodeError:
                self.at = at
                raise self.fail("a name is not UTF-8") from None
            at = stop
        self.at = at
        return out

    def value(self, kind: int) -> Value:
        if kind == _STRING:
            return self.strings(1)[0]
        if kind != _ARRAY:
            if kind not in _CODES:
                raise self.fail(f"unknown value type {kind}")
            return self.scalar(_CODES[kind])
        item, count = self.whole("I"), self.whole("Q")
        if count > _MAX_ITEMS or (item != _STRING and item not in _CODES):
            raise self.fail(f"a list of {count} items of type {item}")
        if item == _STRING:
            return list(self.strings(count))
        code = f"<{count}{_CODES[item]}"
        self.need(struct.calcsize(code))
        values = list(struct.unpack_from(code, self._data, self.at))
        self.at += struct.calcsize(code)
        return values


def read_header(path: Path) -> Header:
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            if size < 24:
                raise CheckpointError(f"{path}: {size} bytes, too short for a GGUF header; download the file again")
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(path, _Cursor(path, data), data[:4], size)
    except OSError as error:
        raise unreadable(path, error) from error


def _parse(path: Path, cursor: _Cursor, magic: bytes, size: int) -> Header:
    if magic != b"GGUF":
        raise CheckpointError(f"{path}: not a GGUF file (it starts with {magic!r}); check what was downloaded")
    cursor.at = 4
    version = cursor.whole("I")
    if version not in (2, 3):
        order = " (big-endian file?)" if version & 0xFFFF == 0 else ""
        raise CheckpointError(f"{path}: GGUF version {version}{order}, only 2 and 3 are read; convert the model again")
    tensor_count, key_count = cursor.whole("Q"), cursor.whole("Q")
    metadata: dict[str, Value] = {}
    for _ in range(key_count):
        key = cursor.strings(1, "strict")[0]
        if key in metadata:
            raise cursor.fail(f"key {key!r} appears twice")
        metadata[key] = cursor.value(cursor.whole("I"))
    entries = [_entry(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if isinstance(alignment, bool) or not isinstance(alignment, int) or alignment <= 0 or alignment % 8:
        raise cursor.fail(f"general.alignment = {alignment}")
    start = -(-cursor.at // alignment) * alignment
    tensors = [_tensor(path, entry, start, alignment) for entry in entries]
    _check_extents(path, tensors, size)
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise cursor.fail("a tensor name appears twice")
    return Header(path, metadata, {tensor.name: tensor for tensor in tensors})


def _entry(cursor: _Cursor) -> tuple[str, list[int], int, int]:
    name = cursor.strings(1, "strict")[0]
    dims = cursor.whole("I")
    if not 1 <= dims <= _MAX_DIMS:
        raise cursor.fail(f"tensor {name!r} has {dims} dimensions")
    return name, [cursor.whole("Q") for _ in range(dims)], cursor.whole("I"), cursor.whole("Q")


def _tensor(path: Path, entry: tuple[str, list[int], int, int], start: int, alignment: int) -> Tensor:
    name, dims, kind_id, offset = entry
    try:
        kind = GGMLQuantizationType(kind_id)
        block, block_bytes = GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        raise CheckpointError(f"{path}: tensor {name} has unknown type {kind_id}; convert it to a known type") from None
    if 0 in dims or dims[0] % block or offset % alignment:
        raise CheckpointError(
            f"{path}: tensor {name} has dimensions {dims} at offset {offset}, impossible for {kind.name}; download it again"
        )
    rows = math.prod(dims[1:])
    return Tensor(name, kind, tuple(reversed(dims)), start + offset, rows, dims[0] // block * block_bytes)


def _check_extents(path: Path, tensors: list[Tensor], size: int) -> None:
    previous_end, previous = 0, ""
    for tensor in sorted(tensors, key=lambda tensor: tensor.offset):
        end = tensor.offset + tensor.size_bytes
        if end > size:
            raise CheckpointError(
                f"{path}: tensor {tensor.name} ends at byte {end}, the file has {size}: it was cut short, download it again"
            )
        if tensor.offset < previous_end:
            raise CheckpointError(f"{path}: tensors {previous} and {tensor.name} overlap; download the file again")
        previous_end, previous = end, tensor.name

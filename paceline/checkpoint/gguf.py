"""Reads one GGUF file as a Hugging Face checkpoint: config keys, tensor names, dequantised values.

The header is parsed here and in `gguf_header.py`; torch is imported when the first tensor is read. Files in several
parts, vision projectors and SentencePiece tokenizers are refused. Values: (out, in), F16 and BF16 as they are, all
other types as fp32.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from paceline.checkpoint.base import Config, TextParts, content_id, unreadable
from paceline.checkpoint.gguf_header import Tensor, read_header
from paceline.checkpoint.gguf_names import ARCHS, Source, sources
from paceline.checkpoint.gguf_tokenizer import end_ids, text_parts
from paceline.core.errors import CheckpointError

if TYPE_CHECKING:
    import torch


class GgufReader:
    """See `Reader`. Holds the parsed header only; each read opens the file, reads one tensor and closes it."""

    format = "gguf"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._header = read_header(path)
        arch = self._header.string("general.architecture")
        if arch not in ARCHS:
            raise CheckpointError(f"{path}: architecture {arch!r} is not supported; choose one of {', '.join(ARCHS)}")
        if self._header.whole("split.count", 1) > 1:
            raise CheckpointError(f"{path}: one of several parts; merge them first (llama-gguf-split --merge)")
        self._check_types()
        factors = self._header.tensors.get("rope_freqs.weight")
        rope_factors = None if factors is None else [float(value) for value in self._values(factors).ravel()]
        self._config = ARCHS[arch].config(self._header, rope_factors)
        if ends := end_ids(self._header):
            self._config["eos_token_id"] = list(ends)
        self._sources = sources(self._header, ARCHS[arch], self._config)

    def config(self) -> Config:
        return dict(self._config)

    def names(self) -> list[str]:
        return list(self._sources)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._source(name).shape

    def read(self, name: str) -> torch.Tensor:
        import torch

        source = self._source(name)
        values = self._values(source.tensor)
        try:
            values = values if source.undo is None else source.undo(values)
            values = np.ascontiguousarray(values).reshape(source.shape)
        except ValueError as error:
            raise CheckpointError(
                f"{self.path}: tensor {source.tensor.name} {source.tensor.shape} does not fit the model's dimensions"
                f" ({error}); convert the model again"
            ) from error
        tensor = torch.from_numpy(values)
        return tensor.to(torch.bfloat16) if source.tensor.kind is GGMLQuantizationType.BF16 else tensor

    def text(self) -> TextParts:
        return text_parts(self._header)

    def files(self) -> list[Path]:
        return [self.path]

    def weights_id(self) -> str:
        tensors = self._header.tensors.values()
        return content_id(self._config, [(t.name, t.kind.name, t.shape) for t in tensors], [self.path])

    def _source(self, name: str) -> Source:
        if name not in self._sources:
            raise CheckpointError(f"{self.path}: tensor {name} is missing; download or convert the file again")
        return self._sources[name]

    def _check_types(self) -> None:
        seen: dict[GGMLQuantizationType, Tensor] = {}
        for tensor in self._header.tensors.values():
            seen.setdefault(tensor.kind, tensor)
        for kind, tensor in seen.items():
            # One row of zero blocks: cheap, and the library itself says what it can decode.
            try:
                dequantize(np.zeros((1, tensor.row_bytes), dtype=np.uint8), kind)
            except (NotImplementedError, ValueError):
                raise CheckpointError(
                    f"{self.path}: tensor {tensor.name} is of type {kind.name}, which cannot be dequantised;"
                    " choose a file in another quantisation"
                ) from None

    def _values(self, tensor: Tensor) -> npt.NDArray[np.floating]:
        try:
            with self.path.open("rb") as stream:
                stream.seek(tensor.offset)
                data = bytearray(tensor.size_bytes)
                got = stream.readinto(data)
        except OSError as error:
            raise unreadable(self.path, error) from error
        if got != tensor.size_bytes:
            raise CheckpointError(f"{self.path}: cut short inside tensor {tensor.name}; download the file again")
        if tensor.kind is GGMLQuantizationType.F16:
            return np.frombuffer(data, dtype="<f2").reshape(tensor.shape)
        rows = np.frombuffer(data, dtype=np.uint8).reshape(tensor.rows, tensor.row_bytes)
        values: npt.NDArray[np.floating] = dequantize(rows, tensor.kind)
        return values.reshape(tensor.shape)

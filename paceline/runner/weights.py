"""Weights in the run's format: converted once from the checkpoint, kept as one safetensors file beside the prepared folder.

The converted file holds planes named `part:plane`. It is written under a temporary name and moved into place, so a
file that exists is whole.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from paceline.checkpoint.base import open_checkpoint
from paceline.checkpoint.load import load_tensors
from paceline.core.config import EngineConfig
from paceline.core.errors import CheckpointError, ConfigError, PacelineError
from paceline.core.spec import ModelSpec
from paceline.models import MODELS
from paceline.models.base import Family, Part, PartKind
from paceline.quant import WEIGHT_CODECS
from paceline.quant.base import Planes, WeightCodec


@dataclass(frozen=True, slots=True)
class Weights:
    """All parts of a model in one format: part name → plane name → tensor."""

    spec: ModelSpec
    planes: dict[str, Planes]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for planes in self.planes.values() for tensor in planes.values())


def read_family(folder: Path, name: str) -> tuple[Family, ModelSpec]:
    """The family and spec of a prepared folder's (or any) config.json. Errors name the folder that the user gave."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    try:
        family = MODELS.get(str(config.get("model_type")))
        return family, family.spec(config, name)
    except PacelineError as error:
        note = folder / "source.json"
        given = json.loads(note.read_text(encoding="utf-8"))["path"] if note.exists() else folder
        raise CheckpointError(f"{given}: {error}") from error


def load_weights(config: EngineConfig) -> Weights:
    """Reads the converted file, making it first where it is missing."""
    folder = Path(config.model_folder)
    family, spec = read_family(folder, config.model_name)
    codec = WEIGHT_CODECS.get(config.weights)
    file = Path(config.weights_file)
    if not file.exists():
        source = json.loads((folder / "source.json").read_text(encoding="utf-8"))["path"]
        planes = convert(Path(source), family.parts(spec), codec)
        _save(planes, file)
        return Weights(spec, planes)
    planes = {}
    try:
        with safe_open(file, framework="pt") as stored:
            for key in stored.keys():  # noqa: SIM118 – a safe_open is no dict
                part, _, plane = key.partition(":")
                planes.setdefault(part, {})[plane] = stored.get_tensor(key)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{file}: cannot be read ({error}); delete it, it is made again from the model"
        ) from error
    return Weights(spec, planes)


def convert(source: Path, parts: list[Part], codec: WeightCodec) -> dict[str, Planes]:
    """Every part of the checkpoint in the codec's format; at most one part's tensors are held in fp32 at a time."""
    reader = open_checkpoint(source)
    wanted = {name: shape for part in parts for name, shape in part.sources}
    _check_groups(parts, codec)
    return dict(_encode(load_tensors(reader, wanted), parts, codec))


def _encode(
    tensors: Iterator[tuple[str, torch.Tensor]], parts: list[Part], codec: WeightCodec
) -> Iterator[tuple[str, Planes]]:
    home: dict[str, list[Part]] = {}
    for part in parts:
        for name, _ in part.sources:
            home.setdefault(name, []).append(part)
    found: dict[str, torch.Tensor] = {}
    made: set[str] = set()
    for name, tensor in tensors:
        _check_values(name, tensor)
        found[name] = tensor
        for part in home[name]:
            if part.name not in made and all(source in found for source, _ in part.sources):
                made.add(part.name)
                yield part.name, _planes(part, [found[source].float() for source, _ in part.sources], codec)
        for source in [s for s in found if all(part.name in made for part in home[s])]:
            del found[source]


def _check_values(name: str, tensor: torch.Tensor) -> None:
    """Integers are codes of a format that nobody decoded, and one NaN makes every reply the same token."""
    if tensor.dtype not in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        kind = str(tensor.dtype).removeprefix("torch.")
        raise CheckpointError(f"tensor {name} holds {kind}; only fp32, fp16 and bf16 weights can be read")
    if not bool(tensor.isfinite().all()):
        raise CheckpointError(f"tensor {name} holds NaN or infinite values; the checkpoint is damaged")


def _planes(part: Part, pieces: list[torch.Tensor], codec: WeightCodec) -> Planes:
    if part.shape_each is not None:
        pieces = [part.shape_each(piece) for piece in pieces]
    whole = torch.cat(pieces)
    if part.kind is PartKind.LINEAR:
        return codec.encode(whole)
    if part.kind is PartKind.HEAD:
        return WEIGHT_CODECS.get(codec.head).encode(whole)
    if part.kind is PartKind.PRECISE:
        return WEIGHT_CODECS.get(codec.precise).encode(whole)
    return {"weight": whole.to(torch.float32 if part.kind is PartKind.PLAIN else codec.dtype)}


def _check_groups(parts: list[Part], codec: WeightCodec) -> None:
    for part in parts:
        columns = part.sources[0][1][-1]
        if part.kind is PartKind.LINEAR and columns % codec.group:
            name = part.sources[0][0]
            others = ", ".join(other for other in WEIGHT_CODECS if WEIGHT_CODECS.get(other).group == 1)
            fix = f"{name} has {columns} columns, not a multiple of {codec.group}; choose one of {others}"
            raise ConfigError("--weights", codec.name, fix)


def _save(planes: dict[str, Planes], file: Path) -> None:
    flat = {f"{part}:{plane}": tensor for part, each in planes.items() for plane, tensor in each.items()}
    temporary = file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        save_file(flat, temporary)
        os.replace(temporary, file)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise ConfigError("cache folder", file.parent, f"cannot be written ({error}); free some space") from error

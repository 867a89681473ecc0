"""A model as a shape: its config.json and nothing else, from a name, a folder, a config.json or a .gguf file.

For planning. Public models have names here and their published shapes in the package (`paceline/shapes/`), so nothing is
downloaded; a folder may hold weights, which are not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

import paceline
from paceline.checkpoint.base import Config, open_checkpoint
from paceline.checkpoint.folder_text import read_json
from paceline.checkpoint.pull import SHIPPED, SHIPPED_DRAFTERS
from paceline.checkpoint.safetensors import flat_config
from paceline.core.errors import CheckpointError, ConfigError
from paceline.core.spec import VisionSpec

_FOLDER = Path(paceline.__file__).parent / "shapes"
_NAMES = (
    "smollm2", "qwen3.5-0.8b", "qwen3.5-2b", "qwen3.5-4b", "qwen3.5-9b", "qwen3.5-27b", "qwen3.6-27b", "qwen3.8-27b",
)  # fmt: skip
# Three releases of one shape.
_SAME = {"qwen3.5-27b": "qwen3.8-27b", "qwen3.6-27b": "qwen3.8-27b"}
SHAPES: dict[str, Path] = {**SHIPPED, **{name: _FOLDER / _SAME.get(name, name) for name in _NAMES}}


@dataclass(frozen=True, slots=True)
class Shape:
    """`text`: the flat config of the text model. `path` is named in errors; drafters lie in `drafters/<name>` of `folder`."""

    name: str
    path: Path
    folder: Path
    text: Config
    vision: VisionSpec | None


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A config.json as a drafter's `describe` reads it."""

    path: Path
    content: Config

    def config(self) -> Config:
        return dict(self.content)


def open_shape(model: str) -> Shape:
    path = SHAPES[model] if model in SHAPES else Path(model).expanduser()
    if not path.exists():
        fix = f"no such file or folder; give a config.json, a model folder, a .gguf file, or one of {', '.join(SHAPES)}"
        raise ConfigError("MODEL", model, fix)
    name = model if model in SHAPES else path.resolve().stem
    file = path / "config.json" if (path / "config.json").exists() else path
    if file.suffix != ".json":
        home = path if path.is_dir() else path.parent
        return Shape(name, path, home, open_checkpoint(path).config(), None)
    content = config_content(file)
    vision = content.get("vision_config")
    home = SHIPPED_DRAFTERS.get(model, file.parent)
    return Shape(name, path, home, flat_config(content), None if vision is None else vision_spec(file, vision))


def config_content(file: Path) -> Config:
    content = read_json(file)
    if content is None:
        raise CheckpointError(f"{file}: no such file; give a config.json, or the folder that holds it")
    return content


def open_config(path: Path) -> ConfigFile:
    """A drafter's config.json, or that of its folder."""
    file = path / "config.json" if path.is_dir() else path
    return ConfigFile(path, config_content(file))


def vision_spec(file: Path, vision: object) -> VisionSpec:
    """The tower of a `vision_config`."""
    if not isinstance(vision, dict):
        raise CheckpointError(f"{file}: vision_config = {vision!r}: an object is needed")

    def whole(key: str, default: int | None = None) -> int:
        value = vision.get(key, default)
        if type(value) is not int or value <= 0:
            raise CheckpointError(f"{file}: vision_config.{key} = {value!r}: a positive whole number is needed")
        return value

    pixels = (whole("in_channels", 3), whole("temporal_patch_size"), whole("patch_size"), whole("patch_size"))
    return VisionSpec(
        depth=whole("depth"),
        hidden=whole("hidden_size"),
        ffn=whole("intermediate_size"),
        out=whole("out_hidden_size"),
        patch_values=prod(pixels),
        merge=whole("spatial_merge_size"),
        positions=whole("num_position_embeddings"),
    )

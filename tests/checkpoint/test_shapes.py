"""The public shapes are the published ones: their parameters add up. Any config.json will do, and wrong ones are refused."""

import json
from math import prod
from pathlib import Path

import pytest

from paceline.build import fetch_known
from paceline.checkpoint.shapes import SHAPES, ConfigFile, open_config, open_shape
from paceline.core.errors import CheckpointError, ConfigError
from paceline.drafters import DESCRIBERS
from paceline.memory.plan_engine import tower_bytes
from paceline.models import MODELS
from paceline.models.sizes import stored_shape

# Text model, head of the drafter in the checkpoint, and vision tower together, as published.
PARAMETERS = {
    "qwen3.5-0.8b": 0.87, "qwen3.5-2b": 2.27, "qwen3.5-4b": 4.66, "qwen3.5-9b": 9.65, "qwen3.5-27b": 27.78,
    "qwen3.6-27b": 27.78, "qwen3.8-27b": 27.78,
}  # fmt: skip


def text_parameters(name: str) -> int:
    shape = open_shape(name)
    family = MODELS.get(str(shape.text["model_type"]))
    parts = family.parts(family.spec(shape.text, name))
    return sum(prod(size) for size in {source: size for part in parts for source, size in part.sources}.values())


def all_parameters(name: str) -> int:
    shape = open_shape(name)
    assert shape.vision is not None
    spec = MODELS.get(str(shape.text["model_type"])).spec(shape.text, name)
    head = DESCRIBERS.get("mtp")(spec, 1, ConfigFile(shape.path, shape.text))
    return text_parameters(name) + head.weights_bytes + tower_bytes(shape.vision) // 2


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters(name: str) -> None:
    assert round(all_parameters(name) / 1e9, 2) == PARAMETERS[name]


def test_the_27b_to_the_last_one() -> None:
    assert all_parameters("qwen3.8-27b") == 27_781_427_952
    assert text_parameters("qwen3.8-27b") == 24_353_201_664 + 2 * 1_271_398_400


def test_the_published_drafter() -> None:
    """A checkpoint of 3,848,817,896 bytes, its header included."""
    shape = open_shape("qwen3.8-27b")
    spec = MODELS.get("qwen3_5_text").spec(shape.text, shape.name)
    two = DESCRIBERS.get("dflash2")(spec, 2, open_config(shape.folder / "drafters" / "dflash2"))
    assert 0 < 3_848_817_896 - two.weights_bytes < 20_000
    assert (two.slot_bytes(131_072), two.token_bytes) == (40 * 2**20, 0)
    one = DESCRIBERS.get("dflash")(spec, 2, open_config(shape.folder / "drafters" / "dflash"))
    assert (two.weights_bytes - one.weights_bytes) // 2 == pytest.approx(194.2e6, rel=1e-3)
    assert (one.slot_bytes(131_072), one.token_bytes) == (4 * 2048 * 4096, 4096)


def test_smollm2_is_what_its_file_says() -> None:
    file, name = open_shape(str(fetch_known("smollm2"))), open_shape("smollm2")
    specs = [MODELS.get("llama").spec(shape.text, "same") for shape in (file, name)]
    for field in ("vocab", "hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "max_context", "rope", "tied"):
        assert getattr(specs[0], field) == getattr(specs[1], field)


def test_every_name_opens() -> None:
    assert set(PARAMETERS) | {"embedded", "smollm2"} == set(SHAPES)
    for name in SHAPES:
        assert open_shape(name).name == name


def test_padding_counts() -> None:
    """The gates of a Gated DeltaNet layer are padded to whole vectors when they are stored."""
    shape = open_shape("embedded")
    family = MODELS.get("qwen3_5_text")
    parts = {part.name: part for part in family.parts(family.spec(shape.text, "embedded"))}
    assert stored_shape(parts["layers.0.beta_decay"]) == (64, 256)
    assert stored_shape(parts["layers.0.conv"]) == (4, 512)


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="MODEL = nowhere: .*qwen3.8-27b"):
        open_shape("nowhere")
    with pytest.raises(CheckpointError, match="holds neither"):
        open_shape(str(tmp_path))
    config = tmp_path / "config.json"
    config.write_text("[]")
    with pytest.raises(CheckpointError, match="not a JSON object"):
        open_shape(str(tmp_path))
    config.write_text(json.dumps({"model_type": "llama", "vision_config": {"depth": 0}}))
    with pytest.raises(CheckpointError, match="vision_config"):
        open_shape(str(config))

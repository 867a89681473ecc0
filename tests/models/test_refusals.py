"""What would make a model compute something else than its authors meant is refused by name, never ignored."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.core.errors import CheckpointError
from tests.kit import models
from tests.kit.run import load


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.save(models.build(models.dense_config("llama")), tmp_path_factory.mktemp("whole") / "llama")


def copy_of(saved: Path, folder: Path) -> Path:
    folder.mkdir()
    for file in saved.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.mark.parametrize(
    "change,words",
    [
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"use_sliding_window": True}, "sliding-window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window"),
        ({"hidden_size": "64"}, "hidden_size = '64'"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"rope_parameters": {"rope_type": "wat"}}, "rope_type = wat"),
        ({"model_type": "foo"}, "model_type = foo"),
    ],
)
def test_configs(change: dict[str, object], words: str, saved: Path, tmp_path: Path) -> None:
    folder = copy_of(saved, tmp_path / "changed")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(CheckpointError, match=words) as refusal:
        load(folder, "bf16")
    assert str(folder) in str(refusal.value)


@pytest.mark.parametrize(
    "value,words", [(float("nan"), "NaN or infinite"), (float("inf"), "NaN or infinite"), (7, "int16")]
)
def test_values(value: float, words: str, saved: Path, tmp_path: Path) -> None:
    folder = copy_of(saved, tmp_path / "changed")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    if isinstance(value, int):
        tensors[name] = torch.full_like(tensors[name], value, dtype=torch.int16)
    else:
        tensors[name][3, 5] = value
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=words) as refusal:
        load(folder, "bf16")
    assert name in str(refusal.value)

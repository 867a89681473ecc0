"""What a drafter's checkpoint must be: exactly the tensors its config implies, for this target; else one line says why."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from paceline.core.errors import PacelineError
from paceline.drafters import dflash, dflash2, mtp
from paceline.drafters.block_config import default_taps, read_block_spec
from paceline.models import MODELS
from paceline.runner.drafter import CheckpointSource
from tests.drafters.play import make_target
from tests.kit import drafter_files, models

HYBRID = models.hybrid_config()
SPEC = MODELS.get("qwen3_5_text").spec(HYBRID.to_dict(), "hybrid")
Change = Callable[[dict[str, torch.Tensor]], object]
ONE = "layers.1.self_attn.k_proj.weight"
CHANGES: dict[str, tuple[Change, str]] = {
    "missing": (lambda t: t.pop(ONE), f"tensor {ONE} is missing"),
    "shape": (lambda t: t.update({ONE: torch.zeros(3, 64)}), f"tensor {ONE} is \\[3, 64\\]"),
    "extra": (lambda t: t.update({"mask_embedding": torch.zeros(64)}), "tensor mask_embedding has no place"),
}


@pytest.mark.parametrize("two", [False, True], ids=["v1", "v2"])
@pytest.mark.parametrize("change", CHANGES)
def test_block_folders_with_wrong_tensors(change: str, two: bool, tmp_path: Path) -> None:
    tensors = drafter_files.write_block_folder(tmp_path, drafter_files.block_config(two))
    edit, words = CHANGES[change]
    edit(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    refuse((dflash2 if two else dflash).build, tmp_path, words)


@pytest.mark.parametrize("change", CHANGES)
def test_mtp_with_wrong_tensors(change: str, tmp_path: Path) -> None:
    shapes = drafter_files.mtp_shapes(HYBRID)
    tensors = drafter_files.random_tensors(shapes)
    name = "mtp.layers.0.self_attn.k_proj.weight"
    if change == "missing":
        del tensors[name]
        words = f"tensor {name} is missing"
    elif change == "shape":
        tensors[name] = torch.zeros(3, 64)
        words = f"tensor {name} is \\[3, 64\\]"
    else:
        tensors["mtp.layers.1.mlp.up_proj.weight"] = torch.zeros(1)
        words = "tensor mtp.layers.1.mlp.up_proj.weight has no place"
    save_file({**tensors, "model.norm.weight": torch.zeros(64)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    refuse(mtp.build, tmp_path, words)


def test_a_target_without_a_head(tmp_path: Path) -> None:
    save_file({"model.norm.weight": torch.zeros(64)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    refuse(mtp.build, tmp_path, "holds no mtp.\\* tensors")


@pytest.mark.parametrize("two", [False, True], ids=["v1", "v2"])
def test_each_kind_refuses_the_other(two: bool, tmp_path: Path) -> None:
    drafter_files.write_block_folder(tmp_path, drafter_files.block_config(two))
    refuse((dflash if two else dflash2).build, tmp_path, "choose the --drafter that fits")


@pytest.mark.parametrize(
    "changes,words",
    [
        ({"hidden_size": 128}, "hidden_size = 128: the target has 64"),
        ({"num_target_layers": 5}, "num_target_layers = 5: the target has 4"),
        ({"block_size": 16}, "block_size = 16: dflash_config.block_size = 8"),
        ({"attention_bias": True}, "attention_bias = True: not supported"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type = yarn"),
        ({"inner": {"target_layer_ids": [4]}}, "the target's blocks are 0 to 3"),
        ({"inner": {"mask_token_id": 320}}, "mask_token_id = 320"),
        ({"inner": {"sample_from_anchor": True}}, "sample_from_anchor"),
        ({"inner": {"conv_group_size": 24}}, "conv_group_size = 24"),
        ({"inner": {"selector_rank": None}}, "selector_rank = None"),
        ({"vocab_size": 100}, "vocab_size = 100"),
        ({"paceline": {"expected_acceptance": {"7": "high"}}}, "expected_acceptance"),
    ],
)
def test_configs_that_cannot_be_meant(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    good = drafter_files.block_config(True)
    drafter_files.write_block_folder(tmp_path, good)
    (tmp_path / "config.json").write_text(json.dumps(drafter_files.block_config(True, **changes)))
    refuse(dflash2.build, tmp_path, words)


def refuse(build: Callable[..., object], folder: Path, words: str) -> None:
    with pytest.raises(PacelineError, match=words) as caught:
        build(make_target(SPEC, 7), CheckpointSource(folder))
    assert "\n" not in str(caught.value)


def test_config_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Causality by key, top level first; block size in either place; default taps; the warning past the trained block."""

    def causal(**changes: Any) -> list[bool]:
        config = drafter_files.block_config(**changes)
        config = {key: value for key, value in config.items() if value is not None}
        drafter_files.write_block_folder(tmp_path, config)
        spec = read_block_spec(CheckpointSource(tmp_path), "DFlashDraftModel", SPEC)
        return [layer.causal for layer in spec.layers]

    assert causal(is_causal=True, inner={"causal": False}) == [True, True]
    assert causal(is_causal=None, inner={"causal": False}) == [False, False]
    assert causal(is_causal=None) == [True, False]  # sliding, full
    assert default_taps(32, 5) == (1, 8, 15, 22, 29) and default_taps(64, 5) == (1, 16, 31, 46, 61)
    assert default_taps(36, 5) == (1, 9, 17, 25, 33) and default_taps(24, 5) == (1, 6, 11, 16, 21)
    assert default_taps(24, 1) == (12,)
    for config in (drafter_files.block_config(block_size=8), drafter_files.block_config()):
        drafter_files.write_block_folder(tmp_path, config)
        capsys.readouterr()
        dflash.build(make_target(SPEC, 7), CheckpointSource(tmp_path))
        assert capsys.readouterr().err == ""
        dflash.build(make_target(SPEC, 8), CheckpointSource(tmp_path))
        assert capsys.readouterr().err.count("trained on blocks of 8") == 1

"""Safetensors folders: what transformers saves reads back equal, and a header that lies is refused by name."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from paceline.checkpoint.base import open_checkpoint
from paceline.core.errors import CheckpointError
from tests.checkpoint import tiny


def test_hybrid_reads_back_equal(qwen35_model: torch.nn.Module, qwen35_folder: Path) -> None:
    reader, state = open_checkpoint(qwen35_folder), qwen35_model.state_dict()
    assert set(reader.names()) == set(state)
    for name, expected in state.items():
        assert torch.equal(reader.read(name), expected), name
        assert reader.shape(name) == tuple(expected.shape)
    assert reader.config()["model_type"] == "qwen3_5_text"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shards_read_back_equal(dtype: torch.dtype, tmp_path: Path) -> None:
    model = tiny.qwen3().to(dtype)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    reader = open_checkpoint(tmp_path)
    state = model.state_dict()
    assert set(reader.names()) == set(state) - {"lm_head.weight"}
    assert reader.config()["tie_word_embeddings"] is True
    for name in reader.names():
        assert reader.read(name).dtype == dtype
        assert torch.equal(reader.read(name), state[name]), name


def test_nested_config_and_names(tmp_path: Path) -> None:
    """The multimodal form: text_config is lifted, both levels' eos ids count, prefixes become plain."""
    names = ["model.language_model.embed_tokens.weight", "model.language_model.layers.0.input_layernorm.weight"]
    names += ["lm_head.weight", "model.visual.pos_embed.weight", "model.mtp.norm.weight", "mtp.fc.weight"]
    save_file({name: torch.ones(2, 2) for name in names}, tmp_path / "model.safetensors")
    config = {
        "model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"], "eos_token_id": 7,
        "vision_config": {"depth": 2}, "image_token_id": 9, "tie_word_embeddings": False,
        "dtype": "float32",
        "text_config": {"dtype": "bfloat16", "model_type": "qwen3_5_text", "hidden_size": 2, "eos_token_id": 5},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    reader = open_checkpoint(tmp_path)
    assert reader.config() == {
        "model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForConditionalGeneration"], "eos_token_id": [7, 5],
        "image_token_id": 9, "tie_word_embeddings": False, "hidden_size": 2, "dtype": "bfloat16",
    }  # fmt: skip
    assert set(reader.names()) == {
        "model.embed_tokens.weight", "model.layers.0.input_layernorm.weight", "lm_head.weight",
        "model.visual.pos_embed.weight", "mtp.norm.weight", "mtp.fc.weight",
    }  # fmt: skip
    assert torch.equal(reader.read("mtp.norm.weight"), torch.ones(2, 2))


def write_raw(folder: Path, header: Any, data: bytes, length: int | None = None) -> None:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + data)


def entry(begin: int, end: int, shape: list[Any] | None = None, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [2] if shape is None else shape, "data_offsets": [begin, end]}


LIES: dict[str, tuple[Any, str]] = {
    "beyond the file": ({"a": entry(0, 8), "b": entry(8, 408, [100])}, "b ends at data byte 408, the file has 16"),
    "overlap": ({"a": entry(0, 8), "b": entry(4, 16, [3])}, "b overlaps the tensor before it"),
    "gap": ({"a": entry(0, 4, [1]), "b": entry(8, 16)}, "b leaves a gap before it"),
    "size": ({"a": entry(0, 16)}, r"a is F32 \[2\] = 8 bytes, its extent has 16"),
    "backwards": ({"a": entry(8, 0)}, "its extent has -8"),
    "negative": ({"a": entry(-8, 0)}, "entry of a is malformed"),
    "bool shape": ({"a": entry(0, 4, [True])}, "entry of a is malformed"),
    "text shape": ({"a": entry(0, 4, ["1"])}, "entry of a is malformed"),
    "three offsets": ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8, 9]}}, "entry of a is malformed"),
    "no entry": ({"a": 3}, "entry of a is malformed"),
    "dtype": ({"a": entry(0, 16, [2], "F77")}, "a has unknown dtype F77"),
    "dtype kind": ({"a": entry(0, 16, [2], ["F32"])}, "entry of a is malformed"),
    "trailing": ({"a": entry(0, 8)}, "8 bytes after the last tensor"),
    "list": ([1], "header is not a JSON object"),
    "no json": (b"{'a'", "header is not JSON"),
    "not utf-8": (b"\xff\xfe\xff", "header is not JSON"),
    "deep": (b"[" * 100_000, "header is not JSON"),
    "twice": (b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{}}', "a name appears twice"),
}


@pytest.mark.parametrize("lie", LIES)
def test_header_that_lies(lie: str, tmp_path: Path) -> None:
    header, words = LIES[lie]
    write_raw(tmp_path, header, bytes(16))
    with pytest.raises(CheckpointError, match=words) as caught:
        open_checkpoint(tmp_path)
    assert str(tmp_path / "model.safetensors") in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("length", [17, 2**40, 2**63])
def test_header_longer_than_the_file(length: int, tmp_path: Path) -> None:
    write_raw(tmp_path, b"{}", bytes(8), length)
    with pytest.raises(CheckpointError, match=f"header of {length} bytes in a file of 18"):
        open_checkpoint(tmp_path)


def drop_shard(folder: Path, index: dict[str, Any]) -> None:
    next(folder.glob("*-00002-of-*.safetensors")).unlink()


def wrong_shard(folder: Path, index: dict[str, Any]) -> None:
    files = sorted(set(index["weight_map"].values()))
    name = next(name for name, file in index["weight_map"].items() if file == files[0])
    index["weight_map"][name] = files[1]


def escape(folder: Path, index: dict[str, Any]) -> None:
    index["weight_map"]["model.norm.weight"] = "../elsewhere.safetensors"


def no_map(folder: Path, index: dict[str, Any]) -> None:
    index["weight_map"] = []


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (drop_shard, "00002-of-.*shard is missing; download the missing file"),
        (wrong_shard, "should be in model-00002-of-.* but is not"),
        (escape, "model.norm.weight is in '../elsewhere.safetensors', which is no file name"),
        (no_map, "has no weight_map"),
    ],
)
def test_index_that_lies(damage: Callable[[Path, dict[str, Any]], None], words: str, tmp_path: Path) -> None:
    tiny.qwen3().save_pretrained(tmp_path, max_shard_size="20KB")
    file = tmp_path / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    damage(tmp_path, index)
    file.write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(tmp_path)


def test_missing_pieces(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file or folder"):
        open_checkpoint(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match=r"neither .safetensors nor .gguf"):
        open_checkpoint(tmp_path)
    save_file({"a": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"config.json is missing"):
        open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="give its folder"):
        open_checkpoint(tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "fp8"}}')
    with pytest.raises(CheckpointError, match=r"quantised \(fp8\), which is not supported"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not JSON"):
        open_checkpoint(tmp_path)


def test_two_names_for_one_tensor(tmp_path: Path) -> None:
    save_file({"model.norm.weight": torch.ones(2), "model.language_model.norm.weight": torch.ones(2)},
              tmp_path / "model.safetensors")  # fmt: skip
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"both stand for model.norm.weight"):
        open_checkpoint(tmp_path)


def test_unknown_tensor_is_named(qwen35_folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tensor model.layers.9.up is missing"):
        open_checkpoint(qwen35_folder).read("model.layers.9.up")


def test_weights_id_sees_config_and_content(qwen35_folder: Path, tmp_path: Path) -> None:
    for file in qwen35_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    first = open_checkpoint(qwen35_folder).weights_id()
    assert open_checkpoint(tmp_path).weights_id() == first
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-5}))
    assert open_checkpoint(tmp_path).weights_id() != first

"""GGUF reading: the real small model against two other readers, and a hybrid model through a full conversion."""

import time
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFReader, GGUFWriter
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from paceline.checkpoint.base import open_checkpoint
from paceline.checkpoint.gguf_header import read_header
from paceline.core.errors import CheckpointError
from tests.checkpoint import tiny


def test_smollm2_config(smollm2: Path) -> None:
    config = open_checkpoint(smollm2).config()
    expected = {
        "model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "attention_bias": False,
        "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"}, "eos_token_id": [2, 0],
    }  # fmt: skip
    assert {key: config[key] for key in expected} == expected


def test_smollm2_header_is_fast(smollm2: Path) -> None:
    start = time.perf_counter()
    header = read_header(smollm2)
    assert time.perf_counter() - start < 1.0
    assert len(header.strings("tokenizer.ggml.tokens")) == 49152
    assert len(header.tensors) == 272


def test_smollm2_values_equal_the_library(smollm2: Path) -> None:
    """The bytes at the offsets are the right ones; rows that the conversion permuted are compared in their new order."""
    reader, library = open_checkpoint(smollm2), {tensor.name: tensor for tensor in GGUFReader(smollm2).tensors}

    def expected(name: str) -> np.ndarray:
        return dequantize(library[name].data, library[name].tensor_type)

    for ours, theirs in {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "model.layers.29.mlp.down_proj.weight": "blk.29.ffn_down.weight",
        "model.layers.3.self_attn.v_proj.weight": "blk.3.attn_v.weight",
    }.items():
        assert np.array_equal(reader.read(ours).numpy(), expected(theirs)), ours
    for ours, theirs in (("q_proj", "attn_q"), ("k_proj", "attn_k")):
        rows = reader.read(f"model.layers.7.self_attn.{ours}.weight").numpy()
        source = expected(f"blk.7.{theirs}.weight")
        # Dimension i of the first half sits at row 2i of its head in the file, its partner at row 2i + 1.
        for row in range(len(rows)):
            head, dim = divmod(row, 64)
            assert np.array_equal(rows[row], source[head * 64 + 2 * (dim % 32) + dim // 32])


def test_smollm2_equals_transformers(smollm2: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32)
    state, reader = model.state_dict(), open_checkpoint(smollm2)
    assert set(reader.names()) == set(state) - {"lm_head.weight"}
    for name in reader.names():
        assert torch.equal(reader.read(name), state[name]), name


def test_hybrid_round_trip(qwen35_model: torch.nn.Module, tmp_path: Path) -> None:
    """Conversion and reading cancel: exactly, but for the rounding of (w + 1) − 1 and log(exp(a))."""
    state = qwen35_model.state_dict()
    reader = open_checkpoint(tiny.write_qwen35(tmp_path / "hybrid.gguf", state))
    assert set(reader.names()) == set(state)
    for name, expected in state.items():
        found = reader.read(name)
        assert found.shape == expected.shape == reader.shape(name), name
        if "norm" in name or name.endswith("A_log"):
            torch.testing.assert_close(found, expected, rtol=0, atol=2e-7, msg=name)
        else:
            assert torch.equal(found, expected), name


def test_hybrid_config_equals_transformers(qwen35_model: torch.nn.Module, tmp_path: Path) -> None:
    from transformers import Qwen3_5TextConfig

    reader = open_checkpoint(tiny.write_qwen35(tmp_path / "hybrid.gguf", qwen35_model.state_dict()))
    ours, theirs = Qwen3_5TextConfig(**reader.config()).to_dict(), qwen35_model.config.to_dict()
    for key in ("dtype", "eos_token_id", "bos_token_id", "pad_token_id", "_name_or_path", "architectures"):
        ours.pop(key, None), theirs.pop(key, None)
    assert {key: ours[key] for key in theirs if key != "transformers_version"} == {
        key: value for key, value in theirs.items() if key != "transformers_version"
    }


def test_hybrid_with_mtp_block(qwen35_model: torch.nn.Module, tmp_path: Path) -> None:
    """The block after the layers is the draft head: counted in block_count, not in num_hidden_layers."""
    state = dict(qwen35_model.state_dict())
    for name in list(state):
        if name.startswith("model.layers.3."):
            state[name.replace("model.layers.3.", "mtp.layers.0.")] = state[name].clone()
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        state[f"mtp.{name}.weight"] = torch.linspace(-0.5, 0.5, 32)
    state["mtp.fc.weight"] = torch.rand(32, 64)
    reader = open_checkpoint(tiny.write_qwen35(tmp_path / "mtp.gguf", state, mtp_layers=1))
    assert set(reader.names()) == set(state)
    assert reader.config()["num_hidden_layers"] == 4
    assert reader.config()["layer_types"] == ["linear_attention"] * 3 + ["full_attention"]
    for name in (name for name in state if name.startswith("mtp.")):
        torch.testing.assert_close(reader.read(name), state[name], rtol=0, atol=2e-7, msg=name)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_0", "Q4_1", "Q8_0"])
def test_float_types_are_kept_and_blocks_become_fp32(kind: str, tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((48, 32)).astype(np.float32)
    qtype = GGMLQuantizationType[kind]
    packed = quantize(values, qtype)
    path = tmp_path / "typed.gguf"
    original = GGUFWriter.add_tensor

    def add(self: GGUFWriter, name: str, tensor: np.ndarray, **_: object) -> None:
        chosen = name == "blk.0.ffn_up.weight"
        original(self, name, packed if chosen else tensor, raw_dtype=qtype if chosen and kind != "F16" else None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GGUFWriter, "add_tensor", add)
        tiny.write_llama(path)
    found = open_checkpoint(path).read("model.layers.0.mlp.up_proj.weight")
    assert found.dtype == {"F16": torch.float16, "BF16": torch.bfloat16}.get(kind, torch.float32)
    assert np.array_equal(found.float().numpy(), dequantize(packed, qtype).astype(np.float32))


def test_llama3_scaling_is_recognised(tmp_path: Path) -> None:
    """The published converter's table for factor 8 over 8192 positions, head width 8, base 500,000:
    one frequency keeps its value, one lies in the blend, two are divided whole."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 8192
    config = LlamaConfig(hidden_size=32, num_attention_heads=4, head_dim=8, rope_parameters=scaling)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 1.0 / 5e5 ** (torch.arange(0, 8, 2) / 8)
    path = tiny.write_llama(tmp_path / "scaled.gguf", {"rope_freqs.weight": (plain / scaled).numpy()}, rope_base=5e5)
    assert open_checkpoint(path).config()["rope_parameters"] == scaling
    other = tiny.write_llama(tmp_path / "odd.gguf", {"rope_freqs.weight": np.array([1, 2, 3, 4], dtype=np.float32)})
    with pytest.raises(CheckpointError, match="rope_freqs"):
        open_checkpoint(other)


def test_untied_head_is_listed(tmp_path: Path) -> None:
    head = np.ones((len(tiny.TOKENS), 32), dtype=np.float32)
    reader = open_checkpoint(tiny.write_llama(tmp_path / "untied.gguf", {"output.weight": head}))
    assert reader.config()["tie_word_embeddings"] is False
    assert torch.equal(reader.read("lm_head.weight"), torch.from_numpy(head))


def test_weights_id_is_of_the_content(small_gguf: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere.gguf"
    copy.write_bytes(small_gguf.read_bytes())
    first = open_checkpoint(small_gguf).weights_id()
    assert open_checkpoint(copy).weights_id() == first
    changed = bytearray(small_gguf.read_bytes())
    changed[-100] ^= 1
    copy.write_bytes(changed)
    assert open_checkpoint(copy).weights_id() != first

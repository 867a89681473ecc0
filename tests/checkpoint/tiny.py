"""Tiny random models, and GGUF files made from them by the published conversion formulas.

The conversion here goes element by element through index arithmetic, so that it shares no formula with the reader.
"""

from pathlib import Path

import gguf
import numpy as np
import torch

# A byte-level BPE that can be checked by hand: 256 bytes would be too long, letters are enough for the tests.
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"abcdefgh0123", "Ġ", "Ċ", "ab", "abc", "Ġa", "<think>"]
KINDS = [3, 3, 3] + [1] * (len(TOKENS) - 4) + [4]
MERGES = ["a b", "ab c", "Ġ a"]


def _randomise(model: torch.nn.Module) -> torch.nn.Module:
    """Every parameter away from its initial value: norms of 0 or 1 would hide a lost or doubled +1."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.rand(parameter.shape, generator=generator) * 0.5 - 0.25
            parameter.copy_(noise + (1.0 if name.endswith("A_log") else 0.0))
    return model.eval()


def qwen35(mtp: bool = False) -> torch.nn.Module:
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    config = Qwen3_5TextConfig(
        vocab_size=len(TOKENS), hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, linear_key_head_dim=8, linear_value_head_dim=4, linear_num_key_heads=2,
        linear_num_value_heads=6, full_attention_interval=4, max_position_embeddings=512, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
                         "mrope_interleaved": True, "mrope_section": [1, 1, 0]},
    )  # fmt: skip
    return _randomise(Qwen3_5ForCausalLM(config))


def qwen3() -> torch.nn.Module:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, tie_word_embeddings=True, eos_token_id=[3, 5],
    )  # fmt: skip
    return _randomise(Qwen3ForCausalLM(config))


def _writer(path: Path, arch: str, rope_base: float = 1e7) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(512)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(rope_base)
    writer.add_layer_norm_rms_eps(1e-6)
    return writer


def add_tokenizer(writer: gguf.GGUFWriter, pre: str, kinds: list[int] = KINDS) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types(kinds)
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}")


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_llama(
    path: Path,
    changes: dict[str, np.ndarray] | None = None,
    pre: str = "smollm",
    kinds: list[int] = KINDS,
    rope_base: float = 1e7,
) -> Path:
    """One layer, random values; `changes` replaces or adds tensors by their GGUF name."""
    rng = np.random.default_rng(3)
    writer = _writer(path, "llama", rope_base)
    writer.add_block_count(1)
    writer.add_rope_dimension_count(8)
    add_tokenizer(writer, pre, kinds)
    shapes = {
        "token_embd.weight": (len(TOKENS), 32), "output_norm.weight": (32,), "blk.0.attn_norm.weight": (32,),
        "blk.0.attn_q.weight": (32, 32), "blk.0.attn_k.weight": (16, 32), "blk.0.attn_v.weight": (16, 32),
        "blk.0.attn_output.weight": (32, 32), "blk.0.ffn_norm.weight": (32,), "blk.0.ffn_gate.weight": (48, 32),
        "blk.0.ffn_up.weight": (48, 32), "blk.0.ffn_down.weight": (32, 48),
    }  # fmt: skip
    tensors = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    tensors |= changes or {}
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    finish(writer)
    return path


def _tiled(grouped: np.ndarray, key_heads: int, value_heads: int, axis: int = 0) -> np.ndarray:
    """Value head j of key head j // r goes to place (j mod r) · Hk + j // r."""
    width, ratio = grouped.shape[axis] // value_heads, value_heads // key_heads
    out = np.empty_like(grouped)
    for j in range(value_heads):
        place = (j % ratio) * key_heads + j // ratio
        source, target = [slice(None)] * grouped.ndim, [slice(None)] * grouped.ndim
        source[axis] = slice(j * width, (j + 1) * width)
        target[axis] = slice(place * width, (place + 1) * width)
        out[tuple(target)] = grouped[tuple(source)]
    return out


_QWEN35_NAMES = {
    "input_layernorm.weight": "attn_norm.weight", "post_attention_layernorm.weight": "post_attention_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight", "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight", "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight", "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight", "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight", "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight", "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight", "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias", "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
}  # fmt: skip
_QWEN35_TOP = {
    "model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight", "mtp.fc.weight": "blk.{block}.nextn.eh_proj.weight",
    "mtp.pre_fc_norm_embedding.weight": "blk.{block}.nextn.enorm.weight",
    "mtp.pre_fc_norm_hidden.weight": "blk.{block}.nextn.hnorm.weight",
    "mtp.norm.weight": "blk.{block}.nextn.shared_head_norm.weight",
}  # fmt: skip


def converted(name: str, values: np.ndarray, hk: int = 2, hv: int = 6, key_dim: int = 8) -> np.ndarray:
    """What the conversion does to the values of the tensor with this Hugging Face name; hk key heads, hv value heads."""
    qk_rows = 2 * hk * key_dim
    if name.endswith("linear_attn.in_proj_qkv.weight"):
        return np.concatenate([values[:qk_rows], _tiled(values[qk_rows:], hk, hv)])
    if name.endswith("conv1d.weight"):
        values = values.squeeze(1)
        return np.concatenate([values[:qk_rows], _tiled(values[qk_rows:], hk, hv)])
    if name.endswith(("in_proj_z.weight", "in_proj_a.weight", "in_proj_b.weight", "dt_bias")):
        return _tiled(values, hk, hv)
    if name.endswith("A_log"):
        return -np.exp(_tiled(values, hk, hv))
    if name.endswith("out_proj.weight"):
        return _tiled(values, hk, hv, axis=1)
    is_norm = "norm" in name.removesuffix(".weight").rsplit(".", 1)[-1] or "pre_fc_norm" in name
    return values + np.float32(1) if is_norm and "linear_attn" not in name else values


def write_qwen35(path: Path, state: dict[str, torch.Tensor], mtp_layers: int = 0) -> Path:
    writer = _writer(path, "qwen35")
    writer.add_block_count(4 + mtp_layers)
    writer.add_key_length(16)
    writer.add_value_length(16)
    writer.add_rope_dimension_count(4)
    writer.add_rope_dimension_sections([1, 1, 0, 0])
    writer.add_full_attention_interval(4)
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_state_size(8)
    writer.add_ssm_group_count(2)
    writer.add_ssm_time_step_rank(6)
    writer.add_ssm_inner_size(24)
    if mtp_layers:
        writer.add_nextn_predict_layers(mtp_layers)
    add_tokenizer(writer, "qwen35")
    for name, tensor in state.items():
        writer.add_tensor(qwen35_name(name), np.ascontiguousarray(converted(name, tensor.numpy())))
    finish(writer)
    return path


def qwen35_name(name: str, layers: int = 4) -> str:
    if name in _QWEN35_TOP:
        return _QWEN35_TOP[name].format(block=layers)
    family, _, layer, suffix = name.split(".", 3) if name.startswith("model.") else ("mtp", "", *name.split(".", 3)[2:])
    return f"blk.{int(layer) + (layers if family == 'mtp' else 0)}.{_QWEN35_NAMES[suffix]}"

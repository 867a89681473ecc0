"""GGUF tensors → Hugging Face names and semantics, per architecture: what each tensor is called and how to undo what
the conversion to GGUF did to its values.

Shapes are (out, in) on both sides. An undo works on the dequantised numpy array and keeps every element but for the
norms' +1 and A_log, which are recovered to fp32 rounding. It does not read files.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.checkpoint.base import Config
from paceline.checkpoint.gguf_config import llama_config, qwen3_config, qwen35_config
from paceline.checkpoint.gguf_header import Header, Tensor
from paceline.core.errors import CheckpointError

Array = npt.NDArray[np.floating]
Undo = Callable[[Array], Array]


@dataclass(frozen=True, slots=True)
class Source:
    """Where one Hugging Face tensor comes from."""

    tensor: Tensor
    shape: tuple[int, ...]
    undo: Undo | None


@dataclass(frozen=True, slots=True)
class Arch:
    """One GGUF architecture. `layer` maps a block's tensor suffixes; `undo` gives the reverse of the conversion by
    Hugging Face suffix."""

    config: Callable[[Header, list[float] | None], Config]
    layer: dict[str, str]
    undo: Callable[[Config], dict[str, Undo]]


_TOP = {"token_embd.weight": "model.embed_tokens.weight", "output.weight": "lm_head.weight"}
_TOP |= {"output_norm.weight": "model.norm.weight"}

_DENSE = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
_BIASES = {
    f"attn_{end}.bias": f"self_attn.{hf}_proj.bias" for end, hf in zip(("q", "k", "v", "output"), "qkvo", strict=True)
}
_QK_NORM = {"attn_q_norm.weight": "self_attn.q_norm.weight", "attn_k_norm.weight": "self_attn.k_norm.weight"}
_FFN_NORM = {"ffn_norm.weight": "post_attention_layernorm.weight"}
_GDN = {
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "attn_qkv.weight": "linear_attn.in_proj_qkv.weight",
    "attn_gate.weight": "linear_attn.in_proj_z.weight",
    "ssm_beta.weight": "linear_attn.in_proj_b.weight",
    "ssm_alpha.weight": "linear_attn.in_proj_a.weight",
    "ssm_conv1d.weight": "linear_attn.conv1d.weight",
    "ssm_a": "linear_attn.A_log",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_norm.weight": "linear_attn.norm.weight",
    "ssm_out.weight": "linear_attn.out_proj.weight",
}
# These stand in the first block after the layers and belong to the whole MTP head, not to one of its layers.
_MTP = {
    "nextn.eh_proj.weight": "mtp.fc.weight",
    "nextn.enorm.weight": "mtp.pre_fc_norm_embedding.weight",
    "nextn.hnorm.weight": "mtp.pre_fc_norm_hidden.weight",
    "nextn.shared_head_norm.weight": "mtp.norm.weight",
    "nextn.embed_tokens.weight": "mtp.embed_tokens.weight",
    "nextn.shared_head_head.weight": "mtp.lm_head.weight",
}


def _deinterleave(heads: int) -> Undo:
    """Rotary pairs lie next to each other in the file; Hugging Face keeps the halves of a head apart."""

    def undo(rows: Array) -> Array:
        return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)

    return undo


def _llama_undo(config: Config) -> dict[str, Undo]:
    q, k = _deinterleave(config["num_attention_heads"]), _deinterleave(config["num_key_value_heads"])
    return {f"self_attn.{name}_proj.{end}": undo for name, undo in (("q", q), ("k", k)) for end in ("weight", "bias")}


def _no_undo(config: Config) -> dict[str, Undo]:
    return {}


def _minus_one(weight: Array) -> Array:
    return weight - np.float32(1)


def _qwen35_undo(config: Config) -> dict[str, Undo]:
    """Value heads are tiled in the file (head t pairs with key head t mod Hk) and grouped in Hugging Face (j // r)."""
    key_heads, value_heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    qk_rows = 2 * key_heads * config["linear_key_head_dim"]

    def rows(values: Array) -> Array:
        tiled = values.reshape(value_heads // key_heads, key_heads, -1, *values.shape[1:])
        return tiled.swapaxes(0, 1).reshape(values.shape)

    def value_rows(values: Array) -> Array:
        return np.concatenate([values[:qk_rows], rows(values[qk_rows:])])

    def conv(values: Array) -> Array:
        flat = values.reshape(values.shape[0], -1)
        return value_rows(flat)[:, None, :]

    def a_log(values: Array) -> Array:
        if not (values < 0).all():
            raise ValueError("it must be negative")
        return np.log(-rows(values).astype(np.float64)).astype(np.float32)

    norms = ("input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm")
    tops = ("model.norm", "mtp.norm", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden")
    return {f"{name}.weight": _minus_one for name in norms + tops} | {
        "linear_attn.in_proj_qkv.weight": value_rows,
        "linear_attn.in_proj_z.weight": rows,
        "linear_attn.in_proj_a.weight": rows,
        "linear_attn.in_proj_b.weight": rows,
        "linear_attn.conv1d.weight": conv,
        "linear_attn.A_log": a_log,
        "linear_attn.dt_bias": rows,
        "linear_attn.out_proj.weight": lambda values: rows(values.T).T,
    }


ARCHS = {
    "llama": Arch(llama_config, _DENSE | _BIASES | _FFN_NORM, _llama_undo),
    "qwen3": Arch(qwen3_config, _DENSE | _BIASES | _QK_NORM | _FFN_NORM, _no_undo),
    "qwen35": Arch(qwen35_config, _DENSE | _QK_NORM | _GDN, _qwen35_undo),
}

# Tables that the config already holds.
_DERIVED = ("rope_freqs.weight",)


def sources(header: Header, arch: Arch, config: Config) -> dict[str, Source]:
    """Hugging Face name → source, in file order. A tensor without a place is refused, not dropped."""
    undo, layers = arch.undo(config), int(config["num_hidden_layers"])
    out: dict[str, Source] = {}
    for tensor in header.tensors.values():
        if tensor.name in _DERIVED:
            continue
        name, suffix = _place(tensor.name, arch, layers)
        if name is None:
            raise CheckpointError(
                f"{header.path}: tensor {tensor.name} has no place in this architecture; use the model's safetensors folder"
            )
        shape = tensor.shape
        if suffix == "linear_attn.conv1d.weight":
            shape = (shape[0], 1, shape[-1])
        out[name] = Source(tensor, shape, undo.get(suffix))
    return out


def _place(name: str, arch: Arch, layers: int) -> tuple[str | None, str]:
    """The Hugging Face name, and the part of it that decides the undo."""
    if name in _TOP:
        return _TOP[name], _TOP[name]
    match = re.fullmatch(r"blk\.(\d{1,4})\.(.+)", name)
    if match is None:
        return None, ""
    block, suffix = int(match[1]), match[2]
    if block >= layers and suffix in _MTP:
        return _MTP[suffix], _MTP[suffix]
    if suffix not in arch.layer:
        return None, ""
    place = f"model.layers.{block}" if block < layers else f"mtp.layers.{block - layers}"
    return f"{place}.{arch.layer[suffix]}", arch.layer[suffix]

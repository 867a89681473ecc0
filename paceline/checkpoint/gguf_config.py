"""GGUF metadata → the keys of a Hugging Face config.json, per architecture.

Only shapes and constants; tokens and templates are in `gguf_tokenizer.py`, tensor names in `gguf_names.py`. Where the
tensor table says more than the metadata (vocabulary rows, tied head, biases, layer kinds) the tensor table is believed.
"""

from __future__ import annotations

import math

from paceline.checkpoint.base import Config
from paceline.checkpoint.gguf_header import Header
from paceline.core.errors import CheckpointError

# (factor, low, high, original context) of the published Llama 3.1 and 3.2 models. GGUF keeps only the resulting table
# of divisors, so the keys are found by comparing tables.
_LLAMA3_SCALINGS = ((8.0, 1.0, 4.0, 8192), (32.0, 1.0, 4.0, 8192))


def llama_config(header: Header, rope_factors: list[float] | None) -> Config:
    hidden, heads = header.count("llama.embedding_length"), header.count("llama.attention.head_count")
    config = _common(header, "llama", header.count("llama.attention.key_length", hidden // heads or 1), 10000.0)
    if rope_factors is not None:
        config["rope_parameters"] |= _llama3_scaling(header, rope_factors, config)
    return config | {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "mlp_bias": False}


def qwen3_config(header: Header, rope_factors: list[float] | None) -> Config:
    hidden, heads = header.count("qwen3.embedding_length"), header.count("qwen3.attention.head_count")
    config = _common(header, "qwen3", header.count("qwen3.attention.key_length", hidden // heads or 1), 1e6)
    _refuse_factors(header, rope_factors)
    return config | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "use_sliding_window": False}


def qwen35_config(header: Header, rope_factors: list[float] | None) -> Config:
    head_dim = header.count("qwen35.attention.key_length")
    config = _common(header, "qwen35", head_dim, 1e7)
    _refuse_factors(header, rope_factors)
    value_heads, inner = header.count("qwen35.ssm.time_step_rank"), header.count("qwen35.ssm.inner_size")
    key_heads = header.count("qwen35.ssm.group_count")
    if inner % value_heads or value_heads % key_heads:
        raise CheckpointError(
            f"{header.path}: ssm.inner_size {inner}, time_step_rank {value_heads} and group_count {key_heads} do not"
            " divide; convert the model again"
        )
    mtp_layers = header.whole("qwen35.nextn_predict_layers", 0)
    layers = config["num_hidden_layers"] - mtp_layers
    if layers < 1:
        raise CheckpointError(
            f"{header.path}: block_count leaves no layers besides {mtp_layers} for MTP; convert again"
        )
    if mtp_layers and "blk.0.attn_norm.weight" not in header.tensors:
        raise CheckpointError(
            f"{header.path}: holds the MTP head alone, not the model; give the model's own file, converted with its head"
        )
    rope = config["rope_parameters"]
    rope["partial_rotary_factor"] = header.count("qwen35.rope.dimension_count", head_dim // 4 or 1) / head_dim
    rope["mrope_interleaved"] = True
    if "qwen35.rope.dimension_sections" in header.metadata:
        rope["mrope_section"] = header.wholes("qwen35.rope.dimension_sections")[:3]
    return config | {
        "model_type": "qwen3_5_text",
        "architectures": ["Qwen3_5ForCausalLM"],
        "num_hidden_layers": layers,
        "layer_types": [
            "full_attention" if f"blk.{layer}.attn_q.weight" in header.tensors else "linear_attention"
            for layer in range(layers)
        ],
        "attn_output_gate": True,
        "linear_conv_kernel_dim": header.count("qwen35.ssm.conv_kernel"),
        "linear_key_head_dim": header.count("qwen35.ssm.state_size"),
        "linear_value_head_dim": inner // value_heads,
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": value_heads,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": mtp_layers,
    }


def _common(header: Header, arch: str, head_dim: int, default_theta: float) -> Config:
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise CheckpointError(f"{header.path}: tensor token_embd.weight is missing; download or convert the file again")
    if header.whole(f"{arch}.expert_count", 0):
        raise CheckpointError(f"{header.path}: a mixture-of-experts model, which is not supported; choose a dense one")
    layers, heads = header.count(f"{arch}.block_count"), header.count(f"{arch}.attention.head_count")
    if layers > 4096:
        raise CheckpointError(f"{header.path}: {arch}.block_count = {layers} is implausible; download the file again")
    config: Config = {
        "vocab_size": embedding.shape[0],
        "hidden_size": header.count(f"{arch}.embedding_length"),
        "intermediate_size": header.count(f"{arch}.feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": header.count(f"{arch}.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": header.count(f"{arch}.context_length"),
        "rms_norm_eps": _decimal(header.number(f"{arch}.attention.layer_norm_rms_epsilon")),
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "rope_parameters": _rope(header, arch, head_dim, default_theta),
    }
    for key in ("bos", "padding"):
        if f"tokenizer.ggml.{key}_token_id" in header.metadata:
            config[f"{key[:3]}_token_id"] = header.whole(f"tokenizer.ggml.{key}_token_id")
    return config


def _rope(header: Header, arch: str, head_dim: int, default_theta: float) -> Config:
    theta = header.number(f"{arch}.rope.freq_base", default_theta)
    rotary = header.count(f"{arch}.rope.dimension_count", head_dim)
    if theta <= 1 or rotary > head_dim:
        raise CheckpointError(
            f"{header.path}: rope.freq_base {theta} with rope.dimension_count {rotary} of {head_dim} is impossible;"
            " convert the model again"
        )
    rope: Config = {"rope_theta": theta, "rope_type": "default"}
    if rotary != head_dim:
        rope["partial_rotary_factor"] = rotary / head_dim
    scaling = header.string(f"{arch}.rope.scaling.type", "none")
    if scaling != "none":
        rope["rope_type"], rope["factor"] = scaling, header.number(f"{arch}.rope.scaling.factor")
        original = f"{arch}.rope.scaling.original_context_length"
        if original in header.metadata:
            rope["original_max_position_embeddings"] = header.count(original)
    return rope


def _decimal(value: float) -> float:
    """The shortest decimal that is the same fp32 number: 9.999999747378752e-06 was written as 1e-05."""
    return float(f"{value:.7g}")


def _llama3_scaling(header: Header, factors: list[float], config: Config) -> Config:
    fits = len(factors) == config["head_dim"] // 2
    for scaling in _LLAMA3_SCALINGS if fits else ():
        expected = _llama3_factors(config["head_dim"], config["rope_parameters"]["rope_theta"], scaling)
        if all(math.isclose(a, b, rel_tol=1e-4) for a, b in zip(factors, expected, strict=True)):
            keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
            return {"rope_type": "llama3"} | dict(zip(keys, scaling, strict=True))
    raise CheckpointError(
        f"{header.path}: rope_freqs.weight is no known llama3 scaling; use the model's safetensors folder"
    )


def _llama3_factors(head_dim: int, theta: float, scaling: tuple[float, float, float, int]) -> list[float]:
    """What each rotary frequency is divided by: 1 for short wavelengths, `factor` for long ones, a blend between."""
    factor, low, high, context = scaling
    out = []
    for i in range(head_dim // 2):
        turns = context / (2 * math.pi * theta ** (2 * i / head_dim))
        kept = min(1.0, max(0.0, (turns - low) / (high - low)))
        out.append(1 / ((1 - kept) / factor + kept))
    return out


def _refuse_factors(header: Header, rope_factors: list[float] | None) -> None:
    if rope_factors is not None:
        raise CheckpointError(
            f"{header.path}: rope_freqs.weight is not understood for this architecture; use safetensors"
        )

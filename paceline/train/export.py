"""Trained modules → folders in the published layouts: config.json and model.safetensors in bf16.

The target as `Qwen3_5ForCausalLM` with its `mtp.*` tensors; drafters as `DFlashDraftModel` and `DFlash2DraftModel` (no
embedding and no head: both are the target's).
"""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from paceline.train.block import BlockConfig
from paceline.train.chats import END_ID, PAD_ID
from paceline.train.files import write_json
from paceline.train.target import TargetConfig


def save_module(module: nn.Module, file: Path, prefix: str = "") -> None:
    """All parameters in bf16; what is loaded back is what will be served."""
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(bf16_state(module, prefix), file, metadata={"format": "pt"})


def bf16_state(module: nn.Module, prefix: str = "") -> dict[str, torch.Tensor]:
    return {
        prefix + name: value.detach().to("cpu", torch.bfloat16).contiguous()
        for name, value in module.state_dict().items()
    }


def load_module(module: nn.Module, file: Path) -> None:
    module.load_state_dict({name: value.float() for name, value in load_file(file).items()})


def _shared_config(c: TargetConfig | BlockConfig) -> dict[str, object]:
    """The keys that mean the same for a target and a drafter."""
    return {
        "vocab_size": c.vocab,
        "hidden_size": c.hidden,
        "intermediate_size": c.ffn,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": c.eps,
        "attention_bias": False,
        "max_position_embeddings": c.max_context,
        "dtype": "bfloat16",
    }


def target_config(c: TargetConfig) -> dict[str, object]:
    half = c.rotary_dim // 2
    third = half // 3
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        **_shared_config(c),
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "full_attention_interval": c.interval,
        "layer_types": ["linear_attention" if (i + 1) % c.interval else "full_attention" for i in range(c.layers)],
        "linear_num_key_heads": c.key_heads,
        "linear_num_value_heads": c.value_heads,
        "linear_key_head_dim": c.key_dim,
        "linear_value_head_dim": c.value_dim,
        "linear_conv_kernel_dim": c.conv_width,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": c.theta,
            "partial_rotary_factor": c.rotary_dim / c.head_dim,
            "mrope_interleaved": True,
            "mrope_section": [half - 2 * third, third, third],
        },
        "tie_word_embeddings": True,
        "use_cache": True,
        "initializer_range": 0.02,
        "bos_token_id": None,
        "eos_token_id": END_ID,
        "pad_token_id": PAD_ID,
    }


def drafter_config(c: BlockConfig) -> dict[str, object]:
    inner: dict[str, object] = {"target_layer_ids": list(c.taps), "mask_token_id": c.mask_id, "block_size": c.block}
    if c.dynamic:
        inner |= {
            "conv_kernel_size": c.conv_taps,
            "conv_group_size": c.conv_group,
            "selector_rank": c.rank,
            "selector_top_k": c.top_k,
        }
    return {
        "architectures": ["DFlash2DraftModel" if c.dynamic else "DFlashDraftModel"],
        "model_type": "qwen3",
        **_shared_config(c),
        "rope_parameters": {"rope_type": "default", "rope_theta": c.theta},
        "layer_types": ["sliding_attention"] * c.layers,
        "sliding_window": c.window,
        "is_causal": False,
        "num_target_layers": c.target_layers,
        "tie_word_embeddings": False,
        "dflash_config": inner,
    }


def export_target(
    target: nn.Module, head: nn.Module, c: TargetConfig, folder: Path, acceptance: dict[str, float]
) -> None:
    """`acceptance` is accepted / proposed by K, as measured; a served drafter is compared with it."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {**bf16_state(target), **bf16_state(head, "mtp.")}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", {**target_config(c), **_stated("paceline_mtp", acceptance)})
    generation = {"eos_token_id": [END_ID, PAD_ID], "pad_token_id": PAD_ID, "do_sample": True}
    write_json(folder / "generation_config.json", {**generation, "temperature": 0.6, "top_p": 0.95, "top_k": 20})


def export_drafter(drafter: nn.Module, c: BlockConfig, folder: Path, acceptance: dict[str, float]) -> None:
    save_module(drafter, folder / "model.safetensors")
    write_json(folder / "config.json", {**drafter_config(c), **_stated("paceline", acceptance)})


def _stated(key: str, acceptance: dict[str, float]) -> dict[str, object]:
    return {key: {"expected_acceptance": acceptance}} if acceptance else {}


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())

"""Random drafter checkpoints in the published layouts. Norms and kernels are random too: ones would hide a swapped norm."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.kit import models

Shapes = dict[str, tuple[int, ...]]


def mtp_shapes(config: Any) -> Shapes:
    """The head of a gated hybrid target, from its transformers config."""
    d, f, width = config.hidden_size, config.intermediate_size, config.head_dim
    q, kv = config.num_attention_heads * width, config.num_key_value_heads * width
    at = "mtp.layers.0."
    return {
        "mtp.fc.weight": (d, 2 * d), "mtp.pre_fc_norm_embedding.weight": (d,), "mtp.pre_fc_norm_hidden.weight": (d,),
        "mtp.norm.weight": (d,), f"{at}input_layernorm.weight": (d,), f"{at}post_attention_layernorm.weight": (d,),
        f"{at}self_attn.q_proj.weight": (2 * q, d), f"{at}self_attn.k_proj.weight": (kv, d),
        f"{at}self_attn.v_proj.weight": (kv, d), f"{at}self_attn.o_proj.weight": (d, q),
        f"{at}self_attn.q_norm.weight": (width,), f"{at}self_attn.k_norm.weight": (width,),
        f"{at}mlp.gate_proj.weight": (f, d), f"{at}mlp.up_proj.weight": (f, d), f"{at}mlp.down_proj.weight": (d, f),
    }  # fmt: skip


def block_shapes(config: Mapping[str, Any]) -> Shapes:
    d, f, width = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * width, config["num_key_value_heads"] * width
    inner = config["dflash_config"]
    shapes: Shapes = {
        "fc.weight": (d, len(inner["target_layer_ids"]) * d), "hidden_norm.weight": (d,), "norm.weight": (d,)
    }  # fmt: skip
    two = config["architectures"] == ["DFlash2DraftModel"]
    for i in range(config["num_hidden_layers"]):
        at = f"layers.{i}."
        shapes |= {
            f"{at}input_layernorm.weight": (d,), f"{at}post_attention_layernorm.weight": (d,),
            f"{at}self_attn.q_proj.weight": (q, d), f"{at}self_attn.k_proj.weight": (kv, d),
            f"{at}self_attn.v_proj.weight": (kv, d), f"{at}self_attn.o_proj.weight": (d, q),
            f"{at}self_attn.q_norm.weight": (width,), f"{at}self_attn.k_norm.weight": (width,),
            f"{at}mlp.gate_proj.weight": (f, d), f"{at}mlp.up_proj.weight": (f, d), f"{at}mlp.down_proj.weight": (d, f),
        }  # fmt: skip
        if two:
            taps, groups = inner["conv_kernel_size"], d // inner["conv_group_size"]
            for name in ("attention_conv", "mlp_conv"):
                shapes[f"{at}{name}.base_kernel"] = (2, taps, d)
                shapes[f"{at}{name}.kernel_projection.weight"] = (2 * taps * groups, d)
    if two:
        rank = inner["selector_rank"]
        for name in ("predecessor_codebook", "successor_codebook"):
            shapes[f"candidate_selector.{name}"] = (config["vocab_size"], rank)
        shapes["candidate_selector.hidden_projection.weight"] = (rank, d)
    return shapes


def block_config(two: bool = False, target_layers: int = 4, **changes: Any) -> dict[str, Any]:
    """Hidden 64 and vocabulary 320, as the kit's targets. Keys of `dflash_config` are given as `inner={…}`."""
    inner = {"mask_token_id": 319, "target_layer_ids": [2, 0], "block_size": 8}
    if two:
        inner |= {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 24, "selector_top_k": 16}
    config: dict[str, Any] = {
        "architectures": ["DFlash2DraftModel" if two else "DFlashDraftModel"], "model_type": "qwen3", "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "rms_norm_eps": 1e-6, "attention_bias": False, "vocab_size": 320,
        "max_position_embeddings": 4096, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 24, "is_causal": False,
        "num_target_layers": target_layers,
    }  # fmt: skip
    inner |= changes.pop("inner", {})
    return {**config, **changes, "dflash_config": inner}


def random_tensors(shapes: Shapes, seed: int = 0, offset: bool = False) -> dict[str, torch.Tensor]:
    """`offset`: norm weights lie around 0, for norms that multiply by (1 + w)."""
    generator = torch.Generator().manual_seed(seed)
    out = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        if len(shape) == 1:
            out[name] = 0.3 * noise + (0.0 if offset else 1.0)
        else:
            out[name] = noise * (0.5 if "base_kernel" in name else 2.0 * shape[-1] ** -0.5)
        if "kernel_projection" in name:
            out[name] *= 0.2
    return out


def write_block_folder(folder: Path, config: Mapping[str, Any], seed: int = 0) -> dict[str, torch.Tensor]:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = random_tensors(block_shapes(config), seed)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return tensors


def add_mtp(folder: Path, config: Any, seed: int = 0) -> dict[str, torch.Tensor]:
    """Adds a head to a saved target, inside its own file."""
    tensors = random_tensors(mtp_shapes(config), seed, offset=True)
    file = folder / "model.safetensors"
    save_file({**load_file(file), **tensors}, file, metadata={"format": "pt"})
    return tensors


def write_targets_and_drafters(root: Path, hybrid: Any) -> dict[str, Path]:
    """Folders by name: a hybrid target of this transformers config, which holds the `mtp` head, a `llama`, and block drafters
    that fit both."""
    models.save(models.build(hybrid), root / "hybrid")
    add_mtp(root / "hybrid", hybrid)
    models.save(models.build(models.dense_config("llama", layers=4)), root / "llama")
    for name in ("dflash", "dflash2"):
        write_block_folder(root / name, block_config(name == "dflash2"))
    return {name: root / name for name in ("hybrid", "llama", "dflash", "dflash2")} | {"mtp": root / "hybrid"}

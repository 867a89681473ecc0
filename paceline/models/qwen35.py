"""The Qwen3.5 hybrid, text part: gated full attention every fourth layer, Gated DeltaNet in the others."""

import torch

from paceline.core.errors import CheckpointError
from paceline.core.spec import GdnSpec, LayerKind, ModelSpec
from paceline.models.base import (
    Config,
    Family,
    Part,
    PartKind,
    attention_parts,
    check_arithmetic,
    eos_ids,
    get_flag,
    get_float,
    get_int,
    plain,
    rope_spec,
    shared_parts,
)

_KINDS = {"full_attention": LayerKind.FULL, "linear_attention": LayerKind.GDN}


def layer_kinds(config: Config) -> tuple[LayerKind, ...]:
    """`layer_types` where given, else full attention at every `full_attention_interval`-th layer."""
    count, types = get_int(config, "num_hidden_layers"), config.get("layer_types")
    if types is None:
        interval = get_int(config, "full_attention_interval", 4)
        return tuple(LayerKind.GDN if (i + 1) % interval else LayerKind.FULL for i in range(count))
    if not isinstance(types, list) or len(types) != count or any(t not in _KINDS for t in types):
        raise CheckpointError(f"config.json: layer_types: {count} entries of {', '.join(_KINDS)} are needed")
    return tuple(_KINDS[t] for t in types)


def spec(config: Config, name: str) -> ModelSpec:
    check_arithmetic(config)
    head_dim = get_int(config, "head_dim", 256)
    gdn = GdnSpec(
        key_heads=get_int(config, "linear_num_key_heads", 16),
        value_heads=get_int(config, "linear_num_value_heads", 32),
        key_dim=get_int(config, "linear_key_head_dim", 128),
        value_dim=get_int(config, "linear_value_head_dim", 128),
        conv_width=get_int(config, "linear_conv_kernel_dim", 4),
    )
    if gdn.value_heads % gdn.key_heads:
        raise CheckpointError("config.json: linear_num_value_heads must be a multiple of linear_num_key_heads")
    return ModelSpec(
        arch="qwen35",
        name=name,
        vocab=get_int(config, "vocab_size"),
        hidden=get_int(config, "hidden_size"),
        layers=layer_kinds(config),
        heads=get_int(config, "num_attention_heads"),
        kv_heads=get_int(config, "num_key_value_heads"),
        head_dim=head_dim,
        ffn=get_int(config, "intermediate_size"),
        max_context=get_int(config, "max_position_embeddings", 32768),
        rms_eps=get_float(config, "rms_norm_eps", 1e-6),
        rope=rope_spec(config, head_dim, partial=0.25),
        tied=get_flag(config, "tie_word_embeddings"),
        norm_offset=1,
        qk_norm=True,
        attention_gate=get_flag(config, "attn_output_gate", True),
        gdn=gdn,
        eos_ids=eos_ids(config),
    )


def gdn_parts(spec: ModelSpec, layer: int) -> list[Part]:
    assert spec.gdn is not None
    at, to, gdn, d = f"model.layers.{layer}.linear_attn", f"layers.{layer}", spec.gdn, spec.hidden
    channels, values = gdn.conv_channels, gdn.value_heads * gdn.value_dim
    gates = tuple((f"{at}.in_proj_{name}.weight", (gdn.value_heads, d)) for name in ("b", "a"))
    return [
        Part(
            f"{to}.qkv_z",
            PartKind.LINEAR,
            ((f"{at}.in_proj_qkv.weight", (channels, d)), (f"{at}.in_proj_z.weight", (values, d))),
        ),
        Part(f"{to}.beta_decay", PartKind.PRECISE, gates, pad_lanes),
        Part(
            f"{to}.conv",
            PartKind.PLAIN,
            ((f"{at}.conv1d.weight", (channels, 1, gdn.conv_width)),),
            lambda w: w.squeeze(1).t().contiguous(),
        ),
        Part(f"{to}.A_log", PartKind.PLAIN, ((f"{at}.A_log", (gdn.value_heads,)),)),
        Part(f"{to}.dt_bias", PartKind.PLAIN, ((f"{at}.dt_bias", (gdn.value_heads,)),), pad_lanes),
        plain(f"{to}.gdn_norm", f"{at}.norm.weight", (gdn.value_dim,)),
        Part(f"{to}.out", PartKind.LINEAR, ((f"{at}.out_proj.weight", (d, values)),)),
    ]


def pad_lanes(weight: torch.Tensor, lanes: int = 32) -> torch.Tensor:
    """Rows padded with zeros to whole vectors of lanes (see layers/gdn.py)."""
    pad = -weight.shape[0] % lanes
    return torch.cat([weight, weight.new_zeros(pad, *weight.shape[1:])]) if pad else weight


def parts(spec: ModelSpec) -> list[Part]:
    def mixer(layer: int, kind: LayerKind) -> list[Part]:
        return attention_parts(spec, layer) if kind is LayerKind.FULL else gdn_parts(spec, layer)

    return shared_parts(spec, mixer)


FAMILY = Family(spec, parts)

"""Llama-family dense decoders (SmolLM2 among them): full attention in every layer, no q/k norm."""

from paceline.core.errors import CheckpointError
from paceline.core.spec import LayerKind, ModelSpec
from paceline.models.base import (
    Config,
    Family,
    Part,
    attention_parts,
    check_arithmetic,
    eos_ids,
    get_flag,
    get_float,
    get_int,
    rope_spec,
    shared_parts,
)


def spec(config: Config, name: str) -> ModelSpec:
    check_arithmetic(config)
    heads, hidden = get_int(config, "num_attention_heads"), get_int(config, "hidden_size")
    head_dim = get_int(config, "head_dim", hidden // heads)
    if get_flag(config, "mlp_bias"):
        raise CheckpointError("config.json: mlp_bias = true: MLPs with biases are not supported")
    bias = get_flag(config, "attention_bias")
    if bias:
        raise CheckpointError("config.json: attention_bias = true: an output projection with a bias is not supported")
    return ModelSpec(
        arch="llama",
        name=name,
        vocab=get_int(config, "vocab_size"),
        hidden=hidden,
        layers=(LayerKind.FULL,) * get_int(config, "num_hidden_layers"),
        heads=heads,
        kv_heads=get_int(config, "num_key_value_heads", heads),
        head_dim=head_dim,
        ffn=get_int(config, "intermediate_size"),
        max_context=get_int(config, "max_position_embeddings", 2048),
        rms_eps=get_float(config, "rms_norm_eps", 1e-6),
        rope=rope_spec(config, head_dim),
        tied=get_flag(config, "tie_word_embeddings"),
        eos_ids=eos_ids(config),
    )


def parts(spec: ModelSpec) -> list[Part]:
    return shared_parts(spec, lambda layer, kind: attention_parts(spec, layer))


FAMILY = Family(spec, parts)

"""The config.json of a block drafter in the published layout, checked against the target, and the tensors it implies.

Everything is read, nothing assumed: a wrong tap, window or causality fails silently as low acceptance, so values that
cannot be meant are refused. Lengths in tokens, widths in elements.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from paceline.core.errors import CheckpointError
from paceline.core.spec import ContextSpec, DrafterSpec, ModelSpec, RopeSpec
from paceline.drafters.base import ConfigSource

Config = dict[str, Any]
_KINDS = ("full_attention", "sliding_attention")
_DEFAULT_BLOCK = 16


@dataclass(frozen=True, slots=True)
class BlockLayerSpec:
    """`window` W: a query sees keys less than W positions away; None sees all. `causal`: no key after the query."""

    window: int | None
    causal: bool


@dataclass(frozen=True, slots=True)
class BlockSpec:
    """A block drafter's shapes and rules. `block` is γ, the trained block size: one anchor and γ − 1 masks."""

    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_eps: float
    rope: RopeSpec
    vocab: int
    layers: tuple[BlockLayerSpec, ...]
    block: int
    mask_id: int
    taps: tuple[int, ...]
    embedding_scale: float
    output_multiplier: float
    softcap: float


class ConfigReader:
    """Keys of one config.json, top level or `dflash_config`; refusals name the file, the key and the value."""

    def __init__(self, source: ConfigSource) -> None:
        self.path, self.top = source.path, source.config()
        inner = self.top.get("dflash_config") or {}
        if not isinstance(inner, dict):
            raise self.refusal("dflash_config", inner, "an object is needed")
        self.inner: Config = inner

    def refusal(self, key: str, value: object, fix: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: config.json: {key} = {value}: {fix}")

    def whole(self, key: str, config: Config, default: int | None = None) -> int:
        value = config.get(key)
        value = default if value is None else value
        if type(value) is not int or value <= 0:
            raise self.refusal(key, value, "a positive whole number is needed")
        return value

    def number(self, key: str, config: Config, default: float) -> float:
        value = config.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refusal(key, value, "a number is needed")
        return float(value)

    def flag(self, key: str, config: Config) -> bool | None:
        value = config.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.refusal(key, value, "true or false is needed")
        return value


def read_block_spec(source: ConfigSource, architecture: str, target: ModelSpec) -> BlockSpec:
    """The spec of a drafter of this architecture, made for this target."""
    read = ConfigReader(source)
    top, inner = read.top, read.inner
    if top.get("architectures") != [architecture]:
        found = top.get("architectures")
        raise read.refusal("architectures", found, f"this drafter loads {architecture}; choose the --drafter that fits")
    for key, config in (("attention_bias", top), ("attention_sink_bias", inner), ("sample_from_anchor", inner)):
        if read.flag(key, config):
            raise read.refusal(key, True, "not supported")
    for key, mine in (("hidden_size", target.hidden), ("num_target_layers", len(target.layers))):
        if key in top and top[key] != mine:
            raise read.refusal(key, top[key], f"the target has {mine}; this drafter is for another model")
    heads, kv_heads = read.whole("num_attention_heads", top), read.whole("num_key_value_heads", top)
    if heads % kv_heads:
        raise read.refusal("num_key_value_heads", kv_heads, f"must divide num_attention_heads = {heads}")
    hidden = read.whole("hidden_size", top)
    head_dim = read.whole("head_dim", top, hidden // heads)
    mask_id = inner.get("mask_token_id")
    if type(mask_id) is not int or not 0 <= mask_id < target.vocab:
        raise read.refusal("mask_token_id", mask_id, f"must be a row of the target's embedding, below {target.vocab}")
    return BlockSpec(
        hidden=hidden,
        ffn=read.whole("intermediate_size", top),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rms_eps=read.number("rms_norm_eps", top, 1e-6),
        rope=_rope(read, head_dim),
        vocab=read.whole("vocab_size", top),
        layers=_layers(read),
        block=_block(read),
        mask_id=mask_id,
        taps=_taps(read, len(target.layers)),
        embedding_scale=read.number("input_embedding_scale", inner, 1.0),
        output_multiplier=read.number("output_multiplier", inner, 1.0),
        softcap=read.number("final_logit_softcapping", inner, 0.0),
    )


def _rope(read: ConfigReader, head_dim: int) -> RopeSpec:
    parameters = read.top.get("rope_parameters") or read.top.get("rope_scaling") or {}
    if not isinstance(parameters, dict):
        raise read.refusal("rope_parameters", parameters, "an object is needed")
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind != "default":
        raise read.refusal("rope_type", kind, "only default is supported")
    theta = read.number("rope_theta", read.top, 10000.0)
    return RopeSpec(theta=read.number("rope_theta", parameters, theta), rotary_dim=head_dim)


def _layers(read: ConfigReader) -> tuple[BlockLayerSpec, ...]:
    count = read.whole("num_hidden_layers", read.top)
    swa = bool(read.flag("use_swa", read.inner))
    kinds = read.top.get("layer_types")
    if kinds is None:
        kinds = [_KINDS[swa]] * count
    if not isinstance(kinds, list) or len(kinds) != count or any(kind not in _KINDS for kind in kinds):
        raise read.refusal("layer_types", kinds, f"{count} entries of {', '.join(_KINDS)} are needed")
    return tuple(_layer(read, kind == "sliding_attention") for kind in kinds)


def _layer(read: ConfigReader, sliding: bool) -> BlockLayerSpec:
    window = None
    if sliding:
        key, config = (
            ("swa_window_size", read.inner) if "swa_window_size" in read.inner else ("sliding_window", read.top)
        )
        window = read.whole(key, config)
    for key, config in (("is_causal", read.top), ("causal", read.inner)):
        stated = read.flag(key, config)
        if stated is not None:
            return BlockLayerSpec(window, stated)
    # Files without either key come from trainers whose sliding layers were causal and whose full ones were not.
    return BlockLayerSpec(window, causal=sliding)


def _block(read: ConfigReader) -> int:
    stated = [read.whole("block_size", config) for config in (read.top, read.inner) if "block_size" in config]
    if len(set(stated)) > 1:
        raise read.refusal(
            "block_size", stated[0], f"dflash_config.block_size = {stated[1]} says otherwise; correct one"
        )
    return stated[0] if stated else _DEFAULT_BLOCK


def _taps(read: ConfigReader, target_layers: int) -> tuple[int, ...]:
    stated = read.inner.get("target_layer_ids")
    if stated is None:
        return default_taps(target_layers, read.whole("num_hidden_layers", read.top))
    if not isinstance(stated, list) or not stated or any(type(i) is not int for i in stated):
        raise read.refusal("target_layer_ids", stated, "a list of block numbers is needed")
    if not all(0 <= i < target_layers for i in stated):
        raise read.refusal("target_layer_ids", stated, f"the target's blocks are 0 to {target_layers - 1}")
    return tuple(stated)


def default_taps(target_layers: int, layers: int) -> tuple[int, ...]:
    """One tap per draft layer, spread from block 1 to the fourth from the end; round() is banker's, as in training."""
    if layers == 1:
        return (target_layers // 2,)
    return tuple(round(1 + i * (target_layers - 4) / (layers - 1)) for i in range(layers))


def block_tensors(spec: BlockSpec) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the backbone; the embedding and the head are the target's."""
    d, q, kv = spec.hidden, spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    names: dict[str, tuple[int, ...]] = {
        "fc.weight": (d, len(spec.taps) * d),
        "hidden_norm.weight": (d,),
        "norm.weight": (d,),
    }
    layer = {
        "input_layernorm": (d,),
        "post_attention_layernorm": (d,),
        "self_attn.q_proj": (q, d),
        "self_attn.k_proj": (kv, d),
        "self_attn.v_proj": (kv, d),
        "self_attn.o_proj": (d, q),
        "self_attn.q_norm": (spec.head_dim,),
        "self_attn.k_norm": (spec.head_dim,),
        "mlp.gate_proj": (spec.ffn, d),
        "mlp.up_proj": (spec.ffn, d),
        "mlp.down_proj": (d, spec.ffn),
    }
    for i in range(len(spec.layers)):
        names |= {f"layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    return names


def describe_block(spec: BlockSpec, tensors: Mapping[str, tuple[int, ...]], item_bytes: int) -> DrafterSpec:
    """What a block drafter with these tensors holds: a key and a value per KV head for each context position of a layer."""
    token = 2 * spec.kv_heads * spec.head_dim * item_bytes
    return DrafterSpec(
        taps=spec.taps,
        weights_bytes=sum(prod(shape) for shape in tensors.values()) * item_bytes,
        slot_state=any(layer.window is not None for layer in spec.layers),
        contexts=tuple(ContextSpec(token, layer.window) for layer in spec.layers),
        rotary_dim=spec.rope.rotary_dim,
        trained_block=spec.block,
    )

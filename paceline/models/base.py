"""What a model family provides: its spec from a config, and its weights as parts to convert and load.

A part is one matrix or vector as the layers want it, made of one or more checkpoint tensors stacked along the rows. Parts
of kind LINEAR are stored in the run's weight format, HEAD and PRECISE ones (tiny gate projections) in the formats which
that one names for them; EMBED is the lookup table in the activations' dtype; PLAIN vectors stay fp32.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import torch

from paceline.core.errors import CheckpointError
from paceline.core.spec import LayerKind, ModelSpec, RopeSpec

Config = dict[str, object]


class PartKind(Enum):
    LINEAR = "linear"
    HEAD = "head"
    PRECISE = "precise"
    EMBED = "embed"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Part:
    """`sources` are (tensor name, shape); they are stacked along dim 0 after `shape_each` made each of them ready."""

    name: str
    kind: PartKind
    sources: tuple[tuple[str, tuple[int, ...]], ...]
    shape_each: Callable[[torch.Tensor], torch.Tensor] | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """`spec(config, name)` reads a config.json's content; `parts(spec)` lists all weights of the text model."""

    spec: Callable[[Config, str], ModelSpec]
    parts: Callable[[ModelSpec], list[Part]]


def get_int(config: Config, key: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise CheckpointError(f"config.json: {key} = {value!r}: a positive whole number is needed")
    return value


def get_float(config: Config, key: str, default: float) -> float:
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, int | float):
        raise CheckpointError(f"config.json: {key} = {value!r}: a number is needed")
    return float(value)


def get_flag(config: Config, key: str, default: bool = False) -> bool:
    value = config.get(key)
    return default if value is None else bool(value)


def check_arithmetic(config: Config) -> None:
    """Refuses what would change the arithmetic silently: another activation, or a window over the attention."""
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise CheckpointError(f"config.json: hidden_act = {activation!r}: only silu is supported")
    types = config.get("layer_types")
    windowed = isinstance(types, list) and any("sliding" in str(kind) for kind in types)
    if windowed or config.get("use_sliding_window") is True:
        raise CheckpointError("config.json: sliding-window attention is not supported")


def eos_ids(config: Config) -> tuple[int, ...]:
    value = config.get("eos_token_id")
    if isinstance(value, int):
        return (value,)
    return tuple(int(v) for v in value) if isinstance(value, list) else ()


def rope_spec(config: Config, head_dim: int, partial: float = 1.0, theta: float = 10000.0) -> RopeSpec:
    """`rope_parameters` (transformers 5) or `rope_theta` + `rope_scaling` (4.x); unknown scalings are refused."""
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    parameters = found if isinstance(found, dict) else {}
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise CheckpointError(f"config.json: rope_type = {kind}: this scaling is not supported; use default or llama3")
    base = parameters.get("rope_theta", config.get("rope_theta", theta))
    share = parameters.get("partial_rotary_factor", config.get("partial_rotary_factor", partial))
    scaling = None
    if kind == "llama3":
        names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        scaling = {name: float(parameters[name]) for name in names}
    return RopeSpec(theta=float(base), rotary_dim=int(head_dim * float(share)), scaling=scaling)


def shared_parts(spec: ModelSpec, mixer: Callable[[int, LayerKind], list[Part]]) -> list[Part]:
    """Embedding, norms, MLPs and head are the same in all families; `mixer` lists what a layer's mixer needs."""
    d = spec.hidden
    parts = [Part("embed", PartKind.EMBED, (("model.embed_tokens.weight", (spec.vocab, d)),))]
    for i, kind in enumerate(spec.layers):
        at, to = f"model.layers.{i}", f"layers.{i}"
        parts.append(plain(f"{to}.input_norm", f"{at}.input_layernorm.weight", (d,)))
        parts.append(plain(f"{to}.post_norm", f"{at}.post_attention_layernorm.weight", (d,)))
        gate_up = tuple((f"{at}.mlp.{name}_proj.weight", (spec.ffn, d)) for name in ("gate", "up"))
        parts.append(Part(f"{to}.gate_up", PartKind.LINEAR, gate_up))
        parts.append(Part(f"{to}.down", PartKind.LINEAR, ((f"{at}.mlp.down_proj.weight", (d, spec.ffn)),)))
        parts.extend(mixer(i, kind))
    parts.append(plain("norm", "model.norm.weight", (d,)))
    head = "model.embed_tokens.weight" if spec.tied else "lm_head.weight"
    parts.append(Part("head", PartKind.HEAD, ((head, (spec.vocab, d)),)))
    return parts


def plain(name: str, source: str, shape: tuple[int, ...]) -> Part:
    return Part(name, PartKind.PLAIN, ((source, shape),))


def attention_parts(spec: ModelSpec, layer: int) -> list[Part]:
    """qkv in one product, the output projection, and the norms and biases that the spec has."""
    at, to = f"model.layers.{layer}.self_attn", f"layers.{layer}"
    q = spec.heads * spec.head_dim * (2 if spec.attention_gate else 1)
    kv = spec.kv_heads * spec.head_dim
    rows = (("q", q), ("k", kv), ("v", kv))
    parts = [
        Part(f"{to}.qkv", PartKind.LINEAR, tuple((f"{at}.{n}_proj.weight", (size, spec.hidden)) for n, size in rows)),
        Part(f"{to}.out", PartKind.LINEAR, ((f"{at}.o_proj.weight", (spec.hidden, spec.heads * spec.head_dim)),)),
    ]
    if spec.attention_bias:
        parts.append(
            Part(f"{to}.qkv_bias", PartKind.PLAIN, tuple((f"{at}.{n}_proj.bias", (size,)) for n, size in rows))
        )
    if spec.qk_norm:
        parts.append(plain(f"{to}.q_norm", f"{at}.q_norm.weight", (spec.head_dim,)))
        parts.append(plain(f"{to}.k_norm", f"{at}.k_norm.weight", (spec.head_dim,)))
    return parts

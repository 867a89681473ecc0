"""The shape of a model and of a drafter, as data: what the engine, the loader and the planner need to know."""

from dataclasses import dataclass, field
from enum import StrEnum


class LayerKind(StrEnum):
    FULL = "full"
    GDN = "gdn"


@dataclass(frozen=True, slots=True)
class GdnSpec:
    """Gated DeltaNet heads of one layer: Hk key heads of Dk, Hv value heads of Dv, causal conv of `conv_width` columns."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int

    @property
    def conv_channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding over the first `rotary_dim` of each head. `scaling` holds the llama3 keys when present."""

    theta: float
    rotary_dim: int
    scaling: dict[str, float] | None = None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Everything that decides shapes and arithmetic of a target. Widths are in elements, contexts in tokens.

    `norm_offset` is 1 where the norm multiplies by (1 + w). `attention_gate` doubles the width of the query projection
    and multiplies the attention output by sigmoid(gate). `eos_ids` end a reply.
    """

    arch: str
    name: str
    vocab: int
    hidden: int
    layers: tuple[LayerKind, ...]
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    max_context: int
    rms_eps: float
    rope: RopeSpec
    tied: bool
    norm_offset: int = 0
    qk_norm: bool = False
    attention_gate: bool = False
    attention_bias: bool = False
    gdn: GdnSpec | None = None
    eos_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DrafterSpec:
    """What a drafter reads of a round, and what it holds. `slot_state`: it holds something of a slot that is neither tokens
    nor paged, so that a prefix can only be resumed from a checkpoint.

    `taps`: target blocks (0-based) whose residual output it is given, concatenated in this order. `hidden`: whether it is
    given the target's hidden state after the final norm. `state_bytes` counts all slots together. `expected_acceptance`
    maps a draft length K to accepted / proposed as the drafter's card states it; empty where it states nothing.
    `trained_block` is γ, the tokens of the blocks that it was trained on, anchor included; None where it has no blocks.
    """

    taps: tuple[int, ...] = ()
    hidden: bool = False
    slot_state: bool = False
    weights_bytes: int = 0
    state_bytes: int = 0
    trained_block: int | None = None
    expected_acceptance: dict[int, float] = field(default_factory=dict)

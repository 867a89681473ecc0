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
class VisionSpec:
    """A vision tower: `depth` blocks of width `hidden` over patches; `merge`² patches become one token of width `out`.

    `patch_values` are the values of one patch (channels · frames · pixels), `positions` the learned position rows.
    """

    depth: int
    hidden: int
    ffn: int
    out: int
    patch_values: int
    merge: int
    positions: int


@dataclass(frozen=True, slots=True)
class ContextSpec:
    """What a drafter's layer keeps of each position: `token_bytes`. `window` None: of every position, in the sequence's pages;
    else of the last `window` ones, in a ring of cells for each slot."""

    token_bytes: int
    window: int | None = None

    def cells(self, max_context: int) -> int | None:
        """The ring's; None in pages."""
        return None if self.window is None else min(self.window, max_context)


@dataclass(frozen=True, slots=True)
class DrafterSpec:
    """What a drafter reads of a round, and what it holds. `slot_state`: it holds something of a slot that is neither tokens
    nor paged, so that a prefix can only be resumed from a checkpoint.

    `taps`: target blocks (0-based) whose residual output it is given, concatenated in this order. `hidden`: whether it is
    given the target's hidden state after the final norm. `contexts`: what it keeps of each position, one entry per layer.
    `hidden_bytes`: a hidden state that it keeps of each slot. `rotary_dim`: width of its table of positions, 0 for none.
    `state_bytes` counts what it allocated for all pages and slots together, `checkpoint_bytes` for all copies of slots; 0 in a
    spec that was read from a config alone. `expected_acceptance` maps a draft length K to accepted / proposed as the drafter's
    card states it; empty where it states nothing. `trained_block` is γ, the tokens of the blocks that it was trained on, anchor
    included; None where it has no blocks.
    """

    taps: tuple[int, ...] = ()
    hidden: bool = False
    slot_state: bool = False
    weights_bytes: int = 0
    contexts: tuple[ContextSpec, ...] = ()
    hidden_bytes: int = 0
    rotary_dim: int = 0
    state_bytes: int = 0
    checkpoint_bytes: int = 0
    trained_block: int | None = None
    expected_acceptance: dict[int, float] = field(default_factory=dict)

    @property
    def token_bytes(self) -> int:
        """What it keeps of a token in pages."""
        return sum(context.token_bytes for context in self.contexts if context.window is None)

    def slot_bytes(self, max_context: int) -> int:
        """What it keeps of a slot besides pages. A checkpoint takes the same."""
        rings = sum(context.token_bytes * (context.cells(max_context) or 0) for context in self.contexts)
        return rings + self.hidden_bytes


@dataclass(frozen=True, slots=True)
class MemItem:
    """A named reservation of the memory plan; `detail` says where the bytes come from, for people."""

    name: str
    bytes: int
    detail: str = ""

"""The tensors that live as long as the engine, as shapes and dtypes: the runner allocates them, the planner adds them up.

One list for both is what makes planned bytes equal allocated bytes. Per slot and Gated DeltaNet layer (lazy commit): one
state, the conv columns before it, and the inputs of the window's K drafts, which the next round replays as far as they were
accepted. The anchor is a fact when its round runs, so it needs no place. With the 27B shape that is 150,994,944 bytes of
states, 2,949,120 of conv columns and 1,001,472 for each draft.
"""

from dataclasses import dataclass
from math import prod

from paceline.core.config import PAGE_TOKENS
from paceline.core.formats import KvFormat
from paceline.core.spec import GdnSpec, LayerKind, ModelSpec

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """`dtype` is torch's name for it."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]


def state_tensors(gdn: GdnSpec, slots: int, activation: str) -> dict[str, TensorSpec]:
    """A Gated DeltaNet layer's committed state: the recurrent matrices and the raw columns before the next position."""
    return {
        "state": TensorSpec((slots, gdn.value_heads, gdn.key_dim, gdn.value_dim), "float32"),
        "conv": TensorSpec((slots, gdn.conv_width - 1, gdn.conv_channels), activation),
    }


def window_tensors(gdn: GdnSpec, slots: int, draft_tokens: int, activation: str) -> dict[str, TensorSpec]:
    """What a Gated DeltaNet layer keeps of a window's drafts: raw columns, beta and the decay of each."""
    return {
        "draft_columns": TensorSpec((slots, draft_tokens, gdn.conv_channels), activation),
        "draft_beta": TensorSpec((slots, draft_tokens, gdn.value_heads), "float32"),
        "draft_decay": TensorSpec((slots, draft_tokens, gdn.value_heads), "float32"),
    }


def state_bytes(spec: ModelSpec, slots: int, activation: str) -> int:
    """The committed states of all layers."""
    return _over_layers(spec, {} if spec.gdn is None else state_tensors(spec.gdn, slots, activation))


def window_bytes(spec: ModelSpec, slots: int, draft_tokens: int, activation: str) -> int:
    """The window inputs of all layers."""
    tensors = {} if spec.gdn is None else window_tensors(spec.gdn, slots, draft_tokens, activation)
    return _over_layers(spec, tensors)


def _over_layers(spec: ModelSpec, tensors: dict[str, TensorSpec]) -> int:
    return spec.layers.count(LayerKind.GDN) * sum(tensor.nbytes for tensor in tensors.values())


def token_bytes(spec: ModelSpec, kv: KvFormat) -> int:
    """KV of one token, all full-attention layers."""
    return spec.layers.count(LayerKind.FULL) * kv.token_bytes(spec.kv_heads, spec.head_dim)


def kv_bytes(spec: ModelSpec, kv: KvFormat, pages: int) -> int:
    return pages * PAGE_TOKENS * token_bytes(spec, kv)


def context_pages(max_context: int, draft_tokens: int) -> int:
    """Pages of one request of `max_context` tokens and the window past its end."""
    return -(-(max_context + draft_tokens + 1) // PAGE_TOKENS)

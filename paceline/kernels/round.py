"""What one forward sees: the flat token layout of a batch, and the views of the caches it may read and write.

Tokens of all rows lie in one flat axis [T]: small pieces first, large pieces after them. A row's tokens are cut at
absolute positions that are multiples of 64. A piece of at most 16 tokens is small: its positions run one by one, so a
window gives the bits of single steps. A longer piece is a prompt block and runs as one. The cut depends on positions alone,
so chunk sizes change nothing.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch

from paceline.core.config import PAGE_TOKENS

SMALL_TOKENS = 16
BLOCK_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Piece:
    """`count` tokens of row `row` at flat offset `at`, first position `start`; all inside one block of 64 positions.

    `keys` is the key count that its attention reads: the end of the block, so it depends on the position alone.
    `mask` is added to the scores: [count, 1, 1, keys] for a small piece, [1, 1, G·count, keys] for a block (G query heads
    per KV head). `kv` says where the row's keys lie in the flat cache.
    """

    row: int
    at: int
    start: int
    count: int
    small: bool
    keys: int
    mask: torch.Tensor
    kv: "KvRange"


@dataclass(frozen=True, slots=True)
class KvRange:
    """The cache rows of a sequence: a run that starts at `first` where its pages are contiguous, else `pages` [n] int64."""

    first: int
    pages: torch.Tensor | None


def kv_range(pages: list[int], keys: int) -> KvRange:
    """Where the first `keys` (a multiple of 64) rows of a sequence lie, given its pages in order."""
    used = pages[: keys // PAGE_TOKENS]
    if used[-1] - used[0] == len(used) - 1 and all(b - a == 1 for a, b in pairwise(used)):
        return KvRange(used[0] * PAGE_TOKENS, None)
    return KvRange(0, torch.tensor(used))


def page_rows(pages: list[int], start: int, end: int) -> list[int]:
    """The rows of the flat cache that hold positions start … end − 1 of a sequence."""
    return [pages[at // PAGE_TOKENS] * PAGE_TOKENS + at % PAGE_TOKENS for at in range(start, end)]


@dataclass(frozen=True, slots=True)
class RowSpan:
    """A row for the recurrent layers: its pieces in order, how many drafts of the last window to replay, how many are facts."""

    slot: int
    pieces: tuple[Piece, ...]
    replay: int
    known: int
    q_len: int


@dataclass(frozen=True, slots=True)
class Round:
    """One forward. `ids` [T] int64; `cache_rows` [T] int64 says which row of the flat KV cache each token goes to; `cos`, `sin`
    [T, 1, rotary_dim], sin with the sign of the half-split rotation; `small` counts the tokens of small pieces."""

    ids: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    cache_rows: torch.Tensor
    small: int
    pieces: tuple[Piece, ...]
    rows: tuple[RowSpan, ...]


@dataclass(frozen=True, slots=True)
class KvView:
    """One full-attention layer's cache, flat over pages: kv [pages · 64, 2 · Hk, D], keys before values. Never holds NaN
    or infinity."""

    kv: torch.Tensor

    def copy_page(self, source: int, target: int) -> None:
        pages = self.kv.view(-1, PAGE_TOKENS, *self.kv.shape[1:])
        pages[target] = pages[source]


@dataclass(frozen=True, slots=True)
class GdnView:
    """One Gated DeltaNet layer's state by slot, and the inputs of the last window's drafts (for the lazy commit).

    state [S, Hv, Dk, Dv] fp32; conv [S, width − 1, C]: the raw columns before the state's position;
    draft_columns [S, K, C]; draft_beta, draft_decay [S, K, Hv] fp32, decay being exp(g).
    """

    state: torch.Tensor
    conv: torch.Tensor
    draft_columns: torch.Tensor
    draft_beta: torch.Tensor
    draft_decay: torch.Tensor


@dataclass(frozen=True, slots=True)
class Caches:
    """The views of all layers, in layer order; an entry is a KvView or a GdnView as the layer's kind says."""

    layers: tuple[KvView | GdnView, ...]

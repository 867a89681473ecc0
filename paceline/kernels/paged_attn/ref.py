"""Paged attention over torch's scaled-dot-product attention on the CPU.

Each small piece is one call whose batch axis is the position, so every position is computed alone; a block is one call. The
G query heads that share a KV head ride on the query axis, so keys are never repeated. The key count is the end of the
block of 64 with a mask behind the position: the call's shape, and so its summation order, is a function of the position.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from paceline.core.config import PAGE_TOKENS
from paceline.kernels.round import KvRange, KvView, Piece


def gather_keys(kv: KvView, where: KvRange, keys: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first `keys` keys and values of a sequence: [keys, Hk, D] each; a view where its pages are contiguous."""
    if where.pages is None:
        return kv.k[where.first : where.first + keys], kv.v[where.first : where.first + keys]
    pages = where.pages[: keys // PAGE_TOKENS]
    shape = (-1, PAGE_TOKENS * kv.k.shape[1], kv.k.shape[2])
    k = kv.k.view(shape).index_select(0, pages).view(keys, *kv.k.shape[1:])
    v = kv.v.view(shape).index_select(0, pages).view(keys, *kv.v.shape[1:])
    return k, v


def paged_attention(q: torch.Tensor, kv: KvView, pieces: Sequence[Piece], scale: float) -> torch.Tensor:
    heads, width = q.shape[1], q.shape[2]
    kv_heads = kv.k.shape[1]
    group = heads // kv_heads
    out = torch.empty_like(q)
    for piece in pieces:
        k, v = gather_keys(kv, piece.kv, piece.keys)
        keys, values = k.transpose(0, 1)[None], v.transpose(0, 1)[None]  # [1, Hk, keys, D]
        rows = q[piece.at : piece.at + piece.count].view(piece.count, kv_heads, group, width)
        if piece.small:
            shape = (piece.count, kv_heads, piece.keys, width)
            y = F.scaled_dot_product_attention(
                rows, keys.expand(shape), values.expand(shape), attn_mask=piece.mask, scale=scale
            )
        else:
            block = rows.permute(1, 2, 0, 3).reshape(1, kv_heads, group * piece.count, width)
            y = F.scaled_dot_product_attention(block, keys, values, attn_mask=piece.mask, scale=scale)
            y = y.view(kv_heads, group, piece.count, width).permute(2, 0, 1, 3)
        out[piece.at : piece.at + piece.count] = y.reshape(piece.count, heads, width)
    return out

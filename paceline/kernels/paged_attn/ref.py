"""Paged attention over torch's flash attention on the CPU.

Each small piece is one call whose batch axis is the position, so every position is computed alone; a block is one call. The
G query heads that share a KV head ride on the query axis, so keys are never repeated. The key count is the end of the
block of 64 with a mask behind the position: the call's shape, and so its summation order, is a function of the position.
"""

from collections.abc import Sequence

import torch

from paceline.core.config import PAGE_TOKENS
from paceline.kernels.round import KvRange, KvView, Piece

# What scaled_dot_product_attention would choose here; calling it directly saves its checks, 30 times a round.
_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def gather_keys(view: KvView, where: KvRange, keys: int) -> torch.Tensor:
    """The first `keys` rows of a sequence: [keys, 2 · Hk, D]; a view where its pages are contiguous."""
    kv = view.kv
    if where.pages is None:
        return kv[where.first : where.first + keys]
    by_page = kv.view(-1, PAGE_TOKENS * kv.shape[1], kv.shape[2])
    return by_page.index_select(0, where.pages[: keys // PAGE_TOKENS]).view(keys, *kv.shape[1:])


def paged_attention(q: torch.Tensor, view: KvView, pieces: Sequence[Piece], scale: float) -> torch.Tensor:
    tokens, heads, width = q.shape
    kv_heads = view.kv.shape[1] // 2
    group = heads // kv_heads
    grouped = q.view(tokens, kv_heads, group, width)  # [T, Hk, G, D]
    out = torch.empty(tokens, kv_heads, group, width, dtype=q.dtype)
    for piece in pieces:
        cached = gather_keys(view, piece.kv, piece.keys).transpose(0, 1)[None]  # [1, 2 · Hk, keys, D]
        keys, values = cached[:, :kv_heads], cached[:, kv_heads:]
        rows = grouped[piece.at : piece.at + piece.count]
        into = out[piece.at : piece.at + piece.count]
        if piece.small:
            if piece.count > 1:
                keys, values = keys.expand(piece.count, -1, -1, -1), values.expand(piece.count, -1, -1, -1)
            into.copy_(_attention(rows, keys, values, attn_mask=piece.mask, scale=scale)[0])
        else:
            block = rows.permute(1, 2, 0, 3).reshape(1, kv_heads, group * piece.count, width)
            y = _attention(block, keys, values, attn_mask=piece.mask, scale=scale)[0]
            into.copy_(y.view(kv_heads, group, piece.count, width).permute(2, 0, 1, 3))
    return out.view(tokens, heads, width)

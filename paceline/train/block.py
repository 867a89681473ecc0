"""The block drafter as a training module, DFlash and DFlash2: many packed blocks per sequence, one forward.

A block is [anchor, MASK × (γ − 1)] at the anchor's position; row k predicts the token at anchor + k. Every row sees the context
features strictly before the anchor (same document, inside the window) and its own block's rows in both directions.
`dynamic` adds the grouped dynamic convolutions and the candidate selector; initialised so that it then equals DFlash.
Parameter names are the published ones. The losses are in `drafter_loss.py`.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from paceline.train.target import Linear, Mlp, PlainNorm, Target, rope_tables, rotate


@dataclass(frozen=True, slots=True)
class BlockConfig:
    """Shapes of a drafter. `block` is γ; K = γ − 1."""

    hidden: int = 256
    vocab: int = 4096
    target_layers: int = 8
    layers: int = 2
    ffn: int = 640
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    taps: tuple[int, ...] = (1, 3, 5, 7)
    block: int = 8
    window: int = 512
    mask_id: int = 9
    theta: float = 100000.0
    max_context: int = 4096
    eps: float = 1e-6
    dynamic: bool = False
    conv_taps: int = 2
    conv_group: int = 16
    rank: int = 64
    top_k: int = 16


@dataclass(frozen=True, slots=True)
class Blocks:
    """A anchors per row. at, length [B, A]: position of the anchor, rows of the block that exist (2 … γ)."""

    at: torch.Tensor
    length: torch.Tensor


class DynamicConv(nn.Module):
    """Causal within a block; two sides (before and after a sublayer) share one projection of the sublayer's input."""

    def __init__(self, c: BlockConfig) -> None:
        super().__init__()
        self.c = c
        base = torch.zeros(2, c.conv_taps, c.hidden)
        base[:, 0] = 1
        self.base_kernel = nn.Parameter(base)
        self.kernel_projection = Linear(c.hidden, 2 * c.conv_taps * (c.hidden // c.conv_group))
        nn.init.zeros_(self.kernel_projection.weight)

    def delta(self, x: torch.Tensor) -> torch.Tensor:
        """x [.., γ, d] → [.., γ, 2, taps, d/G]"""
        kernels: torch.Tensor = self.kernel_projection(x)
        return kernels.reshape(*kernels.shape[:-1], 2, self.c.conv_taps, -1)

    def forward(self, x: torch.Tensor, delta: torch.Tensor, side: int) -> torch.Tensor:
        weights = self.base_kernel[side].to(x.dtype).reshape(self.c.conv_taps, -1, self.c.conv_group)  # [taps, d/G, G]
        grouped = x.reshape(*x.shape[:-1], -1, self.c.conv_group)  # [.., γ, d/G, G]
        out = torch.zeros_like(grouped)
        for tap in range(self.c.conv_taps):
            past = F.pad(grouped, (0, 0, 0, 0, tap, 0))[..., : grouped.shape[-3], :, :]
            out = out + (weights[tap] + delta[..., side, tap, :, None]) * past
        return out.flatten(-2)


class BlockAttention(nn.Module):
    def __init__(self, c: BlockConfig) -> None:
        super().__init__()
        self.c = c
        self.q_proj = Linear(c.hidden, c.heads * c.head_dim)
        self.k_proj, self.v_proj = (Linear(c.hidden, c.kv_heads * c.head_dim) for _ in range(2))
        self.o_proj = Linear(c.heads * c.head_dim, c.hidden, 0.5)
        self.q_norm, self.k_norm = PlainNorm(c.head_dim, c.eps), PlainNorm(c.head_dim, c.eps)

    def _keys(self, x: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """x [B, N, d] → k, v [B, H, N, D]"""
        c = self.c
        k = rotate(self.k_norm(self.k_proj(x).unflatten(-1, (c.kv_heads, c.head_dim))).transpose(1, 2), *tables)
        v = self.v_proj(x).unflatten(-1, (c.kv_heads, c.head_dim)).transpose(1, 2)
        groups = c.heads // c.kv_heads
        return k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)

    def forward(
        self,
        x: torch.Tensor,
        context: torch.Tensor,
        tables: tuple[torch.Tensor, torch.Tensor],
        context_tables: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor,
    ) -> torch.Tensor:
        """x [B, A·γ, d] block rows, context [B, T, d]; mask [B, 1, A·γ, T + A·γ]."""
        q = self.q_norm(self.q_proj(x).unflatten(-1, (self.c.heads, self.c.head_dim))).transpose(1, 2)
        k, v = self._keys(x, tables)
        k_context, v_context = self._keys(context, context_tables)
        k, v = torch.cat([k_context, k], 2), torch.cat([v_context, v], 2)
        y = F.scaled_dot_product_attention(rotate(q, *tables), k, v, attn_mask=mask)
        out: torch.Tensor = self.o_proj(y.transpose(1, 2).flatten(2))
        return out


class BlockLayer(nn.Module):
    def __init__(self, c: BlockConfig) -> None:
        super().__init__()
        self.c = c
        self.input_layernorm = PlainNorm(c.hidden, c.eps)
        self.post_attention_layernorm = PlainNorm(c.hidden, c.eps)
        self.self_attn = BlockAttention(c)
        self.mlp = Mlp(c.hidden, c.ffn, 0.5)
        if c.dynamic:
            self.attention_conv, self.mlp_conv = DynamicConv(c), DynamicConv(c)

    def forward(
        self,
        x: torch.Tensor,
        context: torch.Tensor,
        tables: tuple[torch.Tensor, torch.Tensor],
        context_tables: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor,
    ) -> torch.Tensor:
        """x [B, A, γ, d]"""
        blocks = x.shape[1:3]
        n = self.input_layernorm(x)
        inner, delta = n, None
        if self.c.dynamic:
            delta = self.attention_conv.delta(n)
            inner = self.attention_conv(n, delta, 0)
        y = self.self_attn(inner.flatten(1, 2), context, tables, context_tables, mask).unflatten(1, blocks)
        x = x + (y if delta is None else self.attention_conv(y, delta, 1))
        m = self.post_attention_layernorm(x)
        if not self.c.dynamic:
            return x + self.mlp(m)  # type: ignore[no-any-return]
        delta = self.mlp_conv.delta(m)
        return x + self.mlp_conv(self.mlp(self.mlp_conv(m, delta, 0)), delta, 1)  # type: ignore[no-any-return]


class CandidateSelector(nn.Module):
    """Scores the top candidates of a row, given the token before it: U(b) + Σ_r A[a, r]·(H h)[r]·B[b, r], fp32."""

    def __init__(self, c: BlockConfig) -> None:
        super().__init__()
        self.predecessor_codebook = nn.Parameter(torch.randn(c.vocab, c.rank) * 0.02)
        self.successor_codebook = nn.Parameter(torch.zeros(c.vocab, c.rank))
        self.hidden_projection = Linear(c.hidden, c.rank)

    def forward(
        self, hidden: torch.Tensor, before: torch.Tensor, candidates: torch.Tensor, unary: torch.Tensor
    ) -> torch.Tensor:
        """hidden [n, d], before [n], candidates [n, M] ids, unary [n, M] fp32 → scores [n, M]"""
        mixed = F.embedding(before, self.predecessor_codebook) * self.hidden_projection(hidden).float()
        pairs: torch.Tensor = (F.embedding(candidates, self.successor_codebook) @ mixed[..., None]).squeeze(-1)
        return unary + pairs


class BlockDrafter(nn.Module):
    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.c = config
        self.fc = Linear(len(config.taps) * config.hidden, config.hidden)
        self.hidden_norm, self.norm = PlainNorm(config.hidden, config.eps), PlainNorm(config.hidden, config.eps)
        self.layers = nn.ModuleList(BlockLayer(config) for _ in range(config.layers))
        if config.dynamic:
            self.candidate_selector = CandidateSelector(config)
        self.feature_scale: torch.Tensor
        self.register_buffer("feature_scale", torch.ones(len(config.taps) * config.hidden), persistent=False)

    @torch.no_grad()
    def condition(self, target: Target, features: list[torch.Tensor], seen: torch.Tensor) -> None:
        """Before training: features are divided by their size lane by lane, and the last norm starts as the target's.

        A few lanes of a residual stream are hundreds of times larger than the rest; unscaled, every step of `fc` would be about
        them. features: one [B, T, d] per tap, seen [B, T] bool: the positions to measure.
        """
        sizes = torch.cat(features, -1)[seen].float().pow(2).mean(0).sqrt()
        self.feature_scale.copy_(1 / sizes.clamp_min(1e-3))
        norm = target.model.norm
        self.norm.weight.copy_(norm.weight if isinstance(norm, PlainNorm) else 1 + norm.weight)

    @torch.no_grad()
    def fold(self) -> None:
        """After training: the scale of the features becomes a part of `fc`, as the published layout has it."""
        self.fc.weight.mul_(self.feature_scale)
        self.feature_scale.fill_(1)

    def forward(
        self, target: Target, ids: torch.Tensor, features: list[torch.Tensor], docs: torch.Tensor, blocks: Blocks
    ) -> torch.Tensor:
        """ids, docs [B, T], features: one [B, T, d] per tap → hidden of all block rows [B, A, γ, d]; row 0 is unused."""
        c = self.c
        joined = torch.cat(features, -1)
        context = self.hidden_norm(self.fc(joined * self.feature_scale.to(joined.dtype)))
        rows = torch.full((*blocks.at.shape, c.block), c.mask_id, device=ids.device)
        rows[..., 0] = ids.gather(1, blocks.at)
        x = target.embed(rows)
        positions = (blocks.at[..., None] + torch.arange(c.block, device=ids.device)).flatten(1)  # [B, A·γ]
        tables = rope_tables(positions[:, None], c.head_dim, c.theta, x.dtype)
        context_tables = rope_tables(torch.arange(ids.shape[1], device=ids.device), c.head_dim, c.theta, x.dtype)
        mask = block_mask(docs, blocks, c)
        for layer in self.layers:
            x = layer(x, context, tables, context_tables, mask)
        hidden: torch.Tensor = self.norm(x)
        return hidden


def block_mask(docs: torch.Tensor, blocks: Blocks, c: BlockConfig) -> torch.Tensor:
    """[B, 1, A·γ, T + A·γ]: context before the anchor in its document and window, and the existing rows of the own block."""
    rows, anchors = blocks.at.shape
    place = torch.arange(docs.shape[1], device=docs.device)
    offsets = torch.arange(c.block, device=docs.device)
    own = docs.gather(1, blocks.at)
    before = (place < blocks.at[..., None]) & (docs[:, None] == own[..., None])  # [B, A, T]
    distance = blocks.at[..., None, None] + offsets[:, None] - place  # [B, A, γ, T]
    context = (before[:, :, None] & (distance < c.window)).flatten(1, 2)
    exists = offsets < blocks.length[..., None]  # [B, A, γ]
    same = torch.eye(anchors, dtype=torch.bool, device=docs.device)[None, :, None, :, None]
    inside = (same & exists[:, None, None]).expand(rows, anchors, c.block, anchors, c.block)
    # Rows beyond a short block attend to themselves: a row without any key would turn into NaN.
    itself = torch.eye(anchors * c.block, dtype=torch.bool, device=docs.device)
    return torch.cat([context, inside.reshape(rows, anchors * c.block, -1) | itself], -1)[:, None]

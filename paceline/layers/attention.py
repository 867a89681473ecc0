"""Full attention with grouped queries, rotary positions and the paged cache; optional q/k norms and output gate.

Gated form (Qwen3.5): the query projection is twice as wide, [query | gate] per head; the output is multiplied by
sigmoid(gate) before the output projection.
"""

from dataclasses import dataclass

import torch

from paceline.core.spec import ModelSpec
from paceline.kernels.paged_attn import paged_attention
from paceline.kernels.rope import apply_
from paceline.kernels.round import KvView, Round
from paceline.layers.norm import RmsNorm
from paceline.quant.base import Linear


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """qkv: rows [Q (with gates) | K | V]; bias over the same rows or None; the norms over head_dim or None."""

    qkv: Linear
    out: Linear
    bias: torch.Tensor | None
    q_norm: RmsNorm | None
    k_norm: RmsNorm | None


class Attention:
    def __init__(self, weights: AttentionWeights, spec: ModelSpec) -> None:
        self.w, self.heads, self.kv_heads, self.width = weights, spec.heads, spec.kv_heads, spec.head_dim
        self.gated = spec.attention_gate
        self.scale = spec.head_dim**-0.5

    def __call__(self, x: torch.Tensor, round: Round, kv: KvView) -> torch.Tensor:
        """x [T, d] normed → [T, d]; writes this round's keys and values into the cache first."""
        tokens = x.shape[0]
        qkv = self.w.qkv(x, round.small)
        if self.w.bias is not None:
            qkv = qkv + self.w.bias
        gate = None
        if self.gated:
            split = 2 * self.heads * self.width
            q, gate = qkv[:, :split].view(tokens, self.heads, 2, self.width).unbind(2)
            qkv = torch.cat([q.flatten(1), qkv[:, split:]], 1)
        heads = qkv.view(tokens, self.heads + 2 * self.kv_heads, self.width)
        turned = self.heads + self.kv_heads
        if self.w.q_norm is not None and self.w.k_norm is not None:
            heads[:, : self.heads] = self.w.q_norm(heads[:, : self.heads])
            heads[:, self.heads : turned] = self.w.k_norm(heads[:, self.heads : turned])
        apply_(heads[:, :turned], round.cos, round.sin)
        kv.kv.index_copy_(0, round.cache_rows, heads[:, self.heads :])
        y = paged_attention(heads[:, : self.heads], kv, round.pieces, self.scale)
        if gate is not None:
            y = y * torch.sigmoid(gate)
        return self.w.out(y.flatten(1), round.small)

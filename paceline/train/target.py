"""The target as a training module: attention every `interval`-th layer, Gated DeltaNet in the others; dense models too.

Parameter names are the checkpoint's (`model.layers.0.linear_attn.in_proj_qkv.weight`, …), so `state_dict()` is the export.
Weights are fp32; activations run in `dtype` (bf16 on a GPU), the delta rule in fp32. Rows hold several documents; none sees
another (see `Packed`). `Cache` and `step` serve the batched generator of `generate.py` only.
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

from paceline.train import delta
from paceline.train.chats import END_ID, PAD_ID

Tensors = list[torch.Tensor]


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """Shapes of the target, by default the embedded model's. Every `interval`-th layer is full attention.

    `gated`, `qk_norm`: attention with an output gate, with normalised queries and keys. `offset_norms`: norms multiply by
    (1 + w). `end_id` ends a reply, `pad_id` fills rows."""

    vocab: int = 4096
    hidden: int = 256
    layers: int = 8
    interval: int = 4
    ffn: int = 512
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    rotary_dim: int = 16
    key_heads: int = 2
    value_heads: int = 4
    key_dim: int = 64
    value_dim: int = 64
    conv_width: int = 4
    theta: float = 100000.0
    max_context: int = 4096
    eps: float = 1e-6
    gated: bool = True
    qk_norm: bool = True
    offset_norms: bool = True
    end_id: int = END_ID
    pad_id: int = PAD_ID


@dataclass(frozen=True, slots=True)
class Packed:
    """What the layers must know about packed rows: docs [B, T] is the document index of each position."""

    docs: torch.Tensor
    near: list[torch.Tensor]  # for tap 1, 2, …: is the token that many places back in the same document? [B, T, 1]
    starts: torch.Tensor  # [B, T, 1] first position of a document
    mask: torch.Tensor  # [B, 1, T, T] causal and within the document
    cos: torch.Tensor  # [T, rotary/2]
    sin: torch.Tensor


@dataclass(slots=True)
class Cache:
    """State of one layer for the generator: K, V [B, Hkv, Tmax, D], or conv columns [B, W−1, C] and S."""

    tensors: Tensors = field(default_factory=list)


def rope_tables(
    positions: torch.Tensor, rotary_dim: int, theta: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    exponents = torch.arange(0, rotary_dim, 2, device=positions.device, dtype=torch.float32) / rotary_dim
    angles = positions.float()[..., None] * theta**-exponents
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Split-half rotation of the first 2·n lanes; x [.., T, D], cos and sin [T, n] (or broadcastable)."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


def pack(docs: torch.Tensor, config: TargetConfig, dtype: torch.dtype) -> Packed:
    tokens = docs.shape[1]
    near = []
    for back in range(1, config.conv_width):
        same = torch.zeros_like(docs, dtype=torch.bool)
        same[:, back:] = docs[:, back:] == docs[:, :-back]
        near.append(same[..., None])
    causal = torch.ones(tokens, tokens, dtype=torch.bool, device=docs.device).tril_()
    mask = (docs[:, :, None] == docs[:, None, :]) & causal
    cos, sin = rope_tables(torch.arange(tokens, device=docs.device), config.rotary_dim, config.theta, dtype)
    return Packed(docs, near, ~near[0], mask[:, None], cos, sin)


class Linear(nn.Linear):
    """Weights stay fp32 and are cast at use: mixed precision without a context manager."""

    def __init__(self, inputs: int, outputs: int, scale: float = 1.0) -> None:
        super().__init__(inputs, outputs, bias=False)
        nn.init.normal_(self.weight, std=0.5 * scale * inputs**-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight.to(x.dtype))


class OffsetNorm(nn.Module):
    """RMS norm times (1 + w)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), (1 + self.weight).to(x.dtype), self.eps)


class PlainNorm(OffsetNorm):
    """RMS norm times w."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__(width, eps)
        nn.init.ones_(self.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


class Mlp(nn.Module):
    def __init__(self, hidden: int, ffn: int, scale: float) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = Linear(hidden, ffn), Linear(hidden, ffn)
        self.down_proj = Linear(ffn, hidden, scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        down: torch.Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return down


def norm_of(c: TargetConfig, width: int) -> OffsetNorm:
    return OffsetNorm(width, c.eps) if c.offset_norms else PlainNorm(width, c.eps)


class Attention(nn.Module):
    def __init__(self, c: TargetConfig, scale: float) -> None:
        super().__init__()
        self.c = c
        self.q_proj = Linear(c.hidden, (2 if c.gated else 1) * c.heads * c.head_dim)
        self.k_proj, self.v_proj = (Linear(c.hidden, c.kv_heads * c.head_dim) for _ in range(2))
        self.o_proj = Linear(c.heads * c.head_dim, c.hidden, scale)
        if c.qk_norm:
            self.q_norm, self.k_norm = norm_of(c, c.head_dim), norm_of(c, c.head_dim)

    def project(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """→ q [B, H, T, D], gate [B, T, H, D] (empty without one), k, v [B, Hkv, T, D]"""
        c = self.c
        q, gate = self.q_proj(x).unflatten(-1, (c.heads, -1)).tensor_split((c.head_dim,), -1)
        k, v = (p(x).unflatten(-1, (c.kv_heads, c.head_dim)) for p in (self.k_proj, self.v_proj))
        if c.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        return rotate(q.transpose(1, 2), cos, sin), gate, rotate(k.transpose(1, 2), cos, sin), v.transpose(1, 2)

    def attend(
        self, q: torch.Tensor, gate: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        groups = self.c.heads // self.c.kv_heads
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        return self.finish(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2), gate)

    def finish(self, y: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """y [B, T, H, D]"""
        out: torch.Tensor = self.o_proj((y * torch.sigmoid(gate) if self.c.gated else y).flatten(2))
        return out

    def forward(self, x: torch.Tensor, packed: Packed, cache: Cache | None) -> torch.Tensor:
        q, gate, k, v = self.project(x, packed.cos, packed.sin)
        if cache is not None:
            cache.tensors = [k, v]
        return self.attend(q, gate, k, v, packed.mask)

    def step(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, at: int, mask: torch.Tensor, cache: Cache
    ) -> torch.Tensor:
        """One position per row. The heads that share keys stand in the place of queries, so that no key is copied."""
        q, gate, k, v = self.project(x, cos, sin)
        keys, values = cache.tensors
        keys[:, :, at : at + 1], values[:, :, at : at + 1] = k, v
        q = q.squeeze(2).reshape(len(x), self.c.kv_heads, -1, self.c.head_dim)  # [B, Hkv, H / Hkv, D]
        y = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        return self.finish(y.flatten(1, 2)[:, None], gate)


class GatedDeltaNet(nn.Module):
    def __init__(self, c: TargetConfig, scale: float) -> None:
        super().__init__()
        self.c = c
        self.keys, self.values = c.key_heads * c.key_dim, c.value_heads * c.value_dim
        self.in_proj_qkv = Linear(c.hidden, 2 * self.keys + self.values)
        self.in_proj_z = Linear(c.hidden, self.values)
        self.in_proj_b, self.in_proj_a = (Linear(c.hidden, c.value_heads) for _ in range(2))
        self.conv1d = nn.Conv1d(self.channels, self.channels, c.conv_width, groups=self.channels, bias=False)
        self.A_log = nn.Parameter(torch.empty(c.value_heads).uniform_(1, 16).log())
        rate = torch.empty(c.value_heads).uniform_(-7, -2.3).exp()  # log-uniform in about [0.001, 0.1]
        self.dt_bias = nn.Parameter(rate + torch.log(-torch.expm1(-rate)))  # the inverse of softplus
        self.norm = PlainNorm(c.value_dim, c.eps)
        self.out_proj = Linear(self.values, c.hidden, scale)

    @property
    def channels(self) -> int:
        return 2 * self.keys + self.values

    def gates(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        decay = -self.A_log.exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias)
        return torch.sigmoid(self.in_proj_b(x).float()), decay

    def heads(self, mixed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Convolved columns [.., C] → q, k [.., Hv, Dk], v [.., Hv, Dv], fp32, q and k normalised."""
        c = self.c
        mixed = F.silu(mixed).float()
        q, k, v = torch.tensor_split(mixed, (self.keys, 2 * self.keys), -1)
        q, k = (_unit(_heads(t, c.key_heads)) for t in (q, k))
        repeat = c.value_heads // c.key_heads
        q, k = (t.repeat_interleave(repeat, -2) for t in (q * c.key_dim**-0.5, k))
        return q, k, _heads(v, c.value_heads)

    def finish(self, o: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        z = _heads(self.in_proj_z(x), self.c.value_heads)
        out: torch.Tensor = self.out_proj((self.norm(o.to(x.dtype)) * F.silu(z)).flatten(-2))
        return out

    def forward(self, x: torch.Tensor, packed: Packed, cache: Cache | None) -> torch.Tensor:
        columns = self.in_proj_qkv(x)
        taps = self.conv1d.weight[:, 0].t().to(x.dtype)  # [W, C], the last one is the current token's
        mixed = columns * taps[-1]
        for back, near in enumerate(packed.near, 1):
            shifted = F.pad(columns, (0, 0, back, 0))[:, : columns.shape[1]]
            mixed = mixed + shifted * near * taps[-1 - back]
        beta, g = self.gates(x)
        o, state = delta.chunked(*self.heads(mixed), beta, torch.where(packed.starts, delta.RESET, g))
        if cache is not None:
            cache.tensors = [columns[:, 1 - self.c.conv_width :], state]
        return self.finish(o, x)

    def step(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:
        taps = self.conv1d.weight[:, 0].t().to(x.dtype)
        window = torch.cat([cache.tensors[0], self.in_proj_qkv(x)], 1)
        q, k, v = self.heads((window * taps).sum(1))
        beta, g = self.gates(x[:, 0])
        o, state = delta.step(cache.tensors[1], q, k, v, beta, g)
        cache.tensors = [window[:, 1:], state]
        return self.finish(o[:, None], x)


class Layer(nn.Module):
    """One decoder layer; the mixer sits under its checkpoint name (`self_attn` or `linear_attn`)."""

    def __init__(self, c: TargetConfig, full: bool, scale: float) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = norm_of(c, c.hidden), norm_of(c, c.hidden)
        self.mlp = Mlp(c.hidden, c.ffn, scale)
        self.full = full
        if full:
            self.self_attn = Attention(c, scale)
        else:
            self.linear_attn = GatedDeltaNet(c, scale)

    def forward(self, x: torch.Tensor, packed: Packed, cache: Cache | None = None) -> torch.Tensor:
        mixer = self.self_attn if self.full else self.linear_attn
        x = x + mixer(self.input_layernorm(x), packed, cache)
        out: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class _Body(nn.Module):
    def __init__(self, c: TargetConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab, c.hidden)
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        scale = (2 * c.layers) ** -0.5
        self.layers = nn.ModuleList(Layer(c, (i + 1) % c.interval == 0, scale) for i in range(c.layers))
        self.norm = norm_of(c, c.hidden)


class Target(nn.Module):
    """The whole model; embedding and head are one matrix."""

    def __init__(self, config: TargetConfig, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config, self.dtype = config, dtype
        self.model = _Body(config)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(ids, self.model.embed_tokens.weight).to(self.dtype)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return F.linear(hidden, self.model.embed_tokens.weight.to(hidden.dtype))

    def forward(
        self, ids: torch.Tensor, packed: Packed, taps: tuple[int, ...] = (), caches: list[Cache] | None = None
    ) -> tuple[torch.Tensor, Tensors]:
        """ids [B, T] → hidden after the final norm [B, T, d], and the residual stream after each block in `taps`."""
        x, kept = self.embed(ids), {}
        for i, layer in enumerate(self.model.layers):
            x = layer(x, packed, None if caches is None else caches[i])
            if i in taps:
                kept[i] = x
        return self.model.norm(x), [kept[i] for i in taps]


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)


def _heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """[.., heads·D] → [.., heads, D]"""
    return x.reshape(*x.shape[:-1], heads, -1)

"""The gated delta rule for training: whole sequences at once, differentiable, sequential only over chunks.

Per token: S ← exp(g)·S; d = β(v − kᵀS); S ← S + k⊗d; o = qᵀS (the contract of `kernels/gdn`). Within a chunk the deltas solve a
unit lower triangular system; across chunks the state obeys S' = A·S + B with A [Dk, Dk] and B [Dk, Dv] known beforehand, so
that the only loop is one fused multiply-add per chunk. All fp32. A document that starts inside a sequence is cut off
from its predecessor by a large negative g.
"""

import torch
import torch.nn.functional as F

# exp(-30) is far below fp32's resolution of any sum it enters, and small enough a number that cumulative sums stay precise.
RESET = -30.0
_BASE = 8


class _UnitLowerInverse(torch.autograd.Function):
    """(I + L)⁻¹ for strictly lower triangular L [.., n, n], n = 8·2^i, by matrix products alone.

    The power series is exact for nilpotent L, but its terms grow like binomials when keys repeat; it is used for
    8 × 8 blocks only, and blocks are joined pairwise, which is as stable as forward substitution.
    """

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, lower: torch.Tensor) -> torch.Tensor:
        inverse = _inverse(lower)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor) -> torch.Tensor:
        (inverse,) = ctx.saved_tensors  # type: ignore[attr-defined]
        turned = inverse.transpose(-1, -2)
        return -torch.tril(turned @ grad @ turned, -1)


def _diagonal_blocks(matrix: torch.Tensor, size: int) -> torch.Tensor:
    """[.., n, n] → [.., n/size, size, size]"""
    n = matrix.shape[-1]
    tiles = matrix.reshape(*matrix.shape[:-2], n // size, size, n // size, size)
    blocks: torch.Tensor = tiles.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
    return blocks


def _inverse(lower: torch.Tensor) -> torch.Tensor:
    size = _BASE
    power = _diagonal_blocks(lower, size)
    inverse = torch.eye(size, device=lower.device, dtype=lower.dtype) - power
    for _ in range(2):
        power = power @ power
        inverse = inverse + inverse @ power
    while size < lower.shape[-1]:
        upper_left, lower_right = inverse[..., 0::2, :, :], inverse[..., 1::2, :, :]
        coupling = _diagonal_blocks(lower, 2 * size)[..., size:, :size]
        lower_left = -(lower_right @ coupling @ upper_left)
        top = torch.cat([upper_left, torch.zeros_like(upper_left)], -1)
        inverse = torch.cat([top, torch.cat([lower_left, lower_right], -1)], -2)
        size *= 2
    return inverse.squeeze(-3)


def _chunks(x: torch.Tensor, size: int) -> torch.Tensor:
    """[B, T, H, ..] → [B, H, N, size, ..], zeros at the end."""
    pad = -x.shape[1] % size
    if pad:
        x = F.pad(x, [0, 0] * (x.ndim - 2) + [0, pad])
    chunked: torch.Tensor = x.reshape(x.shape[0], -1, size, *x.shape[2:]).movedim(3, 1)
    return chunked


def chunked(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor, g: torch.Tensor, size: int = 64
) -> tuple[torch.Tensor, torch.Tensor]:
    """q, k [B, T, H, Dk] normalised (q scaled), v [B, T, H, Dv], beta, g [B, T, H] → o [B, T, H, Dv], S [B, H, Dk, Dv]."""
    tokens = q.shape[1]
    q, k, v = _chunks(q, size), _chunks(k, size), _chunks(v, size)
    beta, total = _chunks(beta, size)[..., None], _chunks(g, size).cumsum(-1)
    causal = torch.ones(size, size, dtype=torch.bool, device=q.device).tril_()
    # Above the diagonal the differences would overflow: masked before exp.
    decay = (total[..., :, None] - total[..., None, :]).masked_fill(~causal, float("-inf")).exp()
    grown = total.exp()[..., None]
    mixing = (beta * (k @ k.transpose(-1, -2)) * decay).tril(-1)
    solve = _UnitLowerInverse.apply(mixing)  # type: ignore[no-untyped-call]
    values, keys = solve @ (beta * v), solve @ (beta * grown * k)
    last = total[..., -1:]
    to_end = (k * (last - total).exp()[..., None]).transpose(-1, -2)
    carry = last.exp()[..., None] * torch.eye(k.shape[-1], device=q.device) - to_end @ keys
    added = to_end @ values
    state = torch.zeros_like(added[:, :, 0])
    states = []
    for n in range(added.shape[2]):
        states.append(state)
        state = carry[:, :, n] @ state + added[:, :, n]
    before = torch.stack(states, 2)  # [B, H, N, Dk, Dv]
    out = (q * grown) @ before + ((q @ k.transpose(-1, -2)) * decay) @ (values - keys @ before)
    return out.movedim(1, 3).flatten(1, 2)[:, :tokens], state


def step(
    state: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor, g: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One position: state [B, H, Dk, Dv], q, k [B, H, Dk], v [B, H, Dv], beta, g [B, H] → o [B, H, Dv], new state."""
    state = state * g.exp()[..., None, None]
    delta = beta[..., None] * (v - (k[..., None, :] @ state).squeeze(-2))
    state = state + k[..., :, None] * delta[..., None, :]
    return (q[..., None, :] @ state).squeeze(-2), state

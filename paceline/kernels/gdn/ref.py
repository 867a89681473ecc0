"""The gated delta rule in plain torch. The chunked form follows Yang et al., "Gated Delta Networks" (2024), §3.3."""

import torch


def recurrent_(
    state: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor, decay: torch.Tensor
) -> torch.Tensor:
    """One position after another, each with tensor shapes that do not depend on how many there are."""
    tokens = q.shape[0]
    out = torch.empty_like(v)
    decay = decay[..., None, None]  # [T, Hv, 1, 1]
    q, k_row, k_column = q[:, :, None], k[:, :, None], k[..., None]
    for t in range(tokens):
        state.mul_(decay[t])
        delta = v[t, :, None] - torch.bmm(k_row[t], state)  # [Hv, 1, Dv]
        delta.mul_(beta[t, :, None, None])
        state.addcmul_(k_column[t], delta)
        out[t] = torch.bmm(q[t], state)[:, 0]
    return out


def chunked_(
    state: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor, g: torch.Tensor
) -> torch.Tensor:
    """The block as a triangular solve: (I + tril(β k kᵀ · decay, −1)) D = β (v − decay · kS) gives every delta at once."""
    q, k, v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)  # [Hv, T, D]
    beta, total = beta.t()[..., None], g.t().cumsum(1)  # [Hv, T, 1], [Hv, T]
    # Differences are ≤ 0 on and below the diagonal; above it they would overflow, so they are masked before exp.
    causal = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).tril_()
    decay = (total[:, :, None] - total[:, None, :]).masked_fill(~causal, float("-inf")).exp()  # [Hv, T, T]
    from_start = total.exp()[..., None]
    mixing = (beta * torch.bmm(k, k.transpose(1, 2)) * decay).tril(-1)
    right = beta * (v - from_start * torch.bmm(k, state))
    delta = torch.linalg.solve_triangular(mixing, right, upper=False, unitriangular=True)  # [Hv, T, Dv]
    out = from_start * torch.bmm(q, state) + torch.bmm(torch.bmm(q, k.transpose(1, 2)) * decay, delta)
    to_end = (total[:, -1:] - total).exp()[..., None]
    state.mul_(total[:, -1].exp()[:, None, None]).baddbmm_((k * to_end).transpose(1, 2), delta)
    return out.transpose(0, 1)

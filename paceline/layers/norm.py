"""RMS norms. Both compute in fp32; they differ in where the cast to the activation dtype happens."""

import torch
import torch.nn.functional as F


class RmsNorm:
    """x · w / sqrt(mean(x²) + eps) over the last axis, [.., d] → same dtype; fp32 inside, one cast at the end.

    `offset` 1 multiplies by (1 + w) instead (zero-centred weights).
    """

    def __init__(self, weight: torch.Tensor, eps: float, offset: int, dtype: torch.dtype) -> None:
        self.weight = weight.float() + offset
        self.eps, self.share, self.dtype = torch.tensor(eps), 1.0 / weight.shape[0], dtype

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = torch.addcmul(self.eps, length, length, value=self.share).rsqrt_()
        return (wide * scale).mul_(self.weight).to(self.dtype)


class GatedRmsNorm:
    """cast(x̂) · w · silu(z), per head: x, z [T, H, D] → x's dtype. The norm comes before the gate."""

    def __init__(self, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> None:
        self.weight, self.eps, self.dtype = weight.to(dtype), eps, dtype

    def __call__(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        normed = F.rms_norm(x.float(), (x.shape[-1],), None, self.eps).to(self.dtype)
        return ((normed * self.weight).float() * F.silu(z.float())).to(self.dtype)

"""int8 weights (one scale per output row) with int8 activations (one scale per token): integer products are exact.

An integer sum has no order, so a row's bits cannot depend on the other rows. Where the CPU's int8 instructions saturate
(AVX2 without VNNI adds pairs of products in 16 bits), the same integers are multiplied in fp32 over 1,024 columns at a
time, where every partial sum stays below 2²⁴ and so is exact too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch

from paceline.quant.base import Linear, Planes

_EXACT_FP32_COLUMNS = 1024


@cache
def int_mm_is_exact() -> bool:
    """True when `_int_mm` multiplies the largest int8 values, of either sign, without saturating.

    Both signs matter: without VNNI the activations are shifted to 0…255 first, so that only positive ones saturate.
    """
    signs = [(a, b) for a in (127, -127) for b in (127, -127)]
    try:
        return all(_product_is_exact(rows, a, b) for rows in (1, 17) for a, b in signs)
    except (RuntimeError, AttributeError):
        return False


def _product_is_exact(rows: int, activation: int, weight: int) -> bool:
    x = torch.full((rows, 64), activation, dtype=torch.int8)
    weight_t = torch.full((64, 32), weight, dtype=torch.int8)
    return bool((torch._int_mm(x, weight_t) == activation * weight * 64).all())


def _fp32_int_mm(x: torch.Tensor, weight_t: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(x.shape[0], weight_t.shape[1], dtype=torch.int32)
    for i in range(0, x.shape[1], _EXACT_FP32_COLUMNS):
        part = x[:, i : i + _EXACT_FP32_COLUMNS].float() @ weight_t[i : i + _EXACT_FP32_COLUMNS].float()
        total += part.to(torch.int32)
    return total


class Int8Linear:
    """weight [N, K] int8, scale [N] fp32; x [T, K] bf16 → [T, N] bf16."""

    def __init__(self, weight: torch.Tensor, scale: torch.Tensor) -> None:
        self.weight_t = weight.t()  # [K, N]
        self.scale = scale
        self.product = torch._int_mm if int_mm_is_exact() else _fp32_int_mm

    def __call__(self, x: torch.Tensor, small: int) -> torch.Tensor:
        wide = x.float()
        scale = wide.abs().amax(dim=1, keepdim=True).clamp_min_(1e-12).div_(127.0)
        codes = wide.div_(scale).round_().to(torch.int8)
        return (self.product(codes, self.weight_t) * self.scale).mul_(scale).to(x.dtype)


@dataclass(frozen=True, slots=True)
class Int8Codec:
    name: str = "int8"
    exact: bool = True
    dtype: torch.dtype = torch.bfloat16
    group: int = 1

    def encode(self, weight: torch.Tensor) -> Planes:
        wide = weight.float()
        scale = wide.abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / 127.0
        return {"weight": (wide / scale).round_().to(torch.int8), "scale": scale.squeeze(1)}

    def decode(self, planes: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return planes["weight"].float() * planes["scale"][:, None]

    def linear(self, planes: Mapping[str, torch.Tensor]) -> Linear:
        return Int8Linear(planes["weight"], planes["scale"])


CODEC = Int8Codec()

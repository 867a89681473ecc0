"""int8 weights (one scale per output row) with int8 activations (one scale per token): integer products are exact.

An integer sum has no order, so a row's bits cannot depend on the other rows, and whichever way the integers are multiplied
gives the same bits. So the fastest exact way of this CPU is taken: oneDNN with signed activations (native with AMX, a slow
reference elsewhere), oneDNN with activations shifted to unsigned (native with VNNI, saturating in 16 bits without), or
fp32 products over 1,024 columns at a time, where every partial sum stays below 2²⁴ and so is exact too. The first two pack
the weight once and cost nearly the same for 1 and for 16 rows.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import torch

from paceline.quant.base import Linear, Planes, Product

_EXACT_FP32_COLUMNS = 1024

# weight [N, K] int8, scale [N] fp32 → codes [T, K] int8 → (codes · weightᵀ) · scale, [T, N] fp32
IntProduct = Callable[[torch.Tensor, torch.Tensor], Product]


def signed_product(weight: torch.Tensor, scale: torch.Tensor) -> Product:
    run, packed, zeros = _pack(weight)

    def product(codes: torch.Tensor) -> torch.Tensor:
        # A single row of some widths (K = 256) falls to oneDNN's slow reference; beside a second one it does not.
        rows = codes if codes.shape[0] > 1 else codes.repeat(2, 1)
        y: torch.Tensor = run(rows, 1.0, 0, packed, scale, zeros, None, 1.0, 0, torch.float32, "none", [], "")
        return y[: codes.shape[0]]

    return product


def shifted_product(weight: torch.Tensor, scale: torch.Tensor) -> Product:
    run, packed, zeros = _pack(weight)

    def product(codes: torch.Tensor) -> torch.Tensor:
        shifted = codes.to(torch.int16).add_(128).to(torch.uint8)
        y: torch.Tensor = run(shifted, 1.0, 128, packed, scale, zeros, None, 1.0, 0, torch.float32, "none", [], "")
        return y

    return product


def _pack(weight: torch.Tensor) -> tuple[Callable[..., torch.Tensor], torch.Tensor, torch.Tensor]:
    packed = torch.ops.onednn.qlinear_prepack(weight, [16, weight.shape[1]])
    return torch.ops.onednn.qlinear_pointwise.default, packed, torch.zeros(weight.shape[0], dtype=torch.int64)


def plain_product(weight: torch.Tensor, scale: torch.Tensor) -> Product:
    columns = range(0, weight.shape[1], _EXACT_FP32_COLUMNS)
    pieces = [(i, weight[:, i : i + _EXACT_FP32_COLUMNS].float().t()) for i in columns]

    def run(codes: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(codes.shape[0], weight.shape[0], dtype=torch.int32)
        for i, piece in pieces:
            total += (codes[:, i : i + _EXACT_FP32_COLUMNS].float() @ piece).to(torch.int32)
        return total * scale

    return run


@cache
def fastest_product() -> IntProduct:
    """Of the ways that multiply the largest int8 values without saturating here, the one that takes the least time."""
    largest = torch.tensor([127, -127], dtype=torch.int8)
    codes, weight = largest.repeat_interleave(8)[:, None].expand(16, 256).contiguous(), largest.repeat(128)
    weight = torch.stack([torch.full((256,), 127, dtype=torch.int8), weight, weight.roll(1)]).repeat(64, 1)
    exact = (codes.long() @ weight.long().t()).float()
    best: IntProduct = plain_product
    least = float("inf")
    for candidate in (signed_product, shifted_product):
        try:
            product = candidate(weight, torch.ones(weight.shape[0]))
            if not torch.equal(product(codes), exact):
                continue
        except (RuntimeError, AttributeError):
            continue
        taken = min(_seconds(product, codes) for _ in range(3))
        if taken < least:
            best, least = candidate, taken
    return best


def _seconds(product: Product, codes: torch.Tensor) -> float:
    began = time.perf_counter()
    product(codes)
    return time.perf_counter() - began


class Int8Linear:
    """x [T, K] bf16 → [T, N] bf16. Codes are round(x · 127 / max|x|), per row."""

    def __init__(self, weight: torch.Tensor, scale: torch.Tensor) -> None:
        self.product = fastest_product()(weight, scale)

    def __call__(self, x: torch.Tensor, small: int) -> torch.Tensor:
        wide = x.float()
        scale = torch.linalg.vector_norm(wide, torch.inf, dim=1, keepdim=True).clamp_min_(1e-12).mul_(1.0 / 127.0)
        codes = (wide / scale).round_().to(torch.int8)
        return self.product(codes).mul_(scale).to(x.dtype)


@dataclass(frozen=True, slots=True)
class Int8Codec:
    name: str = "int8"
    exact: bool = True
    dtype: torch.dtype = torch.bfloat16
    group: int = 1
    head: str = "int8"
    precise: str = "bf16"

    def encode(self, weight: torch.Tensor) -> Planes:
        wide = weight.float()
        scale = wide.abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / 127.0
        return {"weight": (wide / scale).round_().to(torch.int8), "scale": scale.squeeze(1)}

    def decode(self, planes: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return planes["weight"].float() * planes["scale"][:, None]

    def linear(self, planes: Mapping[str, torch.Tensor]) -> Linear:
        return Int8Linear(planes["weight"], planes["scale"])


CODEC = Int8Codec()

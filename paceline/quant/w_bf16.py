"""bf16 weights, products in fixed blocks of 16 and 64 rows.

oneDNN picks another kernel, with another summation order, for another number of rows; with a fixed number a row's bits
depend on the row alone. The weight is packed once for oneDNN where the CPU has bf16 instructions (two to three times
faster than packing per call); elsewhere `F.linear` runs on the same blocks.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from paceline.quant.base import BlockLinear, Linear, Planes, Product

SMALL_BLOCK = 16


def packed_product(weight: torch.Tensor, rows: int) -> Product:
    """[N, K] bf16 → x [rows, K] bf16 → [rows, N] bf16, with the weight packed where oneDNN can."""
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
        torch.ops.mkldnn._linear_pointwise(weight.new_zeros(rows, weight.shape[1]), packed, None, "none", [], "")
    except (RuntimeError, AttributeError):
        return lambda x: F.linear(x, weight)
    run = torch.ops.mkldnn._linear_pointwise.default
    return lambda x: run(x, packed, None, "none", [], "")


@dataclass(frozen=True, slots=True)
class Bf16Codec:
    name: str = "bf16"
    exact: bool = True
    dtype: torch.dtype = torch.bfloat16
    group: int = 1
    head: str = "bf16"
    precise: str = "bf16"

    def encode(self, weight: torch.Tensor) -> Planes:
        return {"weight": weight.to(torch.bfloat16).contiguous()}

    def decode(self, planes: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return planes["weight"].float()

    def linear(self, planes: Mapping[str, torch.Tensor]) -> Linear:
        weight = planes["weight"]
        product = packed_product(weight, SMALL_BLOCK)  # one packed copy serves both block sizes
        return BlockLinear(product, product, SMALL_BLOCK, weight.shape[1], torch.bfloat16)


CODEC = Bf16Codec()

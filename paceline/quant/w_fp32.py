"""fp32 weights: the reference. Rows are not bit-equal at different row counts, so no path in fp32 is called exact."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from paceline.quant.base import Linear, Planes


@dataclass(frozen=True, slots=True)
class Fp32Linear:
    weight: torch.Tensor

    def __call__(self, x: torch.Tensor, small: int) -> torch.Tensor:
        return F.linear(x, self.weight)


@dataclass(frozen=True, slots=True)
class Fp32Codec:
    name: str = "fp32"
    exact: bool = False
    dtype: torch.dtype = torch.float32
    group: int = 1
    head: str = "fp32"
    precise: str = "fp32"

    def encode(self, weight: torch.Tensor) -> Planes:
        return {"weight": weight.float().contiguous()}

    def decode(self, planes: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return planes["weight"]

    def linear(self, planes: Mapping[str, torch.Tensor]) -> Linear:
        return Fp32Linear(planes["weight"])


CODEC = Fp32Codec()

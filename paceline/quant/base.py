"""What a weight format is: planes on disk, a decoder as oracle, and a matrix product whose rows do not depend on each other.

Activations reach a linear in one layout: `small` rows first, then large rows. Small rows are positions that run one by one
(decode windows, short ends of prompts); large rows belong to prompt blocks. Where a kernel gives other bits for another
number of rows, the product runs over blocks of a fixed number of rows, the last one filled up; then a row's result depends
on the row alone, whatever else is in the batch. `exact` says that this holds bit for bit.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

import torch

LARGE_BLOCK = 64

Planes = dict[str, torch.Tensor]
Product = Callable[[torch.Tensor], torch.Tensor]


class Linear(Protocol):
    """y = x Wᵀ. x: [T, K], the first `small` rows small ones; returns [T, N] in x's dtype."""

    def __call__(self, x: torch.Tensor, small: int) -> torch.Tensor: ...


class WeightCodec(Protocol):
    """One weight format on the CPU. Activations have `dtype`; K must be a multiple of `group`.

    `head` names the format that the output head takes in a run of this format, `precise` that of tiny, sensitive matrices.
    Entry i of every plane belongs to row i of the weight, so that rows can be taken out of a converted weight.
    """

    name: str
    exact: bool
    dtype: torch.dtype
    group: int
    head: str
    precise: str

    def encode(self, weight: torch.Tensor) -> Planes:
        """weight [N, K] float → named planes, as stored in the converted file."""
        ...

    def decode(self, planes: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Planes → the weight that the format stands for, [N, K] fp32."""
        ...

    def linear(self, planes: Mapping[str, torch.Tensor]) -> Linear:
        """Planes → a callable, with whatever packing the kernel wants done once."""
        ...


def take_rows(planes: Mapping[str, torch.Tensor], rows: torch.Tensor) -> Planes:
    """The planes of the weight's `rows` [n] int64, in that order: a copy."""
    return {name: plane[rows] for name, plane in planes.items()}


class BlockLinear:
    """Small rows in blocks of `small_block` through `small`, large rows in blocks of 64 through `large`.

    `small_block` 0 means that the small product takes any number of rows. Rows that fill up a block keep what was there
    before: finite values, whose results are dropped.
    """

    def __init__(self, small: Product, large: Product, small_block: int, columns: int, dtype: torch.dtype) -> None:
        self.small_product, self.large_product, self.small_block = small, large, small_block
        self.small_rows = torch.zeros(small_block, columns, dtype=dtype)
        self.large_rows = torch.zeros(LARGE_BLOCK, columns, dtype=dtype)

    def __call__(self, x: torch.Tensor, small: int) -> torch.Tensor:
        parts: list[torch.Tensor] = []
        if small and not self.small_block:
            parts.append(self.small_product(x[:small]))
        elif small:
            _run_blocks(self.small_product, x[:small], self.small_rows, parts)
        if x.shape[0] > small:
            _run_blocks(self.large_product, x[small:], self.large_rows, parts)
        return torch.cat(parts) if len(parts) > 1 else parts[0]


def _run_blocks(product: Product, x: torch.Tensor, filled: torch.Tensor, parts: list[torch.Tensor]) -> None:
    rows, block = x.shape[0], filled.shape[0]
    whole = rows - rows % block
    parts.extend(product(x[i : i + block]) for i in range(0, whole, block))
    if rows > whole:
        filled[: rows - whole] = x[whole:]
        parts.append(product(filled)[: rows - whole])

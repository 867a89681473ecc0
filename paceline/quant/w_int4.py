"""int4 weights in groups of 32 along K, each with a scale and a zero: w = (q − 8) · scale + zero, q in 0…15.

The few-row kernel reads the packed codes and is bit-equal for any number of rows. It slows down linearly with rows, so
prompt blocks of 64 multiply a bf16 copy of the decoded weight instead (ten times faster there).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from paceline.quant.base import LARGE_BLOCK, BlockLinear, Linear, Planes
from paceline.quant.w_bf16 import packed_product

GROUP = 32
# The kernel computes whole blocks of output rows; other N are padded with zero rows.
_ROWS = 64


@dataclass(frozen=True, slots=True)
class Int4Codec:
    name: str = "int4"
    exact: bool = True
    dtype: torch.dtype = torch.bfloat16
    group: int = GROUP
    head: str = "int8"
    precise: str = "bf16"

    def encode(self, weight: torch.Tensor) -> Planes:
        rows, columns = weight.shape
        groups = weight.float().view(rows, columns // GROUP, GROUP)
        low, high = groups.amin(dim=2), groups.amax(dim=2)
        scale = ((high - low) / 15.0).clamp_min(1e-8).to(torch.bfloat16).float()
        zero = (low + 8.0 * scale).to(torch.bfloat16).float()
        codes = ((groups - zero[..., None]) / scale[..., None] + 8.0).round_().clamp_(0, 15).to(torch.uint8)
        codes = codes.view(rows, columns)
        return {
            "codes": codes[:, 0::2] | (codes[:, 1::2] << 4),  # [N, K/2] uint8, even column in the low nibble
            "scale_zero": torch.stack([scale, zero], dim=-1).to(torch.bfloat16),  # [N, K/32, 2]
        }

    def decode(self, planes: Mapping[str, torch.Tensor]) -> torch.Tensor:
        codes, scale_zero = _unpack(planes["codes"]), planes["scale_zero"].float()
        rows, columns = codes.shape
        groups = codes.view(rows, columns // GROUP, GROUP).float() - 8.0
        return (groups * scale_zero[..., :1] + scale_zero[..., 1:]).view(rows, columns)

    def linear(self, planes: Mapping[str, torch.Tensor]) -> Linear:
        codes, scale_zero = _unpack(planes["codes"]), planes["scale_zero"]
        rows = codes.shape[0]
        pad = -rows % _ROWS
        padded = torch.nn.functional.pad(codes, (0, 0, 0, pad)).to(torch.int32)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(padded, 1)
        scales = torch.nn.functional.pad(scale_zero, (0, 0, 0, 0, 0, pad)).transpose(0, 1).contiguous()
        run = torch.ops.aten._weight_int4pack_mm_for_cpu.default

        def few(x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = run(x, packed, GROUP, scales)
            return y[:, :rows] if pad else y

        many = packed_product(self.decode(planes).to(torch.bfloat16), LARGE_BLOCK)
        return BlockLinear(few, many, 0, codes.shape[1], torch.bfloat16)


def _unpack(codes: torch.Tensor) -> torch.Tensor:
    """[N, K/2] nibbles → [N, K] uint8 codes."""
    return torch.stack([codes & 15, codes >> 4], dim=-1).flatten(1)


CODEC = Int4Codec()

"""Weight formats: one file each. A name here is what `--weights` takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.registry import Registry

if TYPE_CHECKING:
    from paceline.quant.base import WeightCodec

WEIGHT_CODECS: Registry[WeightCodec] = Registry(
    "--weights",
    {
        "fp32": "paceline.quant.w_fp32:CODEC",
        "bf16": "paceline.quant.w_bf16:CODEC",
        "int8": "paceline.quant.w_int8:CODEC",
        "int4": "paceline.quant.w_int4:CODEC",
    },
)

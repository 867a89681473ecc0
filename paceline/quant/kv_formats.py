"""The KV dtypes and what a head vector takes in each: the one table of byte formulas. A name here is what `--kv-dtype` takes.

No torch here: the planner reads this table without a device. A codec (`quant/kv_*.py`) allocates the planes that its entry
lists. With the 27B shape, 16 layers of 4 heads of 256, a token takes 65,536 bytes in bf16, 33,024 in fp8, 33,792 in int8,
18,432 in nvfp4 and 25,728 in k8v4.
"""

from paceline.core.formats import KvFormat, Plane
from paceline.core.registry import choose

_FP32 = (Plane("codes", "float32", 32),)
_BF16 = (Plane("codes", "bfloat16", 16),)
# E4M3, one scale for the row of a head.
_FP8 = (Plane("codes", "float8_e4m3fn", 8), Plane("scale", "float16", 16, group=0))
# Codes −127…127, one scale for 64 elements.
_INT8 = (Plane("codes", "int8", 8), Plane("scale", "float16", 16, group=64))
# E2M1, one E4M3 scale for 16 elements.
_NVFP4 = (Plane("codes", "uint8", 4), Plane("scale", "float8_e4m3fn", 8, group=16))

KV_FORMATS: dict[str, KvFormat] = {
    each.name: each
    for each in (
        KvFormat("fp32", _FP32, _FP32),
        KvFormat("bf16", _BF16, _BF16),
        KvFormat("fp8", _FP8, _FP8),
        KvFormat("int8", _INT8, _INT8),
        KvFormat("nvfp4", _NVFP4, _NVFP4),
        KvFormat("k8v4", _FP8, _NVFP4),
    )
}


def kv_format(name: str) -> KvFormat:
    return choose("--kv-dtype", name, KV_FORMATS)

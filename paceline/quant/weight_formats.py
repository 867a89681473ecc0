"""The weight formats' byte formulas: what the planner reads without torch. `WEIGHT_CODECS` are those that run today.

A format's codec stores exactly these planes (a test encodes matrices and compares). nvfp4 is E2M1 with an E4M3 scale per 16
columns and one fp32 scale per matrix of the checkpoint: what published checkpoints hold, and what a GPU serves.
"""

from paceline.core.formats import Plane, WeightFormat
from paceline.core.registry import choose

WEIGHT_FORMATS: dict[str, WeightFormat] = {
    each.name: each
    for each in (
        WeightFormat("fp32", (Plane("weight", "float32", 32),), head="fp32", precise="fp32", activation="float32"),
        WeightFormat("bf16", (Plane("weight", "bfloat16", 16),), head="bf16", precise="bf16"),
        WeightFormat(
            "int8",
            (Plane("weight", "int8", 8), Plane("scale", "float32", 32, group=0)),
            head="int8",
            precise="bf16",
        ),
        WeightFormat(
            "int4",
            (Plane("codes", "uint8", 4), Plane("scale_zero", "bfloat16", 32, group=32)),
            head="int8",
            precise="bf16",
            group=32,
        ),
        WeightFormat(
            "nvfp4",
            (Plane("codes", "uint8", 4), Plane("scale", "float8_e4m3fn", 8, group=16)),
            head="nvfp4",
            precise="bf16",
            group=16,
            tensor_bytes=4,
        ),
    )
}
WIDE, NARROW = WEIGHT_FORMATS["bf16"], WEIGHT_FORMATS["nvfp4"]


def weight_format(name: str) -> WeightFormat:
    return choose("--weights", name, WEIGHT_FORMATS)

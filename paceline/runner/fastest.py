"""Which weight format is fastest here: the model's own matrix shapes, timed with random weights in every exact format.

The figure is the time that all matrix products of a round take, averaged over rounds of 1, 4 and 8 rows (one reply; four at
once; one window of eight). The choice must not depend on K or C, or changing those would change the tokens.
"""

import time
from pathlib import Path

import torch

from paceline.models.base import Part, PartKind
from paceline.quant import WEIGHT_CODECS
from paceline.quant.base import Linear
from paceline.runner.weights import read_family

_ROWS = (1, 4, 8)
_REPEATS = 7
# Enough weights that they do not stay in the CPU's caches, few enough that the measurement takes seconds.
_MAX_ELEMENTS = 96_000_000


def measure_formats(folder: Path, threads: int) -> dict[str, float]:
    """Format → seconds, for those whose groups divide the model's widths."""
    torch.set_num_threads(threads)
    family, spec = read_family(folder, folder.name)
    parts = [part for part in family.parts(spec) if part.kind is PartKind.LINEAR]
    sample: list[Part] = []
    elements = 0
    for part in parts:
        elements += sum(shape[0] * shape[1] for _, shape in part.sources)
        if elements > _MAX_ELEMENTS and sample:
            break
        sample.append(part)
    times = {}
    for name in WEIGHT_CODECS:
        codec = WEIGHT_CODECS.get(name)
        if codec.exact and all(part.sources[0][1][-1] % codec.group == 0 for part in parts):
            times[name] = _time(name, sample)
    return times


@torch.inference_mode()
def _time(name: str, sample: list[Part]) -> float:
    codec = WEIGHT_CODECS.get(name)
    made: dict[tuple[int, int], dict[str, torch.Tensor]] = {}
    linears: list[tuple[Linear, int]] = []
    for part in sample:
        shape = (sum(s[0] for _, s in part.sources), part.sources[0][1][1])
        if shape not in made:
            made[shape] = codec.encode(torch.randn(shape) * 0.02)
        planes = {plane: tensor.clone() for plane, tensor in made[shape].items()}
        linears.append((codec.linear(planes), shape[1]))
    total = 0.0
    for rows in _ROWS:
        inputs = {k: torch.randn(rows, k).to(codec.dtype) for _, k in linears}
        best = float("inf")
        for _ in range(_REPEATS):
            began = time.perf_counter()
            for linear, k in linears:
                linear(inputs[k], rows)
            best = min(best, time.perf_counter() - began)
        total += best
    return total / len(_ROWS)

"""The shared noise: one Gumbel variate per (request seed, index of the token being sampled, full-vocabulary token id).

The sample is argmax(logit/T + noise). Target and drafters that use the same noise agree nearly as often as two samplers
can; and since nothing else is random, the output is the same whatever was drafted. Nothing here has state.

key(seed, index): two rounds of the splitmix64 finaliser (Steele, Lea, Flood 2014), on the host.
bits(key, ids): two rounds of a 32-bit mixer with full avalanche (constants: C. Wellons, "lowbias32", public domain), each
under one half of the key. u = (bits + ½)·2⁻³² lies strictly inside (0, 1) and Gumbel = −log(−log u); log u is taken as
log1p(u − 1), whose argument is exact in fp64, so neither end is rounded to 0 or 1.
"""

import torch

_MASK64 = (1 << 64) - 1
_MASK32 = 0xFFFFFFFF
_GOLDEN = 0x9E3779B97F4A7C15


def _splitmix64(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


def key(seed: int, index: int) -> tuple[int, int]:
    """Two 32-bit halves of the key for output token `index` (0 = the first sampled token) of a request."""
    mixed = _splitmix64((_splitmix64((seed + _GOLDEN) & _MASK64) + (index + 1) * _GOLDEN) & _MASK64)
    return mixed & _MASK32, mixed >> 32


def _mix32(x: torch.Tensor) -> torch.Tensor:
    """One avalanche round on 32-bit values held in int64, in place."""
    x ^= x >> 16
    x.mul_(0x7FEB352D).bitwise_and_(_MASK32)
    x ^= x >> 15
    x.mul_(0x846CA68B).bitwise_and_(_MASK32)
    x ^= x >> 16
    return x


def bits(halves: tuple[int, int], ids: torch.Tensor) -> torch.Tensor:
    """ids [n] int64 → [n] int64 in 0 … 2³² − 1."""
    x = _mix32(ids ^ halves[0])
    return _mix32(x.add_(halves[1]).bitwise_and_(_MASK32))


def gumbel(halves: tuple[int, int], ids: torch.Tensor) -> torch.Tensor:
    """ids [n] int64 → Gumbel noise [n] fp64."""
    u_minus_1 = (bits(halves, ids).double() + (0.5 - 2.0**32)).mul_(2.0**-32)
    return torch.log1p(u_minus_1).neg_().log_().neg_()

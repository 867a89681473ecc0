"""Rotary embedding in plain torch. Angles and tables in fp32, then cast to the activation dtype."""

import math

import torch

from paceline.core.spec import RopeSpec


def inverse_frequencies(rope: RopeSpec) -> torch.Tensor:
    """[rotary_dim / 2] fp32: theta^(−2i/d), with llama3 scaling where the spec has it.

    llama3 scaling: wavelengths above original/low are slowed by `factor`, those below original/high are kept, and the band
    between is blended linearly in original/wavelength.
    """
    exponent = torch.arange(0, rope.rotary_dim, 2, dtype=torch.int64).float() / rope.rotary_dim
    frequencies = 1.0 / (rope.theta**exponent)
    if rope.scaling is None:
        return frequencies
    factor, original = rope.scaling["factor"], rope.scaling["original_max_position_embeddings"]
    low, high = rope.scaling["low_freq_factor"], rope.scaling["high_freq_factor"]
    wavelength = 2.0 * math.pi / frequencies
    blend = ((original / wavelength - low) / (high - low)).clamp(0.0, 1.0)
    return (1.0 - blend) * frequencies / factor + blend * frequencies


def tables(frequencies: torch.Tensor, positions: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and signed sin for positions 0 … positions − 1: [positions, 1, rotary_dim]."""
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies[None, :]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([cos, cos], 1).to(dtype)[:, None], torch.cat([-sin, sin], 1).to(dtype)[:, None]


def apply_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [T, H, D]: the first rotary_dim of D are rotated in place: x · cos + swap_halves(x) · sin. Returns x."""
    width = cos.shape[-1]
    part = x if width == x.shape[-1] else x[..., :width]
    swapped = part.view(*part.shape[:-1], 2, width // 2).flip(-2).flatten(-2)
    part.mul_(cos).addcmul_(swapped, sin)
    return x

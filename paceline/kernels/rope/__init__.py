"""Rotary embedding, half-split pairs (i, i + d/2), over the first `rotary_dim` of each head.

tables(spec, positions, dtype) -> cos, sin [T, 1, rotary_dim]; apply_(x, cos, sin) rotates x [T, H, D] in place.
"""

from paceline.kernels.rope.ref import apply_, inverse_frequencies, tables

__all__ = ["apply_", "inverse_frequencies", "tables"]

"""Causal attention of a batch's pieces over the paged KV cache.

paged_attention(q, view, pieces, scale) -> [T, Hq, D]; q [T, Hq, D] after rotation, view the layer's KvView in which this
step's keys and values are already written. Softmax in fp32. A position's result depends on its own sequence's keys up to
the end of its block of 64 positions and on nothing else.
"""

from paceline.kernels.paged_attn.ref import paged_attention

__all__ = ["paged_attention"]

"""Causal attention of a batch's pieces over the paged KV cache.

paged_attention(q, view, pieces, scale) -> [T, Hq, D]; q [T, Hq, D] after rotation, view the layer's KvView in which this
step's keys and values are already written. Softmax in fp32. A position's result depends on its own sequence's keys up to
the end of its block of 64 positions and on nothing else.

gather_keys(view, where, keys) -> [keys, 2 · Hk, D]: the cached rows of a sequence's first `keys` positions, in order.
"""

from paceline.kernels.paged_attn.ref import gather_keys, paged_attention

__all__ = ["gather_keys", "paged_attention"]

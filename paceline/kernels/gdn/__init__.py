"""The gated delta rule of one sequence, in its two forms. All tensors fp32; heads Hv; S [Hv, Dk, Dv].

Per token: S ← exp(g)·S; d = β(v − kᵀS); S ← S + k⊗d; o = qᵀS (o reads the updated state).

recurrent_(S, q, k, v, beta, decay) -> o [T, Hv, Dv]: position by position; S is updated in place.
chunked_(S, q, k, v, beta, g) -> o: one block of at most 64 positions at once; equal up to rounding, not bit for bit.
q, k [T, Hv, Dk] normalised (q scaled by Dk^-½), v [T, Hv, Dv], beta, g and decay = exp(g) [T, Hv], g ≤ 0.
"""

from paceline.kernels.gdn.ref import chunked_, recurrent_

__all__ = ["chunked_", "recurrent_"]

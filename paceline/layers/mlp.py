"""The gated MLP: down(silu(gate(x)) · up(x)), with gate and up in one product."""

import torch
import torch.nn.functional as F

from paceline.quant.base import Linear


class Mlp:
    """gate_up: [2·ffn, d] with the gate rows first; down: [d, ffn]. x [T, d] → [T, d]."""

    def __init__(self, gate_up: Linear, down: Linear, ffn: int) -> None:
        self.gate_up, self.down, self.ffn = gate_up, down, ffn

    def __call__(self, x: torch.Tensor, small: int) -> torch.Tensor:
        both = self.gate_up(x, small)
        return self.down(F.silu(both[:, : self.ffn]).mul_(both[:, self.ffn :]), small)

"""The MTP head as a training module: pair (h_p, token p+1) → token p+2, unrolled over its own outputs.

h is the target's hidden state after its final norm. Step j > 1 works as in serving: hidden is the head's own output of the
step before, one position on, and its keys come after the true pairs' keys. So a query at slot t in step j sees the true
pairs of slots ≤ t − (j − 1), then one pair of each step 2 … j. Parameter names are the checkpoint's after `mtp.`.
"""

import torch
import torch.nn.functional as F
from torch import nn

from paceline.train.target import Attention, Linear, Mlp, OffsetNorm, Packed, Target, TargetConfig


class _HeadLayer(nn.Module):
    def __init__(self, c: TargetConfig) -> None:
        super().__init__()
        self.input_layernorm = OffsetNorm(c.hidden, c.eps)
        self.post_attention_layernorm = OffsetNorm(c.hidden, c.eps)
        self.self_attn = Attention(c, 0.5)
        self.mlp = Mlp(c.hidden, c.ffn, 0.5)


class MtpHead(nn.Module):
    def __init__(self, c: TargetConfig) -> None:
        super().__init__()
        self.c = c
        self.fc = Linear(2 * c.hidden, c.hidden)
        self.pre_fc_norm_embedding = OffsetNorm(c.hidden, c.eps)
        self.pre_fc_norm_hidden = OffsetNorm(c.hidden, c.eps)
        self.norm = OffsetNorm(c.hidden, c.eps)
        self.layers = nn.ModuleList([_HeadLayer(c)])

    def forward(
        self, target: Target, ids: torch.Tensor, hidden: torch.Tensor, packed: Packed, steps: int
    ) -> torch.Tensor:
        """→ outputs [steps, B, T, d]: outputs[j−1] at slot t predicts token t + 2 with a chain of j steps behind it."""
        embedded = self.pre_fc_norm_embedding(target.embed(_shift(ids, -1)))
        layer, tokens = self.layers[0], ids.shape[1]
        assert isinstance(layer, _HeadLayer)
        keys: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        outputs = []
        for j in range(steps):
            x = self.fc(torch.cat([embedded, self.pre_fc_norm_hidden(hidden)], -1))
            q, gate, k, v = layer.self_attn.project(layer.input_layernorm(x), packed.cos, packed.sin)
            keys.append(k)
            values.append(v)
            mask = _chain_mask(packed, j, tokens)
            y = layer.self_attn.attend(q, gate, torch.cat(keys, 2), torch.cat(values, 2), mask)
            x = x + y
            x = x + layer.mlp(layer.post_attention_layernorm(x))
            out = self.norm(x)
            outputs.append(out)
            hidden = _shift(out, 1)
        return torch.stack(outputs)

    def loss(
        self, target: Target, ids: torch.Tensor, answer: torch.Tensor, packed: Packed, steps: int
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Mean cross-entropy over steps on answer tokens (answer [B, T] bool), and figures: the accuracy of every step, and
        the expected tokens per round with a draft from every step."""
        with torch.no_grad():
            hidden, _ = target(ids, packed)
        outputs = self(target, ids, hidden, packed, steps)
        total = torch.zeros((), device=ids.device)
        figures = {}
        # A chain is named by the slot s where it starts: it counts if all its steps do.
        chains = answer.shape[1] - steps - 1
        whole = torch.ones_like(answer[:, :chains])
        right = []
        for j in range(steps):
            # Slot t predicts token t + 2; its chain starts at slot t − j, whose document it must share.
            keep = torch.zeros_like(answer)
            keep[:, j:-2] = answer[:, j + 2 :] & (packed.docs[:, j + 2 :] == packed.docs[:, : answer.shape[1] - j - 2])
            labels = _shift(ids, -2)[keep]
            logits = target.logits(outputs[j][keep]).float()
            total = total + F.cross_entropy(logits, labels) / steps
            hit = torch.zeros_like(keep).masked_scatter_(keep, logits.argmax(-1) == labels)
            figures[f"accuracy_{j + 1}"] = hit.sum() / keep.sum()
            whole &= keep[:, j : j + chains]
            right.append(hit[:, j : j + chains])
        runs = torch.stack(right).int().cumprod(0).sum(0)
        return total, {"tokens_per_round": 1 + (runs * whole).sum() / whole.sum().clamp_min(1), **figures}


def _shift(x: torch.Tensor, by: int) -> torch.Tensor:
    """Values move `by` positions to the right; what enters is never used (masked by the caller)."""
    return torch.roll(x, by, 1)


def _chain_mask(packed: Packed, back: int, tokens: int) -> torch.Tensor:
    """[B, 1, T, (back + 1)·T]: true pairs of slots ≤ t − back, and the chain's own slot of each later step."""
    if back == 0:
        return packed.mask
    slots = torch.arange(tokens, device=packed.docs.device)
    distance = slots[:, None] - slots[None]
    own = [(distance == back - step).expand_as(packed.mask) for step in range(1, back + 1)]
    return torch.cat([packed.mask & (distance >= back), *own], -1)

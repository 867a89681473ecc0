"""Losses of the block drafters: anchors drawn at random from the answers, position weights, selector.

Row k of a block is scored against the token at anchor + k while that is in the same document; rows beyond it do not count.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from paceline.train.block import BlockConfig, BlockDrafter, Blocks
from paceline.train.target import Packed, Target


@dataclass(frozen=True, slots=True)
class DrafterLoss:
    """`decay` is γ_w of the weights exp(−(k − 1)/γ_w). `dpace` > 0 weighs by the chance that the rows before were right
    instead (D-PACE with that α). `short` is the share of blocks that are cut to a random length, so that K < γ − 1 is
    trained too."""

    anchors: int = 64
    decay: float = 4.0
    dpace: float = 0.0
    short: float = 0.25
    selector_weight: float = 1.0


def draw_blocks(
    answer: torch.Tensor, docs: torch.Tensor, c: BlockConfig, s: DrafterLoss
) -> tuple[Blocks, torch.Tensor]:
    """Distinct anchors inside answers, with at least one answer token after them; → blocks, valid [B, A]."""
    usable = answer[:, :-1] & answer[:, 1:] & (docs[:, :-1] == docs[:, 1:])
    score = torch.rand(usable.shape, device=answer.device).masked_fill_(~usable, -1.0)
    best = score.topk(s.anchors, dim=1)
    shape = best.indices.shape
    cut = torch.randint(2, c.block + 1, shape, device=answer.device)
    full = torch.full(shape, c.block, device=answer.device)
    length = torch.where(torch.rand(shape, device=answer.device) < s.short, cut, full)
    return Blocks(best.indices, length), best.values >= 0


def labels_of(
    ids: torch.Tensor, answer: torch.Tensor, docs: torch.Tensor, blocks: Blocks, c: BlockConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """→ tokens at anchor + 0 … γ−1 [B, A, γ], and which of them count (row 0 never does)."""
    offsets = torch.arange(c.block, device=ids.device)
    at = blocks.at[..., None] + offsets  # [B, A, γ]
    inside = at < ids.shape[1]
    at = at.clamp_max(ids.shape[1] - 1)
    flat = at.flatten(1)

    def pick(x: torch.Tensor) -> torch.Tensor:
        return x.gather(1, flat).view_as(at)

    same = pick(docs) == docs.gather(1, blocks.at)[..., None]
    counts = inside & same & pick(answer) & (offsets > 0) & (offsets < blocks.length[..., None])
    return pick(ids), counts


def row_weights(right: torch.Tensor, counts: torch.Tensor, s: DrafterLoss) -> torch.Tensor:
    """right: probability of the label per row [B, A, γ−1] (detached) → weights of the same shape."""
    if s.dpace > 0:
        soft = torch.where(counts, (1 - s.dpace) * right + s.dpace, torch.ones_like(right))
        weights = soft.cumprod(-1).flip(-1).cumsum(-1).flip(-1)
    else:
        k = torch.arange(right.shape[-1], device=right.device, dtype=right.dtype)
        weights = torch.exp(-k / s.decay).expand_as(right)
    return weights * counts


def drafter_loss(
    drafter: BlockDrafter, target: Target, ids: torch.Tensor, answer: torch.Tensor, packed: Packed, s: DrafterLoss
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Loss of one batch of packed rows, and figures: accuracy per row and the expected tokens per round."""
    c = drafter.c
    with torch.no_grad():
        _, features = target(ids, packed, c.taps)
        blocks, valid = draw_blocks(answer, packed.docs, c, s)
    hidden = drafter(target, ids, features, packed.docs, blocks)[:, :, 1:]
    tokens, counts = labels_of(ids, answer, packed.docs, blocks, c)
    labels, counts = tokens[..., 1:], counts[..., 1:] & valid[..., None]
    logits = target.logits(hidden).float()
    loss = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none").view_as(labels)
    weights = row_weights(torch.exp(-loss.detach()), counts, s)
    total = (loss * weights).sum() / weights.sum().clamp_min(1e-6)
    right = logits.detach().argmax(-1) == labels
    if c.dynamic:
        unary, candidates = logits.topk(c.top_k, -1)
        scores = drafter.candidate_selector(
            hidden.flatten(0, 2), tokens[..., :-1].flatten(), candidates.flatten(0, 2), unary.flatten(0, 2)
        ).view_as(unary)
        gold = candidates == labels[..., None]
        found = gold.any(-1) & counts
        picked = F.cross_entropy(scores.flatten(0, 2), gold.int().argmax(-1).flatten(), reduction="none").view_as(
            labels
        )
        chosen = weights * found
        total = total + s.selector_weight * (picked * chosen).sum() / chosen.sum().clamp_min(1e-6)
        right = found & gold.gather(-1, scores.detach().argmax(-1, keepdim=True)).squeeze(-1)
    return total, _figures(right, counts, blocks, valid)


def _figures(right: torch.Tensor, counts: torch.Tensor, blocks: Blocks, valid: torch.Tensor) -> dict[str, torch.Tensor]:
    run = (right & counts).float().cumprod(-1)
    whole = valid & (blocks.length == right.shape[-1] + 1) & counts[..., -1]
    share = (run * whole[..., None]).sum((0, 1)) / whole.sum().clamp_min(1)
    return {"tokens_per_round": 1 + share.sum(), **{f"joint_{k + 1}": value for k, value in enumerate(share)}}

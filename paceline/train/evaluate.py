"""Acceptance at temperature 0, worked out offline on the target's own greedy replies to held-out prompts.

With the text fixed, the number of right drafts at every anchor is computed in one teacher-forced forward: up to the first wrong
draft the drafted tokens are the text, and later ones do not matter. A walk over these numbers then counts the rounds as
the server would. tokens/round = emitted tokens / rounds; joint[k] = share of rounds that accepted at least k drafts.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from paceline.train.block import BlockDrafter, Blocks
from paceline.train.mtp import MtpHead
from paceline.train.target import Packed, Target, pack

_ANCHORS = 64
_ROWS = 8
# Right drafts of a batch: rows ids [B, T], packed → [K, B, T]: is draft k of the window anchored at t the token at t + k?
RightFn = Callable[[torch.Tensor, Packed], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Reply:
    """One prompt and its reply as token ids."""

    prompt: list[int]
    answer: list[int]


@dataclass(slots=True)
class Count:
    emitted: int = 0
    rounds: int = 0
    at_least: tuple[int, ...] = ()

    def add(self, right: torch.Tensor, first: int, end: int) -> None:
        """right [K, T] on the CPU; the answer stands at positions first … end − 1."""
        runs = right.int().cumprod(0).sum(0).tolist()
        k = right.shape[0]
        held = list(self.at_least or (0,) * k)
        anchor = first
        while anchor < end - 1:
            accepted = min(runs[anchor], end - 1 - anchor)
            for i in range(accepted):
                held[i] += 1
            self.rounds += 1
            step = min(accepted + 1, end - 1 - anchor)
            self.emitted += step
            anchor += step
        self.at_least = tuple(held)

    def plus(self, other: "Count") -> "Count":
        wide = max(len(self.at_least), len(other.at_least))
        a, b = (c.at_least or (0,) * wide for c in (self, other))
        return Count(
            self.emitted + other.emitted, self.rounds + other.rounds, tuple(x + y for x, y in zip(a, b, strict=True))
        )

    def report(self) -> dict[str, object]:
        joint = [n / max(1, self.rounds) for n in self.at_least]
        conditional = [b / a if a else 0.0 for a, b in zip([1.0, *joint], joint, strict=False)]
        return {
            "tokens_per_round": round(self.emitted / max(1, self.rounds), 3),
            "rounds": self.rounds,
            "joint": [round(x, 3) for x in joint],
            "conditional": [round(x, 3) for x in conditional],
        }


def mtp_right(target: Target, head: MtpHead, k: int) -> RightFn:
    def right(ids: torch.Tensor, packed: Packed) -> torch.Tensor:
        hidden, _ = target(ids, packed)
        outputs = head(target, ids, hidden, packed, k)
        found = torch.zeros(k, *ids.shape, dtype=torch.bool, device=ids.device)
        for j in range(1, k + 1):
            # The window anchored at t starts from the pair at slot t − 1; its draft j comes from slot t + j − 2.
            drafted = target.logits(outputs[j - 1]).argmax(-1)
            last = ids.shape[1] - j
            found[j - 1, :, 1:last] = drafted[:, j - 1 : last + j - 2] == ids[:, 1 + j : last + j]
        return found

    return right


def block_right(target: Target, drafter: BlockDrafter) -> RightFn:
    c = drafter.c

    def right(ids: torch.Tensor, packed: Packed) -> torch.Tensor:
        _, features = target(ids, packed, c.taps)
        rows, tokens = ids.shape
        found = torch.zeros(c.block - 1, rows, tokens, dtype=torch.bool, device=ids.device)
        following = torch.nn.functional.pad(ids, (0, c.block), value=-1)
        for start in range(0, tokens, _ANCHORS):
            at = torch.arange(start, min(start + _ANCHORS, tokens), device=ids.device).expand(rows, -1)
            blocks = Blocks(at.contiguous(), torch.full_like(at, c.block))
            hidden = drafter(target, ids, features, packed.docs, blocks)[:, :, 1:]
            logits = target.logits(hidden).float()
            texts = torch.stack([following[:, start + k : start + k + at.shape[1]] for k in range(c.block)], 2)
            if c.dynamic:
                unary, candidates = logits.topk(c.top_k, -1)
                scores = drafter.candidate_selector(
                    hidden.flatten(0, 2),
                    texts[..., :-1].clamp_min(0).flatten(),
                    candidates.flatten(0, 2),
                    unary.flatten(0, 2),
                ).view_as(unary)
                drafted = candidates.gather(-1, scores.argmax(-1, keepdim=True)).squeeze(-1)
            else:
                drafted = logits.argmax(-1)
            found[:, :, start : start + at.shape[1]] = (drafted == texts[..., 1:]).permute(2, 0, 1)
        return found

    return right


@torch.no_grad()
def acceptance(target: Target, replies: dict[str, list[Reply]], right_fn: RightFn) -> dict[str, dict[str, object]]:
    """Per workload and pooled."""
    device = target.model.embed_tokens.weight.device
    counts = {}
    for kind, each in replies.items():
        count = Count()
        ordered = sorted(each, key=lambda reply: len(reply.prompt) + len(reply.answer))
        for start in range(0, len(ordered), _ROWS):
            batch = ordered[start : start + _ROWS]
            width = max(len(r.prompt) + len(r.answer) for r in batch)
            ids = torch.full((len(batch), width), target.config.pad_id)
            docs = torch.ones(len(batch), width, dtype=torch.long)
            for i, reply in enumerate(batch):
                whole = reply.prompt + reply.answer
                ids[i, : len(whole)] = torch.tensor(whole)
                docs[i, : len(whole)] = 0
            right = right_fn(ids.to(device), pack(docs.to(device), target.config, target.dtype)).cpu()
            for i, reply in enumerate(batch):
                count.add(right[:, i], len(reply.prompt), len(reply.prompt) + len(reply.answer))
        counts[kind] = count
    pooled = Count()
    for count in counts.values():
        pooled = pooled.plus(count)
    return {**{kind: count.report() for kind, count in counts.items()}, "pooled": pooled.report()}

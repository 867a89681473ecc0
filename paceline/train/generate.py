"""Batched replies from the target, for training data and for the evaluation: left-padded rows in lockstep, static caches.

Padding is a document of its own before the prompt, so that it changes nothing. Simple and fast on one GPU for a small
model; not how paceline serves.
"""

import torch

from paceline.train.target import Attention, Cache, Layer, Target, pack, rope_tables

_CHECK_EVERY = 16


@torch.no_grad()
def generate(
    target: Target, prompts: list[list[int]], new_tokens: int, temperature: torch.Tensor, seed: int = 0
) -> list[list[int]]:
    """One reply per prompt, end mark included where it came; temperature [B], 0 is greedy."""
    device, end_id = target.model.embed_tokens.weight.device, target.config.end_id
    longest = max(len(p) for p in prompts)
    ids = torch.full((len(prompts), longest), target.config.pad_id)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
    ids = ids.to(device)
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    docs = (torch.arange(longest, device=device) >= longest - lengths[:, None]).long()
    caches = [Cache() for _ in target.model.layers]
    hidden, _ = target(ids, pack(docs, target.config, target.dtype), caches=caches)
    room = -(-(longest + new_tokens) // 8) * 8
    for layer, cache in zip(target.model.layers, caches, strict=True):
        if layer.full:
            cache.tensors = [torch.nn.functional.pad(t, (0, 0, 0, room - longest)) for t in cache.tensors]
    noise = torch.Generator(device).manual_seed(seed)
    token = _sample(target.logits(hidden[:, -1]), temperature, noise)
    replies, finished = [token], token == end_id
    place = torch.arange(room, device=device)
    real = place >= longest - lengths[:, None]
    for at in range(longest, longest + new_tokens - 1):
        if at % _CHECK_EVERY == 0 and bool(finished.all()):
            break
        hidden = _step(target, token, at, (real & (place <= at))[:, None, None], caches)
        token = torch.where(finished, end_id, _sample(target.logits(hidden), temperature, noise))
        finished = finished | (token == end_id)
        replies.append(token)
    rows = torch.stack(replies, 1).tolist()
    return [row[: row.index(end_id) + 1] if end_id in row else row for row in rows]


def _step(target: Target, token: torch.Tensor, at: int, mask: torch.Tensor, caches: list[Cache]) -> torch.Tensor:
    c = target.config
    x = target.embed(token[:, None])
    cos, sin = rope_tables(torch.tensor([at], device=x.device), c.rotary_dim, c.theta, x.dtype)
    for layer, cache in zip(target.model.layers, caches, strict=True):
        assert isinstance(layer, Layer)
        n = layer.input_layernorm(x)
        if layer.full:
            assert isinstance(layer.self_attn, Attention)
            x = x + layer.self_attn.step(n, cos, sin, at, mask, cache)
        else:
            x = x + layer.linear_attn.step(n, cache)
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    hidden: torch.Tensor = target.model.norm(x)[:, 0]
    return hidden


def _sample(logits: torch.Tensor, temperature: torch.Tensor, noise: torch.Generator) -> torch.Tensor:
    logits = logits.float()
    uniform = torch.rand(logits.shape, device=logits.device, generator=noise).clamp_(1e-9, 1 - 1e-7)
    return (logits + temperature[:, None] * -torch.log(-torch.log(uniform))).argmax(-1)

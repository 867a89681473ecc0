"""The drafters' forwards once more, written from the formulas: whole sequences, no caches, no batches, fp32.

Nothing of the package is used here. Positions are explicit; masks are loops over pairs of positions.
"""

from collections.abc import Callable
from typing import Any

import torch

Tensors = dict[str, torch.Tensor]
Head = Callable[[torch.Tensor], torch.Tensor]


def rms(x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * w


def rotate(x: torch.Tensor, positions: list[int], theta: float, width: int) -> torch.Tensor:
    """x [n, heads, D]: pairs (i, i + width/2) of the first `width` turned by position · theta^(−2i/width)."""
    out = x.clone()
    half = width // 2
    for i in range(half):
        angle = torch.tensor(positions, dtype=torch.float32) * theta ** (-2 * i / width)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        out[..., i] = x[..., i] * cos - x[..., i + half] * sin
        out[..., i + half] = x[..., i + half] * cos + x[..., i] * sin
    return out


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """q [n, H, D], k, v [m, Hk, D], seen [n, m] → [n, H·D]."""
    group = q.shape[1] // k.shape[1]
    out = torch.empty_like(q)
    for h in range(q.shape[1]):
        scores = q[:, h] @ k[:, h // group].T / q.shape[2] ** 0.5
        out[:, h] = scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v[:, h // group]
    return out.flatten(1)


def swiglu(t: Tensors, at: str, x: torch.Tensor) -> torch.Tensor:
    gate = x @ t[f"{at}mlp.gate_proj.weight"].T
    return (gate * gate.sigmoid() * (x @ t[f"{at}mlp.up_proj.weight"].T)) @ t[f"{at}mlp.down_proj.weight"].T


def mtp_output(t: Tensors, config: Any, embed: torch.Tensor, hidden: torch.Tensor, after: list[int]) -> torch.Tensor:
    """hidden [n, d] of positions 0 …, the token after each → the head's normed output of the last pair [d]."""
    eps, heads, kv_heads, width = (
        config.rms_norm_eps,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
    )
    at, n = "mtp.layers.0.", len(after)

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return rms(x, 1 + t[f"{name}.weight"], eps)

    e = norm(embed[after], "mtp.pre_fc_norm_embedding")
    x = torch.cat([e, norm(hidden, "mtp.pre_fc_norm_hidden")], 1) @ t["mtp.fc.weight"].T
    y = norm(x, f"{at}input_layernorm")
    qg = (y @ t[f"{at}self_attn.q_proj.weight"].T).view(n, heads, 2 * width)
    q, gate = norm(qg[..., :width], f"{at}self_attn.q_norm"), qg[..., width:]
    k = norm((y @ t[f"{at}self_attn.k_proj.weight"].T).view(n, kv_heads, width), f"{at}self_attn.k_norm")
    v = (y @ t[f"{at}self_attn.v_proj.weight"].T).view(n, kv_heads, width)
    rope = config.rope_parameters
    turned = int(width * rope["partial_rotary_factor"])
    q, k = (rotate(z, list(range(n)), rope["rope_theta"], turned) for z in (q, k))
    seen = torch.tensor([[j <= i for j in range(n)] for i in range(n)])
    mixed = attend(q, k, v, seen) * gate.flatten(1).sigmoid()
    x = x + mixed @ t[f"{at}self_attn.o_proj.weight"].T
    x = x + swiglu(t, at, norm(x, f"{at}post_attention_layernorm"))
    return norm(x, "mtp.norm")[-1]


def mtp_logits(
    t: Tensors, config: Any, embed: torch.Tensor, head: Head, tokens: list[int], hidden: torch.Tensor, drafts: list[int]
) -> torch.Tensor:
    """tokens x_0 … x_P (the last is the anchor), hidden [P, d]; the logits [K, V] from which `drafts` were picked."""
    after, fed, out = tokens[1:], hidden, []
    for draft in drafts:
        o = mtp_output(t, config, embed, fed, after)
        out.append(head(o[None])[0])
        fed, after = torch.cat([fed, o[None]]), [*after, draft]
    return torch.stack(out)


def convolve(base: torch.Tensor, delta: torch.Tensor, x: torch.Tensor, group: int) -> torch.Tensor:
    """base [taps, d], delta [B, taps, d/G], x [B, d]."""
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        for tau in range(base.shape[0]):
            if i - tau >= 0:
                for c in range(x.shape[1]):
                    out[i, c] += (base[tau, c] + delta[i, tau, c // group]) * x[i - tau, c]
    return out


def block_hidden(
    t: Tensors, config: dict[str, Any], embed: torch.Tensor, taps: torch.Tensor, anchor: int, k: int
) -> torch.Tensor:
    """taps [P, n_taps·d] of positions 0 … P − 1, the anchor at P → hidden [K, d] of the mask rows after the last norm."""
    inner, eps, theta = config["dflash_config"], config["rms_norm_eps"], config["rope_parameters"]["rope_theta"]
    heads, kv_heads, width = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    context, here = list(range(taps.shape[0])), [taps.shape[0] + i for i in range(k + 1)]
    c = rms(taps @ t["fc.weight"].T, t["hidden_norm.weight"], eps)
    x = embed[[anchor] + [inner["mask_token_id"]] * k] * inner.get("input_embedding_scale", 1.0)

    def wrapped(at: str, name: str, n: torch.Tensor, sublayer: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        if config["architectures"] == ["DFlashDraftModel"]:
            return sublayer(n)
        group, reach = inner["conv_group_size"], inner["conv_kernel_size"]
        base = t[f"{at}{name}.base_kernel"]
        delta = (n @ t[f"{at}{name}.kernel_projection.weight"].T).view(n.shape[0], 2, reach, -1)
        u = convolve(base[0], delta[:, 0], n, group)
        return convolve(base[1], delta[:, 1], sublayer(u), group)

    for i, kind in enumerate(config["layer_types"]):
        at, sliding = f"layers.{i}.", kind == "sliding_attention"
        causal = config.get("is_causal")
        causal = inner.get("causal") if causal is None else causal
        causal = sliding if causal is None else causal
        window = config["sliding_window"] if sliding else 10**9
        places = context + here
        seen = torch.tensor([[abs(q - p) < window and (p <= q or not causal) for p in places] for q in here])

        def attention(u: torch.Tensor, at: str = at, seen: torch.Tensor = seen) -> torch.Tensor:
            def heads_of(z: torch.Tensor, name: str, count: int) -> torch.Tensor:
                return (z @ t[f"{at}self_attn.{name}_proj.weight"].T).view(z.shape[0], count, width)

            q = rotate(rms(heads_of(u, "q", heads), t[f"{at}self_attn.q_norm.weight"], eps), here, theta, width)
            both = torch.cat([c, u])
            keys = rms(heads_of(both, "k", kv_heads), t[f"{at}self_attn.k_norm.weight"], eps)
            y = attend(q, rotate(keys, context + here, theta, width), heads_of(both, "v", kv_heads), seen)
            return y @ t[f"{at}self_attn.o_proj.weight"].T

        x = x + wrapped(at, "attention_conv", rms(x, t[f"{at}input_layernorm.weight"], eps), attention)
        m = rms(x, t[f"{at}post_attention_layernorm.weight"], eps)
        x = x + wrapped(at, "mlp_conv", m, lambda z, at=at: swiglu(t, at, z))
    return rms(x, t["norm.weight"], eps)[1:]


def block_scores(config: dict[str, Any], head: Head, hidden: torch.Tensor) -> torch.Tensor:
    inner = config["dflash_config"]
    u = head(hidden) * inner.get("output_multiplier", 1.0)
    cap = inner.get("final_logit_softcapping", 0.0)
    return torch.tanh(u / cap) * cap if cap else u


def selector_scores(
    t: Tensors, u: torch.Tensor, hidden: torch.Tensor, before: list[int], top: int
) -> list[dict[int, float]]:
    """u [K, V], hidden [K, d], the token before each mask → {candidate: score} for each."""
    a, b = (t[f"candidate_selector.{name}_codebook"] for name in ("predecessor", "successor"))
    h = hidden @ t["candidate_selector.hidden_projection.weight"].T
    out = []
    for step, previous in enumerate(before):
        candidates = u[step].argsort(descending=True)[:top].tolist()
        out.append({c: float(u[step, c] + (a[previous] * h[step] * b[c]).sum()) for c in candidates})
    return out

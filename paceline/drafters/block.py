"""The backbone that both block drafters share: a small transformer that fills in a block of masks after the anchor.

The block is [anchor, MASK × K] at positions p0 … p0 + K; row j gives the token at its own position. Its rows see each other
and, as context, every position before the anchor. Context keys and values come straight from the target's features
c_t = norm(fc · taps_t): no input norm, residual or MLP of the drafter is on that way. They are written once, for
positions that are facts, so nothing provisional is ever kept. The block's own keys and values live for one call.

A sliding layer keeps its context in a ring of its window by slot, a full layer in the sequence's pages. Norms multiply by w.
Shapes: R rows (sequences), B = K + 1 block positions, H/Hk heads, D head width, d hidden.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F

from paceline.core.config import PAGE_TOKENS
from paceline.core.spec import DrafterSpec
from paceline.drafters.base import Observed, Target, Want
from paceline.drafters.block_config import BlockLayerSpec, BlockSpec, describe_block
from paceline.kernels.paged_attn import gather_keys
from paceline.kernels.rope import apply_, inverse_frequencies, tables
from paceline.kernels.round import KvView, kv_range, page_rows
from paceline.layers.mlp import Mlp
from paceline.layers.norm import RmsNorm
from paceline.quant.base import Linear

Tensors = dict[str, torch.Tensor]
Sublayer = Callable[[torch.Tensor], torch.Tensor]


class Around(Protocol):
    """What stands around a sublayer: x [R, B, d] normed → [R, B, d], calling the sublayer once."""

    def __call__(self, x: torch.Tensor, sublayer: Sublayer) -> torch.Tensor: ...


def plain(x: torch.Tensor, sublayer: Sublayer) -> torch.Tensor:
    return sublayer(x)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a sequence's context lies: its slot and its pages."""

    slot: int
    pages: list[int]


class Ring:
    """Keys and values of one layer's context, by slot: position t lies in cell t mod `size`. k, v [S, size, Hk, D];
    `kept` are the copies [N, 2, size, Hk, D]."""

    def __init__(self, slots: int, copies: int, size: int, heads: int, width: int, dtype: torch.dtype) -> None:
        self.size = size
        self.k, self.v = (torch.zeros(slots, size, heads, width, dtype=dtype) for _ in range(2))
        self.kept = torch.zeros(copies, 2, size, heads, width, dtype=dtype)

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes

    @property
    def kept_bytes(self) -> int:
        return self.kept.nbytes

    def save(self, slot: int, place: int) -> None:
        self.kept[place, 0], self.kept[place, 1] = self.k[slot], self.v[slot]

    def restore(self, slot: int, place: int) -> None:
        self.k[slot], self.v[slot] = self.kept[place]

    def copy_page(self, source: int, target: int) -> None:
        pass

    def write(self, place: Place, start: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """k, v [n, Hk, D] of positions start …; of more than `size` the last ones stay."""
        slot = place.slot
        count = k.shape[0]
        kept = min(count, self.size)
        cells = torch.arange(start + count - kept, start + count) % self.size
        self.k[slot, cells] = k[count - kept :]
        self.v[slot, cells] = v[count - kept :]

    def read(self, place: Place, end: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """k, v [n, Hk, D] and positions [n] of the context before `end`, in the order of the cells."""
        slot = place.slot
        cells = torch.arange(min(end, self.size))
        positions = end - 1 - (end - 1 - cells) % self.size
        return self.k[slot, : len(cells)], self.v[slot, : len(cells)], positions


class Paged:
    """Keys and values of one layer's whole context, in the sequences' pages: kv [pages · 64, 2 · Hk, D]."""

    def __init__(self, pages: int, heads: int, width: int, dtype: torch.dtype) -> None:
        self.view = KvView(torch.zeros(pages * PAGE_TOKENS, 2 * heads, width, dtype=dtype))
        self.heads = heads

    @property
    def nbytes(self) -> int:
        return self.view.kv.nbytes

    @property
    def kept_bytes(self) -> int:
        return 0

    def save(self, slot: int, place: int) -> None:
        pass

    def restore(self, slot: int, place: int) -> None:
        pass

    def copy_page(self, source: int, target: int) -> None:
        self.view.copy_page(source, target)

    def write(self, place: Place, start: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """k, v [n, Hk, D] of positions start …"""
        rows = page_rows(place.pages, start, start + k.shape[0])
        self.view.kv[torch.tensor(rows)] = torch.cat([k, v], 1)

    def read(self, place: Place, end: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """k, v [end, Hk, D] and positions [end] of the context before `end`."""
        keys = -(-end // PAGE_TOKENS) * PAGE_TOKENS
        kv = gather_keys(self.view, kv_range(place.pages, keys), keys)[:end] if end else self.view.kv[:0]
        return kv[:, : self.heads], kv[:, self.heads :], torch.arange(end)


@dataclass(frozen=True, slots=True)
class Layer:
    """One draft layer. kv: rows [K | V]."""

    spec: BlockLayerSpec
    input_norm: RmsNorm
    q: Linear
    kv: Linear
    q_norm: RmsNorm
    k_norm: RmsNorm
    out: Linear
    post_norm: RmsNorm
    mlp: Mlp
    context: Ring | Paged
    around_attention: Around
    around_mlp: Around


class BlockDrafter(ABC):
    """Context, block forward and first scores; what to pick from them is the subclass's."""

    def __init__(
        self,
        target: Target,
        spec: BlockSpec,
        tensors: Tensors,
        expected: dict[int, float] | None = None,
    ) -> None:
        self.target, self.block = target, spec
        self.dtype = target.codec.dtype
        self.fc = self._linear(tensors, "fc")
        self.hidden_norm, self.norm = self._norm(tensors, "hidden_norm"), self._norm(tensors, "norm")
        held = describe_block(spec, {name: tuple(t.shape) for name, t in tensors.items()}, self.dtype.itemsize)
        cells = [context.cells(target.max_context) for context in held.contexts]
        self.layers = [self._layer(tensors, i, size) for i, size in enumerate(cells)]
        self.cos, self.sin = tables(
            inverse_frequencies(spec.rope), target.max_context + target.draft_tokens + 1, self.dtype
        )
        self._lengths: dict[int, int] = {}
        self._spec = replace(
            held,
            weights_bytes=held.weights_bytes + target.head.nbytes,
            state_bytes=sum(layer.context.nbytes for layer in self.layers),
            checkpoint_bytes=sum(layer.context.kept_bytes for layer in self.layers),
            expected_acceptance=expected or {},
        )
        if target.draft_tokens >= spec.block:
            print(
                f"warning: --draft-tokens {target.draft_tokens}: this drafter was trained on blocks of {spec.block}, so "
                f"drafts after the first {spec.block - 1} are extrapolated",
                file=sys.stderr,
            )

    def _around(self, tensors: Tensors, layer: int) -> tuple[Around, Around]:
        """What stands around a layer's attention and around its MLP."""
        return plain, plain

    @abstractmethod
    def _pick(self, hidden: torch.Tensor, scores: torch.Tensor, row: Want) -> list[int]:
        """hidden [k, d] and scores [k, N] fp32 of a row's first k masks, over the head's ids [N] → k drafts."""

    def _linear(self, tensors: Tensors, *names: str) -> Linear:
        codec = self.target.codec
        return codec.linear(codec.encode(torch.cat([tensors[f"{name}.weight"] for name in names])))

    def _norm(self, tensors: Tensors, name: str) -> RmsNorm:
        return RmsNorm(tensors[f"{name}.weight"], self.block.rms_eps, 0, self.dtype)

    def _layer(self, tensors: Tensors, i: int, cells: int | None) -> Layer:
        spec, target, at = self.block, self.target, f"layers.{i}"
        context: Ring | Paged = Paged(target.pages, spec.kv_heads, spec.head_dim, self.dtype)
        if cells is not None:
            context = Ring(target.slots, target.checkpoints, cells, spec.kv_heads, spec.head_dim, self.dtype)
        around_attention, around_mlp = self._around(tensors, i)
        mlp = Mlp(
            self._linear(tensors, f"{at}.mlp.gate_proj", f"{at}.mlp.up_proj"),
            self._linear(tensors, f"{at}.mlp.down_proj"),
            spec.ffn,
        )
        return Layer(
            spec=spec.layers[i],
            input_norm=self._norm(tensors, f"{at}.input_layernorm"),
            q=self._linear(tensors, f"{at}.self_attn.q_proj"),
            kv=self._linear(tensors, f"{at}.self_attn.k_proj", f"{at}.self_attn.v_proj"),
            q_norm=self._norm(tensors, f"{at}.self_attn.q_norm"),
            k_norm=self._norm(tensors, f"{at}.self_attn.k_norm"),
            out=self._linear(tensors, f"{at}.self_attn.o_proj"),
            post_norm=self._norm(tensors, f"{at}.post_attention_layernorm"),
            mlp=mlp,
            context=context,
            around_attention=around_attention,
            around_mlp=around_mlp,
        )

    @property
    def spec(self) -> DrafterSpec:
        return self._spec

    def open(self, slot: int, tokens: list[int], filled: int) -> None:
        self._lengths[slot] = filled

    def save(self, slot: int, place: int) -> None:
        for layer in self.layers:
            layer.context.save(slot, place)

    def copy_page(self, source: int, target: int) -> None:
        for layer in self.layers:
            layer.context.copy_page(source, target)

    def restore(self, slot: int, place: int) -> None:
        for layer in self.layers:
            layer.context.restore(slot, place)

    def close(self, slot: int) -> None:
        self._lengths.pop(slot, None)

    def observe(self, rows: list[Observed]) -> None:
        taps = [row.taps for row in rows if row.taps is not None]
        features = self.hidden_norm(_rows(self.fc, torch.cat(taps)))  # [T, d]
        counts = [len(each) for each in taps]
        where = torch.cat([torch.arange(row.start, row.start + n) for row, n in zip(rows, counts, strict=True)])
        for layer in self.layers:
            keys, values = self._keys_values(layer, features, where)
            at = 0
            for row, n in zip(rows, counts, strict=True):
                layer.context.write(Place(row.slot, row.pages), row.start, keys[at : at + n], values[at : at + n])
                at += n
        for row, n in zip(rows, counts, strict=True):
            assert self._lengths[row.slot] == row.start, f"slot {row.slot}: context ends at {self._lengths[row.slot]}"
            self._lengths[row.slot] = row.start + n

    def propose(self, rows: list[Want]) -> list[list[int]]:
        if not rows:
            return []
        hidden = self._forward(rows)[:, 1:]  # [R, K, d]
        scores = self._scores(hidden)
        return [self._pick(h[: row.k], s[: row.k], row) for h, s, row in zip(hidden, scores, rows, strict=True)]

    def _scores(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, K, d] → [R, K, N] fp32: the target's head over its ids [N], scaled and capped."""
        logits = self.target.head.logits(hidden.flatten(0, 1)) * self.block.output_multiplier
        if self.block.softcap > 0:
            logits = torch.tanh(logits / self.block.softcap) * self.block.softcap
        return logits.view(*hidden.shape[:2], -1)

    def _forward(self, rows: Sequence[Want]) -> torch.Tensor:
        """The blocks of all rows, each as long as the engine's K makes it: [R, B, d] after the final norm."""
        masks = self.target.draft_tokens
        ids = torch.tensor([[row.anchor, *[self.block.mask_id] * masks] for row in rows])
        x = self.target.embed[ids] * self.block.embedding_scale
        where = torch.tensor([[row.position] for row in rows]) + torch.arange(masks + 1)  # [R, B]
        for layer in self.layers:
            attend = partial(self._attention, layer, where, rows)
            x = x + layer.around_attention(layer.input_norm(x), attend)
            x = x + layer.around_mlp(layer.post_norm(x), partial(_rows, layer.mlp))
        return self.norm(x)

    def _keys_values(self, layer: Layer, x: torch.Tensor, where: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x [T, d] at positions `where` [T] → k normed and rotated, v: [T, Hk, D] each."""
        kv = _rows(layer.kv, x).view(x.shape[0], 2, self.block.kv_heads, self.block.head_dim)
        return apply_(layer.k_norm(kv[:, 0]), self.cos[where], self.sin[where]), kv[:, 1]

    def _attention(self, layer: Layer, where: torch.Tensor, rows: Sequence[Want], u: torch.Tensor) -> torch.Tensor:
        """u [R, B, d] → [R, B, d]: every row's block over its context and itself."""
        spec, flat, places = self.block, u.flatten(0, 1), where.flatten()
        q = _rows(layer.q, flat).view(-1, spec.heads, spec.head_dim)
        q = apply_(layer.q_norm(q), self.cos[places], self.sin[places]).view(*u.shape[:2], spec.heads, spec.head_dim)
        k, v = (t.view(*u.shape[:2], *t.shape[1:]) for t in self._keys_values(layer, flat, places))
        out = []
        for i, row in enumerate(rows):
            assert self._lengths[row.slot] == row.position, f"slot {row.slot}: context ends elsewhere than the anchor"
            context_k, context_v, before = layer.context.read(Place(row.slot, row.pages), row.position)
            keys, values = torch.cat([context_k, k[i]]), torch.cat([context_v, v[i]])
            seen = _visible(layer.spec, where[i], torch.cat([before, where[i]]))
            y = F.scaled_dot_product_attention(
                q[i].transpose(0, 1)[None],
                keys.transpose(0, 1)[None],
                values.transpose(0, 1)[None],
                attn_mask=seen,
                enable_gqa=spec.heads != spec.kv_heads,
            )
            out.append(y[0].transpose(0, 1).flatten(1))
        return _rows(layer.out, torch.stack(out))


def _visible(spec: BlockLayerSpec, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Which keys a query sees, by position: [B, n] bool."""
    ahead = keys - queries[:, None]
    seen = torch.ones_like(ahead, dtype=torch.bool)
    if spec.window is not None:
        seen &= ahead.abs() < spec.window
    if spec.causal:
        seen &= ahead <= 0
    return seen


def _rows(linear: Linear, x: torch.Tensor) -> torch.Tensor:
    """A linear over all leading axes. Up to 64 rows are small ones: a drafter need not be exact, so this is about speed."""
    flat = x.flatten(0, -2)
    rows = flat.shape[0]
    return linear(flat, rows if rows <= 64 else 0).view(*x.shape[:-1], -1)

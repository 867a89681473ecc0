"""The MTP head of Qwen3.5-family checkpoints: one full-attention layer that guesses the token after next.

The pair (h_p, x_{p+1}) – the target's hidden state after its final norm, and the token that followed – gives the logits
of x_{p+2}. The layer has a KV cache of its own in which the pair stands at index p + 1, rotated with p, so that an index
depends on no token after its own; index 0 stays empty and masked. Facts write pairs with the target's hidden states. More
drafts come by recursion on the head's own normed output; what that writes is overwritten before it can be read again.

Norms are the target's kind ((1 + w) in this family). Tensors: `mtp.*` of the target's own checkpoint.
"""

from dataclasses import dataclass, replace
from math import prod

import torch

from paceline.core.config import PAGE_TOKENS
from paceline.core.errors import ConfigError
from paceline.core.spec import ContextSpec, DrafterSpec, ModelSpec
from paceline.drafters.base import ConfigSource, Observed, Target, TensorSource, Want, expected_acceptance
from paceline.kernels.rope import inverse_frequencies, tables
from paceline.kernels.round import BLOCK_TOKENS, SMALL_TOKENS, KvView, Piece, Round, kv_range, page_rows
from paceline.layers.attention import Attention, AttentionWeights
from paceline.layers.mlp import Mlp
from paceline.layers.norm import RmsNorm
from paceline.quant.base import Linear

_PREFIX = "mtp."
_CARD = "paceline_mtp"


@dataclass(slots=True)
class _Slot:
    """`pending`: the pair of the last position is not written yet. `out` [d] is the head's normed output for the newest pair;
    `pairs` pairs are facts. `before` is the token in front of the first one that is observed."""

    pending: bool = False
    out: torch.Tensor | None = None
    pairs: int = 0
    before: int = -1


@dataclass(frozen=True, slots=True)
class _Segment:
    """Consecutive pairs of one slot: hidden [n, d] of positions first …, and the token after each; the sequence's pages."""

    slot: int
    first: int
    hidden: torch.Tensor
    tokens: list[int]
    pages: list[int]


class MtpDrafter:
    def __init__(
        self,
        target: Target,
        tensors: dict[str, torch.Tensor],
        expected: dict[int, float] | None = None,
    ) -> None:
        self.target = target
        model, dtype = target.spec, target.codec.dtype

        def norm(name: str) -> RmsNorm:
            return RmsNorm(tensors[_PREFIX + name], model.rms_eps, model.norm_offset, dtype)

        def linear(*names: str) -> Linear:
            rows = torch.cat([tensors[f"{_PREFIX}{name}.weight"] for name in names])
            return target.codec.linear(target.codec.encode(rows))

        self.embed_norm, self.hidden_norm = norm("pre_fc_norm_embedding.weight"), norm("pre_fc_norm_hidden.weight")
        self.fc = linear("fc")
        at = "layers.0"
        self.input_norm = norm(f"{at}.input_layernorm.weight")
        weights = AttentionWeights(
            qkv=linear(*(f"{at}.self_attn.{n}_proj" for n in "qkv")),
            out=linear(f"{at}.self_attn.o_proj"),
            bias=None,
            q_norm=norm(f"{at}.self_attn.q_norm.weight") if model.qk_norm else None,
            k_norm=norm(f"{at}.self_attn.k_norm.weight") if model.qk_norm else None,
        )
        self.attention = Attention(weights, model)
        self.post_norm = norm(f"{at}.post_attention_layernorm.weight")
        self.mlp = Mlp(linear(f"{at}.mlp.gate_proj", f"{at}.mlp.up_proj"), linear(f"{at}.mlp.down_proj"), model.ffn)
        self.norm = norm("norm.weight")

        # Recursion goes up to K − 1 indices past the last context position.
        places = target.max_context + target.draft_tokens + 1
        self.cos, self.sin = tables(inverse_frequencies(model.rope), places, dtype)
        self.last, self.kept = (torch.zeros(n, model.hidden, dtype=dtype) for n in (target.slots, target.checkpoints))
        shape = (target.pages * PAGE_TOKENS, 2 * model.kv_heads, model.head_dim)
        self.kv = KvView(torch.zeros(shape, dtype=dtype))
        self._slots: dict[int, _Slot] = {}
        held = _held(model, dtype.itemsize)
        self._spec = replace(
            held,
            weights_bytes=held.weights_bytes + target.head.nbytes,
            state_bytes=self.kv.kv.nbytes + self.last.nbytes,
            checkpoint_bytes=self.kept.nbytes,
            expected_acceptance=expected or {},
        )

    @property
    def spec(self) -> DrafterSpec:
        return self._spec

    def open(self, slot: int, tokens: list[int], filled: int) -> None:
        self._slots[slot] = _Slot(pairs=max(filled - 1, 0), before=tokens[-1] if tokens else -1)

    def save(self, slot: int, place: int) -> None:
        state = self._slots[slot]
        assert state.pending or state.pairs, f"slot {slot}: nothing was observed"
        self.kept[place] = self.last[slot]

    def copy_page(self, source: int, target: int) -> None:
        self.kv.copy_page(source, target)

    def restore(self, slot: int, place: int) -> None:
        """The pair of the last position is written again: the token after it may be another one."""
        self.last[slot] = self.kept[place]
        self._slots[slot].pending = True

    def close(self, slot: int) -> None:
        self._slots.pop(slot, None)

    def observe(self, rows: list[Observed]) -> None:
        segments = []
        for row in rows:
            segment = self._take(row)
            if segment is not None:
                segments.append(segment)
        if not segments:
            return
        out, at = self._run(segments), 0
        for segment in segments:
            at += len(segment.tokens)
            state = self._slots[segment.slot]
            state.out = out[at - 1].clone()
            state.pairs = segment.first + len(segment.tokens)

    def _take(self, row: Observed) -> _Segment | None:
        """The pairs that a row completes. The last position of an inner chunk waits for the token after it."""
        assert row.hidden is not None
        state, hidden, first = self._slots[row.slot], row.hidden, row.start
        if state.pending:
            hidden, first = torch.cat([self.last[row.slot][None], hidden]), first - 1
        self.last[row.slot] = hidden[-1]
        assert first == state.pairs, f"slot {row.slot}: pairs end at {state.pairs}, the row starts at {first}"
        tokens = row.tokens if first + 1 >= row.first_token else [state.before, *row.tokens]
        tokens = tokens[max(first + 1 - row.first_token, 0) :][: hidden.shape[0]]
        state.pending = len(tokens) < hidden.shape[0]
        return _Segment(row.slot, first, hidden[: len(tokens)], tokens, row.pages) if tokens else None

    def propose(self, rows: list[Want]) -> list[list[int]]:
        drafts: list[list[int]] = [[] for _ in rows]
        active = list(range(len(rows)))
        hidden = [self._newest(row) for row in rows]
        while active:
            logits = self.target.head.logits(torch.stack([hidden[i] for i in active]))
            for i, line in zip(active, logits, strict=True):
                drafts[i].append(rows[i].view.draw(line, drafts[i], self.target.head.ids))
            active = [i for i in active if len(drafts[i]) < rows[i].k]
            if active:
                # The newest draft's pair: its own position minus one, where the head's last output stands for h.
                out = self._run(
                    [
                        _Segment(
                            rows[i].slot,
                            rows[i].position + len(drafts[i]) - 1,
                            hidden[i][None],
                            [drafts[i][-1]],
                            rows[i].pages,
                        )
                        for i in active
                    ]
                )
                for i, line in zip(active, out, strict=True):
                    hidden[i] = line
        return drafts

    def _newest(self, row: Want) -> torch.Tensor:
        state = self._slots[row.slot]
        assert state.out is not None and state.pairs == row.position, f"slot {row.slot}: no pair for the anchor"
        return state.out

    def _run(self, segments: list[_Segment]) -> torch.Tensor:
        """Writes the segments' pairs into the cache and returns the head's normed outputs [T, d], in order."""
        round = self._plan(segments)
        e = self.embed_norm(self.target.embed[round.ids])
        h = self.hidden_norm(torch.cat([segment.hidden for segment in segments]))
        x = self.fc(torch.cat([e, h], 1), round.small)
        x = x + self.attention(self.input_norm(x), round, self.kv)
        x = x + self.mlp(self.post_norm(x), round.small)
        return self.norm(x)

    def _plan(self, segments: list[_Segment]) -> Round:
        ids: list[int] = []
        positions: list[torch.Tensor] = []
        cache_rows: list[int] = []
        pieces: list[Piece] = []
        for segment in segments:
            index, end = segment.first + 1, segment.first + 1 + len(segment.tokens)
            positions.append(torch.arange(index - 1, end - 1))
            cache_rows += page_rows(segment.pages, index, end)
            at = len(ids)
            ids += segment.tokens
            while index < end:
                edge = min(end, (index // BLOCK_TOKENS + 1) * BLOCK_TOKENS)
                pieces.append(self._piece(segment.pages, at, index, edge - index))
                at, index = at + edge - index, edge
        where = torch.cat(positions)
        return Round(
            ids=torch.tensor(ids),
            cos=self.cos[where],
            sin=self.sin[where],
            cache_rows=torch.tensor(cache_rows),
            # Drafts need not be equal bit for bit, so all matrix products take the blocks that fit this many rows.
            small=len(ids) if len(ids) <= BLOCK_TOKENS else 0,
            pieces=tuple(pieces),
            rows=(),
        )

    def _piece(self, pages: list[int], at: int, index: int, count: int) -> Piece:
        """`count` pairs from cache index `index` on; each sees the indices 1 … its own."""
        keys = (index // BLOCK_TOKENS + 1) * BLOCK_TOKENS
        key, last = torch.arange(keys), torch.arange(index, index + count)[:, None]
        hidden = (key == 0) | (key > last)
        mask = torch.zeros(count, keys, dtype=self.target.codec.dtype).masked_fill_(hidden, float("-inf"))
        small = count <= SMALL_TOKENS
        group = self.target.spec.heads // self.target.spec.kv_heads
        shaped = mask[:, None, None] if small else mask.repeat(group, 1)[None, None]
        return Piece(0, at, index, count, small, keys, shaped, kv_range(pages, keys))


def describe(target: ModelSpec, item_bytes: int, source: ConfigSource) -> DrafterSpec:
    if source.config().get("mtp_num_hidden_layers") != 1:
        raise ConfigError("--drafter", "mtp", f"{source.path} has no such head; choose another drafter")
    return _held(target, item_bytes)


def _held(model: ModelSpec, item_bytes: int) -> DrafterSpec:
    """What a head for this target holds."""
    return DrafterSpec(
        hidden=True,
        slot_state=True,
        weights_bytes=sum(prod(shape) for shape in wanted(model).values()) * item_bytes,
        contexts=(ContextSpec(2 * model.kv_heads * model.head_dim * item_bytes),),
        hidden_bytes=model.hidden * item_bytes,
        rotary_dim=model.rope.rotary_dim,
    )


def wanted(model: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the head for this target."""
    d, q, kv = model.hidden, model.heads * model.head_dim, model.kv_heads * model.head_dim
    layer = {
        "input_layernorm": (d,),
        "post_attention_layernorm": (d,),
        "self_attn.q_proj": (q * (2 if model.attention_gate else 1), d),
        "self_attn.k_proj": (kv, d),
        "self_attn.v_proj": (kv, d),
        "self_attn.o_proj": (d, q),
        "mlp.gate_proj": (model.ffn, d),
        "mlp.up_proj": (model.ffn, d),
        "mlp.down_proj": (d, model.ffn),
    }
    if model.qk_norm:
        layer |= {"self_attn.q_norm": (model.head_dim,), "self_attn.k_norm": (model.head_dim,)}
    top = {"fc": (d, 2 * d), "pre_fc_norm_embedding": (d,), "pre_fc_norm_hidden": (d,), "norm": (d,)}
    names = {f"{_PREFIX}{name}.weight": shape for name, shape in top.items()}
    return names | {f"{_PREFIX}layers.0.{name}.weight": shape for name, shape in layer.items()}


def build(target: Target, source: TensorSource | None) -> MtpDrafter:
    assert source is not None
    if not any(name.startswith(_PREFIX) for name in source.names()):
        raise ConfigError("--drafter", "mtp", f"{source.path} holds no {_PREFIX}* tensors; choose another drafter")
    return MtpDrafter(target, source.load(wanted(target.spec), _PREFIX), expected_acceptance(source, _CARD))

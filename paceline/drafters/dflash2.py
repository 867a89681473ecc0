"""DFlash2: the same backbone with a small convolution around every sublayer, and a selector that makes the block coherent.

The convolution mixes a row with the ones before it in its block; its coefficients are a base and a part that depends on the
row, shared by groups of channels. The selector takes the M best tokens of each mask and walks from the anchor: a token's
score is its own plus a low-rank term for following the token picked before it. Selector arithmetic is fp32.
"""

from dataclasses import dataclass

import torch

from paceline.core.spec import DrafterSpec, ModelSpec
from paceline.drafters.base import ConfigSource, Target, TensorSource, Want, expected_acceptance
from paceline.drafters.block import Around, BlockDrafter, Sublayer, Tensors
from paceline.drafters.block_config import BlockSpec, ConfigReader, block_tensors, describe_block, read_block_spec

ARCHITECTURE = "DFlash2DraftModel"


@dataclass(frozen=True, slots=True)
class Extra:
    """What DFlash2 adds: `taps` rows reach into a convolution, `group` channels share a coefficient; rank r; M candidates."""

    taps: int
    group: int
    rank: int
    candidates: int


class GroupedConv:
    """Dynamic causal convolutions before and after a sublayer.

    With delta = projection(x) [R, B, 2, taps, d/G]: conv_side(y)[i] = Σ_τ (base[side, τ] + delta[i, side, τ]) · y[i − τ],
    rows before the block's first being zero. Both sides use the delta of the sublayer's input.
    """

    def __init__(self, base: torch.Tensor, projection: torch.Tensor, extra: Extra) -> None:
        self.base, self.projection, self.extra = base.float(), projection.float(), extra

    def __call__(self, x: torch.Tensor, sublayer: Sublayer) -> torch.Tensor:
        delta = (x.float() @ self.projection.t()).view(*x.shape[:-1], 2, self.extra.taps, -1)
        delta = delta.repeat_interleave(self.extra.group, -1)
        return self._side(1, sublayer(self._side(0, x, delta)), delta)

    def _side(self, side: int, y: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        kernel = self.base[side] + delta[..., side, :, :]  # [R, B, taps, d]
        wide = y.float()
        out = kernel[..., 0, :] * wide
        for tau in range(1, min(self.extra.taps, y.shape[1])):
            out[:, tau:] += kernel[:, tau:, tau] * wide[:, :-tau]
        return out.to(y.dtype)


class DFlash2Drafter(BlockDrafter):
    def __init__(
        self,
        target: Target,
        spec: BlockSpec,
        extra: Extra,
        tensors: Tensors,
        expected: dict[int, float] | None = None,
    ) -> None:
        self.extra = extra
        super().__init__(target, spec, tensors, expected)
        self.predecessors = tensors["candidate_selector.predecessor_codebook"]
        self.successors = tensors["candidate_selector.successor_codebook"]
        self.projection = tensors["candidate_selector.hidden_projection.weight"].float()

    def _around(self, tensors: Tensors, layer: int) -> tuple[Around, Around]:
        attention, mlp = (
            GroupedConv(
                tensors[f"layers.{layer}.{name}.base_kernel"],
                tensors[f"layers.{layer}.{name}.kernel_projection.weight"],
                self.extra,
            )
            for name in ("attention_conv", "mlp_conv")
        )
        return attention, mlp

    def _pick(self, hidden: torch.Tensor, scores: torch.Tensor, row: Want) -> list[int]:
        best, at = scores.topk(min(self.extra.candidates, scores.shape[1]), 1)  # [k, M]
        ids = self.target.head.ids[at]
        gates = hidden.float() @ self.projection.t()  # [k, r]
        drafts: list[int] = []
        for unary, candidates, gate in zip(best, ids, gates, strict=True):
            previous = self.predecessors[drafts[-1] if drafts else row.anchor].float()
            follows = self.successors[candidates].float() @ (previous * gate)
            drafts.append(row.view.draw(unary + follows, drafts, candidates))
        return drafts


def extra_tensors(spec: BlockSpec, extra: Extra) -> dict[str, tuple[int, ...]]:
    """Names and shapes of what comes on top of the backbone."""
    d = spec.hidden
    names: dict[str, tuple[int, ...]] = {
        "candidate_selector.predecessor_codebook": (spec.vocab, extra.rank),
        "candidate_selector.successor_codebook": (spec.vocab, extra.rank),
        "candidate_selector.hidden_projection.weight": (extra.rank, d),
    }
    for i in range(len(spec.layers)):
        for name in ("attention_conv", "mlp_conv"):
            names[f"layers.{i}.{name}.base_kernel"] = (2, extra.taps, d)
            names[f"layers.{i}.{name}.kernel_projection.weight"] = (2 * extra.taps * (d // extra.group), d)
    return names


def read_extra(source: ConfigSource, spec: BlockSpec, vocab: int) -> Extra:
    """Only ids below `vocab` can be drafted: the codebooks must know them all."""
    read = ConfigReader(source)
    extra = Extra(
        taps=read.whole("conv_kernel_size", read.inner),
        group=read.whole("conv_group_size", read.inner),
        rank=read.whole("selector_rank", read.inner),
        candidates=read.whole("selector_top_k", read.inner),
    )
    if spec.hidden % extra.group:
        raise read.refusal("conv_group_size", extra.group, f"must divide hidden_size = {spec.hidden}")
    if spec.vocab < vocab:
        raise read.refusal("vocab_size", spec.vocab, f"the target samples {vocab} tokens; this is for another model")
    return extra


def describe(target: ModelSpec, item_bytes: int, source: ConfigSource) -> DrafterSpec:
    spec = read_block_spec(source, ARCHITECTURE, target)
    extra = read_extra(source, spec, 0)
    return describe_block(spec, block_tensors(spec) | extra_tensors(spec, extra), item_bytes)


def build(target: Target, source: TensorSource | None) -> DFlash2Drafter:
    assert source is not None
    spec = read_block_spec(source, ARCHITECTURE, target.spec)
    extra = read_extra(source, spec, target.vocab)
    tensors = source.load(block_tensors(spec) | extra_tensors(spec, extra), "")
    return DFlash2Drafter(target, spec, extra, tensors, expected_acceptance(source, "paceline"))

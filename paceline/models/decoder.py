"""The decoder that all families share: embedding, pre-norm residual layers, final norm, head.

Built from a ModelSpec and loaded planes; what differs between families is in the spec and in the parts. State lives in
the caches that `forward` gets; a Decoder is read-only.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from paceline.core.spec import LayerKind, ModelSpec
from paceline.kernels.rope import inverse_frequencies, tables
from paceline.kernels.round import Caches, GdnView, KvView, Round
from paceline.layers.attention import Attention, AttentionWeights
from paceline.layers.gdn import Gdn, GdnWeights
from paceline.layers.mlp import Mlp
from paceline.layers.norm import GatedRmsNorm, RmsNorm
from paceline.quant.base import Linear, Planes, WeightCodec

Mixer = Callable[[torch.Tensor, Round, KvView | GdnView], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Codecs:
    """The formats of one run: that of the layers' matrices, and those that it names for the head and for tiny matrices."""

    linear: WeightCodec
    head: WeightCodec
    precise: WeightCodec


class Decoder:
    """forward(round, caches, taps) -> hidden [T, d] after the final norm, and the taps; logits(hidden) -> [n, vocab] fp32."""

    def __init__(self, spec: ModelSpec, planes: Mapping[str, Planes], codecs: Codecs, max_context: int) -> None:
        codec = codecs.linear
        self.spec, self.dtype = spec, codec.dtype
        self.embed = planes["embed"]["weight"]
        self.head = codecs.head.linear(planes["head"])
        self.norm = self._rms(planes["norm"])
        self.cos, self.sin = tables(inverse_frequencies(spec.rope), max_context, codec.dtype)
        self.layers = [self._layer(i, kind, planes, codecs) for i, kind in enumerate(spec.layers)]

    def _rms(self, plane: Planes) -> RmsNorm:
        return RmsNorm(plane["weight"], self.spec.rms_eps, self.spec.norm_offset, self.dtype)

    def _layer(
        self, i: int, kind: LayerKind, planes: Mapping[str, Planes], codecs: Codecs
    ) -> tuple[RmsNorm, "Attention | Gdn", RmsNorm, Mlp]:
        def linear(name: str) -> Linear:
            return codecs.linear.linear(planes[f"layers.{i}.{name}"])

        mlp = Mlp(linear("gate_up"), linear("down"), self.spec.ffn)
        if kind is LayerKind.FULL:
            mixer: Attention | Gdn = self._attention(i, planes, linear)
        else:
            mixer = self._gdn(i, planes, linear, codecs.precise)
        return self._rms(planes[f"layers.{i}.input_norm"]), mixer, self._rms(planes[f"layers.{i}.post_norm"]), mlp

    def _attention(self, i: int, planes: Mapping[str, Planes], linear: Callable[[str], Linear]) -> Attention:
        bias = planes.get(f"layers.{i}.qkv_bias")
        normed = self.spec.qk_norm
        weights = AttentionWeights(
            qkv=linear("qkv"),
            out=linear("out"),
            bias=None if bias is None else bias["weight"].to(self.dtype),
            q_norm=self._rms(planes[f"layers.{i}.q_norm"]) if normed else None,
            k_norm=self._rms(planes[f"layers.{i}.k_norm"]) if normed else None,
        )
        return Attention(weights, self.spec)

    def _gdn(self, i: int, planes: Mapping[str, Planes], linear: Callable[[str], Linear], precise: WeightCodec) -> Gdn:
        assert self.spec.gdn is not None
        at = f"layers.{i}"
        dt_bias = planes[f"{at}.dt_bias"]["weight"]
        rate = torch.zeros_like(dt_bias)
        rate[: self.spec.gdn.value_heads] = -planes[f"{at}.A_log"]["weight"].exp()
        weights = GdnWeights(
            qkv_z=linear("qkv_z"),
            beta_decay=precise.linear(planes[f"{at}.beta_decay"]),
            conv=planes[f"{at}.conv"]["weight"],
            decay_rate=rate,
            dt_bias=dt_bias,
            norm=GatedRmsNorm(planes[f"{at}.gdn_norm"]["weight"], self.spec.rms_eps, self.dtype),
            out=linear("out"),
        )
        return Gdn(weights, self.spec.gdn)

    def forward(
        self, round: Round, caches: Caches, taps: tuple[int, ...] = ()
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The second result is the residual stream after each block of `taps`, side by side [T, n_taps·d]; None for none."""
        x = self.embed[round.ids]
        tapped: dict[int, torch.Tensor] = {}
        for i, ((input_norm, mixer, post_norm, mlp), cache) in enumerate(zip(self.layers, caches.layers, strict=True)):
            x = x + mixer(input_norm(x), round, cache)  # type: ignore[arg-type]
            x = x + mlp(post_norm(x), round.small)
            if i in taps:
                tapped[i] = x
        return self.norm(x), torch.cat([tapped[i] for i in taps], 1) if taps else None

    def flush(self, caches: Caches, slot: int, replay: int) -> None:
        """Brings the recurrent states of a slot to its last fact: `replay` drafts of its last window were accepted."""
        for (_, mixer, _, _), view in zip(self.layers, caches.layers, strict=True):
            if isinstance(mixer, Gdn) and isinstance(view, GdnView):
                mixer.flush(view, slot, replay)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [n, d] → [n, vocab] fp32; each row stands alone."""
        return self.head(hidden, hidden.shape[0]).float()

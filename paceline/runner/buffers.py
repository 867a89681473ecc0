"""Every tensor that lives as long as the engine: KV pages, recurrent states, window inputs. Nothing else is allocated to last.

Zero-filled: attention reads whole pages under a mask, so what was never written must be finite.
"""

import torch

from paceline.core.config import MAX_DRAFT_TOKENS, PAGE_TOKENS, EngineConfig
from paceline.core.spec import LayerKind, ModelSpec
from paceline.kernels.round import Caches, GdnView, KvView


def allocate(spec: ModelSpec, config: EngineConfig, dtype: torch.dtype) -> Caches:
    """KV in `dtype` for every full-attention layer, states in fp32 for every Gated DeltaNet layer."""
    layers: list[KvView | GdnView] = []
    for kind in spec.layers:
        if kind is LayerKind.FULL:
            shape = (config.pages * PAGE_TOKENS, 2 * spec.kv_heads, spec.head_dim)
            layers.append(KvView(torch.zeros(shape, dtype=dtype)))
        else:
            layers.append(_gdn(spec, config.max_concurrency, dtype))
    return Caches(tuple(layers))


def _gdn(spec: ModelSpec, slots: int, dtype: torch.dtype) -> GdnView:
    assert spec.gdn is not None
    gdn, drafts = spec.gdn, MAX_DRAFT_TOKENS
    return GdnView(
        state=torch.zeros(slots, gdn.value_heads, gdn.key_dim, gdn.value_dim),
        conv=torch.zeros(slots, gdn.conv_width - 1, gdn.conv_channels, dtype=dtype),
        draft_columns=torch.zeros(slots, drafts, gdn.conv_channels, dtype=dtype),
        draft_beta=torch.zeros(slots, drafts, gdn.value_heads),
        draft_decay=torch.zeros(slots, drafts, gdn.value_heads),
    )


class Checkpoints:
    """Copies of a slot's recurrent states, `count` places. Window inputs are not in them: a slot is flushed first."""

    def __init__(self, caches: Caches, count: int) -> None:
        self._live = [view for view in caches.layers if isinstance(view, GdnView)]
        self._kept = [
            (view.state.new_zeros(count, *view.state.shape[1:]), view.conv.new_zeros(count, *view.conv.shape[1:]))
            for view in self._live
        ]

    @property
    def nbytes(self) -> int:
        return sum(state.nbytes + conv.nbytes for state, conv in self._kept)

    def save(self, slot: int, place: int) -> None:
        for view, (state, conv) in zip(self._live, self._kept, strict=True):
            state[place], conv[place] = view.state[slot], view.conv[slot]

    def restore(self, slot: int, place: int) -> None:
        for view, (state, conv) in zip(self._live, self._kept, strict=True):
            view.state[slot], view.conv[slot] = state[place], conv[place]


def copy_page(caches: Caches, source: int, target: int) -> None:
    """The page's keys and values in every layer."""
    for view in caches.layers:
        if isinstance(view, KvView):
            view.copy_page(source, target)


def reset(caches: Caches, slot: int) -> None:
    """A sequence starts from zero state; window inputs are never read before they are written."""
    for view in caches.layers:
        if isinstance(view, GdnView):
            view.state[slot].zero_()
            view.conv[slot].zero_()


def count_bytes(caches: Caches) -> tuple[int, int]:
    """(KV bytes, state bytes) as allocated."""
    kv = state = 0
    for view in caches.layers:
        if isinstance(view, KvView):
            kv += view.kv.nbytes
        else:
            tensors = (view.state, view.conv, view.draft_columns, view.draft_beta, view.draft_decay)
            state += sum(t.nbytes for t in tensors)
    return kv, state

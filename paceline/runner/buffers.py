"""Every tensor that lives as long as the engine: KV pages, recurrent states, window inputs. Nothing else is allocated to last.

Shapes are the memory plan's (`memory/layout.py`), so what is planned is what is allocated. Zero-filled: attention reads whole
pages under a mask, so what was never written must be finite.
"""

import torch

from paceline.core.config import PAGE_TOKENS, EngineConfig
from paceline.core.spec import LayerKind, ModelSpec
from paceline.kernels.round import Caches, GdnView, KvView
from paceline.memory.layout import TensorSpec, state_tensors, window_tensors


def allocate(spec: ModelSpec, config: EngineConfig, dtype: torch.dtype) -> Caches:
    """KV in `dtype` for every full-attention layer, states in fp32 for every Gated DeltaNet layer."""
    layers: list[KvView | GdnView] = []
    for kind in spec.layers:
        if kind is LayerKind.FULL:
            shape = (config.pages * PAGE_TOKENS, 2 * spec.kv_heads, spec.head_dim)
            layers.append(KvView(torch.zeros(shape, dtype=dtype)))
        else:
            layers.append(_gdn(spec, config, dtype))
    return Caches(tuple(layers))


def _gdn(spec: ModelSpec, config: EngineConfig, dtype: torch.dtype) -> GdnView:
    assert spec.gdn is not None
    slots, activation = config.max_concurrency, str(dtype).removeprefix("torch.")
    states = state_tensors(spec.gdn, slots, activation)
    windows = window_tensors(spec.gdn, slots, config.draft_tokens, activation)
    return GdnView(**{name: _zeros(tensor) for name, tensor in {**states, **windows}.items()})


def _zeros(tensor: TensorSpec) -> torch.Tensor:
    return torch.zeros(tensor.shape, dtype=getattr(torch, tensor.dtype))


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


def count_bytes(caches: Caches) -> tuple[int, int, int]:
    """(KV, state, window input) bytes as allocated."""
    kv = state = window = 0
    for view in caches.layers:
        if isinstance(view, KvView):
            kv += view.kv.nbytes
        else:
            state += view.state.nbytes + view.conv.nbytes
            window += sum(t.nbytes for t in (view.draft_columns, view.draft_beta, view.draft_decay))
    return kv, state, window

"""The Backend on a torch device (today: the CPU): start-up order, slots, and facts for the log."""

from collections.abc import Callable

import torch

from paceline.core.batch import Batch, Opened, StepOut
from paceline.core.config import EngineConfig
from paceline.core.spec import LayerKind
from paceline.drafters.base import Drafter, Target
from paceline.models.decoder import Codecs, Decoder
from paceline.quant import WEIGHT_CODECS
from paceline.runner import buffers
from paceline.runner.drafter import build_drafter, full_head, shortlist_head
from paceline.runner.round import RoundRunner
from paceline.runner.slots import open_slot
from paceline.runner.weights import Weights, load_weights


class TorchBackend:
    """Implements core.backend.Backend. `make_drafter` replaces the configured drafter (tests bring their own)."""

    def __init__(
        self, config: EngineConfig, weights: Weights, make_drafter: Callable[[Target], Drafter] | None = None
    ) -> None:
        torch.set_num_threads(config.threads)
        codec = WEIGHT_CODECS.get(config.weights)
        codecs = Codecs(codec, WEIGHT_CODECS.get(codec.head), WEIGHT_CODECS.get(codec.precise))
        self.config, self.spec = config, weights.spec
        self.weights_bytes = weights.nbytes
        model = Decoder(weights.spec, weights.planes, codecs, config.max_context)
        self.caches = buffers.allocate(weights.spec, config, codec.dtype)
        self.checkpoints = buffers.Checkpoints(self.caches, config.state_checkpoints)
        self.vocab = min(config.sampled_vocab or weights.spec.vocab, weights.spec.vocab)
        if config.shortlist:
            head = shortlist_head(config.shortlist, weights.planes["head"], codecs.head)
        else:
            head = full_head(model.logits, self.vocab)
        target = Target(
            spec=weights.spec,
            embed=model.embed,
            head=head,
            vocab=self.vocab,
            codec=codecs.precise,
            slots=config.max_concurrency,
            max_context=config.max_context,
            draft_tokens=config.draft_tokens,
            pages=config.pages,
            checkpoints=config.state_checkpoints,
        )
        self.drafter = make_drafter(target) if make_drafter else build_drafter(config, target)
        self.runner = RoundRunner(model, self.caches, self.drafter, config.draft_tokens, self.vocab)

    @property
    def stateful(self) -> bool:
        return LayerKind.GDN in self.spec.layers or self.drafter.spec.slot_state

    def facts(self) -> dict[str, object]:
        kv, state, window = buffers.count_bytes(self.caches)
        drafter = self.drafter.spec
        return {
            "weights_bytes": self.weights_bytes,
            "kv_bytes": kv,
            "state_bytes": state,
            "window_bytes": window,
            "drafter_weights_bytes": drafter.weights_bytes,
            "drafter_state_bytes": drafter.state_bytes,
            "checkpoint_bytes": self.checkpoints.nbytes + drafter.checkpoint_bytes,
            "trained_block": drafter.trained_block,
            "expected_acceptance": {str(k): share for k, share in drafter.expected_acceptance.items()},
            "architecture": self.spec.arch,
            "torch": str(torch.__version__),
            "threads": torch.get_num_threads(),
        }

    def step(self, batch: Batch) -> StepOut:
        for opened in batch.opened:
            self._open(opened)
        return self.runner.step(batch)

    @torch.inference_mode()
    def _open(self, opened: Opened) -> None:
        slot = opened.slot
        if opened.copy is not None:
            buffers.copy_page(self.caches, *opened.copy)
            self.drafter.copy_page(*opened.copy)
        known = opened.request.prompt + opened.output
        # The anchor is the one token that is never observed again.
        at_anchor = bool(opened.output) and opened.filled == len(known) - 1
        self.drafter.open(slot, known if at_anchor else known[: opened.filled], opened.filled)
        if opened.restore is None:
            buffers.reset(self.caches, slot)
        else:
            self.checkpoints.restore(slot, opened.restore)
            self.drafter.restore(slot, opened.restore)
        self.runner.slots[slot] = open_slot(opened, self.config, self.vocab)

    @torch.inference_mode()
    def save(self, slot: int, checkpoint: int) -> None:
        state = self.runner.slots[slot]
        if state.replay:
            self.runner.model.flush(self.caches, slot, state.replay)
            state.replay = 0
        self.checkpoints.save(slot, checkpoint)
        self.drafter.save(slot, checkpoint)

    def close_slot(self, slot: int) -> None:
        if self.runner.slots.pop(slot, None) is not None:
            self.drafter.close(slot)

    def close(self) -> None:
        for slot in list(self.runner.slots):
            self.close_slot(slot)


def make_backend(config: EngineConfig) -> TorchBackend:
    """The factory that the engine process calls."""
    return TorchBackend(config, load_weights(config))

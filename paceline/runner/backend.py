"""The Backend on a torch device (today: the CPU): start-up order, slots, and facts for the log."""

from collections.abc import Callable

import torch

from paceline.core.batch import Batch, StepOut
from paceline.core.config import EngineConfig
from paceline.core.request import Request
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
        )
        self.drafter = make_drafter(target) if make_drafter else build_drafter(config, target)
        self.runner = RoundRunner(model, self.caches, self.drafter, config.draft_tokens, self.vocab)

    def facts(self) -> dict[str, object]:
        kv, state = buffers.count_bytes(self.caches)
        drafter = self.drafter.spec
        return {
            "weights_bytes": self.weights_bytes,
            "kv_bytes": kv,
            "state_bytes": state,
            "drafter_weights_bytes": drafter.weights_bytes,
            "drafter_state_bytes": drafter.state_bytes,
            "trained_block": drafter.trained_block,
            "expected_acceptance": {str(k): share for k, share in drafter.expected_acceptance.items()},
            "architecture": self.spec.arch,
            "torch": str(torch.__version__),
            "threads": torch.get_num_threads(),
        }

    def step(self, batch: Batch) -> StepOut:
        for slot, request in batch.opened:
            self._open(slot, request)
        return self.runner.step(batch)

    def _open(self, slot: int, request: Request) -> None:
        buffers.reset(self.caches, slot)
        self.runner.slots[slot] = open_slot(request, self.config, self.vocab)
        self.drafter.open(slot)

    def close_slot(self, slot: int) -> None:
        if self.runner.slots.pop(slot, None) is not None:
            self.drafter.close(slot)

    def close(self) -> None:
        for slot in list(self.runner.slots):
            self.close_slot(slot)


def make_backend(config: EngineConfig) -> TorchBackend:
    """The factory that the engine process calls."""
    return TorchBackend(config, load_weights(config))

"""What the runner keeps for a running request. A slot is opened for one request and closed after it; nothing outlives it."""

from dataclasses import dataclass, field

from paceline.core.config import EngineConfig
from paceline.core.request import Request
from paceline.sampling.filters import Sampler
from paceline.sampling.verify import Limits


@dataclass(slots=True)
class Slot:
    """`anchor` is the last sampled token, not in the cache yet; `drafts` continue it; `replay` of the last window's drafts
    are accepted but not yet in the recurrent state; `produced` tokens were output."""

    sampler: Sampler
    limits: Limits
    anchor: int = -1
    drafts: list[int] = field(default_factory=list)
    replay: int = 0
    produced: int = 0


def open_slot(request: Request, config: EngineConfig, vocab: int) -> Slot:
    """`vocab` ids can be sampled. The output ends at the request's own limit or at the context end, whichever is first."""
    room = config.max_context - len(request.prompt)
    limits = Limits(
        max_tokens=min(request.max_tokens, room),
        reason="output_limit" if request.max_tokens <= room else "context_capacity",
        min_tokens=request.min_tokens,
        stop_ids=frozenset(i for i in request.stop_ids if i < vocab),
    )
    return Slot(Sampler(request.sampling, request.prompt, vocab), limits)

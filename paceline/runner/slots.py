"""What the runner keeps for a running request. A slot is opened for one request and closed after it; nothing outlives it."""

from dataclasses import dataclass, field

from paceline.core.batch import Opened
from paceline.core.config import EngineConfig
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


def open_slot(opened: Opened, config: EngineConfig, vocab: int) -> Slot:
    """`vocab` ids can be sampled. The output ends at the request's own limit or at the context end, whichever is first.

    Output from before a pause counts as it did: for the penalties, the limits and the noise."""
    request = opened.request
    room = config.max_context - len(request.prompt)
    limits = Limits(
        max_tokens=min(request.max_tokens, room),
        reason="output_limit" if request.max_tokens <= room else "context_capacity",
        min_tokens=request.min_tokens,
        stop_ids=frozenset(i for i in request.stop_ids if i < vocab),
    )
    sampler = Sampler(request.sampling, request.prompt, vocab)
    for token in opened.output:
        sampler.penalties.add(token)
    return Slot(sampler, limits, opened.output[-1] if opened.output else -1, produced=len(opened.output))

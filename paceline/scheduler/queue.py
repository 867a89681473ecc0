"""Who waits, who runs and who is paused: first come, first served, into C slots.

A request takes a slot when one is free and the pool has pages for its prompt and two windows; it grows page by page. When
the pool runs out, the newest request is paused: it waits again, ahead of every request that came after it, and goes on
with the same output. The head of the queue is never passed by a smaller request behind it. What the next step computes is
`schedule.py`'s part; the events are `engine/loop.py`'s. Lengths are in tokens.
"""

import heapq
from dataclasses import dataclass, field

from paceline.core.config import PAGE_TOKENS, EngineConfig
from paceline.core.request import Request
from paceline.memory.checkpoints import CheckpointKind, plan_checkpoints
from paceline.memory.pages import PagePool
from paceline.memory.prefix import Lease, PrefixCache

# A paused request comes back when this many tokens more than it needs are free, or it would be paused again at once.
RESUME_MARGIN = 2048


@dataclass(slots=True)
class Sequence:
    """An accepted request, from its arrival to its end. The engine loop alone writes it.

    `tokens` are its prompt and what came out so far. `slot` and `lease` are set while it runs. `filled` tokens are in the
    cache; of the output the last one is the anchor, which is not. The drafter has `next_drafts` drafts ready for the next
    window. Chunks end at `cuts`, where checkpoints of these kinds are wanted. `told`: its admission was published.
    """

    request: Request
    arrival: int
    tokens: list[int] = field(init=False)
    slot: int = -1
    lease: Lease | None = None
    filled: int = 0
    next_drafts: int = 0
    cuts: dict[int, CheckpointKind] = field(default_factory=dict)
    told: bool = False

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt)

    @property
    def produced(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    @property
    def facts(self) -> int:
        """Tokens that belong in the cache before the next window."""
        return len(self.tokens) - (self.produced > 0)

    @property
    def caught_up(self) -> bool:
        return self.produced > 0 and self.filled == self.facts

    @property
    def pages(self) -> list[int]:
        assert self.lease is not None
        return self.lease.pages


class RequestQueue:
    """Owns the slots, the page pool and the prefix cache. `waiting` (the paused ones among them) is in order of arrival."""

    def __init__(self, config: EngineConfig, stateful: bool) -> None:
        self._config = config
        self._free_slots = list(range(config.max_concurrency))
        self._arrivals = 0
        self._checkpoints = config.state_checkpoints if stateful and config.prefix_cache else 0
        self.pool = PagePool(config.pages, apart=config.admission == "on-demand")
        self.cache = PrefixCache(self.pool, self._checkpoints, stateful, config.prefix_cache)
        self.waiting: dict[int, Sequence] = {}
        self.running: dict[int, Sequence] = {}

    def refusal(self, request: Request) -> str | None:
        """Why `request` can never run here, or None."""
        prompt_tokens = len(request.prompt)
        if prompt_tokens == 0:
            return "the prompt is empty"
        if prompt_tokens > self._config.max_context:
            return f"the prompt has {prompt_tokens} tokens, the context holds {self._config.max_context}"
        needed = self._config.most_tokens(prompt_tokens, request.max_tokens)
        if _pages(needed) > self.pool.total:
            return (
                f"prompt and output limit need {needed} tokens of KV, the pool holds {self.pool.total * PAGE_TOKENS}; "
                "lower max_tokens or raise --kv-capacity"
            )
        return None

    def submit(self, request: Request) -> None:
        if request.id in self.waiting or request.id in self.running:
            raise ValueError(f"request id {request.id} is in use")
        self.waiting[request.id] = Sequence(request, self._arrivals)
        self._arrivals += 1

    def admit(self) -> list[Sequence]:
        """Gives slots and pages to waiting requests, in order, until one does not fit."""
        admitted = []
        while self.waiting and self._free_slots:
            sequence = next(iter(self.waiting.values()))
            if not self._lend(sequence):
                break
            del self.waiting[sequence.request.id]
            sequence.slot = heapq.heappop(self._free_slots)
            self.running[sequence.request.id] = sequence
            admitted.append(sequence)
        return admitted

    def _lend(self, sequence: Sequence) -> bool:
        """A lease with what is cached of the sequence and room for the rest of it; False and no change without room."""
        request = sequence.request
        prompt_tokens = len(request.prompt)
        wanted = self._config.held_tokens(sequence.facts, prompt_tokens, request.max_tokens)
        lease = self.cache.open(sequence.tokens, request.salt)
        margin = RESUME_MARGIN if sequence.told and self.running else 0
        room = len(lease.pages) + self.cache.available() >= min(_pages(wanted + margin), self.pool.total)
        if not room or not lease.grow(wanted):
            lease.close()
            return False
        sequence.lease, sequence.filled, sequence.next_drafts = lease, lease.reused, 0
        if self._checkpoints:
            chunk = self._config.prefill_chunk
            sequence.cuts = plan_checkpoints(prompt_tokens, lease.reused, request.boundaries, chunk)
        return True

    def grow(self, sequence: Sequence) -> bool:
        """Pages for the sequence's next window and the drafts that follow it; False when the pool has none left."""
        if not sequence.caught_up or self._config.admission == "reserve":
            return True
        assert sequence.lease is not None
        request = sequence.request
        prompt_tokens = len(request.prompt)
        return sequence.lease.grow(self._config.held_tokens(sequence.filled, prompt_tokens, request.max_tokens))

    def by_arrival(self) -> list[Sequence]:
        return sorted(self.running.values(), key=lambda sequence: sequence.arrival)

    def pause(self, sequence: Sequence) -> None:
        """Takes slot and pages from a running sequence, which then waits in its old place."""
        self.release(sequence)
        waiting = [*self.waiting.values(), sequence]
        self.waiting = {each.request.id: each for each in sorted(waiting, key=lambda each: each.arrival)}

    def release(self, sequence: Sequence) -> None:
        """Takes back the slot and the pages of a running sequence. What is cached of it stays, as far as there is room."""
        assert sequence.lease is not None
        del self.running[sequence.request.id]
        heapq.heappush(self._free_slots, sequence.slot)
        sequence.lease.close()
        sequence.lease, sequence.slot, sequence.filled = None, -1, 0

    def check(self) -> None:
        """Raises unless nothing runs or waits, every slot is free and every page is free or cached."""
        self.cache.check()
        if self.running or self.waiting or sorted(self._free_slots) != list(range(self._config.max_concurrency)):
            raise RuntimeError(
                f"running {list(self.running)}, waiting {list(self.waiting)}, free slots {sorted(self._free_slots)} "
                f"of {self._config.max_concurrency}"
            )


def _pages(tokens: int) -> int:
    return -(-tokens // PAGE_TOKENS)

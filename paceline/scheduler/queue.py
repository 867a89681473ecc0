"""Who waits and who runs: first come, first served, into C slots.

A request is admitted when a slot is free and the pool has pages for all it may ever write, so an admitted request never
waits for memory again. The head of the queue is never passed by a smaller request behind it. What the next step computes
is `schedule.py`'s part; the events are `engine/loop.py`'s. Lengths are in tokens.
"""

import heapq
from collections import OrderedDict
from dataclasses import dataclass

from paceline.core.config import PAGE_TOKENS, EngineConfig
from paceline.core.request import Request
from paceline.memory.pages import PagePool


@dataclass(slots=True)
class Sequence:
    """An admitted request. The engine loop alone writes it.

    `prefilled` prompt tokens are in the cache. Of the `produced` output tokens the last is the anchor, not yet in the
    cache. The drafter has `next_drafts` drafts ready for the next window.
    """

    request: Request
    slot: int
    pages: list[int]
    prefilled: int = 0
    produced: int = 0
    next_drafts: int = 0

    @property
    def prompt_done(self) -> bool:
        return self.prefilled == len(self.request.prompt)


class RequestQueue:
    """Owns the slots and the page pool. `waiting` and `running` are by request id, in order of arrival."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._free_slots = list(range(config.max_concurrency))
        self.pool = PagePool(config.pages)
        self.waiting: OrderedDict[int, Request] = OrderedDict()
        self.running: dict[int, Sequence] = {}

    def refusal(self, request: Request) -> str | None:
        """Why `request` can never run here, or None."""
        prompt_tokens = len(request.prompt)
        if prompt_tokens == 0:
            return "the prompt is empty"
        if prompt_tokens > self._config.max_context:
            return f"the prompt has {prompt_tokens} tokens, the context holds {self._config.max_context}"
        if self._pages_for(request) > self.pool.total:
            needed = self._config.reserved_tokens(prompt_tokens, request.max_tokens)
            return (
                f"prompt and output limit reserve {needed} tokens of KV, the pool holds {self.pool.total * PAGE_TOKENS}; "
                "lower max_tokens or raise --kv-capacity"
            )
        return None

    def submit(self, request: Request) -> None:
        if request.id in self.waiting or request.id in self.running:
            raise ValueError(f"request id {request.id} is in use")
        self.waiting[request.id] = request

    def admit(self) -> list[Sequence]:
        """Gives slots and pages to waiting requests, in order, until one does not fit."""
        admitted = []
        while self.waiting and self._free_slots:
            request = next(iter(self.waiting.values()))
            pages = self.pool.take(self._pages_for(request))
            if pages is None:
                break
            del self.waiting[request.id]
            sequence = Sequence(request, heapq.heappop(self._free_slots), pages)
            self.running[request.id] = sequence
            admitted.append(sequence)
        return admitted

    def release(self, sequence: Sequence) -> None:
        """Takes back the slot and the pages of a running sequence."""
        del self.running[sequence.request.id]
        heapq.heappush(self._free_slots, sequence.slot)
        self.pool.give_back(sequence.pages)

    def check(self) -> None:
        """Raises unless nothing runs or waits and every slot and page is free."""
        self.pool.check()
        if self.running or self.waiting or sorted(self._free_slots) != list(range(self._config.max_concurrency)):
            raise RuntimeError(
                f"running {list(self.running)}, waiting {list(self.waiting)}, free slots {sorted(self._free_slots)} "
                f"of {self._config.max_concurrency}"
            )

    def _pages_for(self, request: Request) -> int:
        return -(-self._config.reserved_tokens(len(request.prompt), request.max_tokens) // PAGE_TOKENS)

"""What fits: the largest value of each flag, the context that `auto` takes, and the grid over C, K and KV dtype.

Every answer is found by asking the planner itself, so a hint is true by construction: its value fits, the next larger one
does not (or is not allowed).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from paceline.core.config import MAX_STATE_CHECKPOINTS, PAGE_TOKENS
from paceline.memory.plan import Demand, Device, Layout, Plan, Subject, make_plan

T = TypeVar("T")
CONTEXT_STEP = 1024
NONE = "none"


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest value of each flag that fits while all others stay; None where none does. `kv_dtype`: the one with the most
    bytes per token; `drafter`: the one that takes the most; `state_checkpoints`: 0 where pages hold all of a prefix."""

    max_context: int | None
    max_concurrency: int | None
    draft_tokens: int | None
    state_checkpoints: int | None
    kv_capacity: int | None
    kv_dtype: str | None
    drafter: str | None
    vision: bool | None


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of the grid. `max_context` is the largest that fits there, None for none; `kv_tokens` is the capacity at the
    plan's own context, 0 where that does not fit; `largest_each` tokens can all C requests have at once."""

    max_concurrency: int
    draft_tokens: int
    kv_dtype: str
    max_context: int | None
    kv_tokens: int
    full_requests: float
    largest_each: int


@dataclass(frozen=True, slots=True)
class Planner:
    """One model on one device under one layout."""

    layout: Layout
    subject: Subject
    device: Device

    def plan(self, demand: Demand) -> Plan:
        return make_plan(self.layout, self.subject, demand, self.device)

    def most_drafts(self, demand: Demand) -> int:
        return 0 if demand.drafter == NONE else self.layout.most_drafts(self.subject.drafters[demand.drafter])

    def page_bytes(self, demand: Demand) -> int:
        """What one page more takes, with what the drafter keeps in it."""
        least = self.layout.least_pages(demand) * PAGE_TOKENS
        one, two = (self.plan(replace(demand, kv_capacity=least + n)).total_bytes for n in (0, PAGE_TOKENS))
        return two - one

    def fits(self, demand: Demand) -> bool:
        if demand.draft_tokens > self.most_drafts(demand):
            return False
        given = demand.kv_capacity
        if given is not None and -(-given // PAGE_TOKENS) < self.layout.least_pages(demand):
            return False
        return self.plan(demand).fits

    def largest_context(self, demand: Demand) -> int | None:
        return self._last(lambda n: replace(demand, max_context=n), PAGE_TOKENS, self.subject.model.max_context)

    def auto_context(self, demand: Demand) -> int:
        """The largest context in steps of 1,024 (of a page, where not even 1,024 fit); the least one where none fits."""
        largest = self.largest_context(demand) or PAGE_TOKENS
        step = CONTEXT_STEP if largest >= CONTEXT_STEP else PAGE_TOKENS
        return largest // step * step

    def largest(self, demand: Demand) -> Largest:
        subject = self.subject
        names = list(subject.drafters) if demand.draft_tokens else [demand.drafter]
        order = sorted(names, key=lambda name: -self.plan(self._drafter(demand, name)).slack_bytes)
        towers = (True, False) if subject.vision else (False,)
        return Largest(
            max_context=self.largest_context(demand),
            max_concurrency=self._last(lambda n: replace(demand, max_concurrency=n), 1, self.layout.max_concurrency),
            draft_tokens=self._last(lambda n: replace(demand, draft_tokens=n), 0, self.most_drafts(demand)),
            state_checkpoints=self._checkpoints(demand),
            kv_capacity=self._capacity(demand),
            kv_dtype=self._first(list(subject.kv), lambda name: replace(demand, kv_dtype=name)),
            drafter=self._first(order[::-1], lambda name: self._drafter(demand, name)),
            vision=self._first(towers, lambda on: replace(demand, vision=on)),
        )

    def grid(self, demand: Demand, slots: Sequence[int], drafts: Sequence[int]) -> Iterator[Cell]:
        """All KV dtypes of the subject, at these C and K."""
        for kv_dtype in self.subject.kv:
            for k in drafts:
                for c in slots:
                    yield self._cell(replace(demand, max_concurrency=c, draft_tokens=k, kv_dtype=kv_dtype))

    def _cell(self, demand: Demand) -> Cell:
        fits = self.fits(demand)
        plan = self.plan(demand)
        return Cell(
            max_concurrency=demand.max_concurrency,
            draft_tokens=demand.draft_tokens,
            kv_dtype=demand.kv_dtype,
            max_context=self.largest_context(demand),
            kv_tokens=plan.kv_tokens if fits else 0,
            full_requests=plan.full_requests if fits else 0.0,
            largest_each=self.layout.largest_each(demand, plan.pages) if fits else 0,
        )

    def _drafter(self, demand: Demand, name: str) -> Demand:
        return replace(demand, drafter=name, draft_tokens=0 if name == NONE else demand.draft_tokens)

    def _last(self, at: Callable[[int], Demand], low: int, high: int) -> int | None:
        """The last of low … high that fits; what a flag costs never falls as it grows."""
        if not self.fits(at(low)):
            return None
        while low < high:
            middle = (low + high + 1) // 2
            if self.fits(at(middle)):
                low = middle
            else:
                high = middle - 1
        return low

    def _first(self, values: Sequence[T], at: Callable[[T], Demand]) -> T | None:
        return next((value for value in values if self.fits(at(value))), None)

    def _checkpoints(self, demand: Demand) -> int | None:
        none = self.plan(replace(demand, state_checkpoints=0))
        room = none.available_bytes - none.total_bytes if demand.kv_capacity is not None else none.slack_bytes
        if room < 0:
            return None
        return min(room // none.checkpoint_bytes, MAX_STATE_CHECKPOINTS) if none.checkpoint_bytes else 0

    def _capacity(self, demand: Demand) -> int | None:
        slack = self.plan(demand).slack_bytes
        if slack < 0:
            return None
        return (self.layout.least_pages(demand) + slack // self.page_bytes(demand)) * PAGE_TOKENS

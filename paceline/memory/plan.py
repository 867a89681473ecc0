"""The memory plan: from shapes and settings to a table of named reservations, the KV capacity and a verdict.

Pure functions over specs; exact bytes; no device and no tensors. `Subject` is what could be run (a model, its formats and
drafters), `Demand` what is asked for, `Device` the memory there is. A `Layout` turns the first two into items; this file
finds the KV pages that fit beside them. A reservation is all that the engine allocates; the headroom stays free on top.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from paceline.core.config import MAX_STATE_CHECKPOINTS, PAGE_TOKENS
from paceline.core.errors import ConfigError
from paceline.core.formats import KvFormat
from paceline.core.spec import DrafterSpec, MemItem, ModelSpec, VisionSpec

HEADROOM_BYTES = 2**30
NO_DRAFTER = DrafterSpec()


@dataclass(frozen=True, slots=True)
class Subject:
    """`weights_bytes`: the target's, in the format of the run, whose activations have dtype `activation`. `kv` and `drafters`
    are the choices by name, `kv` from the most bytes per token to the fewest; `vision` is None for a model without a tower.
    """

    model: ModelSpec
    weights_bytes: int
    activation: str
    kv: Mapping[str, KvFormat]
    drafters: Mapping[str, DrafterSpec]
    vision: VisionSpec | None = None


@dataclass(frozen=True, slots=True)
class Demand:
    """Lengths in tokens. `kv_capacity` None: what the device has room for. K = 0 runs without the drafter.

    `state_checkpoints` are copies of a slot's state kept on the device, `safety_bytes` stay free besides the headroom.
    """

    max_concurrency: int
    draft_tokens: int
    max_context: int
    kv_dtype: str
    drafter: str
    prefill_chunk: int
    vision: bool = False
    state_checkpoints: int = 0
    kv_capacity: int | None = None
    safety_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Device:
    """`total_bytes` of which `context_bytes` are the driver's. `after_weights`: the total is what is left once the driver and
    all weights are there. `graphs`: rounds are captured graphs, which take memory of their own."""

    name: str
    total_bytes: int
    context_bytes: int = 0
    after_weights: bool = False
    graphs: bool = True


@dataclass(frozen=True, slots=True)
class Plan:
    """`items` add up to the reservation and the headroom. `short_bytes` are missing; 0 where it fits. `slack_bytes` are left
    (below 0: missing) with the smallest KV that holds one full request; `kv_tokens` is what the plan gives."""

    demand: Demand
    items: tuple[MemItem, ...]
    pages: int
    reservation_bytes: int
    available_bytes: int
    slack_bytes: int
    checkpoint_bytes: int

    @property
    def kv_tokens(self) -> int:
        return self.pages * PAGE_TOKENS

    @property
    def total_bytes(self) -> int:
        return sum(item.bytes for item in self.items)

    @property
    def short_bytes(self) -> int:
        return max(0, self.total_bytes - self.available_bytes)

    @property
    def fits(self) -> bool:
        return self.short_bytes == 0

    @property
    def full_requests(self) -> float:
        """How many requests of the whole context the KV holds at once."""
        return self.kv_tokens / self.demand.max_context


class Layout(Protocol):
    """How a server lays its memory out. `items` are affine in `pages`. `prefill_chunk` is its default, `max_concurrency` the
    most slots it serves; `state_checkpoints` is the default of these."""

    prefill_chunk: int
    state_checkpoints: int
    max_concurrency: int

    def most_drafts(self, drafter: DrafterSpec) -> int:
        """The largest K of this drafter."""
        ...

    def least_pages(self, demand: Demand) -> int:
        """Pages that hold one request of the whole context, and give every slot one."""
        ...

    def most_pages(self, demand: Demand) -> int:
        """Pages beyond which C requests cannot use more."""
        ...

    def largest_each(self, demand: Demand, pages: int) -> int:
        """The most tokens that each of C requests can have at once."""
        ...

    def items(self, subject: Subject, demand: Demand, device: Device, pages: int) -> tuple[MemItem, ...]: ...

    def checkpoint_bytes(self, subject: Subject, demand: Demand) -> int:
        """One state checkpoint on the device; 0 where none is needed."""
        ...


def drafter_of(subject: Subject, demand: Demand) -> DrafterSpec:
    return subject.drafters[demand.drafter] if demand.draft_tokens else NO_DRAFTER


def make_plan(layout: Layout, subject: Subject, demand: Demand, device: Device) -> Plan:
    """The plan with the asked KV capacity; without one, with what fits, up to what C requests can use."""
    least = layout.least_pages(demand)
    smallest = _with_pages(layout, subject, demand, device, least)
    slack = smallest.slack_bytes
    if demand.kv_capacity is not None:
        pages = -(-demand.kv_capacity // PAGE_TOKENS)
        return _with_pages(layout, subject, demand, device, pages, slack)
    most = layout.most_pages(demand)
    if slack < 0 or most <= least:
        return smallest
    page_bytes = _with_pages(layout, subject, demand, device, least + 1).total_bytes - smallest.total_bytes
    pages = min(most, least + slack // page_bytes)
    return _with_pages(layout, subject, demand, device, pages, slack)


def _with_pages(
    layout: Layout, subject: Subject, demand: Demand, device: Device, pages: int, slack_bytes: int | None = None
) -> Plan:
    reserved = layout.items(subject, demand, device, pages)
    reservation = sum(item.bytes for item in reserved)
    kept = [MemItem("headroom", HEADROOM_BYTES, "kept free")]
    if demand.safety_bytes:
        kept.append(MemItem("safety margin", demand.safety_bytes, "kept free as well"))
    total = reservation + sum(item.bytes for item in kept)
    return Plan(
        demand=demand,
        items=(*reserved, *kept),
        pages=pages,
        reservation_bytes=reservation,
        available_bytes=device.total_bytes,
        slack_bytes=device.total_bytes - total if slack_bytes is None else slack_bytes,
        checkpoint_bytes=layout.checkpoint_bytes(subject, demand),
    )


def check_demand(layout: Layout, subject: Subject, demand: Demand) -> None:
    """Refuses values that no amount of memory would make right."""
    limit, most = subject.model.max_context, layout.max_concurrency
    if not 1 <= demand.max_concurrency <= most:
        raise ConfigError("--max-concurrency", demand.max_concurrency, f"must be from 1 to {most}")
    drafts = layout.most_drafts(subject.drafters[demand.drafter])
    if demand.draft_tokens > drafts:
        fix = f"this layout drafts at most {drafts} with {demand.drafter}; use less, or another --drafter"
        raise ConfigError("--draft-tokens", demand.draft_tokens, fix)
    if not 0 <= demand.state_checkpoints <= MAX_STATE_CHECKPOINTS:
        raise ConfigError("--state-checkpoints", demand.state_checkpoints, f"must be from 0 to {MAX_STATE_CHECKPOINTS}")
    if not PAGE_TOKENS <= demand.max_context <= limit:
        fix = f"must be from {PAGE_TOKENS} to {limit}, where the model's positions end"
        raise ConfigError("--max-context", demand.max_context, fix)
    if demand.kv_capacity is not None:
        least = (layout.least_pages(demand) - 1) * PAGE_TOKENS + 1
        if demand.kv_capacity < least:
            fix = f"must hold one full context and its window: at least {least}, or lower --max-context"
            raise ConfigError("--kv-capacity", demand.kv_capacity, fix)
    if demand.vision and subject.vision is None:
        raise ConfigError("--vision", "on", f"{subject.model.name} has no vision tower; leave it out")

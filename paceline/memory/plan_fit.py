"""The linear law behind a set of reservations: bytes per KV token, per slot, and per draft token of a slot.

A least-squares fit in exact fractions, over planned points or over what servers logged at start-up.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from paceline.core.config import PAGE_TOKENS
from paceline.core.errors import CapacityError
from paceline.memory.plan import Demand
from paceline.memory.plan_search import Planner

SLOTS, DRAFTS = (1, 2, 4, 8), (1, 3, 7, 15)


@dataclass(frozen=True, slots=True)
class Point:
    """What was reserved for `kv_tokens`, C slots and K drafts each."""

    kv_tokens: int
    max_concurrency: int
    draft_tokens: int
    reservation_bytes: int


@dataclass(frozen=True, slots=True)
class Law:
    """reservation = constant + KV bytes · tokens + C · (slot + draft bytes · K); how far off the worst point is."""

    constant_bytes: float
    bytes_per_kv_token: float
    bytes_per_slot: float
    bytes_per_draft_token: float
    largest_error_bytes: float


def planned_law(planner: Planner, demand: Demand) -> Law:
    """The law of the plan at the demand's context; without drafts where it has none."""
    return fit_law(list(_points(planner, demand)))


def _points(planner: Planner, demand: Demand) -> Iterator[Point]:
    for c in SLOTS:
        for k in [k for k in DRAFTS if k <= planner.most_drafts(demand)] if demand.draft_tokens else [0]:
            at = replace(demand, max_concurrency=c, draft_tokens=k)
            least = max(planner.layout.least_pages(at), c)
            for pages in (least, 2 * least):
                plan = planner.plan(replace(at, kv_capacity=pages * PAGE_TOKENS))
                yield Point(plan.kv_tokens, c, k, plan.reservation_bytes)


def fit_law(points: Sequence[Point]) -> Law:
    """Raises CapacityError where the points cannot tell the terms apart. Without drafts the last term is 0."""
    drafts = any(point.draft_tokens for point in points)
    rows = [
        [1, p.kv_tokens, p.max_concurrency, *([p.max_concurrency * p.draft_tokens] if drafts else [])] for p in points
    ]
    values = [p.reservation_bytes for p in points]
    terms = _least_squares(rows, values)
    errors = [
        abs(float(value - sum(t * x for t, x in zip(terms, row, strict=True))))
        for row, value in zip(rows, values, strict=True)
    ]
    constant, token, slot, *draft = (float(term) for term in terms)
    return Law(constant, token, slot, draft[0] if draft else 0.0, max(errors))


def _least_squares(rows: list[list[int]], values: list[int]) -> list[Fraction]:
    """The normal equations, solved by elimination."""
    width = len(rows[0])
    left = [[Fraction(sum(row[i] * row[j] for row in rows)) for j in range(width)] for i in range(width)]
    right = [Fraction(sum(row[i] * value for row, value in zip(rows, values, strict=True))) for i in range(width)]
    for i in range(width):
        pivot = next((j for j in range(i, width) if left[j][i]), None)
        if pivot is None:
            raise CapacityError("the points do not vary in KV tokens, C and K by themselves; add some that do")
        left[i], left[pivot], right[i], right[pivot] = left[pivot], left[i], right[pivot], right[i]
        for j in range(width):
            if j != i:
                factor = left[j][i] / left[i][i]
                left[j] = [a - factor * b for a, b in zip(left[j], left[i], strict=True)]
                right[j] -= factor * right[i]
    return [right[i] / left[i][i] for i in range(width)]

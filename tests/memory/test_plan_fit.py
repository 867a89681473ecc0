"""The linear law: found again from points that follow one, and what the plans' own points say."""

from random import Random

import pytest

from paceline.core.errors import CapacityError
from paceline.memory.plan_fit import Point, fit_law, planned_law
from tests.memory.planners import demand, planner


def test_a_law_is_found_again() -> None:
    random = Random(1)
    points = [
        Point(t, c, k, 5_000_000_000 + 18_432 * t + c * (150_000_000 + 2_343_556 * k))
        for t, c, k in ((random.randrange(1, 10**6), random.randrange(1, 9), random.randrange(16)) for _ in range(9))
    ]
    law = fit_law(points)
    assert (law.constant_bytes, law.bytes_per_kv_token) == (5_000_000_000, 18_432)
    assert (law.bytes_per_slot, law.bytes_per_draft_token) == (150_000_000, 2_343_556)
    assert law.largest_error_bytes == 0


def test_what_is_off_the_law_shows() -> None:
    points = [Point(t, c, 0, 1000 * t + 50 * c + (7 if (t, c) == (2, 2) else 0)) for t in (1, 2, 3) for c in (1, 2, 3)]
    assert 6 < fit_law(points).largest_error_bytes < 7


def test_too_few_points() -> None:
    with pytest.raises(CapacityError, match="vary"):
        fit_law([Point(64, 1, 7, 10), Point(128, 1, 7, 20)])


def test_a_head_in_pages_is_on_the_law() -> None:
    law = planned_law(planner("paceline", drafter="mtp"), demand("paceline", drafter="mtp"))
    assert law.bytes_per_kv_token == 18_432 + 4096


@pytest.mark.parametrize("layout,slot_bytes", [("paceline", 231e6), ("reference", 719e6)])
def test_the_law_of_a_plan(layout: str, slot_bytes: float) -> None:
    law = planned_law(planner(layout), demand(layout))
    assert law.bytes_per_kv_token == 18_432
    assert law.bytes_per_slot + 7 * law.bytes_per_draft_token == pytest.approx(slot_bytes, rel=0.01)
    # The number of captured graphs grows in steps with K; all else is linear.
    assert law.largest_error_bytes <= (10 * 2**20 if layout == "paceline" else 0)

"""The reference server's published start-ups come out of its arithmetic to the byte, and its capacities to the page."""

import pytest

from paceline.memory.plan import HEADROOM_BYTES
from tests.memory.planners import GOLDEN, demand, planner

ROWS = GOLDEN["startup"]
DTYPES = {"nvfp4": "nvfp4", "int8-g64": "int8", "bf16": "bf16"}


def test_the_headroom_is_the_published_one() -> None:
    assert GOLDEN["headroom_bytes"] == HEADROOM_BYTES


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_start_ups_to_the_byte(row: dict[str, object]) -> None:
    available = row["available_after_weights_bytes"]
    asked = demand(
        "reference",
        max_concurrency=row["c"],
        draft_tokens=row["k"],
        max_context=row["max_context"],
        vision=row["vision"],
    )
    plan = planner("reference", available).plan(asked)
    assert plan.fits == row["fits"]
    assert plan.short_bytes == row.get("short_bytes", 0)
    if row["fits"]:
        assert plan.slack_bytes == row["slack_bytes"]
    else:
        assert plan.reservation_bytes == row["reservation_bytes"]
        assert plan.slack_bytes == -row["short_bytes"]


@pytest.mark.parametrize("row", GOLDEN["auto_kv_capacity_tokens"], ids=str)
def test_capacities_that_no_constant_was_fitted_on(row: dict[str, int]) -> None:
    asked = demand("reference", max_concurrency=row["c"], draft_tokens=row["k"], max_context=row["max_context"])
    assert planner("reference").plan(asked).kv_tokens == row["tokens"]


def test_eight_requests_get_little_more_than_one_context() -> None:
    """The figure that paceline's own layout is measured against."""
    plan = planner("reference").plan(demand("reference"))
    assert plan.kv_tokens == 131_264


@pytest.mark.parametrize("name", DTYPES)
def test_a_token_more_of_context_costs_its_kv(name: str) -> None:
    each = GOLDEN["kv_bytes_per_token"][name]
    here = planner("reference")
    # Between two class borders of the graph allowance.
    short, long = (
        here.plan(demand("reference", max_concurrency=1, max_context=n, kv_dtype=DTYPES[name])) for n in (65536, 131072)
    )
    assert long.slack_bytes - short.slack_bytes == -65536 * each


def test_a_slot_costs_719_mb() -> None:
    here = planner("reference")
    four, five = (
        here.plan(demand("reference", max_concurrency=c, max_context=262144, kv_capacity=262144)) for c in (4, 5)
    )
    grown = {b.name: b.bytes - a.bytes for a, b in zip(four.items, five.items, strict=True) if b.bytes != a.bytes}
    assert sum(grown.values()) == pytest.approx(719e6, rel=1e-3)
    assert grown["state slots"] + grown["drafter context"] == 195_897_344


def test_prefix_reuse_adds_an_image_for_each_checkpoint() -> None:
    here = planner("reference")
    none, four = (here.plan(demand("reference", kv_capacity=131072, state_checkpoints=n)) for n in (0, 4))
    assert four.reservation_bytes - none.reservation_bytes == 4 * 195_897_344 == 4 * four.checkpoint_bytes


def test_the_head_drafter_against_another_published_table() -> None:
    """int8 KV, MTP K=3, context 131,072, one checkpoint image per slot: 255,360 / 232,768 / 187,712 tokens at C = 2, 4, 8.
    Only differences: what was free after weights is not published there."""
    here = planner("reference", 40 * 10**9, "mtp")
    plans = [
        here.plan(
            demand(
                "reference", drafter="mtp", draft_tokens=3, kv_dtype="int8", max_concurrency=c, state_checkpoints=c,
                kv_capacity=262144,
            )
        )
        for c in (2, 4, 8)
    ]  # fmt: skip
    page_bytes = 64 * 17 * 4 * 2 * 264
    published = (255_360, 232_768, 187_712)
    for before, after, tokens, fewer in zip(plans, plans[1:], published, published[1:], strict=False):
        pages = (after.reservation_bytes - before.reservation_bytes) / page_bytes
        assert pages == pytest.approx((tokens - fewer) / 64, abs=2)

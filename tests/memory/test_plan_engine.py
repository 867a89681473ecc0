"""What paceline's own layout takes at the 27B shape, and what that leaves for KV."""

from dataclasses import replace

import pytest

from paceline.core.errors import ConfigError
from paceline.memory.plan import Plan, check_demand
from paceline.memory.plan_engine import tower_bytes
from paceline.quant.kv_formats import KV_FORMATS
from tests.memory.planners import DRAFTER, demand, planner

TOKEN_BYTES = {"bf16": 65_536, "fp8": 33_024, "int8": 33_792, "nvfp4": 18_432, "k8v4": 25_728}


def growth(per: str, before: int, after: int, **changes: object) -> dict[str, int]:
    here = planner("paceline", drafter=str(changes.get("drafter", DRAFTER)))
    plans = [here.plan(demand("paceline", kv_capacity=262144, **{**changes, per: n})) for n in (before, after)]
    return {a.name: (b.bytes - a.bytes) // (after - before) for a, b in zip(*(p.items for p in plans), strict=True)}


@pytest.mark.parametrize("name", TOKEN_BYTES)
def test_kv_bytes_of_a_token(name: str) -> None:
    assert 16 * KV_FORMATS[name].token_bytes(4, 256) == TOKEN_BYTES[name]
    here = planner("paceline")
    one, two = (
        here.plan(demand("paceline", max_concurrency=1, kv_dtype=name, kv_capacity=n)) for n in (131136, 262208)
    )
    assert two.reservation_bytes - one.reservation_bytes == 131072 * TOKEN_BYTES[name]


def test_a_slot_takes_what_lazy_commit_needs() -> None:
    grown = growth("max_concurrency", 4, 5)
    assert grown["state slots"] == 48 * 48 * 128 * 128 * 4 + 48 * 10_240 * 3 * 2
    assert grown["window inputs"] == 48 * 7 * (10_240 * 2 + 2 * 48 * 4)
    assert grown["drafter context"] == 5 * 2048 * 8 * 128 * 2 * 2
    assert grown["KV"] == grown["weights"] == grown["headroom"] == 0
    assert grown["state slots"] + grown["window inputs"] + grown["drafter context"] <= 212e6
    assert sum(grown.values()) <= 240e6


def test_fifteen_drafts_cost_little_more_than_seven() -> None:
    seven, fifteen = (sum(growth("max_concurrency", 4, 5, draft_tokens=k).values()) for k in (7, 15))
    assert 0 < fifteen - seven <= 40e6


def test_eight_requests_have_room() -> None:
    plan = planner("paceline").plan(demand("paceline", state_checkpoints=0))
    assert plan.fits and plan.kv_tokens == 343_232
    assert plan.full_requests == plan.kv_tokens / 131_072


def test_a_checkpoint_costs_what_the_plan_says() -> None:
    here = planner("paceline")
    none, three = (here.plan(demand("paceline", state_checkpoints=n, kv_capacity=140_000)) for n in (0, 3))
    assert three.reservation_bytes - none.reservation_bytes == 3 * none.checkpoint_bytes
    assert none.checkpoint_bytes == 150_994_944 + 2_949_120 + 41_943_040


@pytest.mark.parametrize("drafter,token,slot", [("mtp", 2 * 4 * 256 * 2, 10_240), ("dflash", 4096, 4 * 2048 * 4096)])
def test_a_drafter_that_sees_everything_is_part_of_a_kv_token(drafter: str, token: int, slot: int) -> None:
    here, asked = planner("paceline", drafter=drafter), demand("paceline", drafter=drafter)
    less, more = (here.plan(replace(asked, kv_capacity=n)) for n in (140_032, 280_064))
    assert more.reservation_bytes - less.reservation_bytes == 140_032 * (18_432 + token)
    assert here.page_bytes(asked) == 64 * (18_432 + token)
    assert growth("max_concurrency", 4, 5, drafter=drafter)["drafter context"] == slot
    assert less.checkpoint_bytes == 150_994_944 + 2_949_120 + slot
    plan = here.plan(asked)
    assert 0 <= plan.available_bytes - plan.total_bytes < here.page_bytes(asked)


def test_where_pages_hold_everything_checkpoints_cost_nothing() -> None:
    here = planner("paceline", drafter="ngram", model="smollm2")
    asked = demand("paceline", drafter="ngram", max_context=4096, kv_dtype="bf16", state_checkpoints=5)
    assert here.plan(asked).checkpoint_bytes == 0
    assert here.plan(asked).reservation_bytes == here.plan(replace(asked, state_checkpoints=0)).reservation_bytes
    assert here.largest(asked).state_checkpoints == 0


def test_without_drafts_there_is_no_drafter() -> None:
    items = {i.name: i.bytes for i in planner("paceline").plan(demand("paceline", draft_tokens=0)).items}
    assert items["drafter context"] == items["window inputs"] == items["drafter weights"] == 0


def test_the_tower_has_the_published_number_of_weights() -> None:
    vision = planner("paceline").subject.vision
    assert vision is not None and tower_bytes(vision) == 2 * 460_730_096


def test_items_add_up_and_the_capacity_fills_the_device() -> None:
    here = planner("paceline")
    for c in (1, 3, 8):
        plan = here.plan(demand("paceline", max_concurrency=c, max_context=262144))
        assert plan.total_bytes == sum(item.bytes for item in plan.items)
        most = c * here.layout.least_pages(plan.demand)
        left = plan.available_bytes - plan.total_bytes
        assert plan.pages == most or 0 <= left < 64 * 18_432


def test_requests_that_run_together() -> None:
    here = planner("paceline")
    plan = here.plan(demand("paceline"))
    each = here.layout.largest_each(plan.demand, plan.pages)

    def needed(tokens: int) -> int:
        return 8 * here.layout.least_pages(replace(plan.demand, max_context=tokens))

    assert needed(each) <= plan.pages < needed(each + 1)


def test_the_safety_margin_stays_free() -> None:
    def left(safety_bytes: int) -> Plan:
        return planner("paceline").plan(demand("paceline", safety_bytes=safety_bytes))

    assert left(10**9).kv_tokens < left(0).kv_tokens
    assert left(10**9).total_bytes <= left(10**9).available_bytes


@pytest.mark.parametrize(
    "changes,words",
    [
        ({"max_context": 300_000}, ["--max-context", "300000", "262144"]),
        ({"max_context": 10}, ["--max-context", "10", "64"]),
        ({"max_concurrency": 65}, ["--max-concurrency", "65", "64"]),
        ({"kv_capacity": 131_072}, ["--kv-capacity", "131072", "131073"]),
    ],
)
def test_impossible_demands(changes: dict[str, object], words: list[str]) -> None:
    here = planner("paceline")
    with pytest.raises(ConfigError) as refusal:
        check_demand(here.layout, here.subject, demand("paceline", **changes))
    assert all(word in str(refusal.value) for word in words), refusal.value


def test_no_tower_no_vision() -> None:
    here = planner("paceline", drafter="none", model="smollm2")
    asked = demand("paceline", drafter="none", draft_tokens=0, max_context=4096, vision=True)
    with pytest.raises(ConfigError, match="--vision"):
        check_demand(here.layout, here.subject, asked)

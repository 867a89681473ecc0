"""Hints are true: every value that is named fits, and the next larger one does not. Asked of the plans themselves."""

from dataclasses import replace
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.config import MAX_STATE_CHECKPOINTS, PAGE_TOKENS
from paceline.memory.plan import Demand, make_plan
from paceline.memory.plan_engine import EngineLayout
from paceline.memory.plan_reference import ReferenceLayout
from paceline.memory.plan_search import Planner
from tests.memory.planners import demand, planner

MOST_DRAFTS = {
    EngineLayout: lambda drafter: 15,
    ReferenceLayout: lambda drafter: {"mtp": 5, "ngram": 0}.get(drafter, 15),
}
BYTES = st.integers(2 * 10**9, 60 * 10**9)


@cache
def whole(layout: str) -> Planner:
    return planner(layout)


def on(layout: str, total_bytes: int, loaded: bool) -> Planner:
    here = whole(layout)
    return replace(here, device=replace(here.device, total_bytes=total_bytes, after_weights=not loaded))


def fits(here: Planner, asked: Demand) -> bool:
    """Without the planner's own verdict: the bytes of the items, and room for one whole request."""
    if asked.draft_tokens > (0 if asked.drafter == "none" else MOST_DRAFTS[type(here.layout)](asked.drafter)):
        return False
    if asked.kv_capacity is not None and asked.kv_capacity <= (here.layout.least_pages(asked) - 1) * PAGE_TOKENS:
        return False
    plan = make_plan(here.layout, here.subject, asked, here.device)
    return sum(item.bytes for item in plan.items) <= here.device.total_bytes


@st.composite
def demands(draw: st.DrawFn, layout: str) -> Demand:
    context = draw(st.integers(64, 262_144))
    drafter = draw(st.sampled_from([name for name in whole(layout).subject.drafters if name != "none"]))
    most = MOST_DRAFTS[type(whole(layout).layout)](drafter)
    least = max(context + 16, 8 * PAGE_TOKENS)
    return demand(
        layout,
        max_concurrency=draw(st.integers(1, 8)),
        draft_tokens=draw(st.integers(0, most)),
        max_context=context,
        kv_dtype=draw(st.sampled_from(list(whole(layout).subject.kv))),
        drafter=drafter,
        vision=draw(st.booleans()),
        state_checkpoints=draw(st.integers(0, 9)),
        kv_capacity=draw(st.one_of(st.none(), st.integers(least, 2 * least))),
        safety_bytes=draw(st.sampled_from([0, 10**8])),
    )


def check_hints(here: Planner, asked: Demand) -> None:
    largest = here.largest(asked)
    steps = (
        ("max_context", largest.max_context, PAGE_TOKENS, here.subject.model.max_context),
        ("max_concurrency", largest.max_concurrency, 1, here.layout.max_concurrency),
        ("draft_tokens", largest.draft_tokens, 0, here.most_drafts(asked)),
        ("state_checkpoints", largest.state_checkpoints, 0, MAX_STATE_CHECKPOINTS),
    )
    for name, value, least, most in steps:
        if value is None:
            assert not fits(here, replace(asked, **{name: least})), name
            continue
        assert fits(here, replace(asked, **{name: value})), name
        if value != most:
            assert not fits(here, replace(asked, **{name: value + 1})), name
    if largest.kv_capacity is None:
        assert not fits(here, replace(asked, kv_capacity=None))
    else:
        assert fits(here, replace(asked, kv_capacity=largest.kv_capacity))
        assert not fits(here, replace(asked, kv_capacity=largest.kv_capacity + 1))
    check_choices(here, asked)


def check_choices(here: Planner, asked: Demand) -> None:
    """No choice that takes more than the named one fits."""
    largest, subject = here.largest(asked), here.subject

    def taken(each: Demand) -> int:
        return -make_plan(here.layout, subject, each, here.device).slack_bytes

    for name, value, values in (
        ("kv_dtype", largest.kv_dtype, list(subject.kv)),
        ("drafter", largest.drafter, list(subject.drafters) if asked.draft_tokens else [asked.drafter]),
        ("vision", largest.vision, [False, True]),
    ):
        each = {v: replace(asked, **{name: v}) for v in values}
        if name == "drafter" and "none" in each:
            each["none"] = replace(each["none"], draft_tokens=0)
        good = [v for v in values if fits(here, each[v])]
        assert (value in good) if good else (value is None), name
        assert all(taken(each[v]) <= taken(each[value]) for v in good), name


@settings(deadline=None, max_examples=60)
@given(st.data(), BYTES, st.booleans())
def test_hints_of_paceline(data: st.DataObject, total_bytes: int, loaded: bool) -> None:
    check_hints(on("paceline", total_bytes, loaded), data.draw(demands("paceline")))


@settings(deadline=None, max_examples=60)
@given(st.data(), BYTES, st.booleans())
def test_hints_of_the_reference(data: st.DataObject, total_bytes: int, loaded: bool) -> None:
    check_hints(on("reference", total_bytes, loaded), data.draw(demands("reference")))


@settings(deadline=None, max_examples=40)
@given(demands("paceline"), BYTES)
def test_auto_context_is_the_largest_step(asked: Demand, total_bytes: int) -> None:
    here = on("paceline", total_bytes, False)
    context = here.auto_context(asked)
    largest = here.largest_context(asked)
    if largest is None:
        assert context == PAGE_TOKENS and not fits(here, replace(asked, max_context=context))
    else:
        step = 1024 if largest >= 1024 else PAGE_TOKENS
        assert context % step == 0 and context <= largest < context + step
        assert fits(here, replace(asked, max_context=context))


def test_the_grid_has_every_point_and_agrees_with_the_plan() -> None:
    here, asked = whole("paceline"), demand("paceline")
    cells = list(here.grid(asked, [1, 8], [0, 7]))
    assert [(c.kv_dtype, c.draft_tokens, c.max_concurrency) for c in cells] == [
        (name, k, c) for name in ("bf16", "int8", "fp8", "k8v4", "nvfp4") for k in (0, 7) for c in (1, 8)
    ]
    cell, plan = cells[-1], here.plan(asked)
    assert (cell.kv_tokens, cell.full_requests) == (plan.kv_tokens, plan.full_requests)
    assert cell.max_context == here.largest_context(asked)
    assert cell.largest_each == here.layout.largest_each(asked, plan.pages)
    tight = list(on("paceline", 3 * 10**9, False).grid(asked, [8], [7]))
    assert all(c.kv_tokens == 0 and c.full_requests == 0 and c.largest_each == 0 for c in tight)

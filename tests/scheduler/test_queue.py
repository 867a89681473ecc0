"""Admission: first come first served, pages as they are needed or all at once, pause and resume, refusals."""

import pytest

from paceline.core.config import EngineConfig
from paceline.core.request import Request, SamplingParams
from paceline.scheduler.queue import RequestQueue
from tests.kit.scripted import engine_config


def make(request_id: int, prompt_tokens: int, max_tokens: int) -> Request:
    return Request(
        id=request_id, prompt=list(range(prompt_tokens)), max_tokens=max_tokens, sampling=SamplingParams(seed=0)
    )


def queue_of(**overrides: object) -> RequestQueue:
    return RequestQueue(engine_config(**overrides), stateful=False)


def admitted(queue: RequestQueue) -> list[tuple[int, int, list[int]]]:
    return [(sequence.request.id, sequence.slot, sequence.pages) for sequence in queue.admit()]


def test_slots_and_pages_in_order_of_arrival() -> None:
    queue = queue_of(max_concurrency=2, draft_tokens=3, kv_capacity=640)
    for request_id in range(3):
        queue.submit(make(request_id, 50, 10))
    assert admitted(queue) == [(0, 0, [0]), (1, 1, [5])]
    assert admitted(queue) == []
    queue.release(queue.running[0])
    assert admitted(queue) == [(2, 0, [0])]


@pytest.mark.parametrize(("max_tokens", "pages"), [(10, 1), (11, 2)])
def test_reserve_takes_prompt_output_and_one_window(max_tokens: int, pages: int) -> None:
    queue = queue_of(draft_tokens=3, admission="reserve")
    queue.submit(make(0, 50, max_tokens))  # 50 + 10 + 4 = 64
    [sequence] = queue.admit()
    assert len(sequence.pages) == pages


def test_reservation_ends_with_the_context() -> None:
    queue = queue_of(draft_tokens=3, max_context=124, kv_capacity=128, admission="reserve")
    queue.submit(make(0, 50, 10**9))
    [sequence] = queue.admit()
    assert len(sequence.pages) == 2


def test_head_is_never_passed() -> None:
    queue = queue_of(max_concurrency=3, kv_capacity=256, draft_tokens=0, admission="reserve")
    queue.submit(make(0, 100, 27))  # 2 of 4 pages
    queue.submit(make(1, 150, 27))  # 3 pages
    queue.submit(make(2, 1, 1))
    assert [request_id for request_id, *_ in admitted(queue)] == [0]
    queue.release(queue.running[0])
    assert [request_id for request_id, *_ in admitted(queue)] == [1, 2]


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "message"),
    [
        (0, 5, "empty"),
        (201, 5, "201 tokens, the context holds 200"),
        (100, 90, "need 198 tokens of KV, the pool holds 192"),
        (100, 84, None),
        (184, 0, None),
    ],
)
def test_refusals(prompt_tokens: int, max_tokens: int, message: str | None) -> None:
    queue = queue_of(max_context=200, kv_capacity=129, draft_tokens=7)
    refusal = queue.refusal(make(0, prompt_tokens, max_tokens))
    assert refusal is None if message is None else message in (refusal or "")


def test_what_is_not_refused_runs_alone() -> None:
    queue = queue_of(max_context=200, kv_capacity=129, draft_tokens=7)
    queue.submit(make(0, 100, 84))
    assert len(queue.admit()) == 1


def test_check_sees_what_is_left() -> None:
    queue = queue_of()
    queue.check()
    queue.submit(make(0, 5, 5))
    with pytest.raises(RuntimeError):
        queue.check()
    [sequence] = queue.admit()
    with pytest.raises(RuntimeError):
        queue.check()
    queue.release(sequence)
    queue.check()


def test_id_in_use_raises() -> None:
    queue = queue_of()
    queue.submit(make(0, 5, 5))
    with pytest.raises(ValueError, match="in use"):
        queue.submit(make(0, 5, 5))
    queue.admit()
    with pytest.raises(ValueError, match="in use"):
        queue.submit(make(0, 5, 5))


def test_config_counts_one_whole_window() -> None:
    config: EngineConfig = engine_config(draft_tokens=7, max_context=100)
    assert config.most_tokens(10, 20) == 38
    assert config.most_tokens(90, 20) == 108


@pytest.mark.parametrize(("prompt_tokens", "max_tokens", "pages"), [(56, 500, 1), (57, 500, 2), (58, 1, 1)])
def test_on_demand_takes_the_prompt_and_two_windows(prompt_tokens: int, max_tokens: int, pages: int) -> None:
    queue = queue_of(draft_tokens=3)
    queue.submit(make(0, prompt_tokens, max_tokens))  # 56 + 8 = 64; 58 + 1 + 4 = 63
    [sequence] = queue.admit()
    assert len(sequence.pages) == pages


def test_a_paused_request_waits_in_its_old_place_and_needs_a_margin() -> None:
    queue = queue_of(max_concurrency=2, draft_tokens=3, kv_capacity=64 * 6, max_context=320)
    for request_id in range(3):
        queue.submit(make(request_id, 50, 200))
    first, second = queue.admit()
    for sequence in (first, second):
        sequence.tokens += [7] * 100
        sequence.filled, sequence.told = sequence.facts, True
        assert queue.grow(sequence) and len(sequence.pages) == 3
    first.tokens += [7] * 40
    first.filled = first.facts
    assert not queue.grow(first)
    queue.pause(second)
    assert list(queue.waiting) == [1, 2] and queue.grow(first)
    assert queue.admit() == [], "not before there is room to stay, and nobody passes it"
    queue.release(first)
    assert [sequence.request.id for sequence in queue.admit()] == [1, 2]
    assert second.filled < second.facts == 149 and second.produced == 100

"""The page pool against a plain set of free pages, over random takes and returns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.memory.pages import PagePool


@given(st.integers(0, 24), st.lists(st.tuples(st.booleans(), st.integers(0, 26)), max_size=60))
def test_against_a_set(total: int, moves: list[tuple[bool, int]]) -> None:
    pool = PagePool(total)
    free = set(range(total))
    held: list[list[int]] = []
    for takes, n in moves:
        if takes:
            pages = pool.take(n)
            if n > len(free):
                assert pages is None
            else:
                assert pages is not None
                assert pages == sorted(set(pages)) and len(pages) == n and set(pages) <= free
                runs = [f for f in sorted(free) if set(range(f, f + n)) <= free]
                if n and runs:
                    assert pages == list(range(runs[0], runs[0] + n)), "the lowest run comes first"
                elif n:
                    assert pages == sorted(free)[:n]
                free -= set(pages)
                held.append(pages)
        elif held:
            pages = held.pop(n % len(held))
            pool.give_back(pages)
            free |= set(pages)
        assert (pool.free, pool.used, pool.total) == (len(free), total - len(free), total)
        if len(free) < total:
            with pytest.raises(RuntimeError, match="not whole"):
                pool.check()
    for pages in held:
        pool.give_back(pages)
    pool.check()


def test_fragmented_pool_gives_the_lowest_pages() -> None:
    pool = PagePool(6)
    assert pool.take(6) == [0, 1, 2, 3, 4, 5]
    pool.give_back([4, 0, 2])
    assert pool.take(2) == [0, 2]
    pool.give_back([5, 0])
    assert pool.take(2) == [4, 5], "a run, though page 0 is lower"
    pool.give_back([4, 5])
    assert pool.take(1) == [0]
    assert pool.take(2) == [4, 5]


def test_the_pages_after_a_given_one_come_first_when_all_are_free() -> None:
    pool = PagePool(8)
    assert pool.take(5) == [0, 1, 2, 3, 4]
    pool.give_back([0, 1, 3])
    assert pool.take(1, after=2) == [3]
    assert pool.take(2, after=4) == [5, 6]
    assert pool.take(2, after=6) == [0, 1], "page 7 alone is not enough"
    assert pool.take(1, after=7) == [7]
    pool.give_back(list(range(8)))
    pool.check()


def test_sequences_that_grow_begin_apart() -> None:
    pool = PagePool(64, apart=True)
    ends = []
    for begin in (0, 32, 16, 48):
        pages = pool.take(2)
        assert pages == [begin, begin + 1]
        ends.append(pages[-1])
    for _ in range(13):
        for i, end in enumerate(ends):
            assert pool.take(1, after=end) == [end + 1], "each grows as one run"
            ends[i] = end + 1
    assert pool.take(9) is None and len(pool.take(4) or []) == 4
    assert PagePool(3, apart=True).take(4) is None and PagePool(3, apart=True).take(0) == []


@pytest.mark.parametrize(
    ("pages", "message"),
    [([3], "not taken"), ([0, 0], "twice"), ([8], "not of this pool"), ([0, -1], "not of this pool")],
)
def test_wrong_returns_raise_and_change_nothing(pages: list[int], message: str) -> None:
    pool = PagePool(8)
    assert pool.take(2) == [0, 1]
    with pytest.raises(ValueError, match=message):
        pool.give_back(pages)
    assert (pool.free, pool.used) == (6, 2)
    pool.give_back([0, 1])
    with pytest.raises(ValueError, match="not taken"):
        pool.give_back([1])
    pool.check()


def test_negative_take_raises() -> None:
    with pytest.raises(ValueError, match="-1"):
        PagePool(4).take(-1)

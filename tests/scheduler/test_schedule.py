"""The next batch as a function of state: windows, chunks, and how they share a step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.request import Request, SamplingParams
from paceline.memory.checkpoints import CheckpointKind
from paceline.memory.pages import PagePool
from paceline.memory.prefix import PrefixCache
from paceline.scheduler.queue import Sequence
from paceline.scheduler.schedule import schedule


def sequence(
    slot: int, prompt_tokens: int, prefilled: int, *, produced: int = 0, max_tokens: int = 100, next_drafts: int = 0
) -> Sequence:
    prompt = [1000 * slot + i for i in range(prompt_tokens)]
    request = Request(id=slot, prompt=prompt, max_tokens=max_tokens, sampling=SamplingParams(seed=0))
    state = Sequence(request, arrival=slot, slot=slot, filled=prefilled + max(produced - 1, 0), next_drafts=next_drafts)
    state.tokens += [900_000 + i for i in range(produced)]
    state.lease = PrefixCache(PagePool(20), 0, stateful=False).open(state.tokens)
    assert state.lease.grow(1280)
    return state


def picture(states: list[Sequence]) -> list[tuple[object, ...]]:
    return [(s.slot, list(s.tokens), s.filled, s.next_drafts, list(s.pages), dict(s.cuts)) for s in states]


@pytest.mark.parametrize(
    ("produced", "max_tokens", "max_context", "next_drafts", "drafts"),
    [
        (1, 100, 500, 7, 7),
        (1, 100, 500, 0, 0),
        (5, 8, 500, 7, 2),  # the target's own token is the third that is left
        (7, 8, 500, 7, 0),
        (5, 100, 108, 7, 3),  # positions 104 … 107
        (5, 100, 105, 7, 0),
    ],
)
def test_window(produced: int, max_tokens: int, max_context: int, next_drafts: int, drafts: int) -> None:
    state = sequence(3, 100, 100, produced=produced, max_tokens=max_tokens, next_drafts=next_drafts)
    [row] = schedule([state], 64, max_context)
    assert (row.slot, row.start, row.q_len, row.known, row.sample_from) == (3, 99 + produced, 1 + drafts, 1, 0)
    assert row.tokens is None and row.pages == state.pages


@pytest.mark.parametrize(
    ("prompt_tokens", "prefilled", "chunk", "end"),
    [
        (1, 0, 64, 1),
        (63, 0, 64, 63),
        (64, 0, 64, 64),
        (65, 0, 64, 64),
        (65, 64, 64, 65),
        (200, 0, 128, 128),
        (200, 128, 128, 200),
    ],
)
def test_chunk(prompt_tokens: int, prefilled: int, chunk: int, end: int) -> None:
    state = sequence(0, prompt_tokens, prefilled)
    [row] = schedule([state], chunk, 500)
    assert row.tokens == state.request.prompt[prefilled:end]
    assert (row.start, row.q_len, row.known) == (prefilled, end - prefilled, end - prefilled)
    assert row.sample_from == (row.q_len - 1 if end == prompt_tokens else row.q_len)


def test_windows_ride_with_chunks() -> None:
    rows = schedule([sequence(0, 300, 64), sequence(1, 10, 10, produced=2, next_drafts=3)], 128, 500)
    assert [(row.slot, row.q_len, row.known) for row in rows] == [(1, 4, 1), (0, 128, 128)]


def test_chunks_end_where_a_checkpoint_is_wanted() -> None:
    state = sequence(0, 300, 64)
    state.cuts = {64: CheckpointKind.CHUNK, 192: CheckpointKind.MESSAGE, 256: CheckpointKind.PROMPT_END}
    [row] = schedule([state], 512, 500)
    assert (row.start, row.q_len, row.sample_from) == (64, 128, 128)


@pytest.mark.parametrize(
    ("filled", "end", "sample_from"), [(0, 100, 100), (64, 100, 36), (100, 116, 16), (130, 139, 9)]
)
def test_output_is_computed_again_in_the_form_of_windows(filled: int, end: int, sample_from: int) -> None:
    """A prompt of 100 and 40 tokens of output after a pause: the prompt as prompts are, the rest in pieces."""
    state = sequence(0, 100, 0, produced=40)
    state.filled = filled
    [row] = schedule([state], 256, 500)
    assert (row.start, row.q_len, row.sample_from) == (filled, end - filled, sample_from)
    assert row.tokens == state.tokens[filled:end] and row.known == row.q_len


def test_chunks_in_order_of_admission_and_one_page_for_those_behind() -> None:
    rows = schedule([sequence(2, 900, 0), sequence(0, 900, 0), sequence(1, 5, 0)], 256, 1000)
    assert [(row.slot, row.q_len) for row in rows] == [(2, 128), (0, 64), (1, 5)]


def test_what_a_short_prompt_leaves_goes_to_the_next() -> None:
    rows = schedule([sequence(0, 100, 0), sequence(1, 900, 0)], 256, 1000)
    assert [(row.slot, row.q_len) for row in rows] == [(0, 100), (1, 128)]


def test_a_prompt_that_just_fits_what_is_left() -> None:
    rows = schedule([sequence(0, 100, 64), sequence(1, 28, 0), sequence(2, 10, 0)], 64, 1000)
    assert [(row.slot, row.q_len, row.sample_from) for row in rows] == [(0, 36, 35), (1, 28, 27)]


def test_the_first_moves_on_however_many_wait_behind() -> None:
    rows = schedule([sequence(slot, 900, 0) for slot in range(9)], 64, 1000)
    assert [(row.slot, row.q_len) for row in rows] == [(0, 64)]


states = st.lists(st.tuples(st.integers(1, 400), st.integers(0, 6), st.integers(1, 50), st.integers(0, 15)), max_size=6)


@given(states, st.integers(1, 8))
def test_any_state(shapes: list[tuple[int, int, int, int]], chunk_pages: int) -> None:
    running = []
    for slot, (prompt_tokens, pages_done, produced, next_drafts) in enumerate(shapes):
        prefilled = min(64 * pages_done, prompt_tokens)
        done = prefilled == prompt_tokens
        running.append(
            sequence(slot, prompt_tokens, prefilled, produced=produced if done else 0, next_drafts=next_drafts)
        )
    before = picture(running)
    rows = schedule(running, 64 * chunk_pages, 500)
    assert picture(running) == before, "a pure function"
    assert rows == schedule(running, 64 * chunk_pages, 500)
    assert {row.slot for row in rows if row.tokens is None} == {s.slot for s in running if s.caught_up}
    assert sum(len(row.tokens or []) for row in rows) <= 64 * chunk_pages
    waiting = [s.slot for s in running if not s.caught_up]
    chunked = [row.slot for row in rows if row.tokens is not None]
    assert chunked == sorted(chunked) and chunked[:1] == waiting[:1], "the first in line always moves"

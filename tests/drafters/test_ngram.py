"""Prompt lookup against a search that has no index, and what a drafter without weights promises over a slot's life."""

import random
from typing import cast

import pytest

from paceline.drafters import DRAFTERS, WEIGHTS_FROM
from paceline.drafters.base import Drafter, Observed, Target, Want, WeightsFrom
from paceline.drafters.ngram import NgramDrafter
from paceline.sampling.draft import DraftView

WITHOUT_WEIGHTS = [name for name, source in WEIGHTS_FROM.items() if source is WeightsFrom.NOTHING]


def seen(slot: int, tokens: list[int]) -> Observed:
    """These drafters read tokens alone."""
    return Observed(slot, first_token=0, tokens=tokens, start=0, taps=None, hidden=None, pages=[])


def want(slot: int, k: int) -> Want:
    return Want(slot, k, anchor=0, position=0, view=cast(DraftView, None), pages=[])


def searched(text: list[int], k: int) -> list[int]:
    """The definition: what followed the latest earlier occurrence of the longest ending among 4, 3 and 2 tokens.

    A continuation that reaches the end of the text goes on through the drafts themselves.
    """
    for n in (4, 3, 2):
        if len(text) < n:
            continue
        for start in range(len(text) - n - 1, -1, -1):
            if text[start : start + n] == text[-n:]:
                longer = list(text)
                for i in range(k):
                    longer.append(longer[start + n + i])
                return longer[len(text) :]
    return []


def after(text: list[int], k: int) -> list[int]:
    drafter = NgramDrafter()
    drafter.open(0, [], 0)
    drafter.observe([seen(0, text)])
    (drafts,) = drafter.propose([want(0, k)])
    return drafts


@pytest.mark.parametrize("vocab", [1, 2, 3, 5, 12])
def test_proposals_equal_a_search(vocab: int) -> None:
    """Random texts, observed in random parts, asked in between: the index never differs from a search."""
    chance = random.Random(vocab)
    proposed = 0
    for _ in range(60):
        drafter = NgramDrafter()
        drafter.open(3, [], 0)
        text: list[int] = []
        while len(text) < 60:
            part = [chance.randrange(vocab) for _ in range(chance.choice((1, 1, 2, 5, 17)))]
            text += part
            drafter.observe([seen(3, part)])
            k = chance.choice((1, 2, 3, 7, 15, 40))
            assert drafter.propose([want(3, k)]) == [searched(text, k)], (text, k)
            proposed += bool(searched(text, k))
    assert proposed > 100


def test_the_latest_occurrence_counts() -> None:
    assert after([1, 2, 7, 1, 2, 8, 1, 2], 1) == [8]


def test_the_longest_ending_counts() -> None:
    """`2 3` was followed by 9 last, but `1 2 3` by 7, and `0 1 2 3` by 5."""
    assert after([0, 1, 2, 3, 5, 6, 1, 2, 3, 7, 6, 2, 3, 9, 8, 2, 3], 1) == [9]
    assert after([0, 1, 2, 3, 5, 6, 1, 2, 3, 7, 6, 2, 3, 9, 8, 1, 2, 3], 1) == [7]
    assert after([0, 1, 2, 3, 5, 6, 1, 2, 3, 7, 6, 2, 3, 9, 0, 1, 2, 3], 1) == [5]


def test_one_equal_token_is_not_enough() -> None:
    assert after([1, 2, 3, 4, 1], 5) == []


def test_a_repetition_goes_on_past_the_end() -> None:
    assert after([4, 5, 6, 4, 5], 8) == [6, 4, 5, 6, 4, 5, 6, 4]
    assert after([7, 7, 7], 5) == [7] * 5


@pytest.mark.parametrize("text", [[], [1], [1, 2], [1, 2, 3, 4, 5, 6]])
def test_nothing_repeats_nothing_is_proposed(text: list[int]) -> None:
    assert after(text, 7) == []


def test_two_slots_do_not_see_each_other() -> None:
    drafter = NgramDrafter()
    for slot in (0, 1):
        drafter.open(slot, [], 0)
    drafter.observe([seen(0, [1, 2, 3, 1]), seen(1, [1, 2, 9, 1])])
    drafter.observe([seen(1, [2]), seen(0, [2])])
    assert drafter.propose([want(0, 2), want(1, 2)]) == [[3, 1], [9, 1]]
    assert drafter.propose([want(1, 1), want(0, 3)]) == [[9], [3, 1, 2]]


def made(name: str) -> Drafter:
    return DRAFTERS.get(name)(cast(Target, None), None)


def served(drafter: Drafter, slot: int, text: list[int], k: int) -> list[list[int]]:
    """A request's life in a slot: a prompt in chunks, then one round after the other. All proposals."""
    drafter.open(slot, [], 0)
    drafts = []
    for start in range(0, len(text) // 2, 5):
        drafter.observe([seen(slot, text[start : min(start + 5, len(text) // 2)])])
    for token in text[len(text) // 2 :]:
        drafter.observe([seen(slot, [token])])
        drafts += drafter.propose([want(slot, k)])
    drafter.close(slot)
    return drafts


TEXTS = [random.Random(n).choices(range(6), k=50) for n in range(3)]


@pytest.mark.parametrize("k", [1, 3, 7, 15])
@pytest.mark.parametrize("name", WITHOUT_WEIGHTS)
class TestContract:
    def test_never_more_than_k_and_only_token_ids(self, name: str, k: int) -> None:
        for text in TEXTS:
            for drafts in served(made(name), 0, text, k):
                assert len(drafts) <= k
                assert all(type(token) is int and token in text for token in drafts)

    def test_the_second_request_of_a_slot_does_not_see_the_first(self, name: str, k: int) -> None:
        fresh = served(made(name), 2, TEXTS[1], k)
        used = made(name)
        served(used, 2, TEXTS[0], k)
        assert served(used, 2, TEXTS[1], k) == fresh

    def test_open_forgets_a_slot_that_was_never_closed(self, name: str, k: int) -> None:
        fresh = served(made(name), 2, TEXTS[1], k)
        used = made(name)
        used.open(2, [], 0)
        used.observe([seen(2, TEXTS[0])])
        used.propose([want(2, k)])
        assert served(used, 2, TEXTS[1], k) == fresh

    def test_requests_beside_each_other_get_what_they_get_alone(self, name: str, k: int) -> None:
        alone = []
        for text in TEXTS:
            drafter = made(name)
            drafter.open(0, [], 0)
            drafter.observe([seen(0, text)])
            alone += drafter.propose([want(0, k)])
        together = made(name)
        for slot in range(3):
            together.open(slot, [], 0)
        together.observe([seen(slot, text[:20]) for slot, text in enumerate(TEXTS)])
        together.observe([seen(slot, text[20:]) for slot, text in reversed(list(enumerate(TEXTS)))])
        assert together.propose([want(2, k), want(0, k), want(1, k)]) == [alone[2], alone[0], alone[1]]
        together.close(1)
        assert together.propose([want(0, k), want(2, k)]) == [alone[0], alone[2]]

    def test_proposing_changes_nothing(self, name: str, k: int) -> None:
        drafter = made(name)
        drafter.open(0, [], 0)
        drafter.observe([seen(0, list(TEXTS[0]))])
        first = drafter.propose([want(0, k)])
        first[0].append(99)  # what it hands out is the caller's
        again = drafter.propose([want(0, k)])
        assert again == [first[0][:-1]]
        assert drafter.propose([]) == []
        drafter.observe([])
        drafter.observe([seen(0, [])])
        assert drafter.propose([want(0, k)]) == again

    def test_close_may_come_at_any_time(self, name: str, k: int) -> None:
        drafter = made(name)
        drafter.open(0, [], 0)
        drafter.close(0)
        drafter.open(0, [], 0)
        drafter.observe([seen(0, TEXTS[2])])
        drafter.close(0)
        assert served(drafter, 0, TEXTS[1], k) == served(made(name), 0, TEXTS[1], k)

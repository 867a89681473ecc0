"""The warning about a dead drafter: when it comes, what it compares with, and that it goes away."""

from paceline.engine.watch import AcceptanceWatch


def test_zero_warns_whatever_the_card_says() -> None:
    watch = AcceptanceWatch({}, 7)
    assert not watch.add(999, 0) and watch.warning is None
    assert watch.add(1, 0)
    assert watch.warning is not None and "0.0% of the last 1000 drafts" in watch.warning
    assert not watch.add(1000, 0), "one line, not one in every interval"
    assert not watch.add(1000, 1) and watch.warning is None


def test_low_is_judged_against_the_card_at_the_nearest_k() -> None:
    stated = {"3": 0.6, "7": 0.4}
    assert AcceptanceWatch(stated, 3).add(1000, 200)
    watch = AcceptanceWatch(stated, 15)
    assert not watch.add(1000, 200)
    assert watch.add(1000, 150)
    assert watch.warning is not None and "states 40.0% for K = 7" in watch.warning


def test_a_shortened_head_is_the_first_suspect() -> None:
    """A card's figure is for the full head."""
    for head, named in (("full", False), ("shortlist:512", True)):
        watch = AcceptanceWatch({"7": 0.9}, 7, head)
        assert watch.add(1000, 265)
        assert watch.warning is not None and ("--draft-head shortlist:512" in watch.warning) is named

"""Invariant 1 on the shipped model: greedy and sampled requests in one batch give the same tokens at every point.

`python -m tests.models.test_matrix` runs the whole cross of drafter × K × C, about 45 seconds of one core.
"""

import time

import pytest

from paceline.core.request import Request
from paceline.drafters import DRAFTERS
from tests.kit import cross, embedded
from tests.kit.run import Reply, run, sampling

LONG = ("Explain how to make tea.", "Boil water, put the tea in a pot, wait. " * 12, "Tell me a story about a lion.")
CHATS = (*((prompt,) for prompt in embedded.PROMPTS), ("Name three rivers.",), LONG, ("Count from one to ten.",))
SAMPLINGS = (
    sampling(),
    sampling(temperature=0.6, top_p=0.95, top_k=20, presence_penalty=1.0, seed=23),
)


def requests() -> list[Request]:
    """Every chat greedily and sampled by turns, the next time the other way round."""
    stops = embedded.stop_ids()
    return [
        Request(
            id=i,
            prompt=embedded.chat(*CHATS[i % len(CHATS)]),
            max_tokens=24 - i % 4,
            sampling=SAMPLINGS[(i + i // len(CHATS)) % 2],
            stop_ids=stops,
        )
        for i in range(len(CHATS) + 2)
    ]


def served(point: cross.Point) -> list[Reply]:
    return run(
        embedded.model(),
        requests(),
        embedded.maker(point.drafter),
        point.stagger,
        draft_tokens=0 if point.drafter == "none" else point.k,
        max_concurrency=point.c,
        prefill_chunk=point.chunk,
        threads=1,
    )


@pytest.fixture(scope="module")
def plain() -> list[tuple[list[int], str]]:
    replies = [(r.ids, r.reason) for r in served(cross.Point("none", 0, 1, 512, 0))]
    reasons = {reason for _, reason in replies}
    assert reasons == {"stop_token", "output_limit"}, "both ends must occur"
    return replies


def check(point: cross.Point, plain: list[tuple[list[int], str]]) -> list[Reply]:
    replies = served(point)
    for i, (reply, want) in enumerate(zip(replies, plain, strict=True)):
        assert (reply.ids, reply.reason) == want, (point, i)
    return replies


def check_drafting(point: cross.Point, replies: list[Reply]) -> None:
    """Windows were accepted not at all, in part and as a whole: nothing above is true for want of drafts."""
    windows = [(proposed, accepted) for reply in replies for _, proposed, accepted in reply.rounds if proposed]
    assert any(accepted == 0 for _, accepted in windows), point
    assert point.k == 1 or any(0 < accepted < proposed for proposed, accepted in windows), point
    assert point.drafter == "ngram" or any(0 < accepted == proposed for proposed, accepted in windows), point


def test_without_drafts(plain: list[tuple[list[int], str]]) -> None:
    for c, chunk, stagger in ((2, 64, 1), (4, 128, 0), (8, 512, 3)):
        check(cross.Point("none", 0, c, chunk, stagger), plain)


@pytest.mark.parametrize("turn,drafter", [(0, "ngram"), (1, "mtp"), (2, "dflash")])
def test_pairs(turn: int, drafter: str, plain: list[tuple[list[int], str]]) -> None:
    for point in cross.thin(drafter, turn):
        check_drafting(point, check(point, plain))


@pytest.mark.parametrize("k", cross.KS)
def test_whole_cross(k: int, plain: list[tuple[list[int], str]], capsys: pytest.CaptureFixture[str]) -> None:
    """K = 15 is a longer block than the trained one of 8: it works, and one line warns."""
    for point in cross.whole("dflash2"):
        if point.k == k:
            check_drafting(point, check(point, plain))
    assert capsys.readouterr().err.count("trained on blocks of 8") == (len(cross.CS) if k == 15 else 0)


if __name__ == "__main__":
    began = time.perf_counter()
    reference = [(r.ids, r.reason) for r in served(cross.Point("none", 0, 1, 512, 0))]
    for name in DRAFTERS:
        for each in cross.whole(name) if name != "none" else []:
            check(each, reference)
            print(f"{time.perf_counter() - began:6.1f} s  same tokens: {each}", flush=True)

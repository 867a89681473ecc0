"""Points of the drafter × K × C matrix: the whole cross for some drafters, a few that meet every pair for the others."""

from dataclasses import dataclass

KS = (1, 3, 7, 15)
CS = (1, 2, 4, 8)
CHUNKS = (64, 128, 512)
STAGGERS = (0, 1, 3)


@dataclass(frozen=True)
class Point:
    """One engine: request i arrives before step i · stagger."""

    drafter: str
    k: int
    c: int
    chunk: int
    stagger: int


def whole(drafter: str) -> list[Point]:
    """Every K with every C; chunk sizes and arrivals change along."""
    return [
        Point(drafter, k, c, CHUNKS[(i + j) % len(CHUNKS)], STAGGERS[(i + 2 * j) % len(STAGGERS)])
        for i, k in enumerate(KS)
        for j, c in enumerate(CS)
    ]


def thin(drafter: str, turn: int) -> list[Point]:
    """Every K and every C once: a diagonal of the whole. Four drafters with turns 0 … 3 meet every pair of K and C."""
    points = whole(drafter)
    return [points[i * len(CS) + (i + turn) % len(CS)] for i in range(len(KS))]

"""Which checkpoints are kept when there is no room for all, and where prompts are cut for them."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from paceline.memory.checkpoints import (
    SPACING_TOKENS,
    Checkpoint,
    CheckpointKind,
    CheckpointPool,
    chain,
    plan_checkpoints,
)

MESSAGE, CHUNK = CheckpointKind.MESSAGE, CheckpointKind.CHUNK
PROMPT_END, REPLY_END = CheckpointKind.PROMPT_END, CheckpointKind.REPLY_END


class Sequence:
    """Adds checkpoints to a pool as one token sequence that is computed."""

    def __init__(self, pool: CheckpointPool, last: Checkpoint | None = None) -> None:
        self.pool, self.last = pool, last

    def add(self, position: int, kind: CheckpointKind = CHUNK, now: int = 0) -> bool:
        new = Checkpoint(position, kind, next(chain(self.last), None), now)
        if self.pool.full:
            victim = self.pool.victim(new, now)
            if victim is None:
                return False
            self.pool.drop(victim)
            new.parent = next(chain(new.parent), None)
        self.pool.add(new, later=[])
        self.last = new
        return True

    @property
    def positions(self) -> list[int]:
        return [checkpoint.position for checkpoint in chain(self.last)][::-1]


def test_a_long_prompt_thins_its_own_and_leaves_others_alone() -> None:
    pool = CheckpointPool(8)
    other, long = Sequence(pool), Sequence(pool)
    for position in (1024, 2048, 3072):
        other.add(position)
    for position in range(512, 24_000, 512):
        assert long.add(position)
    assert other.positions == [1024, 2048, 3072]
    assert long.positions[-2:] == [23_040, 23_552], "the two newest edges"
    assert max(after - before for before, after in pairwise([0, *long.positions])) <= SPACING_TOKENS
    for position in range(24_064, 120_000, 512):
        assert long.add(position)
    assert other.positions == [3072], "the newest of another stays even then"
    assert max(after - before for before, after in pairwise([0, *long.positions])) <= 3 * SPACING_TOKENS


def test_message_boundaries_outlast_chunk_edges() -> None:
    pool = CheckpointPool(5)
    sequence = Sequence(pool)
    for position in range(512, 16_000, 512):
        sequence.add(position, MESSAGE if position in (1024, 1536, 9216) else CHUNK)
    assert sequence.positions == [1024, 1536, 9216, 15_360, 15_872]


def test_a_shared_beginning_is_not_thinned() -> None:
    pool = CheckpointPool(6)
    first = Sequence(pool)
    first.add(512)
    shared = first.last
    first.add(1024)
    Sequence(pool, shared).add(1024)
    for position in range(1536, 12_000, 512):
        first.add(position)
    assert first.positions[0] == 512


def test_who_was_used_longest_ago_gives_way() -> None:
    pool = CheckpointPool(2)
    old, recent = Sequence(pool), Sequence(pool)
    old.add(8192, PROMPT_END, now=0)
    recent.add(8192, PROMPT_END, now=9)
    assert Sequence(pool).add(2048, PROMPT_END, now=10)
    assert (old.positions, recent.positions) == ([], [8192])


def test_little_does_not_displace_much() -> None:
    pool = CheckpointPool(2)
    for _ in range(2):
        Sequence(pool).add(100_032, PROMPT_END, now=9)
    assert not Sequence(pool).add(512, now=10)
    assert Sequence(pool).add(65_536, now=10)


def test_a_reply_does_not_displace_its_own_prompt() -> None:
    """Clients may send a reply back in other tokens; its prompt they repeat."""
    pool = CheckpointPool(1)
    sequence = Sequence(pool)
    sequence.add(100_032, PROMPT_END)
    assert not sequence.add(100_400, REPLY_END)
    assert sequence.add(101_056, PROMPT_END), "the next prompt does"


def test_a_pinned_one_is_never_the_victim() -> None:
    pool = CheckpointPool(3)
    sequence = Sequence(pool)
    for position in (512, 1024, 1536):
        sequence.add(position)
    for checkpoint in pool:
        checkpoint.pins = 1
    assert pool.victim(Checkpoint(2048, CHUNK, sequence.last, 0), 0) is None


def test_cuts_of_a_prompt() -> None:
    boundaries = [1000, 1100, 1300, 3000, 3050]
    assert plan_checkpoints(3100, 0, boundaries, 512) == {960: MESSAGE, 1280: MESSAGE, 3008: MESSAGE, 3072: PROMPT_END}
    assert plan_checkpoints(3100, 1280, boundaries, 512) == {3008: MESSAGE, 3072: PROMPT_END}
    assert plan_checkpoints(40_000, 0, [100], 512) == {64: MESSAGE, 16_384: CHUNK, 32_768: CHUNK, 39_936: PROMPT_END}
    assert plan_checkpoints(20_000, 0, [16_300, 19_000], 512) == {16_256: MESSAGE, 18_944: MESSAGE, 19_968: PROMPT_END}
    assert plan_checkpoints(64, 0, [64], 512) == {}
    assert plan_checkpoints(65, 0, [64], 512) == {64: PROMPT_END}


@given(
    st.integers(1, 70_000),
    st.integers(0, 70_000),
    st.lists(st.integers(0, 70_000), max_size=30),
    st.sampled_from([64, 512]),
)
def test_cuts_are_few_and_in_place(prompt: int, reused: int, boundaries: list[int], chunk: int) -> None:
    boundaries = [boundary for boundary in boundaries if boundary <= prompt]
    reused = min(reused, prompt - 1)
    plan = plan_checkpoints(prompt, reused, boundaries, chunk)
    assert list(plan) == sorted(plan)
    assert all(position % 64 == 0 and reused < position < prompt for position in plan)
    messages = {boundary // 64 * 64 for boundary in boundaries}
    assert all(position in messages for position, kind in plan.items() if kind is MESSAGE)
    inner = list(plan)[1:-2]
    assert all(after - before >= chunk for before, after in pairwise(inner))
    for boundary in messages:
        if reused < boundary < prompt:
            assert (
                any(boundary <= position < boundary + chunk for position in plan) or (prompt - 1) // 64 * 64 < boundary
            )

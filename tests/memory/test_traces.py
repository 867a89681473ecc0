"""Agent conversations replayed on the prefix cache, with an engine of integers: how much of what could be reused is.

Reusable is the longest common prefix of a prompt, its last token left out, and anything computed before: to the token,
though states are kept at few places only.
"""

from collections.abc import Iterator
from random import Random

import numpy as np
import pytest

from paceline.core.config import PAGE_TOKENS
from paceline.memory.checkpoints import CheckpointKind, plan_checkpoints
from paceline.memory.pages import PagePool
from paceline.memory.prefix import MissReason, PrefixCache
from tests.kit.agent_traces import Conversation, Turn

CHUNK, WINDOW = 512, 8
CONTEXT = 131072


class Replay:
    """`turns_of` yields after each step of each of its turns, so that conversations can take turns."""

    def __init__(self, cache: PrefixCache) -> None:
        self.cache = cache
        self.stats = cache.stats()
        self.computed: list[np.ndarray] = []
        self.prompt_tokens = self.reusable = self.reused = self.saves = 0
        self.misses: dict[MissReason | None, int] = {}
        self._random = Random(1)

    def turns_of(self, conversation: Conversation, n: int) -> Iterator[None]:
        for turn in conversation.turns(n):
            yield from self.serve(turn)

    def serve(self, turn: Turn) -> Iterator[None]:
        tokens = turn.prompt + turn.reply
        lease = self.cache.open(turn.prompt)
        self.prompt_tokens += len(turn.prompt)
        self.reusable += self.longest(turn.prompt)
        self.reused += lease.reused
        reason = lease.miss.reason if lease.miss else None
        self.misses[reason] = self.misses.get(reason, 0) + 1
        assert lease.grow(len(turn.prompt))
        lease.restored()
        stop = len(tokens) - 1 if turn.stop is None else turn.stop
        done = lease.reused
        plan = plan_checkpoints(len(turn.prompt), done, turn.boundaries, CHUNK)
        while done < min(stop, len(turn.prompt)):
            limit = min(done + CHUNK, len(turn.prompt))
            end = next((p for p in plan if done < p < limit), limit)
            done = end if end == len(turn.prompt) else end // PAGE_TOKENS * PAGE_TOKENS
            lease.commit(tokens, done)
            if done % PAGE_TOKENS == 0:
                self.saves += lease.checkpoint(done, plan.get(done, CheckpointKind.CHUNK)) is not None
            yield
        while len(turn.prompt) <= done < stop:
            done = min(done + self._random.randint(1, WINDOW), stop)
            assert lease.grow(done + 2 * WINDOW)
            lease.commit(tokens, done)
            yield
        if turn.stop is None:
            self.saves += lease.checkpoint(done, CheckpointKind.REPLY_END) is not None
        self.computed.append(np.array(tokens[:done], dtype=np.uint32))
        lease.close()

    def longest(self, prompt: list[int]) -> int:
        new = np.array(prompt[:-1], dtype=np.uint32)
        best = 0
        for old in self.computed:
            n = min(len(old), len(new))
            if n > best and (old[:best] == new[:best]).all():
                differs = np.flatnonzero(old[:n] != new[:n])
                best = max(best, int(differs[0]) if len(differs) else n)
        return best


def replay(checkpoints: int, stateful: bool = True, pages: int = 3 * CONTEXT // PAGE_TOKENS, seed: int = 0) -> Replay:
    """Two conversations of 30 turns at the same time, under one system prompt; one client rewrites the replies."""
    pool = PagePool(pages)
    run = Replay(PrefixCache(pool, checkpoints, stateful))
    random = Random(seed)
    system = [random.randrange(10, 150_000) for _ in range(6000)]
    active = [run.turns_of(Conversation(2 * seed + i, system, CONTEXT, rewrites=bool(i)), 30) for i in range(2)]
    while active:
        active = [turns for turns in active if next(turns, run) is None]
    run.stats = run.cache.stats()
    run.cache.check()
    run.cache.clear()
    pool.check()
    return run


@pytest.mark.parametrize("seed", [0, 1])
def test_agent_turns_reuse_what_there_is_with_16_checkpoints(seed: int) -> None:
    run = replay(16, seed=seed)
    assert run.reused >= 0.95 * run.reusable
    assert run.reusable > 0.9 * run.prompt_tokens, "else there is nothing to see"
    assert (run.stats.checkpoints_used, run.stats.tokens_reused) == (16, run.reused)


def test_few_checkpoints_still_serve_two_conversations() -> None:
    run = replay(4, seed=1)
    assert run.reused >= 0.8 * run.reusable
    assert replay(0, seed=1).reused == 0


def test_scarce_pages_cost_little() -> None:
    """Room for both conversations, but for hardly anything that they left behind."""
    run = replay(16, pages=9 * CONTEXT // 5 // PAGE_TOKENS, seed=1)
    assert run.stats.pages_evicted > 0
    assert run.reused >= 0.95 * run.reusable


def test_a_stateless_model_misses_less_than_a_page_a_turn() -> None:
    run = replay(0, stateful=False, seed=0)
    assert run.reusable - run.reused < PAGE_TOKENS * run.stats.leases
    assert set(run.misses) == {None, MissReason.DIFFERS, MissReason.NO_PAGE}

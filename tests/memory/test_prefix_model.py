"""The prefix cache under random programs, against a device of dicts: what is in each page, and in each stored state.

The device writes what the cache says may be written, and every claim of the cache is looked up there: a page that was
evicted while held, shared by two writers, or found under wrong tokens holds the wrong tokens.
"""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.config import PAGE_TOKENS
from paceline.memory.checkpoints import CheckpointKind
from paceline.memory.pages import PagePool
from paceline.memory.prefix import Lease, PrefixCache

ALIGNED = [CheckpointKind.MESSAGE, CheckpointKind.CHUNK, CheckpointKind.PROMPT_END]


class Run:
    def __init__(self, lease: Lease, tokens: list[int], salt: bytes) -> None:
        self.lease, self.tokens, self.salt = lease, tokens, salt
        self.computed = lease.reused
        self.ended = False

    @property
    def claimed(self) -> list[int]:
        return self.tokens[: self.computed]


class Device:
    """`content`: page → tokens. `states`: checkpoint index → (salt, tokens before it). `known`: all full prefixes ever."""

    def __init__(self, pages: int, checkpoints: int, stateful: bool) -> None:
        self.stateful = stateful
        self.pool = PagePool(pages)
        self.cache = PrefixCache(self.pool, checkpoints, stateful)
        self.content: dict[int, list[int]] = {page: [] for page in range(pages)}
        self.states: dict[int, tuple[bytes, list[int]]] = {}
        self.known: set[tuple[bytes, tuple[int, ...]]] = set()
        self.runs: list[Run] = []

    def open(self, tokens: list[int], salt: bytes) -> None:
        room, evicted = self.cache.available(), self.cache.stats().pages_evicted
        lease = self.cache.open(tokens, salt)
        best = self.best(tokens, salt)
        assert lease.reused < len(tokens)
        assert lease.reused <= best
        # A tail is not taken when no page is left to copy it to.
        if evicted == 0 and (best % PAGE_TOKENS == 0 or room > len(tokens) // PAGE_TOKENS + 1):
            assert lease.reused == best
        if not self.stateful:
            assert lease.restore is None and lease.copy_tail is None
        elif lease.reused:
            assert lease.restore is not None
            assert self.states[lease.restore] == (salt, tokens[: lease.reused])
        assert (lease.copy_tail is not None) == (lease.reused % PAGE_TOKENS > 0)
        self.runs.append(Run(lease, tokens, salt))

    def best(self, tokens: list[int], salt: bytes) -> int:
        if self.stateful:
            ends = [
                len(state) for salted, state in self.states.values() if (salted, state) == (salt, tokens[: len(state)])
            ]
        else:
            ends = range(PAGE_TOKENS, len(tokens), PAGE_TOKENS)
            ends = [end for end in ends if (salt, tuple(tokens[:end])) in self.known]
        return max((end for end in ends if end < len(tokens)), default=0)

    def restore(self, run: Run) -> None:
        """Whatever was opened since, what is to be read is still there."""
        lease = run.lease
        if lease.restore is not None and run.computed == lease.reused:
            if lease._restoring is None:
                return
            assert self.states[lease.restore] == (run.salt, run.claimed)
            if lease.copy_tail is not None:
                source, target = lease.copy_tail
                assert (
                    self.content[source][: lease.reused % PAGE_TOKENS]
                    == run.claimed[lease.reused // PAGE_TOKENS * 64 :]
                )
                self.write(run, lease.reused // PAGE_TOKENS, list(self.content[source]))
                assert target == lease.pages[lease.reused // PAGE_TOKENS]
            lease.restored()

    def write(self, run: Run, index: int, tokens: list[int]) -> None:
        page = run.lease.pages[index]
        holders = [other for other in self.runs if page in other.lease.pages]
        assert holders == [run], "a page that is written has one holder"
        self.content[page] = tokens

    def compute(self, run: Run, n: int) -> None:
        if run.ended:
            return
        end = min(run.computed + n, len(run.tokens))
        room, pages = self.cache.available(), list(run.lease.pages)
        missing = -(-end // PAGE_TOKENS) - len(pages)
        grown = run.lease.grow(end)
        assert grown or missing > room
        if not grown:
            assert run.lease.pages == pages
            return
        self.restore(run)
        for index in range(run.computed // PAGE_TOKENS, -(-end // PAGE_TOKENS)):
            self.write(run, index, run.tokens[index * PAGE_TOKENS : min(end, (index + 1) * PAGE_TOKENS)])
        run.lease.commit(run.tokens, end)
        run.computed = end
        self.known |= {(run.salt, tuple(run.tokens[:full])) for full in range(PAGE_TOKENS, end + 1, PAGE_TOKENS)}

    def checkpoint(self, run: Run, kind: int) -> None:
        if run.ended or run.computed == run.lease.reused:
            return
        aligned = run.computed % PAGE_TOKENS == 0
        index = run.lease.checkpoint(run.computed, ALIGNED[kind % 3] if aligned else CheckpointKind.REPLY_END)
        if index is not None:
            pinned = [other.lease.restore for other in self.runs if other.lease._restoring is not None]
            assert index not in pinned
            self.states[index] = (run.salt, run.claimed)
            run.ended = not aligned

    def close(self, run: Run) -> None:
        self.runs.remove(run)
        run.lease.close()

    def look(self) -> None:
        """Every claim of an open lease, and every count."""
        for run in self.runs:
            skipped = run.lease.reused // PAGE_TOKENS if run.lease._source is not None else -1
            for index, start in enumerate(range(0, run.computed, PAGE_TOKENS)):
                claimed = run.claimed[start : start + PAGE_TOKENS]
                if index != skipped:
                    assert self.content[run.lease.pages[index]][: len(claimed)] == claimed
        stats = self.cache.stats()
        assert self.cache.available() == self.pool.free + stats.pages_evictable
        held = {page for run in self.runs for page in run.lease.pages}
        assert self.pool.used >= max(len(held), stats.pages_cached)
        assert self.pool.used <= len(held) + stats.pages_cached
        for checkpoint in self.cache._checkpoints:
            if checkpoint.parent is not None:
                (salt, tokens), (salted, before) = self.states[checkpoint.index], self.states[checkpoint.parent.index]
                assert checkpoint.parent.index >= 0
                assert salt == salted and len(before) < len(tokens) and tokens[: len(before)] == before
        assert stats.checkpoints_used == len(self.states) or stats.pages_evicted or stats.checkpoints_evicted


def tokens_of(blocks: Sequence[int], cut: int) -> list[int]:
    """Prompts of few kinds of pages, so that many of them begin alike; the last page is cut."""
    whole = [block for block in blocks for _ in range(PAGE_TOKENS)]
    return whole[: len(whole) - cut]


def move(device: Device, random: Random) -> None:
    if not device.runs or random.random() < 0.15:
        blocks = [random.choice([0, 0, 0, 1]) for _ in range(random.randint(1, 5))]
        device.open(tokens_of(blocks, random.choice([0, 1, 30, 63])), random.choice([b"", b"", b"image"]))
        return
    run = random.choice(device.runs)
    device.compute(run, random.choice([1, 20, 64 - run.computed % 64, 64, 128, 192]))
    if random.random() < 0.6:
        device.checkpoint(run, random.randrange(3))
    if run.ended or random.random() < (0.6 if run.computed == len(run.tokens) else 0.1):
        device.close(run)


@settings(max_examples=500, deadline=None)
@given(st.integers(1, 14), st.integers(0, 4), st.booleans(), st.integers(0, 80), st.integers(0, 2**32))
def test_random_programs(pages: int, checkpoints: int, stateful: bool, moves: int, seed: int) -> None:
    device = Device(pages, checkpoints, stateful)
    random = Random(seed)
    for _ in range(moves):
        move(device, random)
        device.look()
    # All that is said to be available can be had, and nothing that is held goes for it.
    device.open([9], b"")
    greedy = device.runs[-1].lease
    assert not greedy.grow((device.cache.available() + 1) * PAGE_TOKENS)
    assert greedy.grow(device.cache.available() * PAGE_TOKENS)
    for index in range(len(greedy.pages)):
        device.write(device.runs[-1], index, [9] * PAGE_TOKENS)
    device.look()
    while device.runs:
        with pytest.raises(RuntimeError, match="leases open"):
            device.cache.check()
        for run in device.runs:
            device.restore(run)
        if len(device.runs) == 1:
            # Whoever is alone can have the whole pool.
            assert device.runs[0].lease.grow(pages * PAGE_TOKENS)
            device.look()
        device.close(device.runs[random.randrange(len(device.runs))])
    device.cache.check()
    device.cache.clear()
    device.pool.check()

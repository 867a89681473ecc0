"""The prefix cache, case by case: what is shared, what is copied, what goes first, and what the caller is told."""

import pytest

from paceline.core.config import PAGE_TOKENS
from paceline.memory.checkpoints import CheckpointKind
from paceline.memory.miss import Miss, MissReason
from paceline.memory.pages import PagePool
from paceline.memory.prefix import Lease, PrefixCache

CHUNK, PROMPT_END, REPLY_END = CheckpointKind.CHUNK, CheckpointKind.PROMPT_END, CheckpointKind.REPLY_END


def make(pages: int = 16, checkpoints: int = 8, stateful: bool = True, enabled: bool = True) -> PrefixCache:
    return PrefixCache(PagePool(pages), checkpoints, stateful, enabled)


def pages_of(*kinds: int, more: int = 0) -> list[int]:
    """A full page of tokens per kind, then `more` tokens."""
    return [kind * 1000 + i for kind in kinds for i in range(PAGE_TOKENS)] + [9000 + i for i in range(more)]


def compute(cache: PrefixCache, tokens: list[int], kind: CheckpointKind | None = None, salt: bytes = b"") -> Lease:
    """A lease on `tokens`, all computed, with a checkpoint at the end if a kind is given."""
    lease = cache.open(tokens, salt)
    lease.restored()
    assert lease.grow(len(tokens))
    lease.commit(tokens)
    if kind is not None:
        assert lease.checkpoint(len(tokens), kind) is not None
    return lease


def test_whole_pages_are_shared_and_the_last_token_is_computed_anew() -> None:
    cache = make(stateful=False)
    compute(cache, pages_of(1, 2, more=10)).close()
    again = cache.open(pages_of(1, 2))
    assert (again.reused, again.pages, again.restore, again.copy_tail, again.miss) == (64, [0], None, None, None)
    longer = cache.open(pages_of(1, 2, more=1))
    assert (longer.reused, longer.pages) == (128, [0, 1])
    assert longer.grow(129)
    assert longer.pages == [0, 1, 2]
    other = cache.open(pages_of(1, 2, more=1), salt=b"an image")
    assert (other.reused, other.miss) == (0, Miss(MissReason.NO_PAGE, 0))
    for lease in (again, longer, other):
        lease.close()
    cache.check()


def test_a_stateful_model_resumes_at_checkpoints_only() -> None:
    cache = make()
    lease = compute(cache, pages_of(1, 2), PROMPT_END)
    lease.grow(256)
    lease.commit(pages_of(1, 2, 3, 4))
    assert lease.checkpoint(256, CHUNK) == 1
    lease.grow(320)
    lease.commit(pages_of(1, 2, 3, 4, 5))
    lease.close()
    assert cache.open(pages_of(1, 2, 3, 4, 5, 6)).reused == 256
    fork = cache.open(pages_of(1, 2, 3, 6))
    assert (fork.reused, fork.restore, fork.pages) == (128, 0, [0, 1])
    assert fork.miss == Miss(MissReason.NO_CHECKPOINT, 192)
    assert cache.open(pages_of(1, 2)).reused == 0, "the state after the last token is of no use"


def test_two_that_compute_the_same_keep_their_own_pages() -> None:
    cache = make(pages=6, stateful=False)
    first, second = cache.open(pages_of(1, 2)), cache.open(pages_of(1, 2))
    assert first.grow(128) and second.grow(192)
    first.commit(pages_of(1, 2))
    second.commit(pages_of(1, 2, 3))
    assert (first.pages, second.pages) == ([0, 1], [2, 3, 4])
    assert cache.stats().pages_cached == 3, "pages 2 and 3 are second's own, page 4 follows page 1"
    first.close()
    assert cache.available() == 1
    assert second.grow(6 * 64), "nobody else needs pages 0 and 1 any more"
    assert second.pages[:3] == [2, 3, 4]
    second.close()
    third = cache.open(pages_of(1, 2, 3, 4))
    assert third.pages == [2, 3, 4]
    third.close()
    cache.check()


def test_computing_again_what_is_cached_needs_no_more_pages_than_before() -> None:
    cache = make(pages=8)
    compute(cache, pages_of(1, 2, 3)).close()
    again = cache.open(pages_of(1, 2, 3, 4))
    for end in (64, 128, 192, 256):
        assert again.grow(end)
        again.commit(pages_of(1, 2, 3, 4), end)
    assert (cache.stats().pages_cached, cache.pool.used) == (4, 4)
    again.close()
    cache.check()


def test_growing_evicts_what_was_used_last_the_longest_ago_leaves_first() -> None:
    cache = make(pages=5, stateful=False)
    for tokens in (pages_of(1, 2), pages_of(3, 4)):
        compute(cache, tokens).close()
    cache.open(pages_of(1, 2, 5)).close()
    held = cache.open(pages_of(6))
    assert held.grow(128)
    assert held.pages == [3, 4], "page 4 was free, and page 3 is the end of the older path"
    held.commit(pages_of(6, 7))
    assert cache.available() == 3
    assert not held.grow(6 * 64)
    assert (held.pages, cache.stats().pages_evicted) == ([3, 4], 1)
    assert held.grow(5 * 64)
    assert held.pages[:2] == [3, 4] and cache.stats().pages_evicted == 4
    held.close()
    cache.check()


def test_a_lease_grows_into_the_page_after_its_last() -> None:
    cache = make(pages=8)
    lower = cache.open([1])
    lower.grow(64)
    lease = cache.open([1])
    lease.grow(64)
    lower.close()
    assert lease.grow(192)
    assert lease.pages == [1, 2, 3]


def test_a_branch_at_the_end_of_a_reply_copies_the_partial_page() -> None:
    cache = make(pages=8)
    reply = pages_of(1, 2, more=20)
    compute(cache, reply, REPLY_END).close()
    branches = [cache.open([*reply, 7]), cache.open([*reply, 8, 8])]
    assert [lease.copy_tail for lease in branches] == [(2, 3), (2, 4)]
    assert [lease.pages for lease in branches] == [[0, 1, 3], [0, 1, 4]]
    assert [lease.reused for lease in branches] == [148, 148]
    assert cache.available() == 3, "pages 0 to 2 are read, 3 and 4 written"
    branches[0].restored()
    assert cache.available() == 3
    branches[1].restored()
    assert cache.available() == 4, "the source may go once both have their copy"
    assert cache.open(reply).reused == 0, "nothing earlier was kept"
    assert cache.open([*reply[:-1], 7, 7]).reused == 0, "the reply went on differently"


def test_the_tail_of_a_reply_is_not_reused_without_room_for_its_copy() -> None:
    cache = make(pages=3)
    lease = compute(cache, pages_of(1), PROMPT_END)
    assert lease.grow(128)
    lease.commit(pages_of(1, more=20))
    lease.checkpoint(84, REPLY_END)
    lease.close()
    full = cache.open([1])
    assert full.grow(64)
    branch = cache.open(pages_of(1, more=21))
    assert (branch.reused, branch.copy_tail) == (64, None)
    full.close()
    branch.close()
    assert cache.open(pages_of(1, more=21)).reused == 84


def test_nothing_is_committed_after_the_unaligned_end_of_a_reply() -> None:
    cache = make()
    lease = compute(cache, pages_of(1, more=20), REPLY_END)
    with pytest.raises(ValueError, match="the reply ended at 84"):
        lease.commit(pages_of(1, more=21))


def test_pages_that_resume_nothing_go_first() -> None:
    cache = make(pages=5)
    compute(cache, pages_of(1, 2), PROMPT_END).close()
    newer = compute(cache, pages_of(3), PROMPT_END)
    newer.grow(192)
    newer.commit(pages_of(3, 4, 5))
    newer.close()
    assert cache.open([1]).grow(128)
    assert cache.open(pages_of(1, 2, more=1)).reused == 128
    assert cache.open(pages_of(3, more=1)).reused == 64


def test_the_state_that_is_being_restored_stays() -> None:
    cache = make(checkpoints=1)
    compute(cache, pages_of(1), PROMPT_END).close()
    reader = cache.open(pages_of(1, 2))
    writer = cache.open(pages_of(3, 4, 5))
    writer.grow(192)
    writer.commit(pages_of(3, 4, 5))
    assert writer.checkpoint(192, CHUNK) is None
    reader.restored()
    assert writer.checkpoint(192, CHUNK) == reader.restore == 0
    assert writer.checkpoint(192, CHUNK) is None, "it is there already"
    assert cache.open(pages_of(1, 2)).miss == Miss(MissReason.NO_CHECKPOINT, 64)


def test_checkpoints_know_the_nearest_earlier_one_of_their_sequence() -> None:
    cache = make()
    first, second = cache.open(pages_of(1, 2, 3, 4)), cache.open(pages_of(1, 2, 3, 9))
    for lease in (first, second, compute(cache, pages_of(5, 5, 5, 5), PROMPT_END)):
        assert lease.grow(256)
    first.commit(pages_of(1, 2, 3, 4), 64)
    first.checkpoint(64, CHUNK)
    first.commit(pages_of(1, 2, 3, 4))
    first.checkpoint(256, CHUNK)
    second.commit(pages_of(1, 2, 3, 9), 128)
    second.checkpoint(128, CHUNK)
    second.commit(pages_of(1, 2, 3, 9))
    second.checkpoint(256, CHUNK)
    before = sorted((c.position, c.parent.position if c.parent else 0) for c in cache._checkpoints)
    assert before == [(64, 0), (128, 64), (256, 0), (256, 128), (256, 128)]


@pytest.mark.parametrize("closes", [False, True])
def test_a_conversation_that_goes_on_keeps_its_checkpoints(closes: bool) -> None:
    cache = make(pages=32, checkpoints=2)
    for kind in (1, 2):
        compute(cache, pages_of(kind, kind), PROMPT_END).close()
    used = cache.open(pages_of(1, 1, more=1)) if closes else None
    for kind in (3, 4, 5):
        compute(cache, pages_of(kind)).close()
    used = used or cache.open(pages_of(1, 1, more=1))
    used.restored()
    if closes:
        used.close()
    swap = compute(cache, pages_of(6, 6), PROMPT_END)
    assert cache.open(pages_of(1, 1, more=1)).reused == 128
    assert cache.open(pages_of(2, 2, more=1)).reused == 0
    swap.close()


def test_what_is_gone_leaves_nothing_behind() -> None:
    cache = make(stateful=False)
    for salt in range(100):
        compute(cache, pages_of(1), salt=bytes([salt])).close()
    for _ in range(100):
        cache.open(pages_of(1, 2), salt=bytes([99])).close()
    assert len(cache._tree._roots) == cache.stats().pages_cached == 16
    assert len(cache._tree._leaves) <= 2 * 16 + 64


def test_without_room_for_checkpoints_a_stateful_model_reuses_nothing() -> None:
    cache = make(checkpoints=0)
    lease = compute(cache, pages_of(1, 2))
    assert lease.checkpoint(128, PROMPT_END) is None
    lease.close()
    assert cache.open(pages_of(1, 2, 3)).miss == Miss(MissReason.NO_CHECKPOINT, 128)


@pytest.mark.parametrize(
    ("prompt", "miss"),
    [
        (pages_of(1, 2, 3, more=1), Miss(MissReason.NO_PAGE, 128)),
        (pages_of(1, 2, 3), None),
        (pages_of(1, 5, 5), Miss(MissReason.DIFFERS, 64)),
        (pages_of(1)[:50] + pages_of(5, 5), Miss(MissReason.DIFFERS, 50)),
        (pages_of(7, 8, 9), Miss(MissReason.NO_PAGE, 0)),
        (pages_of(4, 4), Miss(MissReason.EVICTED, 0)),
    ],
)
def test_why_not_more_was_reused(prompt: list[int], miss: Miss | None) -> None:
    cache = make(pages=3, stateful=False)
    compute(cache, pages_of(4, 4)).close()
    hog = cache.open([1])
    hog.grow(192)
    hog.close()
    compute(cache, pages_of(1, 2)).close()
    assert cache.open(prompt).miss == miss


def test_evicted_pages_are_forgotten_after_as_many_as_the_pool_has() -> None:
    cache = make(pages=2, stateful=False)
    for kind in (1, 2, 3, 4):
        compute(cache, pages_of(kind, kind)).close()
    reasons = [cache.open(pages_of(kind, kind)).miss for kind in (2, 3)]
    assert reasons == [Miss(MissReason.NO_PAGE, 0), Miss(MissReason.EVICTED, 0)]
    cache.clear()
    assert cache.open(pages_of(3, 3)).miss == Miss(MissReason.NO_PAGE, 0)


def test_disabled_it_is_the_plain_pool() -> None:
    cache = make(pages=4, enabled=False)
    lease = compute(cache, pages_of(1, 2))
    assert lease.checkpoint(128, PROMPT_END) is None
    assert (lease.pages, lease.miss, cache.available()) == ([0, 1], Miss(MissReason.DISABLED, 0), 2)
    lease.close()
    assert cache.open(pages_of(1, 2, 3)).reused == 0
    cache.pool.check()


def test_what_is_not_to_be_kept_goes_but_for_what_others_use() -> None:
    cache = make(stateful=False)
    compute(cache, pages_of(1)).close()
    broken = compute(cache, pages_of(1, 2, 3, 4))
    other = cache.open(pages_of(1, 2, 9))
    broken.close(keep=False)
    assert cache.stats().pages_cached == 2
    other.close()
    again = cache.open(pages_of(1, 2, 3, 4))
    assert again.miss == Miss(MissReason.NO_PAGE, 128)
    again.close()

    reader = cache.open(pages_of(1, 2, 9))
    twin = compute(cache, pages_of(1, 2))
    reader.close()
    twin.close(keep=False)
    assert cache.open(pages_of(1, 2, 9)).reused == 128, "its own pages went, not the equal ones that were there"

    cache = make()
    compute(cache, pages_of(1, more=5), REPLY_END).close(keep=False)
    assert (cache.pool.used, cache.stats().checkpoints_used) == (0, 0)
    cache.check()


def test_leases_that_computed_something_are_counted() -> None:
    cache = make(stateful=False)
    compute(cache, pages_of(1, 2)).close()
    cache.open(pages_of(1, 2, 3)).close()
    compute(cache, pages_of(1, 2, 3)).close()
    stats = cache.stats()
    assert (stats.leases, stats.hits, stats.tokens_reused) == (2, 1, 128)
    assert (stats.pages_cached, stats.pages_evictable, stats.pages_evicted) == (3, 3, 0)


def test_wrong_calls_raise() -> None:
    cache = make()
    with pytest.raises(ValueError, match="empty"):
        cache.open([])
    lease = cache.open(pages_of(1, 2))
    lease.grow(64)
    with pytest.raises(ValueError, match="commit up to 65: 0 committed, 1 pages"):
        lease.commit(pages_of(1, 2), 65)
    lease.commit(pages_of(1, 2), 40)
    with pytest.raises(ValueError, match="commit up to 39"):
        lease.commit(pages_of(1, 2), 39)
    with pytest.raises(ValueError, match="the state is at 40"):
        lease.checkpoint(64, CHUNK)
    with pytest.raises(ValueError, match="multiple of 64"):
        lease.checkpoint(40, CHUNK)
    with pytest.raises(RuntimeError, match="1 leases open"):
        cache.check()
    lease.close()
    for late in (lease.close, lease.restored, lambda: lease.grow(1), lambda: lease.commit([1])):
        with pytest.raises(ValueError, match="closed"):
            late()
    cache.check()

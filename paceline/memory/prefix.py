"""The prefix cache: what a new prompt need not compute again, and who holds which page.

`PrefixCache.open` looks a prompt up and returns a `Lease`, through which one request takes pages, makes computed pages
known to others, and places state checkpoints. The cache decides what is evicted; the caller copies pages and states.
A stateless model resumes at any page boundary; a stateful one only where a checkpoint is (`checkpoints.py`). Integers
only: page numbers, checkpoint indices, token ids. Lengths and positions are in tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.core.config import PAGE_TOKENS
from paceline.memory.checkpoints import Checkpoint, CheckpointKind, CheckpointPool, chain
from paceline.memory.miss import Miss, MissReason, explain
from paceline.memory.pages import PagePool
from paceline.memory.tree import PAGE_BYTES, TOKEN_BYTES, Node, PageTree, pack


@dataclass(frozen=True, slots=True)
class PrefixStats:
    """Pages and checkpoints as they are now; evictions, hits and tokens since the start.

    `leases` counts those that computed something, `hits` the ones of them that reused something.
    """

    pages_cached: int
    pages_evictable: int
    checkpoints_used: int
    pages_evicted: int
    checkpoints_evicted: int
    leases: int
    hits: int
    tokens_reused: int


class Lease:
    """What one request holds, from `PrefixCache.open` to `close`.

    `pages` are its physical pages in order: the shared ones first, which it never writes, then its own. The first
    `reused` tokens are in them; the caller continues there, after it has restored the state from checkpoint `restore`
    and copied page `copy_tail[0]` to `copy_tail[1]`, where these are set, and reports that with `restored`. `miss` says
    why not more was reused, None when no more could be. Everything raises ValueError after `close`.
    """

    __slots__ = (
        "_cache", "_committed", "_last", "_own", "_path", "_rest", "_restoring", "_source", "_tail", "_twins",
        "copy_tail", "miss", "pages", "restore", "reused",
    )  # fmt: skip

    def __init__(self, cache: "PrefixCache") -> None:
        self.pages: list[int] = []
        self.reused = 0
        self.restore: int | None = None
        self.copy_tail: tuple[int, int] | None = None
        self.miss: Miss | None = None
        self._cache: PrefixCache | None = cache
        self._path: list[Node] = []  # root first; all pinned
        self._own: set[int] = set()  # pages that are not the tree's
        self._twins: set[int] = set()  # where in `pages` one is its own although the tree has an equal one
        self._committed = 0
        self._rest: Sequence[int] = ()  # committed tokens after the last full page
        self._last: Checkpoint | None = None  # the newest checkpoint of this sequence
        self._restoring: Checkpoint | None = None
        self._source: Node | None = None  # the tail that is to be copied
        self._tail: Node | None = None  # the tail that this lease left

    def restored(self) -> None:
        """The caller has restored the state and copied the tail (its reads are queued ahead of any later write)."""
        self._open_cache()._end_restore(self)

    def grow(self, tokens: int) -> bool:
        """Pages for `tokens` tokens in all, evicting what nobody uses; False, and no change, when that is not enough."""
        cache = self._open_cache()
        missing = -(-tokens // PAGE_TOKENS) - len(self.pages)
        if missing <= 0:
            return True
        if missing > cache.available():
            for index in [index for index in self._twins if self._path[index + 1].pins == 1]:
                cache._merge(self, index)
        pages = cache._take(missing, after=self.pages[-1] if self.pages else None)
        if pages is None:
            return False
        self.pages += pages
        self._own.update(pages)
        return True

    def commit(self, tokens: Sequence[int], end: int | None = None) -> None:
        """The first `end` (all) of `tokens`, counted from the prompt's first, are computed and in the pages.

        Full pages become known to others. Looks only at tokens that are new since the last call, and their page.
        """
        cache = self._open_cache()
        end = len(tokens) if end is None else end
        if not self._committed <= end <= min(len(tokens), PAGE_TOKENS * len(self.pages)):
            raise ValueError(f"commit up to {end}: {self._committed} committed, {len(self.pages)} pages held")
        if end > self._committed and self._tail is not None:
            raise ValueError(f"commit up to {end}: the reply ended at {self._committed}")
        cache._commit(self, tokens, end)

    def checkpoint(self, position: int, kind: CheckpointKind) -> int | None:
        """The index to write the state at `position`, all that is committed, into; None when none is to be kept.

        The caller has the backend write it before the slot's next row, and before anything that was asked for later: an
        index may be given to another lease as soon as nobody is pinning it. After the unaligned end of a reply nothing
        more can be committed.
        """
        cache = self._open_cache()
        if position != self._committed:
            raise ValueError(f"checkpoint at {position}: the state is at {self._committed}")
        if position % PAGE_TOKENS and kind is not CheckpointKind.REPLY_END:
            raise ValueError(
                f"checkpoint at {position}: only the end of a reply need not be a multiple of {PAGE_TOKENS}"
            )
        return cache._checkpoint(self, kind)

    def close(self, keep: bool = True) -> None:
        """Gives everything back. `keep=False` also drops the pages that this lease computed and nobody else uses."""
        self._open_cache()._close(self, keep)
        self._cache = None

    def _open_cache(self) -> "PrefixCache":
        if self._cache is None:
            raise ValueError("the lease is closed")
        return self._cache


class PrefixCache:
    """Owns the tree and the checkpoints over `pool`; every page that it does not cache or lease is free there.

    `checkpoints` is how many states the device's store holds. `stateful`: the model resumes only from a state.
    """

    def __init__(self, pool: PagePool, checkpoints: int, stateful: bool, enabled: bool = True) -> None:
        self.pool = pool
        self._stateful = stateful
        self._enabled = enabled
        self._tree = PageTree(remembered=pool.total)
        self._checkpoints = CheckpointPool(checkpoints if stateful and enabled else 0)
        self._holders: dict[Checkpoint, Node] = {}
        self._open = 0
        self._leases = 0
        self._hits = 0
        self._reused = 0
        self._pages_evicted = 0

    def available(self) -> int:
        """How many pages can be taken, free or evicted."""
        return self.pool.free + self._tree.evictable

    def open(self, tokens: Sequence[int], salt: bytes = b"") -> Lease:
        """Looks up a prompt of at least one token, the last of which is always computed anew, and pins what it shares.

        Prompts share only under the same `salt`: a digest of all that the pages depend on besides the tokens.
        """
        if not tokens:
            raise ValueError("the prompt is empty")
        lease = Lease(self)
        self._open += 1
        if self._enabled:
            self._share(lease, pack(tokens), salt)
        else:
            lease.miss = Miss(MissReason.DISABLED, 0)
        return lease

    def stats(self) -> PrefixStats:
        return PrefixStats(
            pages_cached=self._tree.pages,
            pages_evictable=self._tree.evictable,
            checkpoints_used=len(self._checkpoints),
            pages_evicted=self._pages_evicted,
            checkpoints_evicted=self._checkpoints.evictions,
            leases=self._leases,
            hits=self._hits,
            tokens_reused=self._reused,
        )

    def clear(self) -> None:
        """Frees every page that no lease uses, and forgets what was evicted."""
        while self._tree.evictable:
            self._leave(self._tree.oldest())
        self._tree.forget_evicted()

    def check(self) -> None:
        """Raises unless no lease is open and every page is either free or cached once, and not pinned."""
        nodes = list(self._tree)
        pages = [node.page for node in nodes]
        pinned = [node.page for node in nodes if node.pins] + [c.index for c in self._checkpoints if c.pins]
        held = {c for node in nodes if (c := node.checkpoint)}
        whole = len(set(pages)) == len(pages) == self._tree.pages == self._tree.evictable == self.pool.used
        if not whole or pinned or self._open or held != set(self._checkpoints):
            raise RuntimeError(
                f"prefix cache is not whole: {self._open} leases open, {self.pool.used} pages taken, {len(pages)} cached "
                f"({self._tree.evictable} evictable), pinned {pinned}, {len(held)} of {len(self._checkpoints)} checkpoints held"
            )

    def _share(self, lease: Lease, packed: bytes, salt: bytes) -> None:
        """Gives the lease the longest prefix that it can resume after."""
        root = self._tree.root(salt)
        most = len(packed) // TOKEN_BYTES - 1
        path = [root, *self._tree.walk(root, packed, most // PAGE_TOKENS)]
        state = self._deepest(path, packed, most) if self._stateful else None
        for checkpoint in chain(state):
            checkpoint.last_use = self._leases
        while state is not None and state.position % PAGE_TOKENS and not self._can_copy(path, state):
            state = state.parent
        lease.reused = PAGE_TOKENS * (len(path) - 1)
        if self._stateful:
            lease.reused = state.position if state else 0
        shared = path[: lease.reused // PAGE_TOKENS + 1]
        for node in shared:
            self._tree.pin(node)
        lease._path = shared
        lease.pages = [node.page for node in shared[1:]]
        lease._committed = lease.reused
        lease.miss = explain(self._tree, path, packed, lease.reused)
        if state is not None:
            state.pins += 1
            lease.restore, lease._restoring, lease._last = state.index, state, state
            if state.position % PAGE_TOKENS:
                self._copy_tail(lease, self._holders[state])

    def _deepest(self, path: list[Node], packed: bytes, most: int) -> Checkpoint | None:
        """The checkpoint with the longest prefix of the prompt: on the path, or a tail beside it."""
        for node in reversed(path):
            start = node.depth * PAGE_BYTES
            room = (most + 1) * TOKEN_BYTES - start
            tails = [tail for tail in node.tails.values() if len(tail.packed) < room]
            fitting = [tail for tail in tails if packed.startswith(tail.packed, start)]
            if fitting:
                return max(fitting, key=lambda tail: len(tail.packed)).checkpoint
            if node.checkpoint is not None:
                return node.checkpoint
        return None

    def _can_copy(self, path: list[Node], state: Checkpoint) -> bool:
        """Whether a page is left for the copy once the tail and the path to it are pinned."""
        pinned = [*path[1 : state.position // PAGE_TOKENS + 1], self._holders[state]]
        return self.available() > sum(node.pins == 0 for node in pinned)

    def _copy_tail(self, lease: Lease, tail: Node) -> None:
        self._tree.pin(tail)
        lease._source = tail
        pages = self._take(1, after=lease.pages[-1] if lease.pages else None)
        assert pages is not None
        lease.copy_tail = (tail.page, pages[0])
        lease.pages += pages
        lease._own.update(pages)

    def _end_restore(self, lease: Lease) -> None:
        if lease._restoring is not None:
            lease._restoring.pins -= 1
            lease._restoring = None
        if lease._source is not None:
            self._tree.unpin([lease._source], useful=1)
            lease._source = None

    def _take(self, n: int, after: int | None) -> list[int] | None:
        if n > self.available():
            return None
        while self.pool.free < n:
            self._pages_evicted += 1
            self._leave(self._tree.oldest())
        return self.pool.take(n, after)

    def _commit(self, lease: Lease, tokens: Sequence[int], end: int) -> None:
        if lease._committed == lease.reused and end > lease.reused:
            self._leases += 1
            self._hits += lease.reused > 0
            self._reused += lease.reused
        lease._committed = end
        if not self._enabled:
            return
        full = PAGE_TOKENS * (len(lease._path) - 1)
        for start in range(full, end // PAGE_TOKENS * PAGE_TOKENS, PAGE_TOKENS):
            parent, packed = lease._path[-1], pack(tokens[start : start + PAGE_TOKENS])
            node, index = parent.children.get(packed), start // PAGE_TOKENS
            new = node is None
            if node is None:
                node = self._tree.attach(parent, packed, lease.pages[index])
                lease._own.remove(lease.pages[index])
            self._tree.pin(node)
            lease._path.append(node)
            lease._last = node.checkpoint or lease._last
            if not new:
                lease._twins.add(index)
                if node.pins == 1:
                    self._merge(lease, index)
        lease._rest = tokens[end // PAGE_TOKENS * PAGE_TOKENS : end]

    def _merge(self, lease: Lease, index: int) -> None:
        """The tree takes the lease's page for its own equal one, which nobody else reads: a sequence that is computed
        again must not need twice its pages."""
        node, page = lease._path[index + 1], lease.pages[index]
        self.pool.give_back([node.page])
        node.page = page
        lease._own.remove(page)
        lease._twins.remove(index)

    def _checkpoint(self, lease: Lease, kind: CheckpointKind) -> int | None:
        position, node = lease._committed, lease._path[-1] if lease._path else None
        if self._checkpoints.total == 0 or position == 0 or node is None:
            return None
        tail = pack(lease._rest)
        there = node.tails.get(tail) if tail else node
        if there is not None and there.checkpoint is not None:
            lease._last = there.checkpoint
            lease._last.last_use = self._leases
            return None
        new = Checkpoint(position, kind, next(chain(lease._last), None), self._leases)
        if self._checkpoints.full:
            victim = self._checkpoints.victim(new, self._leases)
            if victim is None:
                return None
            self._checkpoints.evictions += 1
            self._forget(victim)
            new.parent = next(chain(new.parent), None)
        if tail:
            self._leave_tail(lease, node, tail, new)
        else:
            node.checkpoint = new
            self._holders[new] = node
        self._checkpoints.add(new, later=self._later(new))
        lease._last = new
        return new.index

    def _leave_tail(self, lease: Lease, node: Node, packed: bytes, new: Checkpoint) -> None:
        """The lease's partial last page becomes the tree's; the lease pins both until it closes."""
        page = lease.pages[node.depth]
        tail = self._tree.attach(node, packed, page)
        self._tree.pin(tail)
        lease._own.remove(page)
        lease._tail = tail
        tail.checkpoint = new
        self._holders[new] = tail
        new.pins += 1

    def _later(self, new: Checkpoint) -> list[Checkpoint]:
        node = self._holders[new]
        if node.is_leaf:
            return []
        beside = [c for c in self._checkpoints if c.parent is new.parent and c.position > new.position]
        return [checkpoint for checkpoint in beside if self._holders[checkpoint].under(node)]

    def _close(self, lease: Lease, keep: bool) -> None:
        self._end_restore(lease)
        self._open -= 1
        if lease._tail is not None:
            assert lease._tail.checkpoint is not None
            lease._tail.checkpoint.pins -= 1
            self._tree.unpin([lease._tail], useful=1)
        self.pool.give_back(sorted(lease._own))
        for checkpoint in chain(lease._last):
            checkpoint.last_use = self._leases
        useful = len(lease._path)
        while self._stateful and useful and not (lease._path[useful - 1].checkpoint or lease._path[useful - 1].tails):
            # Pages after the last checkpoint resume nothing by themselves.
            useful -= 1
        self._tree.unpin(lease._path, useful)
        if not keep:
            self._drop_computed(lease)

    def _drop_computed(self, lease: Lease) -> None:
        if lease._tail is not None and lease._tail.pins == 0:
            self._leave(lease._tail, remember=False)
        for index in range(len(lease._path) - 1, lease.reused // PAGE_TOKENS, -1):
            node = lease._path[index]
            if node.pins or not node.is_leaf or node.page != lease.pages[index - 1]:
                break
            self._leave(node, remember=False)

    def _leave(self, node: Node, remember: bool = True) -> None:
        """An unpinned leaf leaves the cache, page and checkpoint. Whatever leaves passes here or through `_forget`."""
        page, checkpoint = node.page, node.checkpoint
        self._tree.remove(node, remember)
        self.pool.give_back([page])
        if checkpoint is not None:
            del self._holders[checkpoint]
            self._checkpoints.drop(checkpoint)

    def _forget(self, checkpoint: Checkpoint) -> None:
        """A checkpoint gives its place to another. A tail goes with it: without the state its page is of no use."""
        node = self._holders[checkpoint]
        if len(node.packed) < PAGE_BYTES:
            self._leave(node, remember=False)
            return
        del self._holders[checkpoint]
        node.checkpoint = None
        self._checkpoints.drop(checkpoint)

"""The tree of cached pages: which page holds which 64 tokens after which others, who uses it, and which goes first.

A node is one page: a full one, or the partial last page of a reply (a tail, which nothing follows). A path from a root
spells a token prefix; there is a root per salt. Tokens are compared exactly, as packed bytes; hashes only find
candidates. The tree counts and orders; it neither takes nor frees pages (`prefix.py`).
"""

import heapq
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from paceline.core.config import PAGE_TOKENS
from paceline.memory.checkpoints import Checkpoint

TOKEN_BYTES = array("I").itemsize
PAGE_BYTES = PAGE_TOKENS * TOKEN_BYTES


def pack(tokens: Sequence[int]) -> bytes:
    """Token ids, 0 to 2³² − 1, as bytes: 4 a token."""
    return array("I", tokens).tobytes()


class Node:
    """A cached page. `page` is −1 for a root, and once the node has left the tree. While `pins` > 0 it stays.

    `depth` is the number of full pages up to and with this one. `packed` are its tokens, the salt of a root.
    """

    __slots__ = ("checkpoint", "children", "depth", "key", "packed", "page", "parent", "pins", "tails", "used")

    def __init__(self, parent: "Node | None", packed: bytes, page: int) -> None:
        self.parent = parent
        self.packed = packed
        self.page = page
        self.depth: int = parent.depth + (len(packed) == PAGE_BYTES) if parent else 0
        self.key = _key(parent, packed)
        self.children: dict[bytes, Node] = {}
        self.tails: dict[bytes, Node] = {}
        self.checkpoint: Checkpoint | None = None
        self.pins = 0
        self.used = 0

    @property
    def is_leaf(self) -> bool:
        return not self.children and not self.tails

    def under(self, other: "Node") -> bool:
        """Whether `other` is on the path that leads to this node."""
        node: Node | None = self
        while node is not None and node.depth >= other.depth:
            if node is other:
                return True
            node = node.parent
        return False


class PageTree:
    """`pages` cached pages, of which `evictable` are not pinned. Whoever pins a node pins the whole path to it."""

    def __init__(self, remembered: int) -> None:
        """`remembered`: how many evicted pages are remembered."""
        self.pages = 0
        self.evictable = 0
        self._roots: dict[bytes, Node] = {}
        self._clock = 0
        self._pushed = 0
        # (last use, tie breaker, leaf). Entries go stale; they are told by the node's state and swept now and then.
        self._leaves: list[tuple[int, int, Node]] = []
        self._remembered = remembered
        self._evicted: OrderedDict[int, None] = OrderedDict()

    def __iter__(self) -> Iterator[Node]:
        waiting = list(self._roots.values())
        while waiting:
            node = waiting.pop()
            if node.parent is not None:
                yield node
            waiting += [*node.children.values(), *node.tails.values()]

    def root(self, salt: bytes) -> Node:
        """The root for `salt`. It must be pinned to last while nothing follows it."""
        return self._roots.setdefault(salt, Node(None, salt, -1))

    def walk(self, root: Node, packed: bytes, most: int) -> list[Node]:
        """The longest path, of at most `most` full pages, that spells a prefix of `packed`."""
        path: list[Node] = []
        node: Node | None = root
        for start in range(0, most * PAGE_BYTES, PAGE_BYTES):
            node = node.children.get(packed[start : start + PAGE_BYTES]) if node else None
            if node is None:
                break
            path.append(node)
        return path

    def attach(self, parent: Node, packed: bytes, page: int) -> Node:
        """A new node, not pinned and not yet in the order of eviction: pin it. `parent` is pinned."""
        node = Node(parent, packed, page)
        siblings = parent.children if len(packed) == PAGE_BYTES else parent.tails
        siblings[packed] = node
        self.pages += 1
        self.evictable += 1
        return node

    def pin(self, node: Node) -> None:
        if node.pins == 0 and node.parent is not None:
            self.evictable -= 1
        node.pins += 1

    def unpin(self, path: Sequence[Node], useful: int) -> None:
        """Takes one pin off each node of `path`, root first; all but its first `useful` nodes are the first to go."""
        self._clock += 1
        for index in range(len(path) - 1, -1, -1):
            node = path[index]
            node.pins -= 1
            node.used = self._clock if index < useful else 0
            if node.pins == 0:
                self.evictable += node.parent is not None
                self._order(node)

    def remove(self, node: Node, remember: bool = True) -> None:
        """Takes an unpinned leaf out of the tree. Its page and its checkpoint are the caller's to free."""
        parent = node.parent
        if parent is None or node.pins or not node.is_leaf:
            raise ValueError(f"page {node.page} is pinned or has successors and cannot leave the tree")
        del (parent.children if len(node.packed) == PAGE_BYTES else parent.tails)[node.packed]
        node.page = -1
        self.pages -= 1
        self.evictable -= 1
        self._order(parent)
        if remember and len(node.packed) == PAGE_BYTES:
            self._evicted[node.key] = None
            if len(self._evicted) > self._remembered:
                self._evicted.popitem(last=False)

    def oldest(self) -> Node:
        """The unpinned leaf whose last use is the longest ago. There is one while `evictable` > 0."""
        while True:
            used, _, node = self._leaves[0]
            if _is_current(used, node):
                return node
            heapq.heappop(self._leaves)

    def was_evicted(self, parent: Node, packed: bytes) -> bool:
        """Whether the full page `packed` after `parent` is remembered as evicted."""
        return len(packed) == PAGE_BYTES and _key(parent, packed) in self._evicted

    def forget_evicted(self) -> None:
        self._evicted.clear()

    def overlap(self, parent: Node, packed: bytes) -> tuple[int, bool]:
        """How many tokens of `packed` (at most a page) some page after `parent` begins with, and whether one goes on
        differently from there."""
        same = [*parent.children, *parent.tails]
        low, high = 0, min(len(packed) // TOKEN_BYTES, PAGE_TOKENS)
        while low < high:
            middle = (low + high + 1) // 2
            longer = [other for other in same if other.startswith(packed[: middle * TOKEN_BYTES])]
            if longer:
                low, same = middle, longer
            else:
                high = middle - 1
        return low, any(len(other) > low * TOKEN_BYTES for other in same)

    def _order(self, node: Node) -> None:
        """Puts a node that may go now into the order of eviction. A root goes as soon as nothing needs it."""
        if node.pins or not node.is_leaf:
            return
        if node.parent is None:
            self._roots.pop(node.packed, None)
            return
        self._pushed += 1
        heapq.heappush(self._leaves, (node.used, self._pushed, node))
        if len(self._leaves) > 2 * self.pages + PAGE_TOKENS:
            current = {node: (used, tie, node) for used, tie, node in self._leaves if _is_current(used, node)}
            self._leaves = list(current.values())
            heapq.heapify(self._leaves)


def _is_current(used: int, node: Node) -> bool:
    return node.page >= 0 and node.pins == 0 and node.is_leaf and node.used == used


def _key(parent: Node | None, packed: bytes) -> int:
    return hash((parent.key if parent else 0, packed))

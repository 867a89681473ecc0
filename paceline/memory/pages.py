"""The pool of KV pages: which of the physical pages 0 … total − 1 are taken.

It hands out page numbers and takes them back; it does not know who holds them, and it holds no tensors. A page is 64
tokens of all full-attention layers (`core/config.py`). Pages come as one ascending run where one is free, because the
runner reads such a run in place and has to gather anything else.
"""

import re
from collections.abc import Sequence

_FREE_RUN = re.compile(rb"\x00+")


class PagePool:
    """`free` + `used` == `total`, in pages. `apart`: sequences grow, so each begins far from the others."""

    __slots__ = ("_apart", "_taken", "free")

    def __init__(self, total: int, apart: bool = False) -> None:
        self._apart = apart
        self._taken = bytearray(total)
        self.free = total

    @property
    def total(self) -> int:
        return len(self._taken)

    @property
    def used(self) -> int:
        return self.total - self.free

    def take(self, n: int, after: int | None = None) -> list[int] | None:
        """n pages: those that follow page `after`, where all are free; else a run; else the n lowest.

        The run is the lowest one, or with `apart` in the middle of the longest one. None, and no change, when too few are
        free.
        """
        if n < 0:
            raise ValueError(f"cannot take {n} pages")
        if n > self.free:
            return None
        if after is not None and self._taken[after + 1 : after + 1 + n] == bytes(n):
            first = after + 1
        elif self._apart:
            first = self._spaced(n)
        else:
            first = self._taken.find(bytes(n))
        pages = list(range(first, first + n)) if first >= 0 else self._lowest(n)
        for page in pages:
            self._taken[page] = 1
        self.free -= n
        return pages

    def give_back(self, pages: Sequence[int]) -> None:
        """Frees `pages`, all or none: a page that is not taken, or named twice, raises before anything changes."""
        if len(set(pages)) != len(pages):
            raise ValueError(f"pages given back twice in one call: {list(pages)}")
        for page in pages:
            if not 0 <= page < self.total:
                raise ValueError(f"page {page} is not of this pool (0 to {self.total - 1})")
            if not self._taken[page]:
                raise ValueError(f"page {page} is given back but is not taken")
        for page in pages:
            self._taken[page] = 0
        self.free += len(pages)

    def check(self) -> None:
        """Raises unless the pool is whole: every page free, and counted as free."""
        missing = [page for page, taken in enumerate(self._taken) if taken]
        if missing or self.free != self.total:
            raise RuntimeError(
                f"page pool is not whole: {self.free} of {self.total} counted free, still taken: {missing}"
            )

    def _spaced(self, n: int) -> int:
        """Where n pages begin that leave the most room behind them and behind what lies before; −1 without such a run."""
        length, first = max((len(run.group()), -run.start()) for run in _FREE_RUN.finditer(self._taken))
        if length < n:
            return -1
        return -first if first == 0 else -first + (length - n) // 2

    def _lowest(self, n: int) -> list[int]:
        pages: list[int] = []
        page = -1
        while len(pages) < n:
            page = self._taken.find(0, page + 1)
            pages.append(page)
        return pages

"""Why not more of a prompt was found in the cache: for the request log, so that no full prefill is silent."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from paceline.core.config import PAGE_TOKENS
from paceline.memory.tree import PAGE_BYTES, TOKEN_BYTES, Node, PageTree


class MissReason(Enum):
    """The first that applies counts, in this order."""

    DISABLED = "disabled"
    EVICTED = "evicted"  # the next page was there once: more --kv-capacity keeps it
    NO_CHECKPOINT = "no_checkpoint"  # the pages are there, the state is not: more --state-checkpoints keep it
    DIFFERS = "differs"  # what is cached goes on with other tokens
    NO_PAGE = "no_page"  # nothing that is cached goes on from here


@dataclass(frozen=True, slots=True)
class Miss:
    """`position` is the first token of the prompt that was not found."""

    reason: MissReason
    position: int


def explain(tree: PageTree, path: Sequence[Node], packed: bytes, reused: int) -> Miss | None:
    """For a prompt `packed` whose pages were found along `path` (root first) and whose first `reused` tokens are reused.

    None when not even a whole page more could have been: the last token is always computed anew.
    """
    most = len(packed) // TOKEN_BYTES - 1
    if reused >= most // PAGE_TOKENS * PAGE_TOKENS:
        return None
    last, found = path[-1], PAGE_TOKENS * (len(path) - 1)
    following = packed[found * TOKEN_BYTES :][:PAGE_BYTES]
    if tree.was_evicted(last, following):
        return Miss(MissReason.EVICTED, found)
    same, goes_on = tree.overlap(last, following)
    if found > reused:
        return Miss(MissReason.NO_CHECKPOINT, found + same)
    return Miss(MissReason.DIFFERS if goes_on and found + same else MissReason.NO_PAGE, found + same)

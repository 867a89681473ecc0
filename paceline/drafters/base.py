"""What a drafter is: it watches the tokens that became facts, and proposes the next ones.

The order in a slot's life is open, then observe after every round, propose when a window is wanted, close. A drafter may
propose fewer than k tokens, also none; the round then verifies a shorter window. Drafts carry no probabilities: one counts
while it equals the target's own sample, so a drafter can be slow or wrong but never change the output.

A drafter never sees a rejected position: features and tokens arrive when they are facts. What it needs of the target is
handed in at build; its own tensors come from a TensorSource. Positions and lengths are in tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from paceline.core.errors import CheckpointError
from paceline.core.spec import DrafterSpec, ModelSpec

if TYPE_CHECKING:
    import torch

    from paceline.quant.base import WeightCodec
    from paceline.sampling.draft import DraftView


class WeightsFrom(Enum):
    """Where a drafter's tensors are: it has none, the target's own checkpoint, or a folder of its own."""

    NOTHING = "nothing"
    TARGET = "target"
    FOLDER = "folder"


class ConfigSource(Protocol):
    """A config.json, with or without weights beside it; `path` is named in errors."""

    @property
    def path(self) -> Path: ...

    def config(self) -> dict[str, Any]: ...


class TensorSource(ConfigSource, Protocol):
    """An opened checkpoint. `load` gives exactly the wanted tensors and refuses what is missing, mis-shaped, or extra among
    the names that start with `within`."""

    def names(self) -> list[str]: ...

    def load(self, wanted: Mapping[str, tuple[int, ...]], within: str) -> dict[str, torch.Tensor]: ...


@dataclass(frozen=True, slots=True)
class DraftHead:
    """The target's head over the tokens that may be drafted: all that can be sampled, or a shortlist of these.

    `ids` [N] int64, ascending. `logits`: hidden [n, d] → [n, N] fp32, column i for token ids[i]. `nbytes` is what the head
    holds beside the target's own weights: it belongs to the drafter's.
    """

    ids: torch.Tensor
    logits: Callable[[torch.Tensor], torch.Tensor]
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Target:
    """The target's parts and the sizes that a drafter may rely on.

    embed [V, d]. Only ids below `vocab` can be sampled, so `head` gives no others. `codec` is the format for the drafter's
    own matrices; its dtype is that of activations. `pages` pages of 64 tokens and `checkpoints` places for a slot's state
    exist.
    """

    spec: ModelSpec
    embed: torch.Tensor
    head: DraftHead
    vocab: int
    codec: WeightCodec
    slots: int
    max_context: int
    draft_tokens: int
    pages: int
    checkpoints: int


@dataclass(frozen=True, slots=True)
class Observed:
    """What became a fact of `slot` in this round.

    `tokens` stand at positions first_token …: a prompt chunk's, then those that were emitted. The last emitted one is the
    next window's anchor. taps [n, n_taps·d] and hidden [n, d] belong to the n positions start …: a whole chunk, or the
    anchor and the accepted drafts. They are None where the drafter's spec does not ask. `pages` are the sequence's, enough for
    a whole window more.
    """

    slot: int
    first_token: int
    tokens: list[int]
    start: int
    taps: torch.Tensor | None
    hidden: torch.Tensor | None
    pages: list[int]


@dataclass(frozen=True, slots=True)
class Want:
    """At most `k` drafts are wanted after `anchor`, which stands at `position`; `view` draws them."""

    slot: int
    k: int
    anchor: int
    position: int
    view: DraftView
    pages: list[int]


class Drafter(Protocol):
    @property
    def spec(self) -> DrafterSpec: ...

    def open(self, slot: int, tokens: list[int], filled: int) -> None:
        """A request takes the slot; whatever a former one left must not be seen. `tokens` stand before the first one that
        will be observed: none, or what was found in the prefix cache, or came out before a pause. `filled` of them are in
        the pages."""
        ...

    def save(self, slot: int, place: int) -> None:
        """Copies what the slot holds besides tokens and pages."""
        ...

    def copy_page(self, source: int, target: int) -> None:
        """Copies what the page holds of the drafter's."""
        ...

    def restore(self, slot: int, place: int) -> None:
        """After `open`: the slot goes on from the copy at `place`, made when the same tokens were in the pages."""
        ...

    def observe(self, rows: list[Observed]) -> None: ...

    def propose(self, rows: list[Want]) -> list[list[int]]:
        """At most k drafts for each row, continuing after its anchor, the last observed token."""
        ...

    def close(self, slot: int) -> None: ...


class TokensOnly:
    """For drafters that hold nothing of a slot but its tokens."""

    def save(self, slot: int, place: int) -> None:
        pass

    def copy_page(self, source: int, target: int) -> None:
        pass

    def restore(self, slot: int, place: int) -> None:
        pass


Builder = Callable[[Target, "TensorSource | None"], Drafter]
# (target, bytes of an element of the drafter's weights and context, the drafter's config) → its spec, without any weights.
Describer = Callable[[ModelSpec, int, ConfigSource], DrafterSpec]


def expected_acceptance(source: TensorSource, key: str) -> dict[int, float]:
    """`{key: {"expected_acceptance": {"K": accepted / proposed, …}}}` of a config.json; empty where it is not there."""
    card = source.config().get(key)
    stated = card.get("expected_acceptance", {}) if isinstance(card, dict) else {}
    try:
        return {int(k): float(share) for k, share in stated.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f'{source.path}: config.json: {key}.expected_acceptance = {stated}: write shares by K, as {{"7": 0.4}}'
        ) from error

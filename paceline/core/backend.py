"""The protocol between scheduler and device. `runner/` implements it for torch devices."""

from typing import Protocol

from paceline.core.batch import Batch, StepOut


class Backend(Protocol):
    """A device that holds the weights, the pages and the slots.

    `step` runs one round over the rows: forward, sample, accept, commit, observe, propose. It raises only when the
    device is lost. `save` and `close_slot` may come at any time between steps; the slot's pages may be reused after it.
    """

    @property
    def stateful(self) -> bool:
        """Whether a slot holds anything but pages, so that a prefix needs a checkpoint to go on from."""
        ...

    def facts(self) -> dict[str, object]: ...

    def step(self, batch: Batch) -> StepOut: ...

    def save(self, slot: int, checkpoint: int) -> None:
        """Brings the slot's state to its last fact and copies it, the drafter's included, to that checkpoint's place."""
        ...

    def close_slot(self, slot: int) -> None: ...

    def close(self) -> None: ...

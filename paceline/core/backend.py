"""The protocol between scheduler and device. `runner/` implements it for torch devices."""

from typing import Protocol

from paceline.core.batch import Batch, StepOut


class Backend(Protocol):
    """A device that holds the weights, the pages and the slots.

    `step` runs one round over the rows: forward, sample, accept, commit, observe, propose. It raises only when the
    device is lost. `close_slot` may come at any time between steps; the slot's pages may be reused after it.
    """

    def facts(self) -> dict[str, object]: ...

    def step(self, batch: Batch) -> StepOut: ...

    def close_slot(self, slot: int) -> None: ...

    def close(self) -> None: ...

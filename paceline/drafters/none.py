"""No speculation: every window is the anchor alone."""

from paceline.core.spec import DrafterSpec
from paceline.drafters.base import Observed, Target, TensorSource, TokensOnly, Want


class NoDrafter(TokensOnly):
    spec = DrafterSpec()

    def open(self, slot: int, tokens: list[int], filled: int) -> None:
        pass

    def observe(self, rows: list[Observed]) -> None:
        pass

    def propose(self, rows: list[Want]) -> list[list[int]]:
        return [[] for _ in rows]

    def close(self, slot: int) -> None:
        pass


def build(target: Target, source: TensorSource | None) -> NoDrafter:
    return NoDrafter()

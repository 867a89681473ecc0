"""No speculation: every window is the anchor alone."""

from paceline.drafters.base import Observed


class NoDrafter:
    def open(self, slot: int) -> None:
        pass

    def observe(self, rows: list[Observed]) -> None:
        pass

    def propose(self, rows: list[tuple[int, int]]) -> list[list[int]]:
        return [[] for _ in rows]

    def close(self, slot: int) -> None:
        pass

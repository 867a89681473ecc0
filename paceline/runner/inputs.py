"""A batch's rows → the flat Round that a forward sees. See kernels/round.py for the layout and the rule of pieces."""

from dataclasses import dataclass

import torch

from paceline.core.batch import Row
from paceline.kernels.round import BLOCK_TOKENS, SMALL_TOKENS, Piece, Round, RowSpan, kv_range, page_rows
from paceline.runner.slots import Slot


@dataclass(frozen=True, slots=True)
class Planned:
    """The round, and the flat index of every position that needs logits, row by row (`counts` of them each)."""

    round: Round
    sample_at: torch.Tensor
    counts: list[int]


class InputPlanner:
    """Turns rows into rounds for one model: `group` query heads per KV head, and its rotary tables."""

    def __init__(self, group: int, cos: torch.Tensor, sin: torch.Tensor) -> None:
        self.group, self.cos, self.sin, self.dtype = group, cos, sin, cos.dtype
        self.triangle = torch.full((BLOCK_TOKENS, BLOCK_TOKENS), float("-inf"), dtype=self.dtype).triu_(1)

    def plan(self, rows: list[Row], slots: dict[int, Slot]) -> Planned:
        cuts = [(index, *cut) for index, row in enumerate(rows) for cut in _cut(row.start, row.q_len)]
        cuts.sort(key=lambda cut: cut[2] > SMALL_TOKENS)  # stable: small pieces first, otherwise in row order
        pieces, at, small = [], 0, 0
        for cut in cuts:
            pieces.append(self._piece(rows[cut[0]], cut, at))
            at += cut[2]
            small += cut[2] if pieces[-1].small else 0
        return self._flatten(rows, slots, pieces, small)

    def _piece(self, row: Row, cut: tuple[int, int, int], at: int) -> Piece:
        index, start, count = cut
        small = count <= SMALL_TOKENS
        keys = (start // BLOCK_TOKENS + 1) * BLOCK_TOKENS
        mask = torch.zeros(count, keys, dtype=self.dtype)
        offset = start % BLOCK_TOKENS
        mask[:, -BLOCK_TOKENS:] = self.triangle[offset : offset + count]
        shaped = mask[:, None, None] if small else mask.repeat(self.group, 1)[None, None]
        return Piece(index, at, start, count, small, keys, shaped, kv_range(row.pages, keys))

    def _flatten(self, rows: list[Row], slots: dict[int, Slot], pieces: list[Piece], small: int) -> Planned:
        ids: list[int] = []
        positions: list[int] = []
        cache_rows: list[int] = []
        tokens = [row.tokens if row.tokens is not None else _window(row, slots[row.slot]) for row in rows]
        flat: list[dict[int, int]] = [{} for _ in rows]  # position → flat index
        for piece in pieces:
            row = rows[piece.row]
            first = piece.start - row.start
            ids += tokens[piece.row][first : first + piece.count]
            positions += range(piece.start, piece.start + piece.count)
            cache_rows += page_rows(row.pages, piece.start, piece.start + piece.count)
            for i in range(piece.count):
                flat[piece.row][piece.start + i] = piece.at + i
        spans = []
        sample_at: list[int] = []
        counts: list[int] = []
        for index, row in enumerate(rows):
            mine = tuple(sorted((p for p in pieces if p.row == index), key=lambda p: p.start))
            spans.append(RowSpan(row.slot, mine, slots[row.slot].replay, row.known, row.q_len))
            wanted = range(row.start + row.sample_from, row.start + row.q_len)
            sample_at.extend(flat[index][position] for position in wanted)
            counts.append(len(wanted))
        where = torch.tensor(positions)
        round = Round(
            ids=torch.tensor(ids),
            cos=self.cos[where],
            sin=self.sin[where],
            cache_rows=torch.tensor(cache_rows),
            small=small,
            pieces=tuple(pieces),
            rows=tuple(spans),
        )
        return Planned(round, torch.tensor(sample_at, dtype=torch.int64), counts)


def _cut(start: int, length: int) -> list[tuple[int, int]]:
    """(first position, count) of the pieces: cut at absolute multiples of 64, so chunk sizes do not matter."""
    pieces, end = [], start + length
    while start < end:
        edge = min(end, (start // BLOCK_TOKENS + 1) * BLOCK_TOKENS)
        pieces.append((start, edge - start))
        start = edge
    return pieces


def _window(row: Row, slot: Slot) -> list[int]:
    return [slot.anchor, *slot.drafts[: row.q_len - 1]]

"""One round: forward, sample and accept, commit, observe, propose. The file to read first on the device side.

Everything that a round decides about a request happens here, in this order, for prompt chunks and windows alike: a row
that needs no logits emits nothing, a row that does emits at least one token.
"""

import time

import torch

from paceline.core.batch import Batch, Row, RowOut, StepOut
from paceline.drafters.base import Drafter, Observed, Want
from paceline.kernels.round import Caches, RowSpan
from paceline.models.decoder import Decoder
from paceline.runner.inputs import InputPlanner
from paceline.runner.slots import Slot
from paceline.sampling.draft import DraftView
from paceline.sampling.verify import Verdict, verify


class RoundRunner:
    """`vocab` ids can be sampled; a window holds at most `draft_tokens` drafts."""

    def __init__(self, model: Decoder, caches: Caches, drafter: Drafter, draft_tokens: int, vocab: int) -> None:
        self.model, self.caches, self.drafter = model, caches, drafter
        self.draft_tokens, self.vocab = draft_tokens, vocab
        self.taps = drafter.spec.taps if draft_tokens else ()
        self.planner = InputPlanner(model.spec.heads // model.spec.kv_heads, model.cos, model.sin)
        self.slots: dict[int, Slot] = {}

    @torch.inference_mode()
    def step(self, batch: Batch) -> StepOut:
        began = time.perf_counter()
        planned = self.planner.plan(batch.rows, self.slots)
        hidden, taps = self.model.forward(planned.round, self.caches, self.taps)
        verdicts = self._sample(batch.rows, hidden, planned.sample_at, planned.counts)
        proposed = [row.q_len - row.known for row in batch.rows]
        self._commit(batch.rows, verdicts)
        self._draft(batch.rows, planned.round.rows, verdicts, hidden, taps)
        outs = [
            RowOut(v.ids, k, v.accepted, v.finish, len(self.slots[row.slot].drafts))
            for row, v, k in zip(batch.rows, verdicts, proposed, strict=True)
        ]
        return StepOut(outs, time.perf_counter() - began)

    def _sample(self, rows: list[Row], hidden: torch.Tensor, at: torch.Tensor, counts: list[int]) -> list[Verdict]:
        if not len(at):
            return [Verdict([], 0, None) for _ in rows]
        logits = self.model.logits(hidden[at])[:, : self.vocab]
        verdicts, first = [], 0
        for row, count in zip(rows, counts, strict=True):
            slot = self.slots[row.slot]
            if count:
                drafts = slot.drafts[: row.q_len - row.known]
                window = logits[first : first + count]
                verdicts.append(verify(window, drafts, slot.sampler, slot.produced, slot.limits))
            else:
                verdicts.append(Verdict([], 0, None))
            first += count
        return verdicts

    def _commit(self, rows: list[Row], verdicts: list[Verdict]) -> None:
        """Accepted drafts stay in the KV cache; the recurrent state takes them in at the slot's next round."""
        for row, verdict in zip(rows, verdicts, strict=True):
            slot = self.slots[row.slot]
            slot.replay = 0
            slot.drafts = []
            if verdict.ids:
                slot.replay = len(verdict.ids) - 1
                slot.anchor = verdict.ids[-1]
                slot.produced += len(verdict.ids)

    def _draft(
        self,
        rows: list[Row],
        spans: tuple[RowSpan, ...],
        verdicts: list[Verdict],
        hidden: torch.Tensor,
        taps: torch.Tensor | None,
    ) -> None:
        if self.draft_tokens == 0:
            return
        observed, wanted = [], []
        for row, span, verdict in zip(rows, spans, verdicts, strict=True):
            facts = row.known + max(len(verdict.ids) - 1, 0)
            observed.append(self._observed(row, verdict, _flat(span, facts), hidden, taps))
            slot = self.slots[row.slot]
            k = min(self.draft_tokens, slot.limits.max_tokens - slot.produced - 1)
            if verdict.ids and verdict.finish is None and k > 0:
                view = DraftView(slot.sampler, slot.limits, slot.produced)
                wanted.append(Want(row.slot, k, slot.anchor, row.start + facts, view, row.pages))
        self.drafter.observe(observed)
        for want, drafts in zip(wanted, self.drafter.propose(wanted), strict=True):
            self.slots[want.slot].drafts = drafts[: want.k]

    def _observed(
        self, row: Row, verdict: Verdict, at: torch.Tensor | slice, hidden: torch.Tensor, taps: torch.Tensor | None
    ) -> Observed:
        return Observed(
            slot=row.slot,
            first_token=row.start if row.tokens else row.start + 1,
            tokens=[*(row.tokens or []), *verdict.ids],
            start=row.start,
            taps=None if taps is None else taps[at],
            hidden=hidden[at] if self.drafter.spec.hidden else None,
            pages=row.pages,
        )


def _flat(span: RowSpan, count: int) -> torch.Tensor | slice:
    """Where the first `count` positions of a row lie on the flat axis."""
    if len(span.pieces) == 1:
        return slice(span.pieces[0].at, span.pieces[0].at + count)
    return torch.cat([torch.arange(piece.at, piece.at + piece.count) for piece in span.pieces])[:count]

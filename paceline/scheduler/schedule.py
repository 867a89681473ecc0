"""What the next step computes: one row for each running sequence that gets work, as a pure function of their state.

Decode windows and prompt chunks share the batch; windows come first. It changes nothing: `engine/loop.py` applies the
result after the backend's step. Lengths and positions are in tokens.
"""

from collections.abc import Iterable

from paceline.core.batch import Row
from paceline.core.config import MAX_DRAFT_TOKENS, PAGE_TOKENS
from paceline.scheduler.queue import Sequence


def schedule(running: Iterable[Sequence], prefill_chunk: int, max_context: int) -> list[Row]:
    """A window for every sequence that is caught up, then at most `prefill_chunk` known tokens of the others.

    `running` is in order of arrival, `prefill_chunk` a multiple of 64.
    """
    sequences = list(running)
    windows = [_window(sequence, max_context) for sequence in sequences if sequence.caught_up]
    return windows + _chunks([sequence for sequence in sequences if not sequence.caught_up], prefill_chunk)


def _window(sequence: Sequence, max_context: int) -> Row:
    request, start = sequence.request, sequence.filled
    left = request.max_tokens - sequence.produced
    drafts = max(0, min(sequence.next_drafts, left - 1, max_context - start - 1))
    return Row(sequence.slot, start, q_len=1 + drafts, known=1, sample_from=0, pages=sequence.pages)


def _chunks(sequences: list[Sequence], budget: int) -> list[Row]:
    rows = []
    for index, sequence in enumerate(sequences):
        # One page is kept for each sequence further back: a short prompt must not wait until a long one is through.
        share = max(PAGE_TOKENS, budget - PAGE_TOKENS * (len(sequences) - index - 1))
        end = _chunk_end(sequence, min(budget, share))
        if end > sequence.filled:
            rows.append(_chunk(sequence, end))
            budget -= end - sequence.filled
    return rows


def _chunk_end(sequence: Sequence, limit: int) -> int:
    """Where a chunk of at most `limit` tokens ends.

    A prompt's chunk ends at the prompt's end or at a multiple of 64 (recurrent sub-chunks), and where a checkpoint is
    wanted. Output that is computed again comes in pieces as short as windows, so that it takes the same form.
    """
    prompt_tokens, start = len(sequence.request.prompt), sequence.filled
    if start >= prompt_tokens:
        return min(sequence.facts, start + min(limit, MAX_DRAFT_TOKENS + 1))
    end = min(start + limit, next((cut for cut in sequence.cuts if cut > start), prompt_tokens))
    return prompt_tokens if end >= prompt_tokens else max(end // PAGE_TOKENS * PAGE_TOKENS, start)


def _chunk(sequence: Sequence, end: int) -> Row:
    start = sequence.filled
    q_len = end - start
    samples = end == len(sequence.request.prompt) and not sequence.produced
    sample_from = q_len - 1 if samples else q_len
    return Row(sequence.slot, start, q_len, q_len, sample_from, sequence.pages, tokens=sequence.tokens[start:end])

"""What the next step computes: one row for each running sequence that gets work, as a pure function of their state.

Decode windows and prompt chunks share the batch; windows come first. It changes nothing: `engine/loop.py` applies the
result after the backend's step. Lengths and positions are in tokens.
"""

from collections.abc import Iterable

from paceline.core.batch import Row
from paceline.core.config import PAGE_TOKENS
from paceline.scheduler.queue import Sequence


def schedule(running: Iterable[Sequence], prefill_chunk: int, max_context: int) -> list[Row]:
    """A window for every sequence whose prompt is done, then at most `prefill_chunk` prompt tokens of the others.

    `running` is in order of admission, `prefill_chunk` a multiple of 64.
    """
    sequences = list(running)
    windows = [_window(sequence, max_context) for sequence in sequences if sequence.prompt_done]
    return windows + _chunks([sequence for sequence in sequences if not sequence.prompt_done], prefill_chunk)


def _window(sequence: Sequence, max_context: int) -> Row:
    request = sequence.request
    start = len(request.prompt) + sequence.produced - 1
    drafts = max(0, min(sequence.next_drafts, request.max_tokens - sequence.produced - 1, max_context - start - 1))
    return Row(sequence.slot, start, q_len=1 + drafts, known=1, sample_from=0, pages=sequence.pages)


def _chunks(sequences: list[Sequence], budget: int) -> list[Row]:
    rows = []
    for index, sequence in enumerate(sequences):
        # One page is kept for each sequence further back: a short prompt must not wait until a long one is through.
        share = max(PAGE_TOKENS, budget - PAGE_TOKENS * (len(sequences) - index - 1))
        end = _chunk_end(sequence, min(budget, share))
        if end > sequence.prefilled:
            rows.append(_chunk(sequence, end))
            budget -= end - sequence.prefilled
    return rows


def _chunk_end(sequence: Sequence, limit: int) -> int:
    """Where a chunk of at most `limit` tokens ends: at the prompt's end, or at a multiple of 64 (recurrent sub-chunks)."""
    prompt_tokens = len(sequence.request.prompt)
    end = sequence.prefilled + limit
    return prompt_tokens if end >= prompt_tokens else end // PAGE_TOKENS * PAGE_TOKENS


def _chunk(sequence: Sequence, end: int) -> Row:
    prompt, start = sequence.request.prompt, sequence.prefilled
    q_len = end - start
    sample_from = q_len - 1 if end == len(prompt) else q_len
    return Row(sequence.slot, start, q_len, q_len, sample_from, sequence.pages, tokens=prompt[start:end])

"""Training rows for drafters: prompts answered by the target itself.

A drafter must predict what the target says, not what the corpus says. Most replies are greedy, the rest sampled.
"""

import random
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from paceline.train.corpus import ANSWER, ID_MASK, START, pack_rows
from paceline.train.generate import generate
from paceline.train.target import Target


@dataclass(frozen=True, slots=True)
class AnswerSettings:
    """`minutes` bounds the time; a batch holds at most `batch_tokens` positions, prompts and replies together."""

    minutes: float
    new_tokens: int = 256
    batch_tokens: int = 1 << 20
    greedy: float = 0.7
    temperature: float = 0.7
    seed: int = 0


def prompts_of(rows: np.ndarray) -> list[list[int]]:
    """The prompt of every document that has one: its tokens before the first answer token."""
    prompts = []
    for row in rows:
        starts = [*np.flatnonzero(row & START), len(row)]
        for begin, end in pairwise(starts):
            answers = np.flatnonzero(row[begin:end] & ANSWER)
            if len(answers):
                prompts.append((row[begin : begin + answers[0]] & ID_MASK).tolist())
    return prompts


def lots_of(rows: np.ndarray, seed: int) -> Iterator[list[list[int]]]:
    """The prompts of packed rows, in lots of 4,096 rows drawn at random."""
    order = np.random.default_rng(seed).permutation(len(rows))
    for at in range(0, len(order), 4096):
        yield prompts_of(rows[order[at : at + 4096]])


def _batches(prompts: list[list[int]], row_tokens: int, s: AnswerSettings) -> list[list[list[int]]]:
    """Prompts of like length together, so that little is padded; in random order, so that any part is a fair sample."""
    ordered = sorted((p for p in prompts if len(p) + s.new_tokens <= row_tokens), key=len)
    batches = []
    while ordered:
        count = max(1, s.batch_tokens // (len(ordered[-1]) + s.new_tokens))
        batches.append(ordered[-count:])
        ordered = ordered[:-count]
    random.Random(s.seed).shuffle(batches)
    return batches


def answer_rows(
    target: Target, lots: Iterable[list[list[int]]], row_tokens: int, s: AnswerSettings
) -> tuple[np.ndarray, dict[str, object]]:
    """Lots of prompts → packed rows of prompts and the target's replies, and what was made. Stops when the time is up."""
    start = time.monotonic()
    documents: list[np.ndarray] = []
    tokens, ended = 0, 0
    for prompts in lots:
        for batch in _batches(prompts, row_tokens, s):
            if time.monotonic() - start > 60 * s.minutes:
                break
            seed = s.seed + len(documents)
            heat = torch.full((len(batch),), s.temperature)
            heat[torch.rand(len(batch), generator=torch.Generator().manual_seed(seed)) < s.greedy] = 0.0
            replies = generate(target, batch, s.new_tokens, heat.to(target.model.embed_tokens.weight.device), seed)
            for prompt, reply in zip(batch, replies, strict=True):
                document = np.array(prompt + reply, dtype=np.int32)
                document[len(prompt) :] |= ANSWER
                document[0] |= START
                documents.append(document)
                tokens += len(reply)
                ended += len(reply) < s.new_tokens
    np.random.default_rng(s.seed).shuffle(documents)
    made = {"replies": len(documents), "reply_tokens": tokens, "ended": round(ended / max(1, len(documents)), 4)}
    return pack_rows(documents, row_tokens, target.config.pad_id), {
        **made,
        "seconds": round(time.monotonic() - start, 1),
    }

"""The corpus of the embedded model: chats of the five workloads, tokenised and packed into rows of int32.

Deterministic from a seed and a number of chats, whatever the number of processes. A packed word holds the token id in
its low 24 bits; bit 30 marks answer tokens (what a drafter may be anchored in), bit 29 the first token of a document.
Prompts whose checksum says so are held out: they are never in a corpus.
"""

import json
import os
import random
import zlib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from paceline.core.errors import ConfigError
from paceline.train.chats import PAD_ID, Chat, ask, render
from paceline.train.workloads import MAKERS

ANSWER, START, ID_MASK = 1 << 30, 1 << 29, (1 << 24) - 1
_SHARES = {"structured": 24, "code": 24, "translation": 18, "reasoning": 18, "story": 16}
_BATCH = 2000
_OPEN_ROWS = 24
_HELD_OUT = 50  # one prompt in that many
_QUESTIONS, _PLAYS = "gsm8k_train.jsonl", "tinyshakespeare.txt"


@dataclass(frozen=True, slots=True)
class CorpusSettings:
    """`chats` in all; `row_tokens` per packed row; `data` is the optional folder with gsm8k_train.jsonl and
    tinyshakespeare.txt."""

    chats: int
    row_tokens: int = 1024
    seed: int = 1
    data: str | None = None

    @property
    def batches(self) -> int:
        return -(-self.chats // _BATCH)


def held_out(kind: str, count: int) -> list[Chat]:
    """Distinct chats of one workload whose prompts are not in any corpus."""
    found: dict[tuple[tuple[str, str], ...], Chat] = {}
    r = random.Random(f"held-out/{kind}")
    while len(found) < count:
        chat = MAKERS[kind](r)
        if is_held_out(chat):
            found[chat.turns] = chat
    return list(found.values())


def is_held_out(chat: Chat, one_in: int = _HELD_OUT) -> bool:
    """Decided by the prompt's text alone: prompts from templates repeat, whatever the seed."""
    return zlib.crc32(repr(chat.turns).encode()) % one_in == 0


def _smalltalk(r: random.Random) -> Chat:
    hello = r.choice(
        ("Hello!", "Hi", "Hello, who are you?", "What can you do?", "Who are you?", "Good morning!", "Help")
    )
    can = "I can write JSON, CSV and SQL, small Python functions, translations, worked arithmetic and short stories."
    first = r.choice(("Hello!", "Hi!", "Hello, I am a very small language model."))
    return ask(hello, f"{first} {can} What would you like?")


def check_data(folder: str) -> None:
    """Raises ConfigError if a file of the data folder is missing."""
    for name in (_QUESTIONS, _PLAYS):
        if not (Path(folder) / name).is_file():
            raise ConfigError("--data", folder, f"has no {name}; put it there, or leave --data out")


def _data_chats(folder: Path) -> list[Chat]:
    chats = []
    for number, line in enumerate((folder / _QUESTIONS).read_text(encoding="utf-8").splitlines(), 1):
        try:
            pair = json.loads(line)
            question, answer = str(pair["question"]), str(pair["answer"])
        except (ValueError, KeyError, TypeError):
            fix = f"line {number} must be a JSON object with question and answer"
            raise ConfigError("--data", folder / _QUESTIONS, fix) from None
        steps, _, final = answer.rpartition("\n#### ")
        plain = "".join(part.split(">>")[-1] for part in steps.split("<<"))
        numbered = [f"Step {i}: {text}" for i, text in enumerate(plain.splitlines(), 1)]
        chats.append(ask(question, "\n".join([*numbered, f"Answer: {final}."])))
    speeches = (folder / _PLAYS).read_text(encoding="utf-8").split("\n\n")
    for at in range(0, len(speeches) - 4, 3):
        scene, answer = "\n\n".join(speeches[at : at + 2])[:800], "\n\n".join(speeches[at + 2 : at + 4])[:800]
        chats.append(ask(f"Continue this scene from a play.\n\n{scene}", answer))
    return chats


def chats_of(settings: CorpusSettings, batch: int) -> Iterator[Chat]:
    """The chats of one batch of the corpus."""
    r = random.Random(f"corpus/{settings.seed}/{batch}")
    kinds, weights = list(_SHARES), list(_SHARES.values())
    for _ in range(min(_BATCH, settings.chats - batch * _BATCH)):
        chat = _smalltalk(r) if r.random() < 0.01 else MAKERS[r.choices(kinds, weights)[0]](r)
        if not is_held_out(chat):
            yield chat


def encode(tokenizer: Tokenizer, chats: list[Chat]) -> list[np.ndarray]:
    """Each chat as packed words. Prompt and reply are encoded apart, as in serving."""
    pairs = [render(chat) for chat in chats]
    prompts = tokenizer.encode_batch_fast([p for p, _ in pairs], add_special_tokens=False)
    replies = tokenizer.encode_batch_fast([a for _, a in pairs], add_special_tokens=False)
    documents = []
    for prompt, reply in zip(prompts, replies, strict=True):
        document = np.array(prompt.ids + reply.ids, dtype=np.int32)
        document[len(prompt.ids) :] |= ANSWER
        document[0] |= START
        documents.append(document)
    return documents


def pack_rows(documents: list[np.ndarray], row_tokens: int, pad_id: int = PAD_ID) -> np.ndarray:
    """First fit into rows of `row_tokens`; a document that is too long is cut; the rest of a row is one padding document."""
    done: list[np.ndarray] = []
    open_rows: list[tuple[int, list[np.ndarray]]] = []

    def close(row: tuple[int, list[np.ndarray]]) -> None:
        used, parts = row
        filler = np.full(row_tokens - used, pad_id, dtype=np.int32)
        filler[:1] |= START
        done.append(np.concatenate([*parts, filler]))

    for document in documents:
        document = document[:row_tokens]
        place = next((i for i, (used, _) in enumerate(open_rows) if used + len(document) <= row_tokens), None)
        used, parts = open_rows.pop(place) if place is not None else (0, [])
        parts.append(document)
        if used + len(document) > row_tokens - 16:
            close((used + len(document), parts))
        else:
            open_rows.append((used + len(document), parts))
        if len(open_rows) > _OPEN_ROWS:
            close(open_rows.pop(max(range(len(open_rows)), key=lambda i: open_rows[i][0])))
    for row in open_rows:
        close(row)
    return np.stack(done)


def _work(job: tuple[CorpusSettings, str, int]) -> np.ndarray:
    settings, tokenizer_file, batch = job
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = Tokenizer.from_file(tokenizer_file)
    chats = _data_chats(Path(settings.data or "")) if batch < 0 else list(chats_of(settings, batch))
    return pack_rows(encode(tokenizer, chats), settings.row_tokens)


def build(settings: CorpusSettings, tokenizer_file: Path, processes: int) -> np.ndarray:
    """All rows [n, row_tokens] int32. The data folder's chats appear twice."""
    jobs = [(settings, str(tokenizer_file), batch) for batch in range(settings.batches)]
    if settings.data is not None:
        _data_chats(Path(settings.data))  # whatever is wrong with it is said here, not in a worker
        jobs += [(settings, str(tokenizer_file), -1)] * 2
    if processes <= 1:
        return np.concatenate([_work(job) for job in jobs])
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return np.concatenate(list(pool.map(_work, jobs, chunksize=2)))

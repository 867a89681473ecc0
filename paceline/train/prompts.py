"""Prompts that a served model is asked for a drafter's training: own ones of the five workloads, and public data sets.

A prompt whose checksum says so is held out: it is only ever evaluated on. Prompts are single user turns, rendered by the
model's own chat template, as they are served.
"""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from paceline.train.chats import Chat, ask
from paceline.train.corpus import is_held_out
from paceline.train.workloads import MAKERS

_ASK_STEPS = ("", "\n\nExplain step by step.", " Show your work.", "\nThink step by step.")
_ASK_CODE = (
    "Complete this Python function.\n\n```python\n{}```",
    "Write this Python function. Answer with the whole function.\n\n{}",
    "{}",
)
# Of the small sets a larger share is held out, or nothing would be left to evaluate on.
_FEW, _HELD_OUT_OF_FEW = ("humaneval", "spec-bench"), 5


def own_prompts(seed: int = 1) -> Iterator[tuple[str, Chat]]:
    """(workload, chat) without end, in turn over the workloads; the chats' own answers are not used."""
    r = random.Random(f"prompts/{seed}")
    while True:
        for kind, make in MAKERS.items():
            chat = make(r)
            if len(chat.turns) == 1 and chat.system is None and not chat.tools:
                yield kind, chat


def data_prompts(folder: Path, seed: int = 1) -> list[tuple[str, Chat]]:
    """The prompts of those files of `folder` that exist: gsm8k_train.jsonl, humaneval_dev.jsonl, spec_bench_dev.jsonl."""
    r = random.Random(f"data/{seed}")
    readers: dict[str, tuple[str, Callable[[dict[str, object]], str]]] = {
        "gsm8k_train.jsonl": ("gsm8k", lambda line: f"{line['question']}{r.choice(_ASK_STEPS)}"),
        "humaneval_dev.jsonl": ("humaneval", lambda line: r.choice(_ASK_CODE).format(line["prompt"])),
        "spec_bench_dev.jsonl": ("spec-bench", lambda line: str(line["turns"][0])),  # type: ignore[index]
    }
    found = []
    for name, (kind, text_of) in readers.items():
        if (folder / name).exists():
            lines = (folder / name).read_text(encoding="utf-8").splitlines()
            found += [(kind, ask(text_of(json.loads(line)), "")) for line in lines]
    return found


def split(
    own: int, data: Path | None, held_out: int, encode: Callable[[str], list[int]], longest: int
) -> tuple[list[list[int]], dict[str, list[list[int]]]]:
    """→ prompts to train on as token ids, and at most `held_out` per kind to evaluate on.

    `own` counts the generated ones. `encode` renders one user turn and tokenises it; prompts above `longest` tokens are
    left out.
    """
    training: list[list[int]] = []
    kept: dict[str, dict[str, list[int]]] = {}

    def sort_in(kind: str, chat: Chat) -> None:
        text = chat.turns[0][1]
        apart = is_held_out(chat, _HELD_OUT_OF_FEW) if kind in _FEW else is_held_out(chat)
        if apart and (len(kept.get(kind, {})) >= held_out or text in kept.get(kind, {})):
            return
        ids = encode(text)
        if len(ids) > longest:
            return
        if apart:
            kept.setdefault(kind, {})[text] = ids
        else:
            training.append(ids)

    for kind, chat in data_prompts(data) if data is not None else []:
        sort_in(kind, chat)
    makers = own_prompts()
    seen: set[str] = set()
    for _ in range(3 * own):
        kind, chat = next(makers)
        if chat.turns[0][1] not in seen:
            seen.add(chat.turns[0][1])
            sort_in(kind, chat)
        if len(seen) >= own:
            break
    return training, {kind: list(prompts.values()) for kind, prompts in kept.items()}

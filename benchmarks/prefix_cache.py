"""What the prefix cache saves: a 30-turn conversation that resends everything, with and without it, in one run.

No HTTP: prompts of token ids go through the engine's own loop. Turn i sends all earlier turns, the replies among them, and a
new message of about 100 tokens. Writes results/prefix_cache.json. Usage: python -m benchmarks.prefix_cache
"""

import datetime
import json
import os
import statistics
import time
from pathlib import Path

import paceline
from paceline.build import EngineOptions, configure, open_text
from paceline.core.machine import cpu_name
from paceline.core.messages import Admitted, Event, Tokens
from paceline.core.request import Request, SamplingParams
from paceline.engine.loop import Engine
from paceline.runner.backend import make_backend

RESULT = Path(__file__).parent / "results" / "prefix_cache.json"
TURNS, REPLY_TOKENS = 30, 24
NOTE = "Note {}: the shop sold {} red lamps, {} blue cups and {} green chairs on day {}. Write them as a JSON object. "


def conversation(model: str, drafter: str, k: int, cached: bool) -> list[dict[str, float]]:
    """Per turn: prompt tokens, how many of them were found, and seconds to the first token."""
    options = EngineOptions(
        model=model,
        weights="int4",
        drafter=drafter,
        draft_tokens=k,
        max_concurrency=2,
        max_context=4096,
        prefix_cache=cached,
    )
    config = configure(options)
    tokenizer, template, _ = open_text(config)
    turns: list[dict[str, float]] = []
    first: list[float] = []
    said: list[int] = []

    def publish(event: Event) -> None:
        if isinstance(event, Admitted):
            turns.append({"found": event.cached})
        elif isinstance(event, Tokens):
            first.append(event.t)
            said.extend(event.ids)

    engine = Engine(make_backend(config), config, publish)
    prompt: list[int] = []
    for turn in range(TURNS):
        text = NOTE.format(turn, turn * 7 % 90, turn * 11 % 80, turn * 13 % 70, turn) * 2
        prompt = prompt + said + tokenizer.encode(template.render([{"role": "user", "content": text}], {}))
        said.clear()
        first.clear()
        began = time.monotonic()
        engine.submit(
            Request(id=turn, prompt=prompt, max_tokens=REPLY_TOKENS, sampling=SamplingParams(seed=1, temperature=0.0))
        )
        while engine.busy:
            engine.step()
        turns[-1] |= {"prompt": len(prompt), "ttft_s": first[0] - began}
    engine.check()
    return turns


def main() -> None:
    result: dict[str, object] = {
        "date": datetime.date.today().isoformat(), "cpu": cpu_name(), "cores": len(os.sched_getaffinity(0)),
        "paceline": paceline.__version__, "command": "python -m benchmarks.prefix_cache",
    }  # fmt: skip
    for model, drafter, k in (("embedded", "dflash2", 7), ("smollm2", "dflash2", 3)):
        cold, warm = (conversation(model, drafter, k, cached) for cached in (False, True))
        resent = sum(turn["prompt"] for turn in warm[:-1]) + REPLY_TOKENS * (TURNS - 1)
        last = slice(-10, None)
        result[model] = {
            "prompt_tokens": sum(turn["prompt"] for turn in warm),
            "found_tokens": sum(turn["found"] for turn in warm),
            "hit_rate_of_what_was_sent_before": sum(turn["found"] for turn in warm) / resent,
            "last_prompt_tokens": warm[-1]["prompt"],
            "ttft_s_last_10_turns_without": statistics.median(turn["ttft_s"] for turn in cold[last]),
            "ttft_s_last_10_turns_with": statistics.median(turn["ttft_s"] for turn in warm[last]),
        }
        print(model, json.dumps(result[model]))
    RESULT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

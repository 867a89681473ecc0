"""CPU speed of the engine against its peers and against itself, as ratios within one run.

Without HTTP: the engine's own loop, so the figures are those of rounds. Peers: transformers' `generate` in bf16, and
llama.cpp (`llama_cpp`) where that package can be imported. Everything runs on the same prompts with the same number of
threads, and each figure is the best of several runs, since other work on the machine only ever slows things down.

Writes results/cpu.json and prints the README's table. Usage: python benchmarks/cpu.py [--quick]
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch

import paceline
from paceline.build import EngineOptions, configure, open_text
from paceline.core.config import EngineConfig
from paceline.core.machine import cpu_name
from paceline.core.messages import Event, Tally, Tokens
from paceline.core.request import Request, SamplingParams
from paceline.engine.loop import Engine
from paceline.runner.backend import make_backend

MODEL = "smollm2"
RESULT = Path(__file__).parent / "results" / "cpu.json"
CHAT = "Write a short story about a fox and a raven who share a winter."
CODE = """Add a docstring to each function. Show the whole file.

```python
def read_rows(path):
    rows = []
    with open(path) as file:
        for line in file:
            rows.append(line.strip().split(","))
    return rows


def column(rows, index):
    values = []
    for row in rows:
        values.append(row[index])
    return values


def average(values):
    total = 0.0
    for value in values:
        total = total + float(value)
    return total / len(values)
```"""
TOKENS = 96


def decode_rate(config: EngineConfig, prompts: list[list[int]], tokens: int) -> tuple[float, float]:
    """(output tokens per second after the first of each request, tokens per round), all prompts at once, no stop ids."""
    tallies = {i: Tally() for i in range(len(prompts))}
    counts = dict.fromkeys(tallies, 0)

    def publish(event: Event) -> None:
        if isinstance(event, Tokens):
            counts[event.id] += len(event.ids)
            tallies[event.id].add(len(event.ids), event.proposed, event.accepted)

    engine = Engine(make_backend(config), config, publish)
    best = per_round = 0.0
    for _ in range(REPEATS):
        for i, prompt in enumerate(prompts):
            tallies[i], counts[i] = Tally(), 0
            engine.submit(
                Request(id=i, prompt=prompt, max_tokens=tokens, sampling=SamplingParams(seed=1, temperature=0))
            )
        while not all(counts.values()):
            engine.step()
        began, before = time.perf_counter(), sum(counts.values())
        while engine.busy:
            engine.step()
        rate = (sum(counts.values()) - before) / (time.perf_counter() - began)
        rounds = sum(tallies[i].at(counts[i]).rounds for i in counts)
        best, per_round = max(best, rate), sum(counts[i] - 1 for i in counts) / rounds
    return best, per_round


def transformers_rate(config: EngineConfig, prompt: list[int]) -> float:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    source = json.loads((Path(config.model_folder) / "source.json").read_text())["path"]
    folder, name = os.path.split(source)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.bfloat16).eval()
    ids = torch.tensor([prompt])

    def run(n: int) -> float:
        began = time.perf_counter()
        with torch.inference_mode():
            model.generate(ids, max_new_tokens=n, min_new_tokens=n, do_sample=False, pad_token_id=2)
        return time.perf_counter() - began

    run(4)
    first = min(run(1) for _ in range(REPEATS))
    return max((TOKENS - 1) / (run(TOKENS) - first) for _ in range(REPEATS))


def llama_cpp_rate(config: EngineConfig, prompt: list[int]) -> float | None:
    try:
        import llama_cpp
    except ImportError:
        return None
    source = json.loads((Path(config.model_folder) / "source.json").read_text())["path"]
    # Without the extra buffer types: with them, some builds die on CPUs with AMX. No argument of Llama says so.
    inner = llama_cpp.llama_cpp
    defaults = inner.llama_model_default_params

    def plain_params() -> object:
        params = defaults()
        params.use_extra_bufts = False
        return params

    inner.llama_model_default_params = plain_params
    model = llama_cpp.Llama(source, n_ctx=1024, n_threads=config.threads, n_threads_batch=config.threads, verbose=False)
    best = 0.0
    for _ in range(REPEATS):
        times = []
        for _token in model.generate(prompt, temp=0.0):
            times.append(time.perf_counter())
            if len(times) == TOKENS:
                break
        best = max(best, (TOKENS - 1) / (times[-1] - times[0]))
        model.reset()
    return best


def start_seconds() -> float:
    """From the command to the ready line, weights converted before."""
    command = [sys.executable, "-m", "paceline", "serve", MODEL, "--port", "0"]

    def once() -> float:
        began = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            server.stdout.readline()
            seconds = time.perf_counter() - began
            server.terminate()
        return seconds

    return min(once() for _ in range(REPEATS))


def measure() -> dict[str, object]:
    def config(weights: str, k: int = 0, c: int = 1) -> EngineConfig:
        drafter = "ngram" if k else "none"
        return configure(
            EngineOptions(
                model=MODEL, weights=weights, drafter=drafter, draft_tokens=k, max_concurrency=c, max_context=1024
            )
        )

    auto = config("auto")
    tokenizer, template, _ = open_text(auto)

    def ids(text: str) -> list[int]:
        return tokenizer.encode(template.render([{"role": "user", "content": text}], {}))

    torch.set_num_threads(auto.threads)
    peer = transformers_rate(auto, ids(CHAT))
    figures: dict[str, object] = {"auto": auto.weights, "transformers bf16 tok/s": peer}
    llama = llama_cpp_rate(auto, ids(CHAT))
    figures["llama.cpp Q4_1 tok/s"] = llama
    rows = {}
    for weights in ("bf16", "int8", "int4"):
        one, _ = decode_rate(config(weights), [ids(CHAT)], TOKENS)
        four, _ = decode_rate(config(weights, c=4), [ids(f"{CHAT} Part {i}.") for i in range(4)], TOKENS)
        plain, _ = decode_rate(config(weights), [ids(CODE)], 2 * TOKENS)
        drafted, per_round = decode_rate(config(weights, k=7), [ids(CODE)], 2 * TOKENS)
        rows[weights] = {
            "C=1 tok/s": one,
            "x transformers": one / peer,
            "x llama.cpp": one / llama if llama else None,
            "C=4 tok/s": four,
            "C=4 / C=1": four / one,
            "code edit K=0 tok/s": plain,
            "code edit ngram K=7 tok/s": drafted,
            "K=7 / K=0": drafted / plain,
            "tokens/round": per_round,
        }
    figures["formats"] = rows
    figures["second start s"] = start_seconds()
    return figures


def provenance() -> dict[str, object]:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "paceline": paceline.__version__,
        "commit": commit.stdout.strip(),
        "torch": str(torch.__version__),
        "model": "SmolLM2-135M-Instruct",
        "command": "python benchmarks/cpu.py",
    }


def show(figures: dict[str, object]) -> None:
    rows: dict[str, dict[str, float]] = figures["formats"]  # type: ignore[assignment]
    names = list(next(iter(rows.values())))
    print("| weights | " + " | ".join(names) + " |\n|" + " --- |" * (len(names) + 1))
    for weights, row in rows.items():
        print(f"| {weights} | " + " | ".join("–" if row[name] is None else f"{row[name]:.2f}" for name in names) + " |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one run of each instead of three")
    REPEATS = 1 if parser.parse_args().quick else 3
    measured = measure()
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps({**provenance(), **measured}, indent=1) + "\n")
    show(measured)
    print(json.dumps({key: value for key, value in measured.items() if key != "formats"}))

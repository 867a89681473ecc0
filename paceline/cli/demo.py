"""`paceline demo`: a chat and a measurement on this machine, from nothing, in about a minute."""

import json
import tempfile
from pathlib import Path
from typing import Annotated

import httpx
import typer
from rich.console import Console

from paceline.build import DEFAULT_MODEL
from paceline.measure.campaign import run_bench
from paceline.measure.child import ServerProcess, free_port
from paceline.measure.settings import SERVE_COMMAND, BenchSettings, parse_speculation

PROMPT = "Tell me a short story about a fox and a raven."
# Cells that finish in about a minute on two cores, and in which acceptance and speed do not go together.
DRAFTERS, CONCURRENCY, PROMPTS, MAX_TOKENS = "none,ngram:3,mtp:3,dflash2:7", (1, 4), 3, 64


def demo(
    out: Annotated[Path | None, typer.Option(help="Folder of the report. Default: a new one in runs/.")] = None,
) -> None:
    """Serve the model of this package, stream one chat with speculation on, then measure drafters × K × C."""
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="paceline-demo-") as scratch:
        _chat(console, Path(scratch))
    command = f"paceline bench --drafter {DRAFTERS} --concurrency {','.join(map(str, CONCURRENCY))}"
    command += f" --prompts {PROMPTS} --max-tokens {MAX_TOKENS}"
    console.print(f"\n[bold]bench[/] {command}")
    settings = BenchSettings(
        model=DEFAULT_MODEL,
        speculation=parse_speculation(DRAFTERS, None),
        concurrency=CONCURRENCY,
        prompts=PROMPTS,
        max_tokens=MAX_TOKENS,
    )
    run_bench(settings, console, out)


def _chat(console: Console, scratch: Path) -> None:
    """One chat over HTTP, streamed, and what the server's log says about it."""
    port, log = free_port(), scratch / "requests.jsonl"
    command = [*SERVE_COMMAND, DEFAULT_MODEL, "--port", str(port), "--max-context", "2048", "--request-log", str(log)]
    console.print(f"[bold]serve[/] {' '.join(['paceline', *command[3:]])}")
    with ServerProcess(command, port, log, scratch / "server.txt") as server:
        server.wait_ready()
        console.print(f"[bold]you[/] {PROMPT}\n[bold]{DEFAULT_MODEL}[/]", markup=True)
        body = {
            "model": DEFAULT_MODEL,
            "messages": [{"role": "user", "content": PROMPT}],
            "temperature": 0,
            "max_tokens": 160,
            "stream": True,
        }
        with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=120) as reply:
            reply.raise_for_status()
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    choices = json.loads(line[6:])["choices"]
                    print(choices[0]["delta"].get("content") or "" if choices else "", end="", flush=True)
    done = next(e for e in map(json.loads, log.read_text().splitlines()) if e["event"] == "request_done")
    result, spec, decode_s = done["result"], done["speculative"], done["timings_seconds"]["decode"]
    rate = (result["completion_tokens"] - 1) / decode_s
    console.print(
        f"\n[dim]{result['completion_tokens']} tokens at {rate:.1f} tok/s; "
        f"{1 + spec['accepted_tokens'] / max(spec['rounds'], 1):.2f} tokens per round, "
        f"{spec['accepted_tokens']} of {spec['drafted_tokens']} drafts accepted[/]"
    )

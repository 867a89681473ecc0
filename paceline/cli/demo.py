"""`paceline demo`: a chat and a measurement on this machine, from nothing, in a few minutes."""

import json
import tempfile
from pathlib import Path
from typing import Annotated

import httpx
import typer
from rich.console import Console

from paceline.build import DEFAULT_MODEL, fetch_known
from paceline.cli.options import progress_bar
from paceline.measure.campaign import run_bench
from paceline.measure.child import ServerProcess, free_port
from paceline.measure.settings import SERVE_COMMAND, BenchSettings

PROMPT = "What is the capital of France, and what is it known for?"


def demo(
    out: Annotated[Path | None, typer.Option(help="Folder of the report. Default: a new one in runs/.")] = None,
) -> None:
    """Fetch a small model, serve it, stream one chat with speculation on, then measure K × C and write the report."""
    console = Console(highlight=False)
    with progress_bar(console) as report:
        path = fetch_known(DEFAULT_MODEL, report)
    console.print(f"[bold]model[/] {DEFAULT_MODEL} ({path})")
    with tempfile.TemporaryDirectory(prefix="paceline-demo-") as scratch:
        _chat(console, Path(scratch))
    console.print("\n[bold]bench[/] draft lengths 0, 3, 7 × 1, 2, 4 requests at once")
    run_bench(BenchSettings(model=DEFAULT_MODEL, prompts=2, max_tokens=64), console, out)


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

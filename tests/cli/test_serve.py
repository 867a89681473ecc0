"""The commands for real: the model of the package served, the openai client, the same reply for every drafter, K and C."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest

QUESTIONS = [
    "Give me a JSON object for a person named Anna, age 31, living in Paris.",
    "Write a Python function that adds two numbers.",
    "Write a Markdown table with the columns Month and Days for all twelve months of the year.",
    "Tell me a short story about a fox and a raven.",
]


@contextmanager
def served(log: Path, *flags: str) -> Iterator[openai.OpenAI]:
    command = [sys.executable, "-m", "paceline", "serve", "--port", "0", "--max-context", "1024"]
    with subprocess.Popen([*command, "--request-log", str(log), *flags], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            assert "paceline serves" in line
            yield openai.OpenAI(base_url=line.split(" at ")[1].strip(), api_key="none", max_retries=0)
        finally:
            server.send_signal(signal.SIGTERM)
            assert server.wait(120) == 0


def ask(client: openai.OpenAI, question: str, temperature: float) -> str:
    reply = client.chat.completions.create(
        model="embedded",
        messages=[{"role": "user", "content": question}],
        max_tokens=40,
        seed=7,
        temperature=temperature,
    )
    return reply.choices[0].message.content or ""


@pytest.mark.timeout(600)
def test_same_replies_for_every_point(tmp_path: Path) -> None:
    replies = {}
    for drafter, k, c in (("none", 0, 1), ("ngram", 3, 4), ("mtp", 3, 2), ("dflash2", 7, 4)):
        log = tmp_path / f"{drafter}.jsonl"
        flags = ("--drafter", drafter, "--draft-tokens", str(k), "--max-concurrency", str(c), "--weights", "bf16")
        with served(log, *flags) as client, ThreadPoolExecutor(len(QUESTIONS)) as pool:
            for temperature in (0.0, 0.8):
                replies[drafter, temperature] = list(pool.map(lambda q, t=temperature: ask(client, q, t), QUESTIONS))
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        start = next(line for line in lines if line["event"] == "server_start")
        assert start["engine"]["speculative_draft_window"] == k and start["engine"]["weights"] == "bf16"
        assert sum(line["event"] == "request_done" for line in lines) == 2 * len(QUESTIONS)
        assert lines[-1]["event"] == "server_stop"
        accepted = sum(line["speculative"]["accepted_tokens"] for line in lines if line["event"] == "request_done")
        assert (accepted > 0) == (k > 0)
    for temperature in (0.0, 0.8):
        assert len({tuple(said) for (_, t), said in replies.items() if t == temperature}) == 1
    assert replies["none", 0.0] != replies["none", 0.8]


def test_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "paceline", "serve", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1 and port in done.stderr


def test_generate_and_doctor_print_json() -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "paceline", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    asked = ("generate", "Name a colour.", "--max-tokens", "8", "--weights", "bf16", "--json")
    one, two = (json.loads(run(*asked, "--draft-tokens", k).stdout) for k in ("0", "7"))
    assert one["text"] == two["text"] != "" and one["completion_tokens"] == len(one["token_ids"])
    checks = json.loads(run("doctor", "--json").stdout)
    assert {"python", "torch", "cpu", "memory", "port"} <= {check["name"] for check in checks}


@pytest.mark.timeout(600)
def test_a_conversation_finds_its_beginning(tmp_path: Path) -> None:
    """Every turn resends what was said; the server computes only what is new, and says so in the usage and in the log."""
    log = tmp_path / "log.jsonl"
    messages: list[dict[str, str]] = [{"role": "system", "content": "You answer in one short line. " * 40}]
    prompts, cached, said = [], [], []
    with served(log, "--drafter", "dflash2", "--weights", "bf16") as client:
        for question in (*QUESTIONS, QUESTIONS[-1]):
            if len(said) < len(QUESTIONS):
                messages.append({"role": "user", "content": question})
            reply = client.chat.completions.create(
                model="embedded",
                messages=messages,
                max_tokens=24,
                temperature=0.0,  # type: ignore[arg-type]
            )
            said.append(reply.choices[0].message.content or "")
            assert reply.usage is not None and reply.usage.prompt_tokens_details is not None
            prompts.append(reply.usage.prompt_tokens)
            cached.append(reply.usage.prompt_tokens_details.cached_tokens or 0)
            if len(said) < len(QUESTIONS):
                messages.append({"role": "assistant", "content": said[-1]})
    assert cached[0] == 0
    for before, found in zip(prompts[:-2], cached[1:-1], strict=True):
        # The last message's generation prompt is not what the template makes of it once a reply follows.
        assert before - 80 <= found <= before
    assert said[-1] == said[-2] and cached[-1] == (prompts[-1] - 1) // 64 * 64, "the same request again"
    done = [line["result"] for line in map(json.loads, log.read_text().splitlines()) if line["event"] == "request_done"]
    assert [r["prefix_cache_hit_tokens"] for r in done] == cached
    assert all(r["computed_prefill_tokens"] == r["prompt_tokens"] - r["prefix_cache_hit_tokens"] for r in done)
    assert done[0]["prefix_cache_miss"] == {"reason": "no_page", "differs_at": 0}

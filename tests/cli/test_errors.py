"""Every wrong flag or file gets one line on stderr: the field, the value, the fix. Never a stack trace."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.checkpoint.pull import SHIPPED

_EMBEDDED = ("--model", "embedded", "--drafter", "mtp", "--draft-head")


def paceline(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "paceline", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    "arguments,code,words",
    [
        (["serve", "--port", "99999"], 2, ["--port", "99999", "65535"]),
        (["serve", "--port", "x"], 2, ["--port", "x"]),
        (["serve", "--prot", "1"], 2, ["--prot", "--port"]),
        (["serve", "--host", "no.such.host.invalid"], 2, ["--host", "no.such.host.invalid"]),
        (["serve", "--drafter", "magic"], 2, ["--drafter", "magic", "ngram"]),
        (["serve", "--drafter", "none", "--draft-tokens", "3"], 2, ["--draft-tokens", "3", "none"]),
        (["serve", "--drafter-path", "/no/such"], 2, ["--drafter-path", "/no/such", "--drafter", "dflash2"]),
        (["generate", "hi", "--drafter", "dflash", "--drafter-path", "/no/such"], 2, ["--drafter-path", "/no/such"]),
        (["serve", "--draft-head", "half"], 2, ["--draft-head", "half", "shortlist:N"]),
        (
            ["serve", "--draft-head", "shortlist", "--drafter", "ngram"],
            2,
            ["--draft-head", "shortlist", "ngram", "mtp"],
        ),
        (
            ["serve", "--draft-head", "shortlist:9", "--drafter", "none"],
            2,
            ["--draft-head", "shortlist:9", "none", "mtp"],
        ),
        (["generate", "hi", *_EMBEDDED, "shortlist:0"], 2, ["--draft-head", "shortlist:0", "16", "4096"]),
        (["generate", "hi", *_EMBEDDED, "shortlist:15"], 2, ["--draft-head", "shortlist:15", "16", "4096"]),
        (["generate", "hi", *_EMBEDDED, "shortlist:4097"], 2, ["--draft-head", "shortlist:4097", "16", "4096"]),
        (["generate", "hi", *_EMBEDDED, "shortlist:-1"], 2, ["--draft-head", "shortlist:-1", "shortlist:N"]),
        (["generate", "hi", "--model", "smollm2", "--drafter", "dflash"], 2, ["--drafter", "dflash", "--drafter-path"]),
        (["serve", "--drafter", "mtp", "--drafter-path", "/no/such"], 2, ["--drafter-path", "/no/such", "mtp"]),
        (["serve", "--draft-tokens", "16"], 2, ["--draft-tokens", "16", "15"]),
        (["train", "drafter", "smollm2", "--out", "x", "--kind", "eagle"], 2, ["--kind", "eagle", "dflash2"]),
        (["train", "drafter", "smollm2", "--out", "x", "--data", "/no/such"], 2, ["--data", "/no/such", "--help"]),
        (["train", "drafter", "smollm2", "--out", "x", "--block", "1"], 2, ["--block", "1", "at least 2"]),
        (["serve", "--weights", "int3"], 2, ["--weights", "int3", "int4"]),
        (["serve", "--max-concurrency", "0"], 2, ["--max-concurrency", "0"]),
        (["serve", "--max-context", "999999"], 2, ["--max-context", "999999", "4096"]),
        (["serve", "--max-context", "10"], 2, ["--max-context", "10", "64"]),
        (["serve", "--kv-capacity", "100"], 2, ["--kv-capacity", "100", "4104"]),
        (["serve", "--admission", "never"], 2, ["--admission", "never", "on-demand", "reserve"]),
        (["serve", "--state-checkpoints", "-1"], 2, ["--state-checkpoints", "-1", "0"]),
        (["serve", "--prefill-chunk", "100"], 2, ["--prefill-chunk", "100", "64"]),
        (["serve", "--request-log", "/no/such/folder/log.jsonl"], 2, ["--request-log", "/no/such/folder"]),
        (["serve", "nothing-here"], 2, ["nothing-here", "smollm2"]),
        (["generate"], 2, ["prompt"]),
        (["doctor", "embedded"], 2, ["--drafter", "nothing"]),
        (["doctor", "--drafter", "mtp"], 2, ["MODEL", "nothing"]),
        (["doctor", "embedded", "--drafter", "none"], 2, ["--drafter", "none"]),
        (["doctor", "embedded", "--drafter", "mtp", "--draft-tokens", "0"], 2, ["--draft-tokens", "0"]),
        (["serve", "--pending-timeout", "nan"], 2, ["--pending-timeout", "nan"]),
        (["serve", "--log-stats-interval", "inf"], 2, ["--log-stats-interval", "inf"]),
        (["generate", "", "--raw", "--weights", "bf16"], 2, ["PROMPT", "no tokens"]),
        (["generate", "hi", "--seed", "9" * 30], 2, ["--seed", "64 bits"]),
        (["generate", "hi", "--temperature", "-1"], 2, ["--temperature", "-1"]),
        (["pull", "gpt-9"], 2, ["gpt-9", "smollm2"]),
        (["train", "embedded"], 2, ["--out"]),
        (["train", "embedded", "--out", "x", "--rows", "1"], 2, ["--rows", "1", "2"]),
        (["train", "embedded", "--out", "x", "--minutes-mtp", "nan"], 2, ["--minutes-mtp", "nan", "above 0"]),
        (["train", "embedded", "--out", "/proc/x", "--toy"], 2, ["--out", "/proc/x", "another folder"]),
        (["train", "embedded", "--out", "/proc/x", "--data", "/none"], 2, ["--data", "/none", "gsm8k_train.jsonl"]),
        (["train"], 2, ["command"]),
        (["bench", "--draft-tokens", "a"], 2, ["--draft-tokens", "a"]),
        (["bench", "--concurrency", "0"], 2, ["--concurrency", "0"]),
        (["bench", "--drafter", "ngram,magic"], 2, ["--drafter", "magic", "dflash2"]),
        (["bench", "--drafter", "mtp:x"], 2, ["--drafter", "mtp:x", "mtp:3"]),
        (["bench", "--max-context", "999999"], 2, ["--max-context", "999999", "4096"]),
        (["bench", "nothing-here"], 2, ["MODEL", "nothing-here", "embedded"]),
        (["fly"], 2, ["fly"]),
        ([], 2, ["command"]),
    ],
)
def test_one_line(arguments: list[str], code: int, words: list[str]) -> None:
    done = paceline(*arguments)
    lines = done.stderr.strip().splitlines()
    assert done.returncode == code, done.stderr
    assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    for word in words:
        assert word in lines[0]


def test_broken_files(tmp_path: Path) -> None:
    whole = SHIPPED["embedded"]
    cut = tmp_path / "cut"
    shutil.copytree(whole, cut, ignore=shutil.ignore_patterns("drafters", "model.safetensors"))
    weights = (whole / "model.safetensors").read_bytes()
    (cut / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    no_gguf = tmp_path / "cut.gguf"
    no_gguf.write_bytes(b"GGUF" + bytes(20))
    empty = tmp_path / "empty"
    empty.mkdir()
    lying = tmp_path / "lying"
    lying.mkdir()
    (lying / "config.json").write_text('{"model_type": "llama"}')
    (lying / "model.safetensors").write_bytes((10**12).to_bytes(8, "little") + b"{}")
    for path in (cut, no_gguf, empty, lying):
        done = paceline("generate", "hi", "--model", str(path))
        lines = done.stderr.strip().splitlines()
        assert done.returncode == 1 and len(lines) == 1 and str(path) in lines[0], done.stderr

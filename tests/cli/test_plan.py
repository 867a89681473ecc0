"""`paceline plan` as a person runs it: one JSON object, one table, one line for every error. All in this process."""

import json
import re
import sys
from pathlib import Path

import pytest

from paceline.build import EngineOptions
from paceline.cli.main import main

SHAPES = Path(__file__).parents[2] / "paceline" / "shapes" / "qwen3.8-27b"
# The published deployment, and what it had left after weights.
CASE = ("--available-after-weights", "9469855232", "--kv-dtype", "nvfp4", "--drafter", "dflash2")
CASE_8 = (*CASE, "--max-concurrency", "8", "--max-context", "131072", "--state-checkpoints", "0")


class Run:
    """The exit code and what was printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.capsys, self.monkeypatch = capsys, monkeypatch

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        self.monkeypatch.setattr(sys, "argv", ["paceline", "plan", *arguments])
        with pytest.raises(SystemExit) as done:
            main()
        out, err = self.capsys.readouterr()
        return int(done.value.code or 0), out, err


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(capsys, monkeypatch)


def test_json(run: Run) -> None:
    code, out, _ = run("qwen3.8-27b", *CASE_8, "--json")
    found = json.loads(out)
    assert code == 0 and found["fits"] is True and found["short_bytes"] == 0
    assert [item["name"] for item in found["items"]] == [
        "weights", "vision weights", "drafter weights", "device context", "KV", "state slots", "window inputs",
        "drafter context", "state checkpoints", "vision workspace", "workspace", "graph allowance", "headroom",
    ]  # fmt: skip
    assert all(type(item["bytes"]) is int and item["bytes"] >= 0 for item in found["items"])
    assert sum(item["bytes"] for item in found["items"]) == found["total_bytes"] <= found["available_bytes"]
    assert found["kv_capacity_tokens"] >= 330_000 and found["kv_bytes_per_token"] == 18_432
    assert found["state_checkpoint_bytes"] == 195_887_104
    assert found["full_requests"] == found["kv_capacity_tokens"] / 131_072
    assert set(found["largest"]) == {
        "max_context", "max_concurrency", "draft_tokens", "state_checkpoints", "kv_capacity", "kv_dtype", "drafter",
        "vision",
    }  # fmt: skip
    assert found["law"]["bytes_per_kv_token"] == 18_432
    points = {(cell["kv_dtype"], cell["draft_tokens"], cell["max_concurrency"]) for cell in found["grid"]}
    assert points == {
        (kv, k, c) for kv in ("bf16", "fp8", "int8", "nvfp4", "k8v4") for k in (0, 1, 3, 5, 7, 11, 15)
        for c in (1, 2, 4, 8, 16)
    }  # fmt: skip


def test_a_config_alone_plans_the_same(run: Run) -> None:
    named = json.loads(run("qwen3.8-27b", *CASE_8, "--json")[1])
    files = (str(SHAPES / "config.json"), "--drafter-config", str(SHAPES / "drafters" / "dflash2" / "config.json"))
    given = json.loads(run(*files, *CASE_8, "--json")[1])
    assert given["items"] == named["items"] and given["grid"] == named["grid"]


def test_a_refusal_names_bytes_and_flags(run: Run) -> None:
    code, out, err = run("qwen3.8-27b", *CASE_8, "--draft-tokens", "15", "--layout", "reference")
    assert code == 1 and len(err.strip().splitlines()) == 1
    assert "145,308,672 B (138.58 MiB) missing" in err and "145,308,672" in out
    for hint in ("--max-context 123136", "--max-concurrency 7", "--draft-tokens 7", "--drafter none"):
        assert hint in err
    assert "--kv-capacity" not in err and "--state-checkpoints" not in err
    for hint in re.findall(r"(--[a-z-]+) ([\w.]+)", err.partition("fits:")[2]):
        arguments = [*CASE_8, "--draft-tokens", "15", "--layout", "reference", *hint]
        if hint[0] == "--draft-tokens" or hint[1] == "none":
            arguments.remove("--draft-tokens")
            arguments.remove("15")
        assert run("qwen3.8-27b", *arguments, "--json")[0] == 0, hint


@pytest.mark.parametrize(
    "model,drafter",
    [("embedded", "dflash2"), ("smollm2", "dflash2"), ("qwen3.8-27b", "dflash2"), ("qwen3.5-4b", "ngram")],
)
def test_auto_takes_the_drafter_that_the_model_brings(run: Run, model: str, drafter: str) -> None:
    arguments = (model, "--max-context", "1024", "--device-memory", "80GB", "--json")
    found = json.loads(run(*arguments)[1])
    assert (found["drafter"], found["draft_tokens"]) == (drafter, 7)
    assert found["items"] == json.loads(run(*arguments, "--drafter", drafter)[1])["items"]


def test_a_token_costs_what_the_drafter_keeps_of_it(run: Run) -> None:
    arguments = ("qwen3.8-27b", "--device-memory", "80GB", "--max-context", "8192", "--drafter", "mtp", "--json")
    found = json.loads(run(*arguments)[1])
    assert found["kv_bytes_per_token"] == found["law"]["bytes_per_kv_token"] == 65_536 + 4096


def test_what_is_not_given_is_what_serve_takes(run: Run) -> None:
    found = json.loads(run("embedded", "--max-context", "1024", "--device-memory", "16GB", "--json")[1])
    options = EngineOptions()
    assert (found["state_checkpoints"], found["prefill_chunk"]) == (options.state_checkpoints, options.prefill_chunk)
    assert found["max_concurrency"] == options.max_concurrency
    assert found["largest"]["state_checkpoints"] == 1024
    other = json.loads(run("embedded", "--max-context", "1024", "--layout", "reference", "--json")[1])
    assert other["state_checkpoints"] == 0


def test_nothing_helps(run: Run) -> None:
    code, _, err = run("qwen3.8-27b", "--device-memory", "8GB", "--max-concurrency", "2")
    assert code == 1 and "missing" in err and "combine" in err


def test_the_table(run: Run) -> None:
    code, out, _ = run("qwen3.8-27b", "--profile", "rtx5090", "--drafter", "dflash2", "--max-concurrency", "1..3")
    assert code == 0
    assert "qwen3.8-27b on rtx5090" in out and "C=3" in out and "weights nvfp4" in out
    row = re.search(r"state slots +([\d,]+) +([\d.]+ MiB) +3 slots", out)
    assert row is not None and row[1] == f"{3 * 153_944_064:,}"
    for words in (
        "KV capacity:",
        "checkpoint on the device costs",
        "Linear fit: 65,536 B a KV token",
        "Largest context",
    ):
        assert words in out
    assert re.search(r"KV dtype +K +C=1 +C=2 +C=3\n", out)
    assert max(map(len, out.splitlines())) <= 128


def test_a_long_range_stays_readable(run: Run) -> None:
    _, out, _ = run("qwen3.8-27b", *CASE, "--max-concurrency", "1..16", "--max-context", "8192")
    assert re.search(r"KV dtype +K +C=1 +C=2 +C=4 +C=8 +C=16\n", out)
    assert all(re.search(rf"^ *{c} +[\d,]+ ", out, re.MULTILINE) for c in range(1, 17))
    assert max(map(len, out.splitlines())) <= 128


def test_auto_context_and_explicit_capacity(run: Run) -> None:
    auto = json.loads(run("qwen3.8-27b", *CASE, "--max-concurrency", "16", "--json")[1])
    assert auto["max_context"] % 1024 == 0
    assert auto["max_context"] <= auto["largest"]["max_context"] < auto["max_context"] + 1024
    margin = json.loads(run("qwen3.8-27b", *CASE, "--max-concurrency", "16", "--safety-margin", "1GB", "--json")[1])
    assert margin["max_context"] < auto["max_context"]
    given = json.loads(run("qwen3.8-27b", *CASE_8, "--kv-capacity", "200000", "--json")[1])
    assert given["kv_capacity_tokens"] == 200_000 and given["largest"]["kv_capacity"] >= 330_000


def test_this_machine_and_small_models(run: Run) -> None:
    for name in ("smollm2", "embedded"):
        found = json.loads(run(name, "--max-context", "1024", "--json")[1])
        assert found["fits"] and found["device"] == "this machine" and found["weights"] == "bf16"
        assert {item["bytes"] for item in found["items"] if item["name"] == "graph allowance"} == {0}


@pytest.mark.parametrize(
    "arguments,words",
    [
        (["qwen9"], ["MODEL", "qwen9", "qwen3.8-27b"]),
        (["--profile", "rtx6090"], ["--profile", "rtx6090", "rtx5090"]),
        (["--device-memory", "32 apples"], ["--device-memory", "32 apples", "32GB"]),
        (["--device-memory", "32"], ["--device-memory", "32", "whole device"]),
        (["--device-memory", "32GB", "--profile", "h200"], ["--profile", "h200", "32GB"]),
        (["--available-after-weights", "-5"], ["--available-after-weights", "-5"]),
        (["--max-concurrency", "0"], ["--max-concurrency", "0", "1"]),
        (["--max-concurrency", "4..2"], ["--max-concurrency", "4..2"]),
        (["--max-concurrency", "65"], ["--max-concurrency", "65", "64"]),
        (["--max-concurrency", "9", "--layout", "reference"], ["--max-concurrency", "9", "8"]),
        (["--max-context", "much"], ["--max-context", "much", "auto"]),
        (["--max-context", "8193"], ["--max-context", "8193", "8192"]),
        (["--kv-capacity", "100", "--max-context", "1024"], ["--kv-capacity", "100", "--max-context"]),
        (["--kv-dtype", "int3"], ["--kv-dtype", "int3", "nvfp4"]),
        (["--weights", "q4"], ["--weights", "q4", "int4"]),
        (["--drafter", "magic"], ["--drafter", "magic", "ngram"]),
        (["--drafter", "mtp"], ["--drafter", "mtp", "smollm2"]),
        (["--drafter", "dflash"], ["--drafter", "dflash", "--drafter-config"]),
        (["--drafter", "dflash", "--drafter-config", "/no/such"], ["--drafter-config", "/no/such"]),
        (["--drafter-config", "/no/such"], ["--drafter-config", "/no/such", "add --drafter"]),
        (["--drafter", "ngram", "--drafter-config", "/no"], ["--drafter-config", "/no", "ngram"]),
        (["--layout", "reference", "--drafter", "ngram"], ["--draft-tokens", "7", "ngram"]),
        (["--draft-tokens", "16"], ["--draft-tokens", "16", "15"]),
        (["--drafter", "none", "--draft-tokens", "3"], ["--draft-tokens", "3", "none"]),
        (["--state-checkpoints", "-1"], ["--state-checkpoints", "-1"]),
        (["--state-checkpoints", "1025"], ["--state-checkpoints", "1025", "1024"]),
        (["--prefill-chunk", "100"], ["--prefill-chunk", "100", "64"]),
        (["--safety-margin", "lots"], ["--safety-margin", "lots"]),
        (["--layout", "other"], ["--layout", "other", "reference"]),
        (["--vision"], ["--vision", "smollm2"]),
    ],
)
def test_one_line(run: Run, arguments: list[str], words: list[str]) -> None:
    if not arguments[0].startswith("-"):
        code, _, err = run(*arguments)
    else:
        code, _, err = run("smollm2", *arguments)
    lines = err.strip().splitlines()
    assert code == 2 and len(lines) == 1 and lines[0].startswith("error: "), err
    assert all(word in lines[0] for word in words), err


def test_a_drafter_of_another_model(run: Run) -> None:
    config = str(SHAPES / "drafters" / "dflash2")
    code, _, err = run("qwen3.5-4b", "--drafter", "dflash2", "--drafter-config", config)
    assert code == 1 and "hidden_size = 5120" in err and "another model" in err

"""`paceline train embedded` at toy size: it runs, is killed, goes on as if it had not been, learns something, and exports what
loads in paceline and in transformers."""

import json
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer
from transformers.models.qwen3_5 import Qwen3_5ForCausalLM

from paceline.build import EngineOptions, configure, local_engine
from paceline.core.messages import Event, Tokens
from paceline.core.request import Request
from paceline.train.corpus import ANSWER, ID_MASK, START, CorpusSettings, build, chats_of, held_out
from paceline.train.embedded import toy_plan
from paceline.train.export import bf16_state
from paceline.train.loop import Log
from paceline.train.recipes.target import train_target
from paceline.train.workloads import MAKERS
from tests.kit.run import sampling

STAGES = ["tokenizer", "corpus", "target", "answers", "mtp", "dflash", "dflash2", "eval", "export"]
KILLED_AT = 4


def lines_of(out: Path) -> list[dict[str, object]]:
    log = out / "log.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build that was killed while its target trained, and then finished by the same command."""
    out = tmp_path_factory.mktemp("build")
    command = [sys.executable, "-m", "paceline", "train", "embedded", "--out", str(out), "--toy"]
    command += ["--device", "cpu", "--processes", "1"]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while not any(line.get("step") == KILLED_AT for line in lines_of(out)):
            assert first.poll() is None, "it ended before it could be killed"
            time.sleep(0.01)
    finally:
        first.kill()
        first.wait()
    assert (out / "target.checkpoint.pt").exists() and not (out / "target.safetensors").exists()
    second = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert second.returncode == 0, second.stderr
    assert second.stderr == f"report: {out / 'report.html'}\n"
    assert [json.loads(line) for line in second.stdout.splitlines()] == lines_of(out)[
        -len(second.stdout.splitlines()) :
    ]
    return out


def test_every_stage_reports_and_learns(built: Path) -> None:
    results = json.loads((built / "summary.json").read_text())
    assert list(results) == STAGES
    for stage in ("target", "mtp", "dflash"):
        losses = [line["loss"] for line in lines_of(built) if line.get("stage") == stage and "step" in line]
        assert losses[-1] < losses[0], stage  # type: ignore[operator]
    assert set(results["eval"]) == {"mtp", "dflash", "dflash2"}
    assert set(results["eval"]["mtp"]) == {*MAKERS, "pooled"}


def test_a_killed_build_goes_on_where_it_stood(built: Path) -> None:
    lines = lines_of(built)
    starts = [i for i, line in enumerate(lines) if "start" in line]
    assert len(starts) == 2
    again = lines[starts[1] :]
    assert [line["stage"] for line in again if "skipped" in line] == ["tokenizer", "corpus"]
    resumed = next(line for line in again if "resumed_at" in line)
    # A checkpoint follows every step here; the last step before the kill may have been cut short.
    assert resumed["stage"] == "target" and resumed["resumed_at"] >= KILLED_AT - 1  # type: ignore[operator]
    steps = [line["step"] for line in again if line.get("stage") == "target" and "step" in line]
    assert all(a < b for a, b in pairwise([resumed["resumed_at"], *steps]))  # type: ignore[operator]
    assert steps[-1] == json.loads((built / "summary.json").read_text())["target"]["steps"] == 16
    assert not list(built.glob("*.pt")) and not list(built.rglob("*.part"))


def test_a_killed_target_has_the_bits_of_one_that_was_not(built: Path, tmp_path: Path) -> None:
    rows = np.load(built / "rows.npy")
    log = Log(tmp_path / "log.jsonl")
    target, outcome = train_target(toy_plan().target, rows, tmp_path, log, torch.device("cpu"), torch.float32)
    assert outcome.steps == 16
    found = load_file(built / "target.safetensors")
    for name, value in bf16_state(target).items():
        assert torch.equal(found[name], value), name


def test_the_report_is_written(built: Path) -> None:
    page = (built / "report.html").read_text()
    assert page.count("<svg") == 3 and "dflash2.config.dynamic</dt><dd>True" in page
    assert {file.name for file in (built / "plots").iterdir()} == {"loss.svg", "tokens_per_round.svg", "acceptance.svg"}


def test_the_engine_drafts_with_it(built: Path) -> None:
    """The drafters are found in the folder and change nothing."""

    def reply(drafter: str, k: int) -> tuple[list[int], int]:
        options = EngineOptions(
            model=str(built / "embedded"), weights="bf16", drafter=drafter, draft_tokens=k, max_context=256, threads=1
        )
        ids: list[int] = []
        proposed = 0

        def take(event: Event) -> None:
            nonlocal proposed
            if isinstance(event, Tokens):
                ids.extend(event.ids)
                proposed += event.proposed

        engine = local_engine(configure(options), take)
        engine.submit(Request(id=1, prompt=list(range(20, 90)), max_tokens=24, sampling=sampling()))
        while engine.busy:
            engine.step()
        return ids, proposed

    plain, none = reply("none", 0)
    assert len(plain) == 24 and none == 0
    for drafter, k in (("mtp", 3), ("dflash", 7), ("dflash2", 7)):
        ids, proposed = reply(drafter, k)
        assert ids == plain and proposed > 0, drafter


def test_export_loads(built: Path) -> None:
    folder = built / "embedded"
    files = {str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file()}
    texts = {
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "generation_config.json",
        "MODEL_CARD.md",
    }
    pairs = {
        f"{at}{name}"
        for at in ("", "drafters/dflash/", "drafters/dflash2/")
        for name in ("config.json", "model.safetensors")
    }
    assert files == texts | pairs
    model = Qwen3_5ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, return_tensors="pt"
    )
    ids = prompt if isinstance(prompt, torch.Tensor) else prompt["input_ids"]
    assert torch.isfinite(model(ids).logits).all()
    assert "mtp.fc.weight" in load_file(folder / "model.safetensors")
    plain, grown = (load_file(folder / "drafters" / name / "model.safetensors") for name in ("dflash", "dflash2"))
    layers = toy_plan().drafter.config.layers
    assert len(plain) == 3 + 11 * layers
    assert len(grown) == len(plain) + 4 * layers + 3
    config = json.loads((folder / "drafters" / "dflash2" / "config.json").read_text())
    assert config["architectures"] == ["DFlash2DraftModel"]
    assert config["is_causal"] is False
    assert set(config["paceline"]["expected_acceptance"]) == {"7"}


def test_corpus_does_not_depend_on_processes(built: Path) -> None:
    tokenizer = built / "embedded" / "tokenizer.json"
    settings = CorpusSettings(60, row_tokens=256)
    rows = build(settings, tokenizer, processes=1)
    assert np.array_equal(rows, build(settings, tokenizer, processes=2))
    assert (rows[:, 0] & START).all()
    assert (rows & ANSWER).any(1).mean() > 0.8  # in so short rows some prompts leave no room for the answer
    assert (rows & ID_MASK).max() < 640


def test_held_out_prompts_are_new() -> None:
    settings = CorpusSettings(8000)
    seen = {chat.turns for batch in range(settings.batches) for chat in chats_of(settings, batch)}
    for kind in MAKERS:
        chats = held_out(kind, 40)
        assert len({chat.turns for chat in chats}) == 40
        assert not any(chat.turns in seen for chat in chats)


def test_training_needs_no_serving_packages() -> None:
    """A GPU machine that only trains has PyTorch, safetensors and tokenizers, nothing else."""
    absent = "msgspec fastapi gguf httpx jinja2 matplotlib pydantic zmq rich typer uvicorn transformers"
    code = f"import sys; sys.modules.update(dict.fromkeys({absent!r}.split())); import paceline.train.embedded"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)

"""Every stage of the embedded model's build at toy size: it runs, learns something, resumes, and exports what loads."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoTokenizer
from transformers.models.qwen3_5 import Qwen3_5ForCausalLM

from paceline.train.corpus import ANSWER, ID_MASK, START, CorpusSettings, build, chats_of, held_out
from paceline.train.embedded import Build, toy_plan
from paceline.train.loop import Log, LoopSettings, train
from paceline.train.workloads import MAKERS


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("embedded")
    work = Build(out, toy_plan(), torch.device("cpu"), processes=1)
    for stage in work.stages().values():
        stage()
    return out


def test_every_stage_reports_and_learns(built: Path) -> None:
    results = json.loads((built / "summary.json").read_text())
    assert list(results) == ["tokenizer", "corpus", "target", "answers", "mtp", "dflash", "dflash2", "eval", "export"]
    lines = [json.loads(line) for line in (built / "log.jsonl").read_text().splitlines()]
    for stage in ("target", "mtp", "dflash"):
        losses = [line["loss"] for line in lines if line["stage"] == stage and "step" in line]
        assert losses[-1] < losses[0], stage
    assert set(results["eval"]) == {"mtp", "dflash", "dflash2"}
    assert set(results["eval"]["mtp"]) == {*MAKERS, "pooled"}


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


def test_a_stage_resumes_where_it_stopped(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Linear(64, 64)
    settings = LoopSettings(5.0, max_steps=10, save_every_s=-1.0, log_every=5)
    calls = 0

    def loss(stop: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        nonlocal calls
        calls += 1
        if calls > stop:
            raise KeyboardInterrupt
        return module(torch.ones(1, 64)).pow(2).mean(), {}

    log = Log(tmp_path / "log.jsonl")
    with pytest.raises(KeyboardInterrupt):
        train("x", module, lambda: loss(6), settings, tmp_path, log)
    calls = 0
    outcome = train("x", module, lambda: loss(99), settings, tmp_path, log)
    assert (outcome.steps, calls) == (10, 4)
    assert not (tmp_path / "x.checkpoint.pt").exists()


def test_a_loss_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    module = nn.Linear(4, 4)
    settings = replace(toy_plan().mtp.loop, max_steps=10)
    with pytest.raises(FloatingPointError, match="lower the rates"):
        train("x", module, lambda: (module.weight.sum() * float("nan"), {}), settings, tmp_path, Log(tmp_path / "log"))


def test_training_needs_no_serving_packages() -> None:
    """A GPU machine that only trains has PyTorch, safetensors and tokenizers, nothing else."""
    absent = "msgspec fastapi gguf httpx jinja2 matplotlib pydantic zmq rich typer uvicorn transformers"
    code = f"import sys; sys.modules.update(dict.fromkeys({absent!r}.split())); import paceline.train.embedded"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)

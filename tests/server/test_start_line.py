"""What `server_start` says of a drafter: real backends over the shipped model, the line as it stands in the log."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import paceline
from paceline.build import EngineOptions, configure
from paceline.runner.backend import make_backend
from paceline.server.config import ServerConfig
from paceline.server.reqlog import RequestLog
from paceline.text.tokenizer import Tokenizer

FOLDER = Path(paceline.__file__).parent / "embedded"
SLOTS, CONTEXT = 2, 256


def start_line(folder: Path, drafter: str, **options: Any) -> dict[str, Any]:
    config = configure(
        EngineOptions("embedded", "bf16", drafter, max_concurrency=SLOTS, max_context=CONTEXT, threads=1, **options)
    )
    path = folder / f"{drafter}.jsonl"
    log = RequestLog(ServerConfig(public_model_id="m", log_path=str(path)), config)
    backend = make_backend(config)
    log.server_start(Tokenizer.load(config.model_folder).generation.sampling, backend.facts())
    backend.close()
    line: dict[str, Any] = json.loads(path.read_text())
    assert line["engine"]["speculative_backend"] == drafter
    described: dict[str, Any] = line["drafter"]
    assert line["memory"] == {name: value for name, value in backend.facts().items() if name.endswith("_bytes")}
    assert line["memory"]["drafter_state_bytes"] == described["state_bytes"]
    return described


def stored(file: Path, prefix: str = "") -> int:
    return sum(2 * t.numel() for name, t in load_file(file).items() if name.startswith(prefix))


@pytest.mark.parametrize("drafter", ["none", "ngram"])
def test_drafters_without_a_model(drafter: str, tmp_path: Path) -> None:
    assert start_line(tmp_path, drafter) == {
        "path": None, "weights_bytes": 0, "state_bytes": 0, "trained_block": None, "expected_acceptance": {},
    }  # fmt: skip


def test_the_head_in_the_checkpoint(tmp_path: Path) -> None:
    hidden = json.loads((FOLDER / "config.json").read_text())["hidden_size"]
    places = (CONTEXT // 64 + 1) * 64  # K + 1 more than the context, in whole blocks
    assert start_line(tmp_path, "mtp", draft_tokens=3) == {
        "path": None,
        "weights_bytes": stored(FOLDER / "model.safetensors", "mtp."),
        "state_bytes": SLOTS * (places * 2 * 2 * 64 + hidden) * 2,
        "trained_block": None,
        "expected_acceptance": json.loads((FOLDER / "config.json").read_text())["paceline_mtp"]["expected_acceptance"],
    }


def test_a_drafter_that_the_package_brings_for_a_model(tmp_path: Path) -> None:
    config = configure(EngineOptions("smollm2", "bf16", "dflash2", threads=1))
    assert config.drafter_path is not None and "smollm2" in config.drafter_path
    log = RequestLog(ServerConfig(public_model_id="m", log_path=str(tmp_path / "log")), config)
    log.server_start(Tokenizer.load(config.model_folder).generation.sampling, {})
    assert json.loads((tmp_path / "log").read_text())["drafter"]["path"] is None


@pytest.mark.parametrize("drafter", ["dflash", "dflash2"])
def test_a_drafter_with_a_folder(drafter: str, tmp_path: Path) -> None:
    """The path stands there only where the folder is not the model's own, whichever way it was named."""
    own = FOLDER / "drafters" / drafter
    shipped = start_line(tmp_path, drafter)
    assert shipped == {
        "path": None,
        "weights_bytes": stored(own / "model.safetensors"),
        "state_bytes": 2 * SLOTS * CONTEXT * 2 * 2 * 64 * 2,  # two layers, keys and values of two heads
        "trained_block": 8,
        "expected_acceptance": json.loads((own / "config.json").read_text())["paceline"]["expected_acceptance"],
    }
    (tmp_path / "again").mkdir()
    assert start_line(tmp_path / "again", drafter, drafter_path=str(own)) == shipped
    elsewhere = tmp_path / "mine"
    shutil.copytree(own, elsewhere)
    (tmp_path / "third").mkdir()
    assert start_line(tmp_path / "third", drafter, drafter_path=str(elsewhere)) == {**shipped, "path": str(elsewhere)}

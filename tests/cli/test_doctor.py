"""`doctor` with a drafter: a good one is ok, a broken one – which changes no reply – is found, and the exit code says so."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import paceline
from paceline.build import EngineOptions, configure
from paceline.cli import acceptance, doctor

DRAFTERS = Path(paceline.__file__).parent / "embedded" / "drafters"
Config = dict[str, Any]


def check(drafter: str, k: int, path: Path | None = None) -> doctor.Check:
    return doctor._drafter(
        configure(
            EngineOptions(
                "embedded", "bf16", drafter, str(path) if path else None, k,
                max_concurrency=acceptance.CONCURRENCY, max_context=acceptance.CONTEXT_TOKENS, threads=1,
            )
        )
    )  # fmt: skip


def changed(folder: Path, drafter: str, change: Callable[[Config], object], permuted: bool = False) -> Path:
    shutil.copytree(DRAFTERS / drafter, folder)
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    if permuted:
        tensors = load_file(folder / "model.safetensors")
        order = torch.randperm(tensors["fc.weight"].shape[0], generator=torch.Generator().manual_seed(0))
        tensors["fc.weight"] = tensors["fc.weight"][order].contiguous()
        save_file(tensors, folder / "model.safetensors")
    return folder


def inner(**values: object) -> Callable[[Config], object]:
    return lambda config: config["dflash_config"].update(values)


@pytest.mark.parametrize("drafter,k", [("dflash2", 7), ("mtp", 3), ("ngram", 7)])
def test_shipped_drafters_are_ok(drafter: str, k: int) -> None:
    found = check(drafter, k)
    assert (found.level, found.fix) == ("ok", ""), found
    assert f"at K={k}" in found.found and "tokens/round" in found.found


@pytest.mark.parametrize(
    "change,permuted,level,word",
    [
        (lambda config: None, True, "fail", "dead: "),
        (inner(target_layer_ids=[7, 5, 3, 1]), False, "fail", "dead: "),
        (inner(target_layer_ids=[0, 2, 4, 6]), False, "warn", "low: "),
        (inner(mask_token_id=100), False, "fail", "dead: "),
        (lambda config: config.pop("paceline"), True, "fail", "dead: "),
    ],
    ids=["permuted", "order of taps", "taps off by one", "mask", "permuted, states nothing"],
)
def test_broken_drafters(
    change: Callable[[Config], object], permuted: bool, level: str, word: str, tmp_path: Path
) -> None:
    found = check("dflash2", 7, changed(tmp_path / "broken", "dflash2", change, permuted))
    assert found.level == level and found.found.startswith(word), found
    assert all(cause in found.fix for cause in ("target_layer_ids", "mask_token_id", "another target", "chat template"))
    assert ("states 86.8% for K=7" in found.found) != ("states nothing" in found.found)


def test_a_drafter_that_states_nothing_can_be_ok(tmp_path: Path) -> None:
    found = check("dflash2", 7, changed(tmp_path / "unstated", "dflash2", lambda config: config.pop("paceline")))
    assert found.level == "ok" and "states nothing" in found.found


def test_a_folder_that_does_not_fit_is_a_finding(tmp_path: Path) -> None:
    found = check("dflash2", 7, changed(tmp_path / "other", "dflash2", lambda config: config.update(hidden_size=128)))
    assert found.level == "fail" and "hidden_size = 128" in found.found


def test_exit_codes(tmp_path: Path) -> None:
    broken = changed(tmp_path / "broken", "dflash2", lambda config: None, permuted=True)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "paceline", "doctor", *arguments]
        one = {min(os.sched_getaffinity(0))}
        return subprocess.run(
            command, capture_output=True, text=True, timeout=200, preexec_fn=lambda: os.sched_setaffinity(0, one)
        )

    asked = ("embedded", "--drafter", "dflash2", "--weights", "bf16", "--json")
    for path, code, level in ((str(broken), 1, "fail"), (str(DRAFTERS / "dflash2"), 0, "ok")):
        done = run(*asked, "--drafter-path", path)
        checks = {check["name"]: check for check in json.loads(done.stdout)}
        others = [check for name, check in checks.items() if check["level"] == "fail" and name != "drafter dflash2"]
        assert others == [] and checks["drafter dflash2"]["level"] == level
        assert done.returncode == code

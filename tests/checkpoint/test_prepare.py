"""The prepared folder: what is in it, when it is made again, and that making it needs no torch."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from paceline.checkpoint import prepare as module
from paceline.checkpoint.prepare import cache_folder, prepare
from paceline.core.errors import CheckpointError, ConfigError

TOKENIZER = {
    "model": {"type": "BPE"},
    "added_tokens": [{"id": 5, "content": "<eos>"}, {"id": 6, "content": "<bos>"}, {"id": 8, "content": "<turn>"}],
    "post_processor": {
        "type": "Sequence",
        "processors": [{"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<bos>", "type_id": 0}}]}],
    },
}


def folder(path: Path, **files: Any) -> Path:
    """A folder with one tensor; `files` are JSON values by stem, or text when they are strings."""
    path.mkdir(exist_ok=True)
    save_file({"model.norm.weight": torch.ones(2)}, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({"model_type": "toy", "eos_token_id": 5, "bos_token_id": 6}))
    for stem, content in files.items():
        if isinstance(content, str):
            (path / f"{stem}.jinja").write_text(content)
        else:
            (path / f"{stem}.json").write_text(json.dumps(content))
    return path


def load(prepared: Path, name: str) -> Any:
    return json.loads((prepared / name).read_text())


def test_smollm2(smollm2: Path, tmp_path: Path) -> None:
    prepared = prepare(smollm2, tmp_path)
    assert prepared.parent == tmp_path / "models"
    assert sorted(file.name for file in prepared.iterdir()) == [
        "chat_template.jinja", "config.json", "generation.json", "source.json", "tokenizer.json",
    ]  # fmt: skip
    source = load(prepared, "source.json")
    assert prepared.name == f"SmolLM2-135M-Instruct.Q4_1-{source['weights_id'][:12]}"
    assert source["path"] == str(smollm2) and source["format"] == "gguf" and source["size_bytes"] == 98_362_432
    assert load(prepared, "generation.json") == {
        "eos_ids": [2, 0], "bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>",
        "add_bos": False,
    }  # fmt: skip
    start = time.perf_counter()
    assert prepare(smollm2, tmp_path) == prepared
    assert time.perf_counter() - start < 0.05


def test_no_torch_is_imported(smollm2: Path, qwen35_folder: Path, tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from paceline.checkpoint.prepare import prepare\n"
        "from paceline.checkpoint.pull import pull\n"
        f"[prepare(Path(p), Path({str(tmp_path)!r})) for p in ({str(smollm2)!r}, {str(qwen35_folder)!r})]\n"
        "sys.exit('torch' in sys.modules)"
    )
    root = Path(module.__file__).parents[2]
    subprocess.run([sys.executable, "-c", script], check=True, env=os.environ | {"PYTHONPATH": str(root)}, timeout=240)


def test_folder_text_side(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    source = folder(
        tmp_path / "toy", tokenizer=TOKENIZER,
        tokenizer_config={"eos_token": {"content": "<turn>"}, "pad_token": None, "chat_template": named},
        generation_config={"eos_token_id": [7, 5], "temperature": 0.6, "top_k": 20, "top_p": 0.95, "do_sample": True},
    )  # fmt: skip
    prepared = prepare(source, tmp_path / "cache")
    # eos ids: the generation config's, the config's, and the tokenizer's own eos; bos from config.json's id.
    assert load(prepared, "generation.json") == {
        "eos_ids": [7, 5, 8], "bos_token": "<bos>", "eos_token": "<turn>", "pad_token": None, "add_bos": True,
        "temperature": 0.6, "top_k": 20, "top_p": 0.95,
    }  # fmt: skip
    assert (prepared / "chat_template.jinja").read_text() == "D"
    assert (prepared / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()


def test_without_text_side(tmp_path: Path) -> None:
    prepared = prepare(folder(tmp_path / "toy"), tmp_path / "cache")
    assert sorted(file.name for file in prepared.iterdir()) == ["config.json", "generation.json", "source.json"]
    assert load(prepared, "generation.json")["eos_ids"] == [5]


def test_template_file_wins_and_add_bos_is_obeyed(tmp_path: Path) -> None:
    settings = {"chat_template": "old", "add_bos_token": False, "bos_token": "<bos>"}
    source = folder(tmp_path / "toy", tokenizer=TOKENIZER, tokenizer_config=settings, chat_template="new")
    prepared = prepare(source, tmp_path / "cache")
    assert (prepared / "chat_template.jinja").read_text() == "new"
    assert load(prepared, "generation.json")["add_bos"] is False


def test_second_call_opens_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = folder(tmp_path / "toy")
    prepared = prepare(source, tmp_path / "cache")
    (prepared / "weights-x.safetensors").write_bytes(b"converted by someone else")
    monkeypatch.setattr(module, "open_checkpoint", lambda _: pytest.fail("opened again"))
    assert prepare(source, tmp_path / "cache") == prepared


def test_changed_text_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    source = folder(tmp_path / "toy", chat_template="one")
    first = prepare(source, cache)
    (source / "chat_template.jinja").write_text("two, longer")
    second = prepare(source, cache)
    assert (first / "chat_template.jinja").read_text() == "one"
    assert (second / "chat_template.jinja").read_text() == "two, longer"
    assert load(first, "source.json")["weights_id"] == load(second, "source.json")["weights_id"]
    (source / "chat_template.jinja").write_text("one")
    assert prepare(source, cache) == first


def test_moved_source_is_found_again(tmp_path: Path) -> None:
    """The weights are read from the path in source.json, so it must be the one that was asked for last."""
    cache, source = tmp_path / "cache", folder(tmp_path / "toy")
    first = prepare(source, cache)
    (first / "weights-x.safetensors").write_bytes(b"converted by someone else")
    (tmp_path / "sub").mkdir()
    moved = Path(shutil.move(source, tmp_path / "sub" / "toy"))
    assert prepare(moved, cache) == first
    assert load(first, "source.json")["path"] == str(moved)
    assert (first / "weights-x.safetensors").exists()


def test_two_copies_share_a_folder_that_names_the_last_one(tmp_path: Path) -> None:
    copies = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        copies.append(folder(tmp_path / name / "toy"))
    prepared = {prepare(copy, tmp_path / "cache") for copy in (*copies, copies[0])}
    assert len(prepared) == 1
    assert load(prepared.pop(), "source.json")["path"] == str(copies[0])


def test_damaged_prepared_folder_is_replaced(tmp_path: Path) -> None:
    cache, source = tmp_path / "cache", folder(tmp_path / "toy", chat_template="one")
    (prepare(source, cache) / "chat_template.jinja").unlink()
    again = prepare(source, cache)
    assert (again / "chat_template.jinja").read_text() == "one"
    (again / "config.json").write_text("{")
    assert load(prepare(source, cache), "config.json")["model_type"] == "toy"
    assert not list((cache / "models").glob(".building*"))


def test_gguf_alone_in_a_folder(small_gguf: Path, tmp_path: Path) -> None:
    prepared = prepare(small_gguf.parent, tmp_path / "cache")
    assert load(prepared, "source.json")["name"] == "small"
    assert load(prepared, "source.json")["path"] == str(small_gguf.parent)


def test_cut_source_is_refused_and_leaves_nothing(small_gguf: Path, tmp_path: Path) -> None:
    small_gguf.write_bytes(small_gguf.read_bytes()[:-1000])
    with pytest.raises(CheckpointError, match="cut short"):
        prepare(small_gguf, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
    with pytest.raises(CheckpointError, match="no such file or folder"):
        prepare(tmp_path / "nothing", tmp_path / "cache")


def test_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(ConfigError, match=r"cannot be written .*set PACELINE_CACHE"):
        prepare(folder(tmp_path / "toy"), tmp_path / "cache")


def test_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", "/some/where")
    assert cache_folder() == Path("/some/where")
    monkeypatch.delenv("PACELINE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder() == Path("/xdg/paceline")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "paceline"

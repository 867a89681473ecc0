"""Damaged files: every cut and every flipped bit ends in one CheckpointError line or in a readable file, nothing else."""

import random
import struct
from pathlib import Path

import numpy as np
import pytest

from paceline.checkpoint import gguf_header
from paceline.checkpoint.base import open_checkpoint
from paceline.checkpoint.gguf_header import read_header
from paceline.core.errors import CheckpointError
from tests.checkpoint import tiny


def read_everything(path: Path) -> None:
    reader = open_checkpoint(path)
    reader.config(), reader.text(), reader.weights_id()
    for name in reader.names():
        assert tuple(reader.read(name).shape) == reader.shape(name)


def outcome(path: Path) -> str:
    """'' when all was read, else the one line; any other exception fails the test."""
    try:
        read_everything(path)
    except CheckpointError as error:
        assert "\n" not in str(error) and str(path.parent) in str(error)
        return str(error)
    return ""


def test_gguf_cut_anywhere(small_gguf: Path) -> None:
    whole = small_gguf.read_bytes()
    tensors = read_header(small_gguf).tensors.values()
    end = max(tensor.offset + tensor.size_bytes for tensor in tensors)
    start = min(tensor.offset for tensor in tensors)
    rng = random.Random(1)
    cuts = {
        0,
        1,
        3,
        4,
        8,
        23,
        24,
        start - 1,
        start,
        end - 1,
        *rng.sample(range(start), 150),
        *rng.sample(range(start, end), 50),
    }
    for cut in sorted(cuts):
        small_gguf.write_bytes(whole[:cut])
        assert outcome(small_gguf), f"cut at {cut} of {end} went unnoticed"


def test_gguf_flipped_bits(small_gguf: Path) -> None:
    whole = small_gguf.read_bytes()
    start = min(tensor.offset for tensor in read_header(small_gguf).tensors.values())
    rng, seen = random.Random(2), 0
    for _ in range(400):
        damaged = bytearray(whole)
        damaged[rng.randrange(start)] ^= 1 << rng.randrange(8)
        small_gguf.write_bytes(damaged)
        seen += bool(outcome(small_gguf))
    assert seen > 100, "most flips in the header must be noticed"


def test_gguf_huge_counts(small_gguf: Path) -> None:
    whole = small_gguf.read_bytes()
    for at in (8, 16):
        for count in (2**63, 2**40, 2**24):
            small_gguf.write_bytes(whole[:at] + struct.pack("<Q", count) + whole[at + 8 :])
            assert outcome(small_gguf)


@pytest.mark.parametrize(
    ("offset", "data", "words"),
    [
        (0, b"GGML", "not a GGUF file"),
        (4, struct.pack("<I", 1), "version 1"),
        (4, struct.pack(">I", 3), "big-endian"),
    ],
)
def test_gguf_bad_start(small_gguf: Path, offset: int, data: bytes, words: str) -> None:
    whole = small_gguf.read_bytes()
    small_gguf.write_bytes(whole[:offset] + data + whole[offset + len(data) :])
    assert words in outcome(small_gguf)


def test_gguf_version_2_is_read(small_gguf: Path) -> None:
    whole = small_gguf.read_bytes()
    small_gguf.write_bytes(whole[:4] + struct.pack("<I", 2) + whole[8:])
    assert outcome(small_gguf) == ""


def test_gguf_unknown_architecture_and_tensor(small_gguf: Path, tmp_path: Path) -> None:
    whole = small_gguf.read_bytes()
    small_gguf.write_bytes(whole.replace(b"llama", b"lambd"))
    assert "architecture 'lambd' is not supported; choose one of llama" in outcome(small_gguf)
    extra = tiny.write_llama(tmp_path / "extra.gguf", {"blk.0.attn_sinks": np.ones(4, dtype=np.float32)})
    assert "tensor blk.0.attn_sinks has no place" in outcome(extra)


def patch_entry(path: Path, name: str, dim: int | None = None, offset: int | None = None) -> None:
    """Overwrites the first dimension or the offset in the table's row of a two-dimensional tensor."""
    whole = bytearray(path.read_bytes())
    at = whole.index(name.encode()) + len(name) + 4
    if dim is not None:
        whole[at : at + 8] = struct.pack("<Q", dim)
    if offset is not None:
        whole[at + 20 : at + 28] = struct.pack("<Q", offset)
    path.write_bytes(whole)


def test_gguf_table_that_lies(small_gguf: Path) -> None:
    whole = small_gguf.read_bytes()
    patch_entry(small_gguf, "blk.0.ffn_up.weight", offset=0)
    assert "tensors" in outcome(small_gguf) and "overlap" in outcome(small_gguf)
    small_gguf.write_bytes(whole)
    patch_entry(small_gguf, "blk.0.ffn_up.weight", offset=7)
    assert "at offset 7, impossible for F32" in outcome(small_gguf)
    small_gguf.write_bytes(whole)
    patch_entry(small_gguf, "blk.0.ffn_up.weight", dim=0)
    assert "tensor blk.0.ffn_up.weight has dimensions [0, 48]" in outcome(small_gguf)


def test_gguf_lists(small_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = tiny.write_llama(tmp_path / "short.gguf", kinds=tiny.KINDS[:-1])
    assert f"{len(tiny.TOKENS)} tokens" in outcome(short)
    monkeypatch.setattr(gguf_header, "_MAX_ITEMS", 4)
    assert "a list of" in outcome(small_gguf)


def test_gguf_undecodable_type(tmp_path: Path) -> None:
    whole = tiny.write_llama(tmp_path / "typed.gguf", {"blk.0.ffn_up.weight": np.ones((48, 32), dtype=np.int32)})
    assert "tensor blk.0.ffn_up.weight is of type I32, which cannot be dequantised" in outcome(whole)


def test_gguf_shape_that_does_not_fit_the_heads(tmp_path: Path) -> None:
    odd = tiny.write_llama(tmp_path / "odd.gguf", {"blk.0.attn_q.weight": np.ones((30, 32), dtype=np.float32)})
    assert "tensor blk.0.attn_q.weight (30, 32) does not fit" in outcome(odd)


def test_safetensors_cut_anywhere(qwen35_folder: Path, tmp_path: Path) -> None:
    whole, file = copy_of(qwen35_folder, tmp_path)
    rng = random.Random(3)
    for cut in sorted({0, 1, 7, 8, 9, len(whole) - 1, *rng.sample(range(len(whole)), 100)}):
        file.write_bytes(whole[:cut])
        assert outcome(tmp_path), f"cut at {cut} of {len(whole)} went unnoticed"


def test_safetensors_flipped_bits(qwen35_folder: Path, tmp_path: Path) -> None:
    whole, file = copy_of(qwen35_folder, tmp_path)
    header = 8 + int.from_bytes(whole[:8], "little")
    rng, seen = random.Random(4), 0
    for _ in range(200):
        damaged = bytearray(whole)
        damaged[rng.randrange(header)] ^= 1 << rng.randrange(8)
        file.write_bytes(damaged)
        seen += bool(outcome(tmp_path))
    assert seen > 100


def copy_of(folder: Path, target: Path) -> tuple[bytes, Path]:
    (target / "config.json").write_bytes((folder / "config.json").read_bytes())
    return (folder / "model.safetensors").read_bytes(), target / "model.safetensors"

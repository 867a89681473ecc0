"""What every checkpoint format offers, and the table of formats.

A reader shows a checkpoint the Hugging Face way: `config()` has config.json's keys, names and tensors are those of the
transformers classes, whatever the file calls them. It does not know which tensors a model needs (`load.py` compares)
and it keeps nothing on disk (`prepare.py` does). Shapes are (out, in), sizes in bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from paceline.core.errors import CheckpointError
from paceline.core.registry import Registry

if TYPE_CHECKING:
    import torch

Config = dict[str, Any]

_EDGE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Generation:
    """How a reply starts and ends, and the checkpoint's own sampling defaults (None where it gives none).

    `add_bos` says whether a plain prompt gets `bos_token` in front. Encode without special tokens and add it by this.
    """

    eos_ids: tuple[int, ...] = ()
    bos_token: str | None = None
    eos_token: str | None = None
    pad_token: str | None = None
    add_bos: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None

    def to_json(self) -> dict[str, object]:
        values = asdict(self)
        unset = [key for key in ("temperature", "top_p", "top_k", "min_p") if values[key] is None]
        return {key: value for key, value in values.items() if key not in unset}


@dataclass(frozen=True, slots=True)
class TextParts:
    """The text side of a checkpoint: tokenizer.json as bytes, the chat template, and how replies start and end."""

    tokenizer: bytes | None
    chat_template: str | None
    generation: Generation


class Reader(Protocol):
    """One open checkpoint. Building one validates every header; a lie in it is a CheckpointError there, not later.

    `names()` is in file order and includes what a text model ignores (`model.visual.*`, `mtp.*`). `read` gives the
    dequantised tensor in the file's own float dtype, fp32 where the file is quantised. `weights_id` identifies the
    content: two copies of a checkpoint have the same one.
    """

    path: Path
    format: str

    def config(self) -> Config: ...

    def names(self) -> list[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str) -> torch.Tensor: ...

    def text(self) -> TextParts: ...

    def files(self) -> list[Path]: ...

    def weights_id(self) -> str: ...


READERS: Registry[Callable[[Path], Reader]] = Registry(
    "format",
    {
        "safetensors": "paceline.checkpoint.safetensors:SafetensorsReader",
        "gguf": "paceline.checkpoint.gguf:GgufReader",
    },
)


def open_checkpoint(path: Path) -> Reader:
    """A folder of safetensors, a .gguf file, or a folder that holds exactly one .gguf file."""
    if path.is_file():
        if path.suffix.lower() == ".gguf":
            return READERS.get("gguf")(path)
        fix = "give its folder" if path.suffix == ".safetensors" else "give a folder with safetensors or a .gguf file"
        raise CheckpointError(f"{path}: not a checkpoint by itself; {fix}")
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such file or folder; give a checkpoint folder or a .gguf file")
    if any(path.glob("*.safetensors")) or (path / "model.safetensors.index.json").exists():
        return READERS.get("safetensors")(path)
    ggufs = sorted(path.glob("*.gguf"))
    if len(ggufs) == 1:
        return READERS.get("gguf")(ggufs[0])
    if ggufs:
        names = ", ".join(file.name for file in ggufs[:3])
        raise CheckpointError(f"{path}: holds {len(ggufs)} .gguf files ({names}…); give the path of one of them")
    raise CheckpointError(f"{path}: holds neither .safetensors nor .gguf files; give the folder that has the weights")


def content_id(config: Config, table: Iterable[tuple[str, str, tuple[int, ...]]], files: list[Path]) -> str:
    """sha256 over the config, the tensor table, and the size, first and last MiB of each file: cheap, and stable when
    the files move. Two checkpoints that differ only in the middle of the same-sized files are not told apart."""
    digest = hashlib.sha256(json.dumps([config, sorted(table)], sort_keys=True).encode())
    for file in files:
        try:
            with file.open("rb") as stream:
                size = stream.seek(0, 2)
                stream.seek(0)
                digest.update(size.to_bytes(8, "little") + stream.read(_EDGE_BYTES))
                stream.seek(max(0, size - _EDGE_BYTES))
                digest.update(stream.read(_EDGE_BYTES))
        except OSError as error:
            raise unreadable(file, error) from error
    return digest.hexdigest()


def unreadable(file: Path, error: OSError) -> CheckpointError:
    return CheckpointError(f"{file}: cannot be read ({error.strerror or error}); check the path and its permissions")

"""Tensors for a model, from any reader: the whole list is compared before the first byte of weights is read.

Says what is missing, left over or of the wrong shape; converts nothing and knows no architecture. Shapes are (out, in).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from paceline.checkpoint.base import Reader
from paceline.core.errors import CheckpointError

if TYPE_CHECKING:
    import torch

# Parts that a text model leaves alone, and buffers that old exports wrote although they follow from the config.
_IGNORED_PREFIXES = ("model.visual.", "mtp.")
_IGNORED_SUFFIXES = ("rotary_emb.inv_freq",)


def load_tensors(
    reader: Reader, wanted: Mapping[str, tuple[int, ...]], within: str | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """The wanted tensors, in file order, each read when it is asked for. The comparison is made at once."""
    check_tensors(reader, wanted, within)
    return ((name, reader.read(name)) for name in reader.names() if name in wanted)


def check_tensors(reader: Reader, wanted: Mapping[str, tuple[int, ...]], within: str | None = None) -> None:
    """Refuses a checkpoint that does not hold exactly the wanted tensors: one line, with the first culprit by name.

    `within` is None for a whole text model. Otherwise the wanted tensors are a part of the checkpoint: all those whose
    names start with it, none ignored ("" for every tensor of the file).
    """
    names = reader.names()
    present = set(names)
    missing = [name for name in wanted if name not in present]
    if missing:
        raise _refusal(reader, f"tensor {missing[0]} is missing", missing, "download or convert the checkpoint again")
    wrong = [name for name in wanted if reader.shape(name) != tuple(wanted[name])]
    if wrong:
        found, expected = list(reader.shape(wrong[0])), list(wanted[wrong[0]])
        what = f"tensor {wrong[0]} is {found}, config.json makes it {expected}"
        raise _refusal(reader, what, wrong, "config and weights are of different models")
    if within is None:
        tied = bool(reader.config().get("tie_word_embeddings"))
        extra = [name for name in names if name not in wanted and not _ignored(name, tied)]
    else:
        extra = [name for name in names if name not in wanted and name.startswith(within)]
    if extra:
        raise _refusal(reader, f"tensor {extra[0]} has no place in this model", extra, "config and weights do not fit")


def _ignored(name: str, tied: bool) -> bool:
    if name == "lm_head.weight":
        return tied
    return name.startswith(_IGNORED_PREFIXES) or name.endswith(_IGNORED_SUFFIXES)


def _refusal(reader: Reader, what: str, culprits: list[str], fix: str) -> CheckpointError:
    more = f" (and {len(culprits) - 1} more)" if len(culprits) > 1 else ""
    return CheckpointError(f"{reader.path}: {what}{more}; {fix}")

"""The configured drafter: its checkpoint is found and opened here, because drafters read no files."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from paceline.checkpoint.base import open_checkpoint
from paceline.checkpoint.load import load_tensors
from paceline.core.config import EngineConfig
from paceline.core.errors import ConfigError
from paceline.drafters import DRAFTERS, WEIGHTS_FROM
from paceline.drafters.base import Drafter, DraftHead, Target, TensorSource, WeightsFrom
from paceline.quant.base import Planes, WeightCodec, take_rows


class CheckpointSource:
    """A TensorSource over any checkpoint that paceline reads."""

    def __init__(self, path: Path) -> None:
        self._reader = open_checkpoint(path)
        self.path = path

    def config(self) -> dict[str, Any]:
        return self._reader.config()

    def names(self) -> list[str]:
        return self._reader.names()

    def load(self, wanted: Mapping[str, tuple[int, ...]], within: str) -> dict[str, torch.Tensor]:
        return dict(load_tensors(self._reader, wanted, within))


def full_head(logits: Callable[[torch.Tensor], torch.Tensor], vocab: int) -> DraftHead:
    """The target's own head, `logits`: [n, d] → [n, V] fp32, cut off after `vocab` ids."""
    return DraftHead(torch.arange(vocab), lambda hidden: logits(hidden)[:, :vocab])


def shortlist_head(ids: Sequence[int], planes: Planes, codec: WeightCodec) -> DraftHead:
    """The rows `ids` (ascending) of the head that is converted to `planes`, packed as a matrix of their own."""
    at = torch.tensor(ids)
    rows = take_rows(planes, at)
    linear = codec.linear(rows)
    nbytes = sum(plane.nbytes for plane in rows.values())
    return DraftHead(at, lambda hidden: linear(hidden, hidden.shape[0]).float(), nbytes)


def build_drafter(config: EngineConfig, target: Target) -> Drafter:
    build = DRAFTERS.get(config.drafter)
    return build(target, _source(config))


def _source(config: EngineConfig) -> TensorSource | None:
    match WEIGHTS_FROM[config.drafter]:
        case WeightsFrom.NOTHING:
            return None
        case WeightsFrom.TARGET:
            about = json.loads((Path(config.model_folder) / "source.json").read_text(encoding="utf-8"))
            return CheckpointSource(Path(about["path"]))
        case WeightsFrom.FOLDER:
            if config.drafter_path is None:
                raise ConfigError("--drafter-path", "", f"the drafter {config.drafter} needs its checkpoint folder")
            return CheckpointSource(Path(config.drafter_path))

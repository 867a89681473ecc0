"""DFlash: every mask of the block is decided by itself, from the target's head over its row."""

import torch

from paceline.core.spec import DrafterSpec, ModelSpec
from paceline.drafters.base import ConfigSource, Target, TensorSource, Want, expected_acceptance
from paceline.drafters.block import BlockDrafter
from paceline.drafters.block_config import block_tensors, describe_block, read_block_spec

ARCHITECTURE = "DFlashDraftModel"


class DFlashDrafter(BlockDrafter):
    def _pick(self, hidden: torch.Tensor, scores: torch.Tensor, row: Want) -> list[int]:
        drafts: list[int] = []
        for line in scores:
            drafts.append(row.view.draw(line, drafts, self.target.head.ids))
        return drafts


def describe(target: ModelSpec, item_bytes: int, source: ConfigSource) -> DrafterSpec:
    spec = read_block_spec(source, ARCHITECTURE, target)
    return describe_block(spec, block_tensors(spec), item_bytes)


def build(target: Target, source: TensorSource | None) -> DFlashDrafter:
    assert source is not None
    spec = read_block_spec(source, ARCHITECTURE, target.spec)
    return DFlashDrafter(target, spec, source.load(block_tensors(spec), ""), expected_acceptance(source, "paceline"))

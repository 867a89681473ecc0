"""Training of a DFlash block drafter on online features of a frozen target."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from paceline.train.block import BlockConfig, BlockDrafter
from paceline.train.drafter_loss import DrafterLoss, drafter_loss
from paceline.train.feed import Feed
from paceline.train.loop import Figures, Log, LoopSettings, Outcome, train
from paceline.train.target import Target, pack

# Lookup tables take a larger rate, or they hardly move within a short run.
_TABLES = ("_codebook",)


@dataclass(frozen=True, slots=True)
class DrafterRecipe:
    """`config.dynamic` makes it DFlash2; everything else, the budget included, is the same for both."""

    loop: LoopSettings
    config: BlockConfig = BlockConfig()  # noqa: RUF009 – frozen
    loss: DrafterLoss = DrafterLoss()  # noqa: RUF009 – frozen
    rows: int = 32
    seed: int = 0


def train_drafter(
    stage: str, recipe: DrafterRecipe, target: Target, rows: np.ndarray, folder: Path, log: Log
) -> tuple[BlockDrafter, Outcome]:
    device = target.model.embed_tokens.weight.device
    torch.manual_seed(recipe.seed)
    drafter = BlockDrafter(recipe.config).to(device)
    feed = Feed(rows, device, recipe.rows, recipe.seed)
    with torch.no_grad():
        ids, answer, docs = feed.draw()
        drafter.condition(target, target(ids, pack(docs, target.config, target.dtype), recipe.config.taps)[1], answer)

    def loss() -> tuple[torch.Tensor, Figures]:
        ids, answer, docs = feed.draw()
        return drafter_loss(drafter, target, ids, answer, pack(docs, target.config, target.dtype), recipe.loss)

    outcome = train(stage, drafter, loss, recipe.loop, folder, log, _TABLES, feed.noise)
    drafter.fold()
    return drafter, outcome

"""Training of the MTP head beside a frozen target, unrolled over its own outputs."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from paceline.train.feed import Feed
from paceline.train.loop import Figures, Log, LoopSettings, Outcome, train
from paceline.train.mtp import MtpHead
from paceline.train.target import Target, pack


@dataclass(frozen=True, slots=True)
class MtpRecipe:
    """`steps` is the longest chain that is trained."""

    loop: LoopSettings
    rows: int = 32
    steps: int = 4
    seed: int = 0


def train_mtp(recipe: MtpRecipe, target: Target, rows: np.ndarray, folder: Path, log: Log) -> tuple[MtpHead, Outcome]:
    device = target.model.embed_tokens.weight.device
    torch.manual_seed(recipe.seed)
    head = MtpHead(target.config).to(device)
    feed = Feed(rows, device, recipe.rows, recipe.seed)

    def loss() -> tuple[torch.Tensor, Figures]:
        ids, answer, docs = feed.draw()
        return head.loss(target, ids, answer, pack(docs, target.config, target.dtype), recipe.steps)

    return head, train("mtp", head, loss, recipe.loop, folder, log, noise=feed.noise)

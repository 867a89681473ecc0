"""Pre-training of a small hybrid target on packed chats. Answer tokens count in full, prompt tokens a little."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from paceline.train.feed import Feed
from paceline.train.loop import Figures, Log, LoopSettings, Outcome, train
from paceline.train.target import Target, TargetConfig, pack


@dataclass(frozen=True, slots=True)
class TargetRecipe:
    loop: LoopSettings
    config: TargetConfig = TargetConfig()  # noqa: RUF009 – frozen
    rows: int = 64
    prompt_weight: float = 0.2
    joined: float = 0.15
    seed: int = 0


def target_loss(target: Target, batch: tuple[torch.Tensor, ...], prompt_weight: float) -> tuple[torch.Tensor, Figures]:
    ids, answer, docs = batch
    hidden, _ = target(ids, pack(docs, target.config, target.dtype))
    same = docs[:, 1:] == docs[:, :-1]
    weights = torch.where(answer[:, 1:], 1.0, prompt_weight) * same
    logits = target.logits(hidden[:, :-1]).float()
    losses = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view_as(weights)
    counted = answer[:, 1:] & same
    return (losses * weights).sum() / weights.sum(), {"answer_loss": (losses.detach() * counted).sum() / counted.sum()}


def train_target(
    recipe: TargetRecipe, rows: np.ndarray, folder: Path, log: Log, device: torch.device, dtype: torch.dtype
) -> tuple[Target, Outcome]:
    torch.manual_seed(recipe.seed)
    target = Target(recipe.config, dtype).to(device)
    feed = Feed(rows, device, recipe.rows, recipe.seed, recipe.joined)

    def loss() -> tuple[torch.Tensor, Figures]:
        return target_loss(target, feed.draw(), recipe.prompt_weight)

    outcome = train("target", target, loss, recipe.loop, folder, log, noise=feed.noise)
    return target.requires_grad_(False).eval(), outcome

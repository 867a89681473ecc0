"""Packed rows on the device, and random batches of them: no host work per step."""

import numpy as np
import torch

from paceline.train.corpus import ANSWER, ID_MASK, START


class Feed:
    """`joined` is the share of rows whose documents are shown as one: they teach that text may follow unrelated text.

    `noise` is what every batch is drawn from; a training loop keeps its state in the checkpoint.
    """

    def __init__(self, rows: np.ndarray, device: torch.device, batch: int, seed: int, joined: float = 0.0) -> None:
        self._rows = torch.from_numpy(rows).to(device)
        self.noise = torch.Generator(device).manual_seed(seed)
        self._batch, self._joined = batch, joined

    def draw(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """→ ids [B, T] int64, answer [B, T] bool, docs [B, T] int64"""
        device = self._rows.device
        picked = torch.randint(len(self._rows), (self._batch,), generator=self.noise, device=device)
        words = self._rows[picked].long()
        docs = ((words & START) > 0).long().cumsum(1)
        if self._joined:
            docs = docs * (torch.rand((self._batch, 1), generator=self.noise, device=device) >= self._joined)
        return words & ID_MASK, (words & ANSWER) > 0, docs

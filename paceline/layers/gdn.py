"""Gated DeltaNet with lazy commit: one rule for prompt chunks, plain decode and draft windows.

A row's state stands at its last known position. A call first replays the drafts of the last window that were accepted
(their inputs were kept), then runs its own known tokens, then writes the state once, and goes on through the new drafts
without writing; their inputs are kept for the next call. Formulas: Qwen3.5's reference, in its order and precisions.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from paceline.core.spec import GdnSpec
from paceline.kernels.gdn import chunked_, recurrent_
from paceline.kernels.round import GdnView, Round, RowSpan
from paceline.layers.norm import GatedRmsNorm
from paceline.quant.base import Linear

# Elementwise functions run vector lanes and left-over lanes by different code. With the head axis padded to whole vectors
# no lane is ever left over, so a row's gates do not depend on the number of rows.
LANES = 32


@dataclass(frozen=True, slots=True)
class GdnWeights:
    """qkv_z: rows [Q | K | V | Z]; beta_decay: rows [b padded to 32 lanes | a padded to 32 lanes]; conv [width, C] fp32;
    decay_rate = −exp(A_log) and dt_bias, both [lanes] fp32, padded with zeros."""

    qkv_z: Linear
    beta_decay: Linear
    conv: torch.Tensor
    decay_rate: torch.Tensor
    dt_bias: torch.Tensor
    norm: GatedRmsNorm
    out: Linear


class Gdn:
    def __init__(self, weights: GdnWeights, spec: GdnSpec) -> None:
        self.w, self.spec = weights, spec
        self.key_width = spec.key_heads * spec.key_dim
        self.repeat = spec.value_heads // spec.key_heads
        self.lanes = weights.decay_rate.shape[0]

    def __call__(self, x: torch.Tensor, round: Round, view: GdnView) -> torch.Tensor:
        """x [T, d] normed → [T, d]; updates the states of the round's rows."""
        spec = self.spec
        mixed_z = self.w.qkv_z(x, round.small)
        mixed, z = mixed_z[:, : spec.conv_channels], mixed_z[:, spec.conv_channels :]
        gates = self.w.beta_decay(x, round.small).float()
        beta = torch.sigmoid(gates[:, : self.lanes])
        log_decay = self.w.decay_rate * F.softplus(gates[:, self.lanes :] + self.w.dt_bias)
        decay = log_decay.exp()
        heads = spec.value_heads
        beta, log_decay, decay = beta[:, :heads], log_decay[:, :heads], decay[:, :heads]
        out = x.new_empty(x.shape[0], heads, spec.value_dim)
        for row in round.rows:
            self._row(row, mixed, beta, decay, log_decay, view, out)
        y = self.w.norm(out, z.view(-1, heads, spec.value_dim))
        return self.w.out(y.flatten(1), round.small)

    def flush(self, view: GdnView, slot: int, replay: int) -> None:
        """Takes the accepted drafts of the slot's last window into its state, as the next round would do first."""
        width = self.spec.conv_width - 1
        columns = torch.cat([view.conv[slot], view.draft_columns[slot, :replay]])
        q, k, v = self._convolve(columns)
        recurrent_(view.state[slot], q, k, v, view.draft_beta[slot, :replay], view.draft_decay[slot, :replay])
        view.conv[slot] = columns[replay : replay + width]

    def _row(
        self,
        row: RowSpan,
        mixed: torch.Tensor,
        beta: torch.Tensor,
        decay: torch.Tensor,
        log_decay: torch.Tensor,
        view: GdnView,
        out: torch.Tensor,
    ) -> None:
        slot, replay = row.slot, row.replay
        width = self.spec.conv_width - 1
        flat = [slice(piece.at, piece.at + piece.count) for piece in row.pieces]
        columns = torch.cat([view.conv[slot], view.draft_columns[slot, :replay], *(mixed[at] for at in flat)])
        state = view.state[slot]
        if replay:
            q, k, v = self._convolve(columns[: width + replay])
            recurrent_(state, q, k, v, view.draft_beta[slot, :replay], view.draft_decay[slot, :replay])
        drafts = row.q_len - row.known
        if drafts:  # kept before the state moves on: the next call replays the accepted ones
            start = width + replay + row.known
            view.draft_columns[slot, :drafts] = columns[start : start + drafts]
        done = 0
        for piece, at in zip(row.pieces, flat, strict=True):
            begin = replay + done
            q, k, v = self._convolve(columns[begin : begin + width + piece.count])
            facts = min(max(row.known - done, 0), piece.count)
            if not piece.small:
                out[at] = chunked_(state, q, k, v, beta[at], log_decay[at]).to(out.dtype)
            else:
                edge = piece.at + facts
                if facts:
                    self._positions(state, q, k, v, beta, decay, out, piece.at, 0, facts)
                if facts < piece.count:
                    state = state.clone() if done + facts == row.known else state
                    self._positions(state, q, k, v, beta, decay, out, edge, facts, piece.count)
                    keep = slice(done + facts - row.known, done + piece.count - row.known)
                    view.draft_beta[slot, keep] = beta[edge : piece.at + piece.count]
                    view.draft_decay[slot, keep] = decay[edge : piece.at + piece.count]
            done += piece.count
        end = replay + row.known
        view.conv[slot] = columns[end : end + width]

    def _positions(
        self,
        state: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        beta: torch.Tensor,
        decay: torch.Tensor,
        out: torch.Tensor,
        at: int,
        first: int,
        last: int,
    ) -> None:
        """Positions first … last − 1 of a small piece, one by one; `at` is the flat offset of the first."""
        span = slice(at, at + last - first)
        o = recurrent_(state, q[first:last], k[first:last], v[first:last], beta[span], decay[span])
        out[span] = o.to(out.dtype)

    def _convolve(self, columns: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Raw columns [width − 1 + n, C] → q, k [n, Hv, Dk] normalised and repeated, v [n, Hv, Dv], fp32."""
        spec, weight = self.spec, self.w.conv
        n = columns.shape[0] - (spec.conv_width - 1)
        wide = columns.float()
        mixed = wide[:n] * weight[0]
        for tap in range(1, spec.conv_width):
            mixed = mixed + wide[tap : tap + n] * weight[tap]
        mixed = F.silu(mixed.to(columns.dtype).float()).to(columns.dtype).float()
        q, k, v = torch.split(mixed, [self.key_width, self.key_width, mixed.shape[1] - 2 * self.key_width], dim=1)
        q = _unit(q.view(n, spec.key_heads, spec.key_dim)) * spec.key_dim**-0.5
        k = _unit(k.view(n, spec.key_heads, spec.key_dim))
        if self.repeat > 1:
            q, k = q.repeat_interleave(self.repeat, 1), k.repeat_interleave(self.repeat, 1)
        return q, k, v.view(n, spec.value_heads, spec.value_dim)


def _unit(x: torch.Tensor) -> torch.Tensor:
    """L2 normalisation with the epsilon added to the sum of squares."""
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)

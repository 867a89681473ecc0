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
from paceline.kernels.round import GdnView, Piece, Round, RowSpan
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


@dataclass(frozen=True, slots=True)
class _Gates:
    """β, the logarithm of the decay, and the decay, of all positions of a round: [T, Hv] fp32 each."""

    beta: torch.Tensor
    log_decay: torch.Tensor
    decay: torch.Tensor


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
        gates = self._gates(x, round.small)
        out = x.new_empty(x.shape[0], spec.value_heads, spec.value_dim)
        for row in round.rows:
            self._row(row, mixed, gates, view, out)
        y = self.w.norm(out, z.view(-1, spec.value_heads, spec.value_dim))
        return self.w.out(y.flatten(1), round.small)

    def flush(self, view: GdnView, slot: int, replay: int) -> None:
        """Takes the accepted drafts of the slot's last window into its state, as the next round would do first."""
        width = self.spec.conv_width - 1
        columns = torch.cat([view.conv[slot], view.draft_columns[slot, :replay]])
        q, k, v = self._convolve(columns)
        recurrent_(view.state[slot], q, k, v, view.draft_beta[slot, :replay], view.draft_decay[slot, :replay])
        view.conv[slot] = columns[replay : replay + width]

    def _gates(self, x: torch.Tensor, small: int) -> _Gates:
        both = self.w.beta_decay(x, small).float()
        beta = torch.sigmoid(both[:, : self.lanes])
        log_decay = self.w.decay_rate * F.softplus(both[:, self.lanes :] + self.w.dt_bias)
        decay, heads = log_decay.exp(), self.spec.value_heads
        return _Gates(beta[:, :heads], log_decay[:, :heads], decay[:, :heads])

    def _row(self, row: RowSpan, mixed: torch.Tensor, gates: _Gates, view: GdnView, out: torch.Tensor) -> None:
        """mixed [T, C], out [T, Hv, Dv]. Reads and writes the slot's state."""
        slot, replay = row.slot, row.replay
        width = self.spec.conv_width - 1
        flat = [slice(piece.at, piece.at + piece.count) for piece in row.pieces]
        columns = torch.cat([view.conv[slot], view.draft_columns[slot, :replay], *(mixed[at] for at in flat)])
        state = view.state[slot]
        if replay:
            q, k, v = self._convolve(columns[: width + replay])
            recurrent_(state, q, k, v, view.draft_beta[slot, :replay], view.draft_decay[slot, :replay])
        end = replay + row.known
        if row.q_len > row.known:
            _keep(row, columns[end + width :], gates, view)
        done = 0
        for piece, at in zip(row.pieces, flat, strict=True):
            q, k, v = self._convolve(columns[replay + done : replay + done + piece.count + width])
            if piece.small:
                state = _steps(piece, row.known - done, state, (q, k, v), gates, out)
            else:
                out[at] = chunked_(state, q, k, v, gates.beta[at], gates.log_decay[at]).to(out.dtype)
            done += piece.count
        view.conv[slot] = columns[end : end + width]

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


def _steps(
    piece: Piece,
    known: int,
    state: torch.Tensor,
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    gates: _Gates,
    out: torch.Tensor,
) -> torch.Tensor:
    """The positions of a small piece, one by one, into out [T, Hv, Dv]; qkv are the piece's.

    The first `known` move `state`. Drafts after them move a copy, which is returned for the row's next piece; below zero,
    `state` is that copy already.
    """
    q, k, v = qkv
    facts = min(max(known, 0), piece.count)
    edge = piece.at + facts
    if facts:
        at = slice(piece.at, edge)
        out[at] = recurrent_(state, q[:facts], k[:facts], v[:facts], gates.beta[at], gates.decay[at]).to(out.dtype)
    if facts < piece.count:
        state = state.clone() if known >= 0 else state
        at = slice(edge, piece.at + piece.count)
        out[at] = recurrent_(state, q[facts:], k[facts:], v[facts:], gates.beta[at], gates.decay[at]).to(out.dtype)
    return state


def _keep(row: RowSpan, columns: torch.Tensor, gates: _Gates, view: GdnView) -> None:
    """Stores the inputs of the row's drafts, columns [drafts, C]: the next call replays the accepted ones."""
    view.draft_columns[row.slot, : columns.shape[0]] = columns
    first = -row.known  # the place of the piece's first position among the drafts
    for piece in row.pieces:
        facts, last = max(-first, 0), first + piece.count
        if last > 0:
            at = slice(piece.at + facts, piece.at + piece.count)
            view.draft_beta[row.slot, first + facts : last] = gates.beta[at]
            view.draft_decay[row.slot, first + facts : last] = gates.decay[at]
        first = last


def _unit(x: torch.Tensor) -> torch.Tensor:
    """L2 normalisation with the epsilon added to the sum of squares."""
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)

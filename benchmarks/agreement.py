"""How often two samplers agree: the best that any pair can do, and what each way to draw a draft reaches.

p is the target's distribution at a position, q the drafter's: dense vectors [V] fp64 that sum to 1. All formulas are exact
sums over tokens, no simulation.
"""

from collections.abc import Sequence

import torch


def dense(values: torch.Tensor, ids: torch.Tensor, vocab: int) -> torch.Tensor:
    """softmax of logit/T [n] of the tokens `ids` [n], as probabilities [vocab] fp64."""
    out = torch.zeros(vocab, dtype=torch.float64)
    out[ids] = torch.softmax(values.double(), 0)
    return out


def overlap(p: torch.Tensor, q: torch.Tensor) -> float:
    """Σ min(p, q) = 1 − total variation: what rejection sampling accepts, and the most that any joint draw from p and q can."""
    return float(torch.minimum(p, q).sum())


def coupled(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """P(both draw token i) [V] where both take the argmax of log probability + the same Gumbel noise.

    It is 1 / Σ_j max(p_j / p_i, q_j / q_i): the noise of every j must leave i the winner under both. Sorted by q/p, the maximum
    is p_j / p_i for the tokens up to i and q_j / q_i for those behind it, so sums from both ends do.
    """
    out = torch.zeros_like(p)
    used = torch.nonzero((p > 0) | (q > 0)).squeeze(1)
    used = used[(q[used] / p[used]).argsort()]  # q / 0 = inf: last
    a, b = p[used], q[used]
    behind = b.flip(0).cumsum(0).flip(0) - b
    both = (a > 0) & (b > 0)
    out[used[both]] = 1 / (a.cumsum(0)[both] / a[both] + behind[both] / b[both])
    return out


def tokens_per_round(windows: Sequence[Sequence[float]], outputs: int) -> tuple[float, float]:
    """Expected (rounds, accepted drafts) of a reply of `outputs` tokens.

    windows[j][i] is the probability that draft i of the window that starts at output j + 1 is accepted if those before it
    were; 0 and 1 are facts. A window that is missing holds no drafts. Output 0 comes from the prompt and needs no round.
    """
    rounds, accepted = [0.0] * (outputs + 1), [0.0] * (outputs + 1)
    for start in range(outputs - 1, 0, -1):
        chances = windows[start - 1] if start <= len(windows) else ()
        reached, rounds[start] = 1.0, 1.0
        for n, chance in enumerate([*chances, 0.0]):
            ends, after = reached * (1 - chance), min(start + n + 1, outputs)
            rounds[start] += ends * rounds[after]
            accepted[start] += ends * (n + accepted[after])
            reached *= chance
    return rounds[1] if outputs > 1 else 0.0, accepted[1] if outputs > 1 else 0.0

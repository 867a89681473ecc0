"""Does any row's result depend on the other rows? Run as a program, since the instruction set is fixed when torch loads.

`python -m tests.quant.rows` prints one JSON object: `int8_product`, the way that int8 linears take, and `failures`, a list
per check (empty: it holds). Every check draws its batches from a pool of rows whose results alone are known, so the
neighbours change with each batch.
"""

import json
import random
from collections.abc import Callable
from functools import partial

import torch

from paceline.core.spec import GdnSpec
from paceline.kernels.rope import apply_
from paceline.kernels.round import GdnView, KvRange, Piece, Round, RowSpan
from paceline.layers.gdn import Gdn, GdnWeights
from paceline.layers.mlp import Mlp
from paceline.layers.norm import GatedRmsNorm, RmsNorm
from paceline.quant import WEIGHT_CODECS
from paceline.quant.base import Linear
from paceline.quant.w_int8 import fastest_product

EXACT = tuple(name for name in WEIGHT_CODECS if WEIGHT_CODECS.get(name).exact)
BETWEEN = ("rms_norm", "gated_norm", "mlp", "attention_gate", "rope", "gdn_rows", "gdn_window")
CHECKS = (*EXACT, "head", "int8_product", *BETWEEN)

MODEL_SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))  # SmolLM2's qkv, out, gate_up, down
TINY_SHAPES = ((96, 64), (200, 128), (64, 192))
HEAD_SHAPE = (49152, 576)
FEW = tuple(range(1, 71))
MANY = (100, 128, 129, 257, 1023, 1024)
EVERY_SPLIT_UP_TO = 20
POOL = 48

Rows = Callable[[torch.Tensor], torch.Tensor]


class Checker:
    """`failures` says for each check which sizes gave another result, at most a few of them."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(17)
        self.random = random.Random(17)
        self.failures: dict[str, list[str]] = {name: [] for name in CHECKS}

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator)

    def pool(self, columns: int) -> torch.Tensor:
        """[POOL, columns] bf16, a zero row, a huge and a tiny one among them."""
        rows = self.normal(POOL, columns)
        rows[0], rows[1], rows[2] = 0.0, rows[1] * 1e4, rows[2] * 1e-6
        return rows.to(torch.bfloat16)

    def compare(self, check: str, where: str, got: torch.Tensor, want: torch.Tensor) -> None:
        same = (got.view(torch.int16) == want.view(torch.int16)).flatten(1).all(1)
        if not bool(same.all()) and len(self.failures[check]) < 5:
            self.failures[check].append(f"{where}: rows {(~same).nonzero().flatten()[:6].tolist()}")

    def splits(self, shape: tuple[int, int], m: int) -> list[int]:
        """How many of m rows are small."""
        if shape in TINY_SHAPES and m <= EVERY_SPLIT_UP_TO:
            return list(range(m + 1))
        return [self.random.choice((0, m, self.random.randint(0, m)))]

    def linear(self, check: str, linear: Linear, shape: tuple[int, int], sizes: tuple[int, ...]) -> None:
        """A row of any batch equals that row alone: as a small one where it is small, as a large one where it is large."""
        pool = self.pool(shape[1])
        small = torch.cat([linear(pool[i : i + 1], 1) for i in range(POOL)])
        large = torch.cat([linear(pool[i : i + 1], 0) for i in range(POOL)])
        for m in sizes:
            for split in self.splits(shape, m):
                pick = torch.randint(POOL, (m,), generator=self.generator)
                want = torch.cat([small[pick[:split]], large[pick[split:]]])
                self.compare(check, f"{shape} M={m} small={split}", linear(pool[pick], split), want)
        again = torch.cat([linear(pool[i : i + 1], 1) for i in range(POOL)])
        self.compare(check, f"{shape} alone, after other batches", again, small)

    def rows(self, check: str, run: Rows, pool: torch.Tensor) -> None:
        """The same for a function of rows; it may change its argument in place."""
        alone = torch.cat([run(pool[i : i + 1].clone()) for i in range(pool.shape[0])])
        for m in (*FEW, *MANY):
            pick = torch.randint(pool.shape[0], (m,), generator=self.generator)
            self.compare(check, f"{tuple(pool.shape[1:])} M={m}", run(pool[pick]), alone[pick])


def check_formats(checker: Checker) -> None:
    for name in EXACT:
        codec = WEIGHT_CODECS.get(name)
        for shape in (*MODEL_SHAPES, *TINY_SHAPES):
            linear = codec.linear(codec.encode(checker.normal(*shape) * 0.05))
            checker.linear(name, linear, shape, (*FEW, *MANY))
    for name in sorted({WEIGHT_CODECS.get(name).head for name in EXACT}):
        codec = WEIGHT_CODECS.get(name)
        head = codec.linear(codec.encode(checker.normal(*HEAD_SHAPE) * 0.05))
        checker.linear("head", head, HEAD_SHAPE, (1, 5, 17))


def check_int8_product(checker: Checker) -> None:
    """The linear multiplies integers exactly, also where oneDNN would saturate. Rows of whole numbers up to ±127 have
    the scale 1, so the codes are the numbers themselves."""
    codec = WEIGHT_CODECS.get("int8")
    scale = torch.ones(96)
    for columns in (64, 576, 1536, 4096):
        x = torch.randint(-127, 128, (35, columns), generator=checker.generator, dtype=torch.int8)
        weight = torch.randint(-127, 128, (96, columns), generator=checker.generator, dtype=torch.int8)
        x[:, 0] = 127
        x[0], x[1], weight[0], weight[1] = 127, -127, 127, -127
        want = (x.long() @ weight.long().t()).float().to(torch.bfloat16)
        linear = codec.linear({"weight": weight, "scale": scale})
        for m in (1, 2, 16, 35):
            checker.compare("int8_product", f"K={columns} M={m}", linear(x[:m].to(torch.bfloat16), m), want[:m])


def check_norms_and_mlp(checker: Checker) -> None:
    dtype = torch.bfloat16
    for offset in (0, 1):
        for width in (576, 64, 100):
            norm = RmsNorm(checker.normal(width), 1e-5, offset, dtype)
            checker.rows("rms_norm", norm, checker.pool(width))
        heads = RmsNorm(checker.normal(64), 1e-5, offset, dtype)
        checker.rows("rms_norm", partial(_norm_of_heads, heads), checker.pool(15 * 64))
    gated = GatedRmsNorm(checker.normal(64), 1e-6, dtype)
    both = checker.pool(2 * 6 * 64)
    checker.rows("gated_norm", lambda x: gated(*x.view(-1, 2, 6, 64).unbind(1)).flatten(1), both)
    for ffn in (1536, 128, 40):
        mlp = Mlp(lambda x, small: x, lambda x, small: x, ffn)  # the linears left out: silu of a slice, times a slice
        checker.rows("mlp", partial(mlp, small=0), checker.pool(2 * ffn))


def _norm_of_heads(norm: RmsNorm, x: torch.Tensor) -> torch.Tensor:
    """Nine heads out of fifteen: a slice whose rows do not follow each other."""
    return norm(x.view(-1, 15, 64)[:, :9]).flatten(1)


def check_attention_parts(checker: Checker) -> None:
    def gate(x: torch.Tensor) -> torch.Tensor:
        y, gates = x.view(-1, 9, 2, 64).unbind(2)
        return (y.contiguous() * torch.sigmoid(gates)).flatten(1)

    checker.rows("attention_gate", gate, checker.pool(9 * 2 * 64))
    for rotary in (64, 16):
        angle = checker.normal(1, 1, rotary)
        cos, sin = angle.cos().to(torch.bfloat16), angle.sin().to(torch.bfloat16)

        def turn(x: torch.Tensor, cos: torch.Tensor = cos, sin: torch.Tensor = sin) -> torch.Tensor:
            rows = (x.shape[0], 1, cos.shape[-1])
            return apply_(x.view(-1, 15, 64)[:, :12], cos.expand(rows), sin.expand(rows)).flatten(1)

        checker.rows("rope", turn, checker.pool(15 * 64))


class GdnProbe:
    """A Gated DeltaNet layer whose linears only hand their columns on, from given states."""

    def __init__(self, checker: Checker, value_heads: int) -> None:
        self.spec = GdnSpec(key_heads=2, value_heads=value_heads, key_dim=32, value_dim=32, conv_width=4)
        channels, values, lanes = self.spec.conv_channels, value_heads * 32, -(-value_heads // 32) * 32
        self.columns = channels + values + 2 * lanes
        rate = torch.zeros(lanes)
        rate[:value_heads] = -checker.normal(value_heads).exp()
        weights = GdnWeights(
            qkv_z=lambda x, small: x[:, : channels + values].contiguous(),
            beta_decay=lambda x, small: x[:, channels + values :].contiguous(),
            conv=checker.normal(4, channels),
            decay_rate=rate,
            dt_bias=checker.normal(lanes),
            norm=GatedRmsNorm(checker.normal(32), 1e-6, torch.bfloat16),
            out=lambda x, small: x,
        )
        self.layer = Gdn(weights, self.spec)
        self.state = checker.normal(value_heads, 32, 32)
        self.conv = checker.normal(3, channels).to(torch.bfloat16)

    def view(self, slots: int) -> GdnView:
        heads, channels = self.spec.value_heads, self.spec.conv_channels
        return GdnView(
            state=self.state.repeat(slots, 1, 1, 1),
            conv=self.conv.repeat(slots, 1, 1),
            draft_columns=torch.zeros(slots, 15, channels, dtype=torch.bfloat16),
            draft_beta=torch.zeros(slots, 15, heads),
            draft_decay=torch.zeros(slots, 15, heads),
        )

    def step(self, x: torch.Tensor, view: GdnView, tokens: int, known: int) -> torch.Tensor:
        """x [R · tokens, columns]: `tokens` per row, one row per slot, no replay."""
        spans = []
        for row in range(x.shape[0] // tokens):
            piece = Piece(row, row * tokens, 3, tokens, True, 64, torch.empty(0), KvRange(0, None))
            spans.append(RowSpan(row, (piece,), 0, known, tokens))
        unused = torch.empty(0)
        round = Round(unused, unused, unused, unused, x.shape[0], tuple(s.pieces[0] for s in spans), tuple(spans))
        return self.layer(x, round, view)

    def alone(self, x: torch.Tensor) -> torch.Tensor:
        """Every row a sequence of its own: output and the new state, bit for bit."""
        view = self.view(x.shape[0])
        out = self.step(x, view, 1, 1)
        return torch.cat([out, view.state.flatten(1).view(torch.bfloat16)], 1)


def check_gdn(checker: Checker) -> None:
    for heads in (2, 6, 32, 48):
        probe = GdnProbe(checker, heads)
        pool = checker.normal(POOL, probe.columns).to(torch.bfloat16)
        if heads <= 6:
            checker.rows("gdn_rows", probe.alone, pool)
        for tokens in range(2, 17):
            view = probe.view(1)
            want = torch.cat([probe.step(pool[i : i + 1], view, 1, 1) for i in range(tokens)])
            for known in (1, tokens // 2, tokens):
                if tokens - known <= 15:
                    got = probe.step(pool[:tokens].clone(), probe.view(1), tokens, known)
                    checker.compare("gdn_window", f"heads={heads} tokens={tokens} known={known}", got, want)


@torch.inference_mode()
def main() -> None:
    torch.set_num_threads(2)
    checker = Checker()
    check_formats(checker)
    check_int8_product(checker)
    check_norms_and_mlp(checker)
    check_attention_parts(checker)
    check_gdn(checker)
    print(json.dumps({"int8_product": fastest_product().__name__, "failures": checker.failures}))


if __name__ == "__main__":
    main()

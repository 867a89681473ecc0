"""Each weight format against its decoder: what `linear` multiplies is what `decode` says, and `encode` loses no more than
the format must. Errors are relative RMS over a whole product unless a bound per weight is stated.
"""

import pytest
import torch

from paceline.quant import WEIGHT_CODECS
from paceline.quant.base import take_rows
from paceline.quant.w_int4 import GROUP
from paceline.quant.w_int8 import Int8Linear, plain_product

SHAPES = ((960, 576), (576, 1536), (96, 64), (200, 128), (64, 192), (1, 32), (65, 32))
# Results are rounded to bf16 (1.7e-3); int8 rounds its activations to 1/127 of each row's largest on top, and int4's
# large blocks multiply a bf16 copy of the weight.
PRODUCT_ERROR = {"fp32": 1e-6, "bf16": 2.5e-3, "int8": 1.2e-2, "int4": 3.5e-3}
WEIGHT_ERROR = {"fp32": 0.0, "bf16": 2e-3, "int8": 1e-2, "int4": 9e-2}


def weights(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.05


def relative_rms(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want.double()).pow(2).mean().sqrt() / want.double().pow(2).mean().sqrt())


def test_every_format_has_bounds() -> None:
    assert set(WEIGHT_CODECS) == set(PRODUCT_ERROR) == set(WEIGHT_ERROR)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", list(WEIGHT_CODECS))
def test_linear_multiplies_what_decode_says(name: str, shape: tuple[int, int]) -> None:
    codec = WEIGHT_CODECS.get(name)
    planes = codec.encode(weights(*shape))
    decoded = codec.decode(planes)
    assert decoded.shape == shape and decoded.dtype == torch.float32
    linear = codec.linear(planes)
    x = torch.randn(80, shape[1], generator=torch.Generator().manual_seed(1)).to(codec.dtype)
    want = x.double() @ decoded.double().t()
    for rows, small in ((80, 80), (80, 0), (80, 13), (1, 1), (1, 0), (17, 17), (65, 1)):
        got = linear(x[:rows], small)
        assert got.shape == (rows, shape[0]) and got.dtype == codec.dtype
        # One output column alone has no average to hide in.
        allowed = PRODUCT_ERROR[name] * (3 if rows * shape[0] < 1000 else 1)
        assert relative_rms(got, want[:rows]) < allowed, (rows, small)


@pytest.mark.parametrize("name", list(WEIGHT_CODECS))
def test_rows_can_be_taken_out(name: str) -> None:
    """Planes of some rows are a weight of their own, in the order asked for; the whole one stays as it was."""
    codec = WEIGHT_CODECS.get(name)
    planes = codec.encode(weights(200, 128))
    before, rows = codec.decode(planes), torch.tensor([0, 7, 199, 3, 64])
    taken = take_rows(planes, rows)
    assert torch.equal(codec.decode(taken), before[rows])
    x = torch.randn(9, 128, generator=torch.Generator().manual_seed(1)).to(codec.dtype)
    assert relative_rms(codec.linear(taken)(x, 9), codec.linear(planes)(x, 9)[:, rows]) < PRODUCT_ERROR[name]
    for plane in taken.values():
        plane.zero_()
    assert torch.equal(codec.decode(planes), before)


@pytest.mark.parametrize("name", list(WEIGHT_CODECS))
def test_encoding_keeps_the_weight(name: str) -> None:
    codec = WEIGHT_CODECS.get(name)
    weight = weights(200, 576)
    decoded = codec.decode(codec.encode(weight))
    assert relative_rms(decoded, weight) <= WEIGHT_ERROR[name]
    assert relative_rms(codec.decode(codec.encode(weight.to(torch.bfloat16))), weight.bfloat16()) <= WEIGHT_ERROR[name]
    zeros = codec.decode(codec.encode(torch.zeros(3, 64)))
    assert zeros.abs().max() < 1e-7


def test_bf16_rounds_to_nearest() -> None:
    codec, weight = WEIGHT_CODECS.get("bf16"), weights(64, 64)
    assert ((codec.decode(codec.encode(weight)) - weight).abs() <= weight.abs() * 2.0**-8).all()


def test_int8_is_off_by_at_most_half_a_step_of_its_row() -> None:
    codec, weight = WEIGHT_CODECS.get("int8"), weights(64, 192)
    weight[3] *= 1000.0
    weight[4] = 0.0
    planes = codec.encode(weight)
    step = weight.abs().amax(1, keepdim=True) / 127
    assert ((codec.decode(planes) - weight).abs() <= step * 0.5001).all()
    again = codec.encode(codec.decode(planes))
    assert torch.equal(again["weight"], planes["weight"])


def test_int4_is_off_by_at_most_half_a_step_of_its_group() -> None:
    """Up to what rounding the group's scale and zero to bf16 shifts."""
    codec, weight = WEIGHT_CODECS.get("int4"), weights(64, 192)
    weight[1] += 3.0  # far from zero
    weight[2, :GROUP] = 0.25  # constant
    weight[3] *= 1e4
    decoded = codec.decode(codec.encode(weight))
    groups = weight.view(64, -1, GROUP)
    low, high = groups.amin(2, keepdim=True), groups.amax(2, keepdim=True)
    step = (high - low) / 15
    zero = (low + 8 * step).abs()
    bound = step * (0.5 + 8 * 2.0**-8) + zero * 2.0**-8 + 1e-7
    assert ((decoded.view_as(groups) - groups).abs() <= bound).all()


def test_int4_planes_hold_two_codes_in_a_byte() -> None:
    codec = WEIGHT_CODECS.get("int4")
    ramp = torch.arange(16.0).repeat(2)[None]  # [1, 32]: the codes themselves, scale 1 and zero 8
    planes = codec.encode(ramp)
    assert planes["scale_zero"].tolist() == [[[1.0, 8.0]]]
    assert planes["codes"].tolist() == [[(2 * i + 1) << 4 | 2 * i for i in range(8)] * 2]
    assert torch.equal(codec.decode(planes), ramp)


@pytest.mark.parametrize("columns", [64, 1024, 1025, 4096])
def test_the_fp32_product_of_integers_is_exact(columns: int) -> None:
    """It takes the place of oneDNN's where that saturates; its largest partial sums stay below 2²⁴."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randint(-127, 128, (20, columns), generator=generator, dtype=torch.int8)
    weight = torch.randint(-127, 128, (40, columns), generator=generator, dtype=torch.int8)
    x[0], x[1], weight[0], weight[1] = 127, -127, 127, -127
    x[2], weight[2] = 127, 127
    x[2, -1], weight[2, -1] = 1, 1  # an odd sum: lost once a partial sum passes 2²⁴
    scale = torch.rand(40, generator=generator) + 0.5
    exact = (x.long() @ weight.long().t()).to(torch.int32)
    assert torch.equal(plain_product(weight, scale)(x), exact * scale)


def test_int8_linears_agree_with_either_product(monkeypatch: pytest.MonkeyPatch) -> None:
    planes = WEIGHT_CODECS.get("int8").encode(weights(96, 576))
    x = torch.randn(33, 576, generator=torch.Generator().manual_seed(4)).to(torch.bfloat16)
    here = Int8Linear(planes["weight"], planes["scale"])(x, 33)
    monkeypatch.setattr("paceline.quant.w_int8.fastest_product", lambda: plain_product)
    fallback = Int8Linear(planes["weight"], planes["scale"])
    assert torch.equal(fallback(x, 33), here)

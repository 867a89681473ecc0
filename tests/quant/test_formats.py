"""The byte formulas against tensors: every weight format's against its codec, the KV formats' against their definition."""

import pytest
import torch

from paceline.core.errors import ConfigError
from paceline.quant import WEIGHT_CODECS
from paceline.quant.kv_formats import KV_FORMATS, kv_format
from paceline.quant.weight_formats import WEIGHT_FORMATS, weight_format


@pytest.mark.parametrize("name", list(WEIGHT_CODECS))
@pytest.mark.parametrize("shape", [(1, 32), (33, 96), (128, 64)])
def test_a_weight_format_is_what_its_codec_stores(name: str, shape: tuple[int, int]) -> None:
    form, codec = WEIGHT_FORMATS[name], WEIGHT_CODECS.get(name)
    planes = codec.encode(torch.randn(shape))
    assert form.matrix_bytes(*shape) == sum(plane.nbytes for plane in planes.values())
    assert [plane.name for plane in form.planes] == list(planes)
    assert (form.head, form.precise, form.group) == (codec.head, codec.precise, codec.group)
    assert form.activation == str(codec.dtype).removeprefix("torch.")


def test_nvfp4_weights() -> None:
    """4.5 bits a weight and one fp32 scale for each matrix of the checkpoint."""
    assert WEIGHT_FORMATS["nvfp4"].matrix_bytes(34_816, 5_120, tensors=2) == 34_816 * 5_120 * 9 // 16 + 8


@pytest.mark.parametrize(
    "name,head_bytes",
    [("fp32", 2048), ("bf16", 1024), ("fp8", 516), ("int8", 528), ("nvfp4", 288), ("k8v4", 402)],
)
def test_a_kv_head_of_256(name: str, head_bytes: int) -> None:
    assert KV_FORMATS[name].token_bytes(1, 256) == head_bytes
    assert KV_FORMATS[name].token_bytes(4, 256) == 4 * head_bytes


@pytest.mark.parametrize("name,head_bytes", [("int8", 2 * (32 + 2)), ("nvfp4", 2 * (16 + 2)), ("fp8", 2 * (32 + 2))])
def test_a_small_head_still_has_its_scales(name: str, head_bytes: int) -> None:
    assert KV_FORMATS[name].token_bytes(1, 32) == head_bytes


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(
        ConfigError, match="--kv-dtype = int3: unknown; choose one of fp32, bf16, fp8, int8, nvfp4, k8v4"
    ):
        kv_format("int3")
    with pytest.raises(ConfigError, match="--weights = q4"):
        weight_format("q4")

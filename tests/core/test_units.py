"""Sizes as people write them."""

import pytest

from paceline.core.errors import ConfigError
from paceline.core.units import exact_bytes, format_bytes, parse_bytes


@pytest.mark.parametrize(
    "text,size",
    [
        ("9469855232", 9_469_855_232), ("64b", 64), ("32GB", 32 * 10**9), ("24GiB", 24 * 2**30), ("512 MiB", 512 * 2**20),
        ("1.5kb", 1500), ("2TiB", 2 * 2**40), ("31.3GiB", 33_608_119_091), (" 7 MB ", 7_000_000),
    ],
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes("--size", text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1", "1e9", "32G", "12 34", "0x10", "1,000", "nan"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ConfigError, match="--size = .*32GB"):
        parse_bytes("--size", text)


def test_both_ways_of_writing() -> None:
    assert exact_bytes(8_541_422_080) == "8,541,422,080 B (7.95 GiB)"
    assert format_bytes(1023) == "1023 B"

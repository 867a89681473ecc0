"""Numbers with units, for people: bytes, tokens and seconds in and out."""

import re

from paceline.core.errors import ConfigError

_FACTORS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip


def parse_bytes(field: str, text: str) -> int:
    """'8GiB', '32 GB', '1.5g' or plain bytes → bytes. Binary units for K, M, G and KiB…; decimal ones for KB, MB, GB."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([a-zA-Z]*)\s*", text)
    if match is None or match[2].lower() not in _FACTORS:
        raise ConfigError(field, text, "write a size such as 8GiB, 32GB or 1500000000")
    return int(float(match[1]) * _FACTORS[match[2].lower()])


def format_bytes(n: int) -> str:
    """Bytes → '1.25 GiB'; below 1 KiB as plain bytes."""
    value = float(n)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{int(value)} B" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1024
    return f"{value:.2f} TiB"


def format_seconds(seconds: float) -> str:
    """Seconds → '850 ms', '12.3 s', '4 min 05 s'."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"

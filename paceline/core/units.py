"""Numbers with units, for people: bytes and seconds."""

import re

from paceline.core.errors import ConfigError

_UNITS = {
    "": 1,
    "b": 1,
    **{f"{p}b": 1000**i for i, p in enumerate("kmgt", 1)},
    **{f"{p}ib": 1024**i for i, p in enumerate("kmgt", 1)},
}


def parse_bytes(field: str, text: str) -> int:
    """'9469855232', '32GB' (10⁹), '512 MiB' (2²⁰) → whole bytes, rounded down. `field` names the flag in the error."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    if match is None or match[2].lower() not in _UNITS:
        raise ConfigError(field, text, "not a size; write bytes, or a number with a unit, such as 32GB or 512MiB")
    whole, _, part = match[1].partition(".")
    scale: int = _UNITS[match[2].lower()]
    return int(whole + part) * scale // int(10 ** len(part))


def exact_bytes(n: int) -> str:
    """Bytes → '8,541,422,080 B (7.95 GiB)'."""
    return f"{n:,} B ({format_bytes(n)})"


def format_bytes(n: float) -> str:
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

"""Numbers with units, for people: bytes and seconds."""


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

"""Devices by name, for planning without one.

Totals are what the CUDA runtime reports, rounded down to 0.1 GiB; drivers differ by up to 0.1 GiB. The context is what a
process holds before it has allocated anything: about 470 MiB was seen on an RTX 4090.
"""

from paceline.core.errors import ConfigError
from paceline.core.registry import choose
from paceline.core.units import parse_bytes
from paceline.memory.plan import Device

CONTEXT_BYTES = 512 * 2**20
_GIB = {
    "rtx3090": "23.6",
    "rtx4090": "23.5",
    "rtx5090": "31.3",
    "rtx-pro-6000": "94.9",
    "l40s": "44.4",
    "a100-40gb": "39.3",
    "a100-80gb": "79.1",
    "h100": "79.1",
    "h200": "139.7",
    "b200": "178.3",
}
PROFILES = {
    name: Device(name, parse_bytes(name, f"{gib}GiB"), context_bytes=CONTEXT_BYTES) for name, gib in _GIB.items()
}


def profile(name: str) -> Device:
    return choose("--profile", name, PROFILES)


def given_memory(text: str) -> Device:
    """A GPU of which only the size is known."""
    total = parse_bytes("--device-memory", text)
    if total <= CONTEXT_BYTES:
        fix = "smaller than what a driver takes for itself; give the whole device's memory, such as 32GB"
        raise ConfigError("--device-memory", text, fix)
    return Device(f"a device of {text}", total, context_bytes=CONTEXT_BYTES)


def after_weights(text: str) -> Device:
    """A GPU with the driver, the target and the drafter on it already, of which this much is left."""
    left = parse_bytes("--available-after-weights", text)
    return Device(f"{left:,} B after weights", left, after_weights=True)

"""In the exact formats a row's bits depend on that row alone: for any number of rows, any neighbours, any instruction set.

So do the elementwise functions between the linears. Everything that is bit for bit the same for every K and C rests on
this. The checks are in `rows.py`; each instruction set needs a process of its own.
"""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.quant.rows import CHECKS

ROOT = Path(__file__).parents[2]
ISA = "ONEDNN_MAX_CPU_ISA"
# The last one is what a CPU without AVX-512 runs: torch's own kernels in AVX2 too, not only oneDNN's.
SETTINGS: dict[str, dict[str, str]] = {
    "default": {},
    "avx512_bf16": {ISA: "AVX512_CORE_BF16"},
    "avx2": {ISA: "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
}


@cache
def report(setting: str) -> dict[str, Any]:
    """What `rows.py` found in a process with these variables, which must be there before torch is loaded."""
    environment = {k: v for k, v in os.environ.items() if k not in (ISA, "ATEN_CPU_CAPABILITY")} | SETTINGS[setting]
    environment["OMP_WAIT_POLICY"] = "PASSIVE"  # threads that spin make this ten times slower on a busy machine
    command = [sys.executable, "-m", "tests.quant.rows"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_rows_do_not_depend_on_each_other(setting: str, check: str) -> None:
    assert report(setting)["failures"][check] == []


@pytest.mark.parametrize("setting", ["avx2"])
def test_saturating_int8_products_are_noticed(setting: str) -> None:
    """AVX2 without VNNI adds pairs of products in 16 bits; the answer decides which product int8 linears use."""
    assert report(setting)["int8_product"] == "plain_product"

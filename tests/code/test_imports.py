"""Who may import whom. The table is the architecture: data flows one way, and half of the code never needs torch.

Imports under TYPE_CHECKING and inside functions count as any other, except where torch is concerned: there it matters
what is loaded when a module is imported.
"""

import subprocess
import sys

import pytest

from tests.code.modules import PACKAGE, ROOT, cycle, loaded_with, modules, ours, part_of

# Besides itself, `core` and the standard library.
MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "memory": set(),
    "text": set(),
    "quant": set(),
    "scheduler": {"memory"},
    "engine": {"scheduler", "memory"},
    "kernels": {"quant"},
    "layers": {"quant", "kernels"},
    "sampling": {"quant", "kernels"},
    "checkpoint": {"quant"},
    "models": {"quant", "layers", "kernels"},
    "drafters": {"quant", "layers", "kernels", "sampling"},
    "runner": {"memory", "quant", "kernels", "layers", "checkpoint", "models", "drafters", "sampling"},
    "train": {"quant", "kernels", "layers", "checkpoint", "models", "drafters"},
    "server": {"engine", "text"},
    "measure": set(),
    "build": {
        "memory", "text", "quant", "scheduler", "engine", "kernels", "layers", "sampling", "checkpoint", "models",
        "drafters", "runner",
    },
    "planning": {"memory", "quant", "checkpoint", "models", "drafters"},
    "cli": {"build", "planning", "memory", "server", "measure", "train"},
    "__main__": {"cli"},
}  # fmt: skip
TORCH_FREE = ("core", "memory", "scheduler", "engine", "text", "server", "measure", "build", "planning", "cli")
HEAVY = {"torch", "triton", "transformers"}
PARTS = sorted({part_of(module) for module in modules()} - {""})


def test_every_package_is_in_the_table() -> None:
    assert set(PARTS) == set(MAY_IMPORT)


@pytest.mark.parametrize("part", PARTS)
def test_imports_stay_within_the_table(part: str) -> None:
    allowed = MAY_IMPORT[part] | {part, "core", ""}
    found = {
        f"{module} imports {name}"
        for module in modules()
        if part_of(module) == part
        for name in ours(module)
        if part_of(name) not in allowed
    }
    assert not found


def test_the_root_imports_nothing() -> None:
    assert ours(PACKAGE) == []


def test_a_drafter_imports_no_sibling() -> None:
    """What two of them share belongs in base.py, or in block.py for the two that draft whole blocks."""
    shared = {f"paceline.drafters{name}" for name in ("", ".base", ".block", ".block_config")}
    for module in modules():
        if module.startswith("paceline.drafters.") and module not in shared:
            assert {name for name in ours(module) if part_of(name) == "drafters"} <= shared, module


def test_no_cycle_between_modules() -> None:
    assert cycle({module: set(ours(module)) for module in modules()}) == []


def test_no_cycle_between_packages() -> None:
    graph: dict[str, set[str]] = {}
    for module in modules():
        others = {part_of(name) for name in ours(module)} - {part_of(module), ""}
        graph.setdefault(part_of(module), set()).update(others)
    assert cycle(graph) == []


@pytest.mark.parametrize("part", TORCH_FREE)
def test_the_torch_free_half_loads_no_torch(part: str) -> None:
    for module in modules():
        if part_of(module) == part:
            heavy = {name for name in loaded_with(module) if name.partition(".")[0] in HEAVY}
            assert not heavy, f"importing {module} loads {heavy}"


def test_starting_up_loads_no_torch_for_real() -> None:
    """Libraries count here too: what the command line, the HTTP process and the wiring import, they import for good."""
    starts = (
        "paceline.cli.main, paceline.server.run, paceline.build, paceline.engine.process, paceline.measure.campaign"
    )
    code = f"import sys, {starts}\nprint(*sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_a_cycle_is_found() -> None:
    assert cycle({"a": {"b"}, "b": {"c", "d"}, "c": set(), "d": {"b"}}) == ["b", "d", "b"]
    assert cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []

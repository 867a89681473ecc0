"""The package as data: its modules, and who imports whom; read from the source, nothing is imported."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = "paceline"


@cache
def modules() -> dict[str, Path]:
    """Dotted name → file; a package stands for its __init__."""
    found = {}
    for file in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(modules()[module].read_text(encoding="utf-8"))


def part_of(module: str) -> str:
    """`paceline.core.spec` → `core`, `paceline.build` → `build`, `paceline` → ``."""
    return module.partition(".")[2].partition(".")[0]


@cache
def imports(module: str, at_import_time: bool = False) -> frozenset[str]:
    """The dotted names that a module imports; ours as the modules that they are. Also inside functions and under
    TYPE_CHECKING, unless only those are wanted that run when the module is imported."""
    nodes = running(tree_of(module).body) if at_import_time else ast.walk(tree_of(module))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            assert node.module is not None
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in modules() else node.module)
    return frozenset(found - {module})


def running(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """The statements that run on import: not those in functions, nor under TYPE_CHECKING."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            yield from running(node.orelse)
            continue
        yield node
        for inner in ("body", "orelse", "finalbody"):
            yield from running(getattr(node, inner, []))
        for handler in getattr(node, "handlers", []):
            yield from running(handler.body)


def ours(module: str, at_import_time: bool = False) -> list[str]:
    return sorted(name for name in imports(module, at_import_time) if name.partition(".")[0] == PACKAGE)


def loaded_with(module: str) -> set[str]:
    """Everything of ours that importing a module imports, and the names from elsewhere too."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in modules():
            waiting += imports(name, at_import_time=True)
            parent = name.rpartition(".")[0]
            waiting += [parent] if parent else []
    return seen


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """A way through the graph that comes back to its start, or nothing."""
    state: dict[str, int] = {}
    path: list[str] = []

    def visit(node: str) -> list[str]:
        state[node] = 1
        path.append(node)
        for other in sorted(graph.get(node, set())):
            if state.get(other) == 1:
                return [*path[path.index(other) :], other]
            if other not in state and (found := visit(other)):
                return found
        state[node] = 2
        path.pop()
        return []

    for node in sorted(graph):
        if node not in state and (found := visit(node)):
            return found
    return []

"""Rules of structure, for `make check`: size of files, direction of imports, no circle. Prints each breach."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

MOST_LINES, FEWEST_LINES = 400, 30
LAYERS = (
    {"methods", "rewards"},
    {"data"},
    {"training", "evaluation"},
    {"analysis"},
    {"report"},
    {"commands"},
)
"""A package imports from its own layer and those before it; modules outside packages only form no circle."""


def modules(package: Path) -> dict[str, Path]:
    """Return dotted name -> file of every module below `package`."""
    files = {path: path.relative_to(package.parent).with_suffix("").parts for path in package.rglob("*.py")}
    return {".".join(parts[:-1] if parts[-1] == "__init__" else parts): path for path, parts in files.items()}


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """Return the known modules that a file imports, inside functions too, but not for type checkers alone."""
    found = set()
    for node in _executed(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else node.module for name in names}
    return found & known.keys()


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    for child in ast.iter_child_nodes(node):
        yield from _executed(child)


def breaches(package: Path) -> Iterator[str]:
    """Yield a sentence for each rule that the modules below `package` break."""
    known = modules(package)
    graph = {name: imports(path, known) - {name} for name, path in known.items()}
    levels = {folder: level for level, layer in enumerate(LAYERS) for folder in layer}
    for name, path in sorted(known.items()):
        yield from _sizes(path, package)
        level = levels.get(_folder(name), len(LAYERS))
        for other in sorted(graph[name]):
            if levels.get(_folder(other), 0) > level:
                yield f"{name} imports {other}, which is of a later layer"
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield f"imports form a circle: {' <- '.join(error.args[1])}"


def _folder(module: str) -> str:
    return module.partition(".")[2].partition(".")[0]


def _sizes(path: Path, package: Path) -> Iterator[str]:
    where, lines = path.relative_to(package.parent), len(path.read_text(encoding="utf-8").splitlines())
    if lines > MOST_LINES:
        yield f"{where} has {lines} lines; a module has at most {MOST_LINES}: give one of its subjects a module"
    if lines < FEWEST_LINES and not path.stem.startswith("__") and path.parent.name != "methods":
        yield f"{where} has {lines} lines; a module has at least {FEWEST_LINES}: it belongs where it is used"


if __name__ == "__main__":
    found = list(breaches(Path("workflow/dara")))
    print("\n".join(found) or "structure: sizes, layers and imports are right")
    sys.exit(bool(found))

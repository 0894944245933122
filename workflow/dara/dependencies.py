"""Finds the code that determines a result: the files reachable from functions of this package.

Names in the source are followed, nothing is executed. A rule that computes or draws has the digest of its code as a
parameter, so an edit reruns the rules that it affects.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent
ALL, NOTHING = "*", ""
Target = tuple[str, str]
"""A module, and a name in it: ALL names, or NOTHING but its import."""


@dataclass(frozen=True)
class Source:
    """A module of the package: names bound by its imports, its functions and classes, and other code run at import."""

    path: Path
    imports: dict[str, Target]
    definitions: dict[str, ast.stmt]
    rest: ast.Module


@cache
def code_digest(*targets: str, package: Path = PACKAGE) -> str:
    """Return a checksum of `files(*targets)`; comments and the layout of Python do not change it."""
    parts = [f"{file.relative_to(package).as_posix()} {_checksum(file)}\n" for file in files(*targets, package=package)]
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]


def files(*targets: str, package: Path = PACKAGE) -> list[Path]:
    """Return the files of a package that `module:function` (or all of a `module`) can reach, and their data files.

    A reached module counts with the code that runs at its import. A function or class counts, with the imports inside
    it, if reached code names it. Modules imported by computed names must be separate targets.
    """
    reached: set[Target] = set()
    waiting: list[Target] = []
    for text in targets:
        module, _, name = text.partition(":")
        source = _source(package, module)
        if source is None or (name and name not in source.definitions):
            raise ValueError(f"{package}: there is no {text}")
        waiting.append((module, name or ALL))
    while waiting:
        target = waiting.pop()
        if target not in reached:
            reached.add(target)
            waiting += _next(package, *target)
    modules = {source.path for module in {module for module, _ in reached} if (source := _source(package, module))}
    beside = {path for folder in {path.parent for path in modules} for path in folder.iterdir() if _is_data(path)}
    return sorted(modules | beside)


@cache
def _next(package: Path, module: str, name: str) -> frozenset[Target]:
    """Return the targets that a name of a module leads to; for NOTHING, those of its import."""
    source = _source(package, module)
    if source is None:  # of another package
        return frozenset()
    if name == NOTHING:  # the packages around a module are imported with it
        parts = module.split(".")
        around = {(".".join(parts[:end]), NOTHING) for end in range(1, len(parts))}
        return frozenset({*around, *_references(source, module, source.rest)})
    found = {(module, NOTHING)}
    if name == ALL:
        found |= {(module, each) for each in (*source.definitions, *source.imports)}
    elif name in source.definitions:
        found |= _references(source, module, source.definitions[name])
    elif name in source.imports:
        found.add(source.imports[name])
    elif _source(package, f"{module}.{name}"):
        found.add((f"{module}.{name}", ALL))
    return frozenset(found)


def _references(source: Source, module: str, node: ast.AST) -> set[Target]:
    """Return the targets that names and imports in a piece of a module may refer to."""
    found: set[Target] = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and (each.id in source.definitions or each.id in source.imports):
            found.add((module, each.id))
        elif isinstance(each, ast.Import | ast.ImportFrom):
            found.update(target for _, target in _imported(each, source.path, module))
    return found


@cache
def _source(package: Path, module: str) -> Source | None:
    """Return a module of the package; None for a module of another package."""
    top, *inner = module.split(".")
    place = package.joinpath(*inner)
    path = next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)
    if top != package.name or path is None:
        return None
    source = Source(path, {}, {}, ast.Module([], []))
    for statement in _tree(path).body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            source.definitions[statement.name] = statement
            if isinstance(statement, ast.FunctionDef) and statement.decorator_list:  # it may register the function
                source.rest.body.append(statement)
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            source.imports.update(_imported(statement, path, module))
        elif not (isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"):
            source.rest.body.append(statement)
    return source


def _imported(node: ast.Import | ast.ImportFrom, path: Path, module: str) -> Iterator[tuple[str, Target]]:
    """Yield the names that an import binds, with their targets."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.asname or alias.name.partition(".")[0], (alias.name, ALL)
        return
    around = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    base = around[: len(around) - node.level + 1] if node.level else []
    origin = ".".join([*base, *filter(None, [node.module])])
    for alias in node.names:
        yield alias.asname or alias.name, (origin, alias.name)


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes(), str(path))


@cache
def _checksum(path: Path) -> str:
    content = ast.dump(_tree(path), annotate_fields=False).encode() if path.suffix == ".py" else path.read_bytes()
    return hashlib.sha256(content).hexdigest()


def _is_data(path: Path) -> bool:
    """Return whether this is a file of package data, such as a template or style, and no editor's backup."""
    hidden = path.name.startswith(".") or path.name.endswith("~")
    return path.is_file() and path.suffix not in ("", ".py") and not hidden

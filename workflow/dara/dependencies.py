"""Which code makes a result: the files that functions of this package can reach, found from the names in their source.

A rule that computes or draws has the digest of its code as a parameter, so that an edit makes again what it decides.
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
"""A module, and a name in it: ALL of them, or NOTHING but its import."""


@dataclass(frozen=True)
class Source:
    """A module of the package: what its imports bind, its functions and classes, and what else runs at import."""

    path: Path
    imports: dict[str, Target]
    definitions: dict[str, ast.stmt]
    rest: ast.Module


@cache
def code_digest(*targets: str, package: Path = PACKAGE) -> str:
    """A checksum of `files(*targets)`: another one after an edit, but for comments and the layout of Python."""
    parts = [f"{file.relative_to(package).as_posix()} {_checksum(file)}\n" for file in files(*targets, package=package)]
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]


def files(*targets: str, package: Path = PACKAGE) -> list[Path]:
    """The files of a package that `module:function` (or all of a `module`) can reach, and the data beside them.

    What runs at import counts where a module is reached, and a function or class where it is named by what is reached,
    with the imports inside it. Modules that are imported by computed names must be targets of their own.
    """
    reached: set[Target] = set()
    waiting = [_target(package, target) for target in targets]
    while waiting:
        target = waiting.pop()
        if target not in reached:
            reached.add(target)
            waiting += _next(package, *target)
    modules = {source.path for module in {module for module, _ in reached} if (source := _source(package, module))}
    return sorted(modules.union(*map(_data, {path.parent for path in modules})))


def _target(package: Path, text: str) -> Target:
    module, _, name = text.partition(":")
    source = _source(package, module)
    if source is None or (name and name not in source.definitions):
        raise ValueError(f"{package}: there is no {text}")
    return module, name or ALL


@cache
def _next(package: Path, module: str, name: str) -> frozenset[Target]:
    """What a name of a module leads to; NOTHING: what its import runs."""
    source, inside = _source(package, module), f"{module}.{name}"
    if source is None:  # of another package
        return frozenset()
    if name == NOTHING:
        return frozenset({*_parents(module), *_references(source, module, source.rest)})
    found = {(module, NOTHING)}
    if name == ALL:
        found |= {(module, each) for each in (*source.definitions, *source.imports)}
    elif name in source.definitions:
        found |= _references(source, module, source.definitions[name])
    elif name in source.imports:
        found.add(source.imports[name])
    elif _source(package, inside):
        found.add((inside, ALL))
    return frozenset(found)


def _parents(module: str) -> set[Target]:
    """The packages around a module, which are imported with it."""
    parts = module.split(".")
    return {(".".join(parts[:end]), NOTHING) for end in range(1, len(parts))}


def _references(source: Source, module: str, node: ast.AST) -> set[Target]:
    """What the names and imports in a piece of a module may mean."""
    found: set[Target] = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and (each.id in source.definitions or each.id in source.imports):
            found.add((module, each.id))
        elif isinstance(each, ast.Import | ast.ImportFrom):
            found.update(target for _, target in _imported(each, source.path, module))
    return found


@cache
def _source(package: Path, module: str) -> Source | None:
    """A module of the package, None for one of another."""
    top, *inner = module.split(".")
    place = package.joinpath(*inner)
    path = next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)
    if top != package.name or path is None:
        return None
    imports: dict[str, Target] = {}
    definitions: dict[str, ast.stmt] = {}
    rest = ast.Module([], [])
    for statement in _tree(path).body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            definitions[statement.name] = statement
            if isinstance(statement, ast.FunctionDef) and statement.decorator_list:  # which may keep it elsewhere
                rest.body.append(statement)
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            imports |= _imported(statement, path, module)
        elif not (isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"):
            rest.body.append(statement)
    return Source(path, imports, definitions, rest)


def _imported(node: ast.Import | ast.ImportFrom, path: Path, module: str) -> Iterator[tuple[str, Target]]:
    """The names that an import binds, and what they are."""
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


@cache
def _data(folder: Path) -> list[Path]:
    """The package data in a folder, such as templates and styles; not what an editor left there."""
    files = [path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")]
    return [path for path in files if path.suffix not in ("", ".py") and not path.name.endswith("~")]

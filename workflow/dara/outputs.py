"""Tables and figures as files, and the code that determines them and other results.

A table or figure has an experiment, inputs, and a place. The code is what is reachable from functions of this package:
names in the source are followed, nothing is executed. A rule that computes or draws has the digest of its code as a
parameter, so an edit reruns the rules that it affects.
"""

from __future__ import annotations

import ast
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dara.analysis.figures import FIGURES
from dara.config import Configuration, Experiment, Matrix, TaskSettings
from dara.loading import ConfigurationError, load_published
from dara.table_options import SIDE_BY_SIDE, TABLES, ScoreTable, table_name

FORMS = {"tables": ("md", "tex", "csv"), "side_by_side": ("md", "tex", "csv"), "figures": ("png", "svg")}
KINDS = {"tables": ("table", TABLES), "side_by_side": ("table", SIDE_BY_SIDE), "figures": ("figure", FIGURES)}
CURVES = {"checkpoint_curves": "benchmark", "validation_curves": "validation"}
"""Figure -> the evaluation of the task that it shows. Like a table of scores, it is planned only for experiments that
have the evaluation. Curves need more than one step besides the base model's."""
PACKAGE = Path(__file__).parent
ALL, NOTHING = "*", ""
Target = tuple[str, str]
"""A module, and a name in it: ALL names, or NOTHING but its import."""


@dataclass(frozen=True)
class Drawing:
    """Tables or figures of one kind that one job draws together, as importing libraries takes most of its time.

    rule: its name, the kind and the module. noun: table or figure. function: of `dara.drawing`. command: with which it
    is called, without its last argument. path: the MODULE:FUNCTION that makes the tables or figures. settings: the
    configuration files that determine them, so that an edit (a label) redraws them. shown: label and file of each in
    Snakemake's report, a table's Markdown or a figure's PNG. others: the other files.
    """

    kind: str
    rule: str
    noun: str
    function: str
    command: str
    path: str
    settings: list[str]
    shown: list[tuple[str, str]]
    others: list[str]


@dataclass(frozen=True)
class Outputs:
    """The outputs of some experiments: a preset's from its runs, or the published ones from the paper's numbers.

    A kind is tables, side_by_side or figures; an output is the id of one of them, its file name.
    """

    experiments: Mapping[str, Experiment]
    """Experiments by name, with the methods that are shown."""
    configured: Mapping[str, str]
    """The file below config/ of each experiment."""
    root: Path
    """The repository."""
    directory: Path
    """Parent of the folders tables/ and figures/ into which they are written."""
    owner_name: str
    """The owner of these outputs, for errors."""

    @classmethod
    def of_preset(cls, configuration: Configuration, root: Path, directory: Path) -> Outputs:
        """Return the outputs of a preset's experiments, with the methods that it trains; omit what it cannot show."""
        experiments = {}
        for name, matrix in configuration.preset.experiments.items():
            found = configuration.experiments[name]
            task = configuration.preset.tasks[found.task]
            shown = {
                kind: {name: entry for name, entry in getattr(found, kind).items() if _is_possible(entry, task, matrix)}
                for kind in FORMS
            }
            experiments[name] = found.model_copy(update={"methods": configuration.methods_of(found, matrix), **shown})
        configured = {name: f"experiments/{name}.yaml" for name in experiments}
        return cls(experiments, configured, root, directory, f"preset {configuration.preset.preset}")

    @classmethod
    def of_published(cls, root: Path, directory: Path) -> Outputs:
        """Return the outputs of config/published.yaml; raise ConfigurationError for a mistake in it."""
        experiments = load_published(root)
        return cls(experiments, dict.fromkeys(experiments, "published.yaml"), root, directory, "config/published.yaml")

    def ids(self, kind: str) -> list[str]:
        """Return all outputs of a kind."""
        return [output for experiment in self.experiments.values() for output in getattr(experiment, kind)]

    def owner(self, kind: str, output: str) -> tuple[Experiment, str | ScoreTable]:
        """Return the experiment that has an output, and the output's entry. ConfigurationError if there is none."""
        for experiment in self.experiments.values():
            if output in getattr(experiment, kind):
                return experiment, getattr(experiment, kind)[output]
        raise ConfigurationError(f"{self.owner_name} has no {kind}.{output}; it has {', '.join(self.ids(kind))}")

    def drawings(self) -> list[Drawing]:
        """Return all outputs, grouped by kind and module."""
        made: dict[tuple[str, str], dict[str, str]] = {}
        for kind in FORMS:
            for experiment in self.experiments.values():
                for output, entry in getattr(experiment, kind).items():
                    made.setdefault((kind, table_name(entry)), {})[output] = self.configured[experiment.experiment]
        return [self._drawing(kind, module, own) for (kind, module), own in made.items()]

    def _drawing(self, kind: str, module: str, own: Mapping[str, str]) -> Drawing:
        """Return what draws the outputs of a kind and a module; own: each output with its file below config/."""
        noun, functions = KINDS[kind]
        function, beside = ("side_by_side", ", ours beside the published") if kind == "side_by_side" else (noun, "")
        first, *rest = FORMS[kind]
        return Drawing(
            kind=kind,
            rule=f"{kind}_{module}",
            noun=noun,
            function=function,
            command=" ".join([function.replace("_", "-"), *own]),
            path=f"dara.analysis.{noun}s.{functions[module]}",
            settings=self._in_config(*dict.fromkeys(own.values()), "methods.yaml"),
            shown=[(f"{output}{beside}", f"{self.stem(kind, output)}.{first}") for output in own],
            others=[f"{self.stem(kind, output)}.{form}" for form in rest for output in own],
        )

    def stem(self, kind: str, output: str) -> Path:
        """Return the path of an output without its suffix."""
        folder = self.directory / f"{KINDS[kind][0]}s"
        return folder / (f"{output}_side_by_side" if kind == "side_by_side" else output)

    @property
    def definitions(self) -> list[str]:
        """Return the configuration files of all experiments."""
        return self._in_config(*dict.fromkeys(self.configured.values()))

    @property
    def data(self) -> list[str]:
        """Return the files of the paper's numbers in the same directory."""
        return sorted(map(str, (self.directory / "data").glob("*.csv")))

    @property
    def files(self) -> list[str]:
        """Return every file of every kind."""
        return [file for kind in FORMS for file in self.files_of(kind)]

    @property
    def names(self) -> list[str]:
        """Return every file of every kind, relative to `directory`."""
        return [str(Path(file).relative_to(self.directory)) for file in self.files]

    def files_of(self, kind: str) -> list[str]:
        """Return every file of a kind."""
        return [f"{self.stem(kind, output)}.{form}" for output in self.ids(kind) for form in FORMS[kind]]

    def _in_config(self, *names: str) -> list[str]:
        return [os.path.relpath(self.root / "config" / name) for name in names]


def _is_possible(entry: str | ScoreTable, task: TaskSettings, matrix: Matrix) -> bool:
    """Return whether an experiment's evaluation provides the numbers of an output."""
    if isinstance(entry, ScoreTable):
        return entry.benchmark in (None, task.benchmark.name) and matrix.evaluates(task.benchmark)
    several = matrix.evaluate_at is None or len(matrix.evaluate_at) > 1
    return entry not in CURVES or (several and matrix.evaluates(getattr(task, CURVES[entry])))


# --- the code of results ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """A module of the package: names bound by its imports, its functions and classes, and other code run at import."""

    path: Path
    imports: dict[str, Target]
    definitions: dict[str, ast.stmt]
    rest: ast.Module


@cache
def code_digest(*targets: str, package: Path = PACKAGE) -> str:
    """Return a checksum of `code_files(*targets)`; comments and the layout of Python do not change it."""
    files = code_files(*targets, package=package)
    parts = [f"{file.relative_to(package).as_posix()} {_checksum(file)}\n" for file in files]
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]


def code_files(*targets: str, package: Path = PACKAGE) -> list[Path]:
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

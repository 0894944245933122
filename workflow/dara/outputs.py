"""Tables and figures as files: the experiment of each, its inputs, and where it is written."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dara.analysis.figures import FIGURES
from dara.config import Configuration, Experiment, Matrix, TaskSettings
from dara.loading import ConfigurationError, load_published
from dara.table_options import SIDE_BY_SIDE, TABLES, ScoreTable, table_name

FORMS = {"tables": ("md", "tex", "csv"), "side_by_side": ("md", "tex", "csv"), "figures": ("png", "svg")}

NEEDS: dict[str, Callable[[TaskSettings, Matrix], bool]] = {
    "checkpoint_curves": lambda task, matrix: matrix.evaluates(task.benchmark) and _several(matrix),
    "validation_curves": lambda task, matrix: matrix.evaluates(task.validation) and _several(matrix),
}
"""Condition for outputs that need a particular evaluation. Such a figure, like a table of scores, is planned only for
experiments that have the evaluation. Curves need more than one step besides the base model's."""


@dataclass(frozen=True)
class Drawing:
    """Tables or figures of one kind that one job draws together, as importing libraries takes most of its time."""

    kind: str
    module: str
    ids: tuple[str, ...]
    settings: list[str]
    """The configuration files that determine the outputs, so that an edit (a label) redraws them."""
    stems: tuple[Path, ...]

    @property
    def rule(self) -> str:
        """Return the name of the rule: the kind and the module."""
        return f"{self.kind}_{self.module}"

    @property
    def forms(self) -> tuple[str, ...]:
        """Return the file suffixes."""
        return FORMS[self.kind]

    @property
    def function(self) -> str:
        """Return the function of `dara.commands.results` that draws them."""
        return "side_by_side" if self.kind == "side_by_side" else self.noun

    @property
    def command(self) -> str:
        """Return the command that draws them, without its last argument."""
        return " ".join([self.function.replace("_", "-"), *self.ids])

    @property
    def path(self) -> str:
        """Return the function (MODULE:FUNCTION) that makes the tables or draws the figures."""
        if self.kind == "figures":
            return f"dara.analysis.figures.{FIGURES[self.module]}"
        return f"dara.analysis.tables.{(SIDE_BY_SIDE if self.kind == 'side_by_side' else TABLES)[self.module]}"

    @property
    def noun(self) -> str:
        """Return "table" or "figure"."""
        return "figure" if self.kind == "figures" else "table"

    @property
    def shown(self) -> list[tuple[str, str]]:
        """Return label and file of each output in Snakemake's report: a table's Markdown, a figure's PNG."""
        beside = ", ours beside the published" if self.kind == "side_by_side" else ""
        return [(f"{name}{beside}", file) for name, file in zip(self.ids, self.files(self.forms[0]), strict=True)]

    def files(self, form: str) -> list[str]:
        """Return the files of one form, such as svg."""
        return [f"{stem}.{form}" for stem in self.stems]


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
            shown = {kind: _possible(getattr(found, kind), task, matrix) for kind in FORMS}
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
        return [drawing for kind in FORMS for drawing in self._drawings(kind)]

    def _drawings(self, kind: str) -> list[Drawing]:
        made: dict[str, dict[str, str]] = {}
        for experiment in self.experiments.values():
            for output, entry in getattr(experiment, kind).items():
                module = entry if kind == "figures" else table_name(entry)
                made.setdefault(module, {})[output] = self.configured[experiment.experiment]
        return [
            Drawing(
                kind,
                module,
                tuple(own),
                self._in_config(*dict.fromkeys(own.values()), "methods.yaml"),
                tuple(self.stem(kind, output) for output in own),
            )
            for module, own in made.items()
        ]

    def stem(self, kind: str, output: str) -> Path:
        """Return the path of an output without its suffix."""
        folder = self.directory / ("figures" if kind == "figures" else "tables")
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
    def sources(self) -> list[str]:
        """Return the input files of all outputs."""
        return [*self.data, *self.definitions]

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


def _possible(outputs: Mapping[str, Any], task: TaskSettings, matrix: Matrix) -> dict[str, Any]:
    """Return an experiment's outputs of one kind whose numbers its evaluation provides."""
    return {output: entry for output, entry in outputs.items() if _is_possible(entry, task, matrix)}


def _is_possible(entry: str | ScoreTable, task: TaskSettings, matrix: Matrix) -> bool:
    if isinstance(entry, str):
        return entry not in NEEDS or NEEDS[entry](task, matrix)
    return entry.benchmark in (None, task.benchmark.name) and matrix.evaluates(task.benchmark)


def _several(matrix: Matrix) -> bool:
    return matrix.evaluate_at is None or len(matrix.evaluate_at) > 1

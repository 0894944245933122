"""The registries of benchmarks, on which checkpoints can be evaluated, and of engines, which train runs.

A benchmark is one `BenchmarkDefinition` in a module, and one line of REGISTRY here. An engine is a package in
dara/training/ and an entry in ENGINES. Configuration, planning and the command line read this module at start-up, so
torch and Ray are imported by no registry, and a module with a definition imports NumPy, pandas and graders only inside
its functions.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pandas as pd

    from dara.config import Resources
    from dara.data.hub import Fetch
    from dara.evaluation.records import Case, Metric, Response
    from dara.evaluation.tools import Program, Prompt
    from dara.specs import Benchmark, RunSpec

REGISTRY: dict[str, str] = {
    "laptop_tools": "dara.evaluation.bfcl:LAPTOP_TOOLS",
    "laptop_math": "dara.evaluation.math:LAPTOP_MATH",
    "bfcl_v4": "dara.evaluation.bfcl_v4:BFCL_V4",
    "math_five": "dara.evaluation.math:MATH_FIVE",
    "toolrl_validation": "dara.evaluation.validation:TOOLRL_VALIDATION",
    "deepscaler_validation": "dara.evaluation.validation:DEEPSCALER_VALIDATION",
}
"""Name of a benchmark -> `module:NAME` of its definition."""


def response_text(response: Response, case: Case) -> dict[str, Any]:
    """Return the scorer input of most benchmarks: the text of a response, and the scorer's part of its case."""
    return {"response": response.text, **case.gold}


@dataclass(frozen=True, kw_only=True)
class PublishedCases:
    """The cases of a public benchmark, as written into the folder that its evaluations read.

    Attributes:
        count: number of cases.
        content: entries of the manifest about their origin.
        rows: JSON-lines file -> its rows.
        files: file -> the file that it is copied from.
    """

    count: int
    content: Mapping[str, Any]
    rows: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class BenchmarkDefinition:
    """The definition of a benchmark.

    Attributes:
        task: the task whose checkpoints it evaluates.
        kind: laptop (generated cases), published (a public benchmark), or validation (the training rewards on held-out
            training rows).
        case_files: directory of the cases -> their files.
        load_cases: directory of the cases -> all cases. ValueError, with file and row, for a wrong one.
        data_files: ids of the public data sets that its cases are made of.
        publish: `Fetch` -> the cases; None: they are held out when a data set is prepared. ValueError for a missing or
            wrong file, or another number of cases.
        questions: id and text of the users' questions, for the comparison with training problems (contamination).
        prompt: the first prompt of a case.
        versions: versions of what else determines prompts and cases; a new version needs new responses.
        one_stream: whether all responses of a checkpoint share one random stream, instead of one seed per response.
            True only for the laptop's benchmarks, whose cached responses were generated so.
        programs: cases and settings.max_steps -> a context manager that yields each case's program; None: a case is
            one request.
        tools_identity: identity of the code that executes the tool calls of `programs`.
        scorer: `module:function` that makes the scorer in a worker process (`sandbox.ScorerSpec`).
        scorer_version: raised whenever the same responses would get other scores. The responses are then scored again;
            nothing is generated or trained again.
        scorer_settings: settings of the evaluation -> keyword arguments of `scorer`.
        scorer_item: response and case -> input of the scorer.
        graders: third-party packages that score, with their versions.
        columns: columns of the scores: case, category, sample, the benchmark's own, n_tokens and outcome.
        score_row: response, output of its scorer (parts may be missing after a timeout) and length limit -> the
            benchmark's own columns.
        summarise: scores of one checkpoint -> metrics. ValueError where an average does not exist.
        length_limit_needed: error message if the settings have no length limit; None: the limit is optional.
        paper: the paper's decoding, for `dara evaluate --model`; None: the benchmark is not the paper's.
        parts: categories of which its averages need at least one case.
        headline: metrics compared at the end of training, with their titles.
        plain_numbers: metrics that are not shares and are not shown in percent.
    """

    name: str
    task: Literal["tool_calling", "math"]
    kind: Literal["laptop", "published", "validation"]
    case_files: Callable[[Path], list[Path]]
    load_cases: Callable[[Path], list[Case]]
    data_files: tuple[str, ...] = ()
    publish: Callable[[Fetch], PublishedCases] | None = None
    questions: Callable[[], Sequence[tuple[str, str]]] = tuple
    prompt: Callable[[Case], Prompt]
    versions: Callable[[], Mapping[str, Any]] = dict
    one_stream: bool = False
    programs: Callable[[Sequence[Case], int], AbstractContextManager[Callable[[Case], Program]]] | None = None
    tools_identity: Callable[[], dict[str, Any]] | None = None
    scorer: str
    scorer_version: int
    scorer_settings: Callable[[Benchmark], dict[str, Any]] = lambda settings: {}
    scorer_item: Callable[[Response, Case], dict[str, Any]] = response_text
    graders: Mapping[str, str] | None = None
    columns: tuple[str, ...]
    score_row: Callable[[Response, Mapping[str, Any], int | None], dict[str, Any]]
    summarise: Callable[[pd.DataFrame], dict[str, Metric]]
    length_limit_needed: str | None = None
    paper: Mapping[str, Any] | None = None
    parts: Collection[str] = ()
    headline: Mapping[str, str] | None = None
    plain_numbers: tuple[str, ...] = ()

    @property
    def cases_folder(self) -> str:
        """Return the name of the folder with the cases, next to the data's manifest."""
        return "validation" if self.kind == "validation" else "benchmark"


def definition(name: str) -> BenchmarkDefinition:
    """Return a benchmark by its name. KeyError for another name."""
    module, _, attribute = REGISTRY[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def names_of(kind: str, task: str | None = None) -> tuple[str, ...]:
    """Return the names of all benchmarks of a kind, of one task or of any."""
    found = {name: definition(name) for name in REGISTRY}
    return tuple(name for name, one in found.items() if one.kind == kind and task in (None, one.task))


@dataclass(frozen=True)
class Engine:
    """An engine that trains runs. Its heavy modules are imported only when they are needed.

    name, title: used in configurations, and in tables. trainer: the module with `train(spec, inputs, *, resources,
    ray_address)`, which calls `training.run.train_run` with the function that makes the steps and with the libraries
    for the manifest. program: the module with `check_resources(spec, resources)` and `command_text(spec, resources, *,
    model, output)` of an engine that is a separate program, run in the environment that the preset names as
    `training_environment` and on the GPUs of the model's resources; None for an engine that computes in the process of
    the job. lacks: settings of a run that the engine does not read. hub_models: whether it trains hub models too.
    """

    name: str
    title: str
    trainer: str
    program: str | None = None
    lacks: tuple[str, ...] = ()
    hub_models: bool = True

    def check(self, spec: RunSpec) -> None:
        """Raise ValueError if a RunSpec has settings that this engine would ignore silently."""
        used = []
        for name in self.lacks:
            *parents, key = name.split(".")
            settings = reduce(getattr, parents, spec)
            if getattr(settings, key) != type(settings).model_fields[key].default:
                used.append(name)
        if used:
            raise ValueError(f"engine {self.name} has no {', '.join(used)}; set engine: openrlhf")
        if not self.hub_models and hasattr(spec.model, "hub"):
            raise ValueError(
                f"engine {self.name} trains the laptop's models, not {spec.model.hub}; set engine: openrlhf"
            )

    def check_resources(self, spec: RunSpec, resources: Resources) -> None:
        """Raise ValueError if a run cannot be trained on this hardware (config.Resources)."""
        if self.program:
            importlib.import_module(self.program).check_resources(spec, resources)

    def command_text(self, spec: RunSpec, resources: Resources, **paths: Any) -> str:
        """Return the command line of a run, for people; raise ValueError for an engine without one."""
        if self.program is None:
            raise ValueError(
                f"engine {self.name} has no command line of its own: it runs in this process; use openrlhf"
            )
        return importlib.import_module(self.program).command_text(spec, resources, **paths)

    def train(self, spec: RunSpec, inputs: Any, **options: Any) -> None:
        """Train a run and publish it; see `training.run.train_run`. options: resources, ray_address."""
        importlib.import_module(self.trainer).train(spec, inputs, **options)


ENGINES = {
    engine.name: engine
    for engine in (
        Engine(
            "trl",
            "TRL",
            "dara.training.trl",
            lacks=("kl", "entropy_coefficient", "filter", "precision", "sampler_seed", "optimizer.dual_clip"),
            hub_models=False,
        ),
        Engine("openrlhf", "OpenRLHF", "dara.training.openrlhf.launch", program="dara.training.openrlhf.command"),
    )
}

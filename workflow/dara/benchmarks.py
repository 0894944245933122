"""The registry of benchmarks: what checkpoints can be evaluated on, by name.

A benchmark is one `BenchmarkDefinition` in a module, and one line of REGISTRY here. Configuration, planning and the
command line read the registry at start-up, so a module with a definition imports NumPy, pandas and graders only inside
its functions.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pandas as pd

    from dara.data.hub import Fetch
    from dara.evaluation.records import Case, Metric, Response
    from dara.evaluation.tools import Program, Prompt
    from dara.specs import Benchmark

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
    """Return what most scorers need: the text of a response, and what the case holds for its scorer."""
    return {"response": response.text, **case.gold}


@dataclass(frozen=True, kw_only=True)
class PublishedCases:
    """The cases of a published benchmark, as they are written into the folder that its evaluations read.

    Attributes:
        count: how many there are.
        content: what the manifest says of their origin.
        rows: JSON-lines file -> its rows.
        files: file -> the one that it is a copy of.
    """

    count: int
    content: Mapping[str, Any]
    rows: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class BenchmarkDefinition:
    """Everything that the project knows about a benchmark.

    Attributes:
        task: the task whose checkpoints it evaluates.
        kind: cases generated on a laptop, a published benchmark, or the training rewards on held-out training rows.
        case_files: directory of the cases -> the files that they are made of.
        load_cases: directory of the cases -> all cases. ValueError, with file and row, for a wrong one.
        data_files: ids of the public data sets that its cases are made of.
        publish: how data is fetched -> the cases; None: they are held out when a data set is prepared. ValueError for a
            missing or wrong file, or another number of cases.
        questions: id and text of what users ask, which training problems are compared with.
        prompt: what a model is asked first.
        versions: what makes prompts and cases besides those files; new versions need new responses.
        one_stream: all responses of a checkpoint come from one stream of random numbers, not each from its own seed.
            Only the laptop's, whose cached responses were made so.
        programs: cases and settings.max_steps -> a context manager that gives the program of each case; None: a case is
            one request.
        tools_identity: what executes the tool calls of `programs`.
        scorer: `module:function` that makes the scorer in a worker process (`sandbox.ScorerSpec`).
        scorer_version: raised whenever the same responses get other scores. Then they are scored again; nothing is
            generated or trained again.
        scorer_settings: settings of the evaluation -> keyword arguments of `scorer`.
        scorer_item: response and case -> what the scorer is given.
        graders: packages of others that score, with their versions.
        columns: of the scores: case, category, sample, the benchmark's own, n_tokens and outcome.
        score_row: response, what its scorer gave (parts may be missing after a timeout) and length limit -> the
            benchmark's own columns.
        summarise: scores of one checkpoint -> metrics. ValueError where an average does not exist.
        length_limit_needed: the error where the settings have no length limit; None: it may be left out.
        paper: the paper's decoding, for `dara evaluate --model`; None: the benchmark is not the paper's.
        parts: the categories that its averages need a case of.
        headline: the metrics that are compared at the end of training, with their titles.
        plain_numbers: metrics that are no shares, so they are not shown in percent.
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
        """The folder of the cases beside the manifest of the data that holds them."""
        return "validation" if self.kind == "validation" else "benchmark"


def definition(name: str) -> BenchmarkDefinition:
    """Return a benchmark by its name. KeyError for another name."""
    module, _, attribute = REGISTRY[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def names_of(kind: str, task: str | None = None) -> tuple[str, ...]:
    """Return the names of all benchmarks of a kind, of one task or of any."""
    found = {name: definition(name) for name in REGISTRY}
    return tuple(name for name, one in found.items() if one.kind == kind and task in (None, one.task))

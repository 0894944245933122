"""Common interface of the two sources of numbers for tables and figures: our runs, and the paper's numbers.

Drawing code uses only a `View`, so both are drawn alike. `RunsView` (view_runs.py) computes from the tidy frames of a
preset, `PublishedView` (view_published.py) reads the files in results/published/data/.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from dara.analysis.crossing import CrossingEvent, Kind
from dara.analysis.names import ENGINES
from dara.config import Experiment, MethodEntry

CURVE = ("low", "middle", "high", "n")
"""Columns of a curve, indexed by step: the middle over runs, the ends of its band (NaN without one), number of runs."""


class Setting(NamedTuple):
    """Common properties of the runs that are pooled as seeds of one method; None if a source does not state one."""

    model: str
    group_size: int | None
    engine: str | None = None


@dataclass(frozen=True)
class Estimate:
    """A score with the known measures of its spread, in the unit of the metric (scores are fractions).

    low, high: a 95 % interval over runs, None without one; sd: sample standard deviation over runs; n: runs;
    question_low, question_high: for a single run, the interval over questions.
    """

    value: float
    low: float | None = None
    high: float | None = None
    sd: float | None = None
    n: int | None = None
    question_low: float | None = None
    question_high: float | None = None


class View(ABC):
    """View of the numbers of one experiment from one source."""

    source: str  # name of a preset, or "published"
    experiment: Experiment
    methods: Mapping[str, MethodEntry]  # the rows to show, in their order; without "base"
    entries: Mapping[str, MethodEntry]  # all rows of config/methods.yaml, whose order determines the methods' styles
    settings: tuple[Setting, ...]
    coverage: str = ""  # of own runs: how many of the planned ones are finished, for messages

    def setting_label(self, setting: Setting) -> str:
        """Return `model, G=4`, and the engine if there are several; empty for a single setting."""
        return name_of(setting, self.settings) if len(self.settings) > 1 else ""

    def method_label(self, method: str) -> str:
        """Return the method's label, with the number of its runs if planned ones are missing."""
        return self.methods[method].label

    @abstractmethod
    def budget(self, setting: Setting) -> int:
        """Return the planned steps."""

    @abstractmethod
    def planned(self, method: str, setting: Setting) -> list[int | None]:
        """Return the seed of each planned run, in order (a crossing's seed is one of them); empty if it is unknown."""

    @abstractmethod
    def curve(self, metric: str, method: str, setting: Setting) -> pd.DataFrame:
        """Return columns `CURVE` indexed by step; empty if the source has none.

        Args:
            metric: a training metric (reward/format/mean, density/format, ...), a score of the task's benchmark
                (average_accuracy, acc, ...) or of its validation rows (validation/format, ...).
            method: a method, or "base" (step 0 alone).
            setting: one of `settings`.
        """

    def curves(self, metric: str, setting: Setting) -> dict[str, pd.DataFrame]:
        """Return the curve of each method, or nothing if no method has one."""
        found = {method: self.curve(metric, method, setting) for method in self.methods}
        return found if any(len(curve) for curve in found.values()) else {}

    @abstractmethod
    def curve_note(self, metric: str) -> str:
        """Return a description of middle and band of a metric's curves: `median and quartiles over 5 runs`."""

    @abstractmethod
    def marks(self, kind: Kind, reward: str, threshold: float, method: str, setting: Setting) -> list[CrossingEvent]:
        """Return one crossing for each run, in the order of seeds; empty if the source has none."""

    @abstractmethod
    def score(self, metric: str, method: str, setting: Setting, step: int | None) -> Estimate | None:
        """Return a score at a step (`base` at step 0), None if the source has none.

        Step None means a number that was published without its step.
        """

    @abstractmethod
    def last_step(self, metrics: Sequence[str], setting: Setting) -> int | None:
        """Return the last step at which every run (or published method) that was scored has all of these scores."""

    @abstractmethod
    def notes(self, metrics: Sequence[str] | None = None, steps: Sequence[int | None] | None = None) -> list[str]:
        """Return the lines under every table: the seeds, and what is missing, diverged, or left out.

        metrics, steps: those in the table, so that notes on single published numbers are limited to these; None is all.
        """


def name_of(setting: Setting, among: Iterable[Setting]) -> str:
    """Return `model, G=4`, and the engine if `among` has several."""
    parts = [setting.model] if setting.group_size is None else [setting.model, f"G={setting.group_size}"]
    if len({other.engine for other in among}) > 1 and setting.engine is not None:
        parts.append(ENGINES.get(setting.engine, setting.engine))
    return ", ".join(parts)


def first_event(seed: int | None, step: int | None, budget: int, repeat: int = 0) -> CrossingEvent:
    """Return a first crossing, which needs no confirmation: reached at `step`, or not."""
    return CrossingEvent(seed, step, "not_reached" if step is None else "reached", None, budget, repeat)


def known(value: Any, kind: type[int | float] = int) -> Any:
    """Return a cell as a Python number, or None if it is empty."""
    return None if pd.isna(value) else kind(value)


def missing_data(view: View, what: str) -> ValueError:
    """Return the error for a source that lacks the numbers of a table or figure."""
    return ValueError(f"{view.source}: experiment {view.experiment.experiment}: no {what}{view.coverage}")


def shown_methods(
    experiment: Experiment, entries: Mapping[str, MethodEntry], others: Iterable[str] = ()
) -> dict[str, MethodEntry]:
    """Return the experiment's methods in order, then `others`. Raise ValueError if one has no row in `entries`."""
    listed = list(entries) if experiment.methods == "all" else list(experiment.methods)
    shown = list(dict.fromkeys([*listed, *others]))
    for method in shown:
        if method not in entries:
            raise ValueError(
                f"experiment {experiment.experiment}: method {method!r} has no row in the methods "
                f"({', '.join(entries)}); add it with a label and a color to config/methods.yaml"
            )
    return {method: entries[method] for method in shown}


def common_steps(steps: Iterable[Collection[int]]) -> list[int]:
    """Return the common steps of several series, sorted; none without a series."""
    found = [set(map(int, each)) for each in steps]
    return sorted(set.intersection(*found)) if found else []

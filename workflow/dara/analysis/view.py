"""What a table or figure asks of its numbers, wherever they come from: runs of a preset, or what the authors published.

Drawing code sees only a `View`, so that ours and the published are drawn alike. `RunsView` (view_runs.py) computes from
the tidy frames of a preset, `PublishedView` (view_published.py) reads the files in results/published/data/.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import pandas as pd

from dara.analysis.names import ENGINES
from dara.config import Experiment, MethodEntry

CURVE = ("low", "middle", "high", "n")
"""Columns of a curve, indexed by step: the middle over runs, the ends of its band (NaN without one), runs behind it."""


class Setting(NamedTuple):
    """What runs of one method must share to be seeds of the same thing; None where a source does not say."""

    model: str
    group_size: int | None
    engine: str | None = None


def name_of(setting: Setting, among: Iterable[Setting]) -> str:
    """`model, G=4`, and the engine where `among` has several."""
    parts = [setting.model] if setting.group_size is None else [setting.model, f"G={setting.group_size}"]
    if len({other.engine for other in among}) > 1 and setting.engine is not None:
        parts.append(ENGINES.get(setting.engine, setting.engine))
    return ", ".join(parts)


@dataclass(frozen=True)
class Mark:
    """One run's crossing of a threshold.

    step: where it crossed, None if it did not; budget: the steps that the run had; seed and repeat name the run (None:
    the seed was not published).
    """

    seed: int | None
    step: int | None
    status: Literal["reached", "pending", "not_reached"]
    pending_step: int | None
    budget: int
    repeat: int = 0


@dataclass(frozen=True)
class Estimate:
    """A score with what is known about its spread, in the unit of the metric (scores are fractions).

    low, high: a 95 % interval over runs, None without one; sd: sample standard deviation over runs; n: runs; note: what
    a reader must know, such as an exclusion; question_low, question_high: of a single run, the interval over questions.
    """

    value: float
    low: float | None = None
    high: float | None = None
    sd: float | None = None
    n: int | None = None
    note: str = ""
    question_low: float | None = None
    question_high: float | None = None


class View(Protocol):
    """The numbers of one experiment from one source."""

    source: str  # name of a preset, or "published"
    experiment: Experiment
    methods: Mapping[str, MethodEntry]  # the rows to show, in their order; without "base"
    entries: Mapping[str, MethodEntry]  # all rows of config/methods.yaml: a method's place there decides its look
    settings: tuple[Setting, ...]

    def setting_label(self, setting: Setting) -> str:
        """`model, G=4`, and the engine where there are several; empty where there is one setting."""

    def method_label(self, method: str) -> str:
        """The method's label, with the number of its runs where planned ones are missing."""

    def budget(self, setting: Setting) -> int:
        """Planned steps."""

    def planned(self, method: str, setting: Setting) -> list[int | None]:
        """The seed of each planned run, in order (a mark's seed is one of them); empty where a source does not say."""

    def curve(self, metric: str, method: str, setting: Setting) -> pd.DataFrame:
        """Columns `CURVE` indexed by step. Empty where the source has none. `method` may be "base" (step 0 alone).

        metric: a training metric (reward/format/mean, density/format, ...), a score of the task's benchmark
            (average_accuracy, acc, ...) or of its validation rows (validation/format, ...).
        """

    def curve_note(self, metric: str) -> str:
        """What middle and band of that metric's curves are, in words: `median and quartiles over 5 runs`."""

    def marks(
        self, kind: Literal["first", "stable"], reward: str, threshold: float, method: str, setting: Setting
    ) -> list[Mark]:
        """One mark a run, in the order of seeds. Empty where the source has none."""

    def score(self, metric: str, method: str, setting: Setting, step: int | None) -> Estimate | None:
        """A score at a step (`base` at step 0); None where the source has none.

        step: None is for what was published without its step.
        """

    def last_step(self, metrics: Sequence[str], setting: Setting) -> int | None:
        """The last step at which every run (a published method) that was scored has all of these scores, or None."""

    def notes(self, metrics: Sequence[str] | None = None, steps: Sequence[int | None] | None = None) -> list[str]:
        """What stands under every table: the seeds, what is missing, diverged, or left out.

        metrics, steps: what the table shows, so that notes of single published numbers are only of those; None is all.
        """

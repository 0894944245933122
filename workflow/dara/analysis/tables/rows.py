"""Parts of table rows: the runs of a source, its settings, the step of a comparison, and scores with their cells."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from dara.analysis.compare import PUBLISHED_STEPS, nearest_step
from dara.analysis.intervals import t_interval
from dara.analysis.names import BASE, ENGINES
from dara.analysis.tables.render import MISSING, number, with_interval
from dara.analysis.view import Estimate, Setting, View, missing_data, name_of
from dara.analysis.view_published import PublishedView
from dara.analysis.view_runs import RUN, RunsView
from dara.table_options import ScoreColumn, ScoreTable

BASE_LABEL = "Base"
SPREADS = {
    "sd": "mean ± SD over n seeds",
    "seeds": "mean [95 % t interval] over n seeds",
    "questions": "mean [95 % interval: over n seeds, of a single run over its questions]",
    "hierarchical": "mean [95 % interval over seeds and questions]",
    "none": "mean over n seeds",
}
POINTER = "docs/statistics.md explains it under Score tables."

Steps = Mapping[Setting, int | None]
"""The step to show for each setting; None if methods differ in it, or the authors do not state it."""


def runs_view(view: View) -> RunsView:
    """Return the view as one of single runs. Raise ValueError for a source without single runs."""
    if not isinstance(view, RunsView):
        raise missing_data(view, "single runs")
    return view


def completed_runs(view: View, setting: Setting, method: str) -> pd.DataFrame:
    """Return the columns run_id, seed, repeat of the runs of a method that exist and did not diverge."""
    selection = runs_view(view).selection
    runs = selection.of_setting(selection.present, setting)
    return runs.loc[(runs["method"] == method) & (runs["outcome"] != "diverged"), ["run_id", *RUN]]


def steps_at(view: View, metrics: Sequence[str], at: int) -> dict[Setting, int | None]:
    """Return the step to compare at, for each setting that has scores there; raise ValueError if none has.

    For the published numbers that is step `at`, for our runs the `nearest_step`.
    """
    steps: dict[Setting, int | None] = {}
    for setting in view.settings:
        if isinstance(view, PublishedView):
            if any(view.score(metric, method, setting, at) for metric in metrics for method in view.methods):
                steps[setting] = at
            continue
        scored = [set(view.curve(metric, method, setting).index) for metric in metrics for method in view.methods]
        common = set.intersection(*[found for found in scored if found] or [set()])
        if common:
            steps[setting] = nearest_step(common, at, view.budget(setting))
    if not steps:
        where = f"at step {at}" if isinstance(view, PublishedView) else "that all methods have at one step"
        raise missing_data(view, f"score ({', '.join(metrics)}) {where}")
    return steps


def or_nan(value: float | None) -> float:
    """Return a value, or NaN for None."""
    return math.nan if value is None else value


def runs_behind(estimates: Iterable[Estimate | None]) -> str:
    """Return `3`, or `2 to 3` if the scores of one row have different numbers of runs; a dash if unknown."""
    counts = sorted({estimate.n for estimate in estimates if estimate and estimate.n is not None})
    if not counts:
        return MISSING
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def setting_cells(setting: Setting) -> dict[str, object]:
    """Return the cells `Model`, `G` and, for our own runs, `Engine` of a setting."""
    cells = {"Model": setting.model, "G": MISSING if setting.group_size is None else str(setting.group_size)}
    return cells | ({"Engine": ENGINES.get(setting.engine, setting.engine)} if setting.engine else {})


def setting_columns(view: View) -> list[str]:
    """Return those of `Model`, `G` and `Engine` in which the settings of a view differ."""
    columns = zip(("Model", "G", "Engine"), zip(*view.settings, strict=True), strict=True)
    return [column for column, values in columns if len(set(values)) > 1]


def title_of(view: View, what: str) -> str:
    """Return `what (experiment, source)`, with the model if there is only one."""
    models = {setting.model for setting in view.settings}
    model = f", {next(iter(models))}" if len(models) == 1 else ""
    return f"{what} ({view.experiment.experiment}{model}, {view.source})"


@dataclass(frozen=True)
class Scores:
    """The scores of a view that a table asks for, and their cells."""

    view: View
    options: ScoreTable

    def steps(self) -> Steps:
        """Return the step to show for each setting that has a score there. Raise ValueError if none has."""
        view, at = self.view, self.options.step
        metrics = [metric for metric, column in self.options.metrics.items() if not column.window]
        if isinstance(at, int):
            return steps_at(view, metrics, at)
        if at != "last":
            return dict.fromkeys(view.settings)
        found = {setting: view.last_step(metrics, setting) for setting in view.settings}
        if not any(found.values()):
            raise missing_data(view, f"score ({', '.join(metrics)}) at a step that all completed runs have")
        return {setting: step for setting, step in found.items() if step is not None}

    def step_of(self, step: int | None, method: str, setting: Setting) -> int | None:
        """Return the step of one method: that of its setting, the best of a metric, or 0 for the base model."""
        metric = self.options.chosen_by
        if method == BASE or metric is None:
            return 0 if method == BASE else step
        sign = 1 if self.options.metrics[metric].best == "highest" else -1
        scored = map(int, self.view.curve(metric, method, setting).index)
        estimates = {at: self.view.score(metric, method, setting, at) for at in scored}
        known = {at: sign * estimate.value for at, estimate in estimates.items() if estimate}
        return max(known, key=lambda at: (known[at], -at)) if known else None

    def estimate(self, metric: str, method: str, setting: Setting, step: int | None) -> Estimate | None:
        """Return a metric of a method at a step with the spread that the table shows; None without a value."""
        view, column = self.view, self.options.metrics.get(metric)
        if column is not None and column.window:
            none = method == BASE or step is None
            return None if none else _window_mean(view, metric, method, setting, (step - column.window, step))
        found = view.score(metric, method, setting, step)
        if found is None or self.options.spread != "hierarchical":
            return found
        rows = runs_view(view).frames["score_intervals"]
        rows = view.selection.of_setting(rows[rows["experiment"] == view.experiment.experiment], setting)
        wanted = {"metric": metric, "method": method, "baseline": "", "step": step}
        ends = rows.loc[(rows[list(wanted)] == pd.Series(wanted)).all(axis=1), ["low", "high"]].to_numpy(float)
        return replace(found, low=ends[0][0], high=ends[0][1]) if len(ends) else replace(found, low=None, high=None)

    def scale_of(self, column: ScoreColumn) -> tuple[float, int]:
        """Return the factor of a value in a cell, and its digits after the point."""
        if column.unit == "plain":
            return 1.0, 3 if column.decimals is None else column.decimals
        # As in the paper; one digit for some hundred questions.
        usual = 2 if isinstance(self.view, PublishedView) else 1
        return 100.0, usual if column.decimals is None else column.decimals

    def cell(self, column: ScoreColumn, estimate: Estimate | None) -> str:
        """Return `50.66 ± 0.23` or `50.7 [50.2, 51.1]`; the value alone without a spread, a dash without a value."""
        if estimate is None:
            return MISSING
        scale, decimals = self.scale_of(column)
        shown = number(scale * estimate.value, decimals)
        if self.options.spread == "none":
            return shown
        if self.options.spread == "sd":
            return shown if estimate.sd is None else f"{shown} ± {number(scale * estimate.sd, decimals)}"
        low, high = estimate.low, estimate.high
        if self.options.spread == "questions" and low is None:
            low, high = estimate.question_low, estimate.question_high
        return with_interval(estimate.value, or_nan(low), or_nan(high), decimals, scale)

    def raw(self, name: str, estimate: Estimate | None) -> dict[str, float]:
        """Return the raw columns of one metric."""
        parts = ["low", "high", "sd", "n"]
        parts += ["question_low", "question_high"] if self.options.spread == "questions" else []
        columns = {name: "value"} | {f"{name}_{part}": part for part in parts}
        return {column: or_nan(getattr(estimate, part, None)) for column, part in columns.items()}

    def title(self, steps: Steps) -> str:
        """Return the title with its step: `step 60`, or `60 % of training` if ours is shorter than the authors'."""
        view, at = self.view, self.options.step
        shorter = isinstance(view, RunsView) and any(view.budget(setting) < PUBLISHED_STEPS for setting in steps)
        name = (f"{at} % of training" if shorter else f"step {at}") if isinstance(at, int) else f"the {at} step"
        return title_of(view, self.options.title.replace("{step}", name))

    def notes(self, steps: Steps, absent: list[str]) -> list[str]:
        """Return notes on the columns, their steps, and what is left out: the columns `absent`, and settings."""
        view, options = self.view, self.options
        spread = f"Percent (CSV: fractions): {SPREADS[options.spread]}. {self._step_note(steps)}".strip()
        notes = [*([options.note] if options.note else []), f"{spread} {POINTER}"]
        if absent and not isinstance(view, PublishedView):
            notes.append(f"Not measured by the benchmark of these runs: {', '.join(absent)}.")
        hidden = [name_of(setting, view.settings) for setting in view.settings if setting not in steps]
        notes += [f"Not shown, without a score of a run that did not diverge: {'; '.join(hidden)}."] if hidden else []
        return notes

    def _step_note(self, steps: Steps) -> str:
        """Return a note with the steps of the scores; empty if the table or the authors do not state them."""
        view, options = self.view, self.options
        if options.chosen_by:
            title = options.metrics[options.chosen_by].title
            return f"Each method at its step of the best {title}, chosen by these scores, so they are optimistic."
        shown = {setting: step for setting, step in steps.items() if step is not None}
        if isinstance(view, PublishedView) or not shown:
            return f"Step {next(iter(shown.values()))}." if shown else ""
        texts = {setting: f"step {step} of {view.budget(setting)}" for setting, step in shown.items()}
        if len(set(texts.values())) == 1:
            return f"{next(iter(texts.values())).capitalize()}."
        return "; ".join(f"{name_of(setting, view.settings)}: {text}" for setting, text in texts.items()) + "."


def _window_mean(view: View, metric: str, method: str, setting: Setting, window: tuple[int, int]) -> Estimate | None:
    """Return the mean over seeds of a training metric, averaged over the steps of a run in `window` (first, last]."""
    curves = runs_view(view).frames["training_curves"]
    inside = (curves["step"] > window[0]) & (curves["step"] <= window[1]) & (curves["metric"] == metric)
    mine = curves[inside & curves["run_id"].isin(completed_runs(view, setting, method)["run_id"])]
    values = np.sort(mine.groupby("run_id")["value"].mean().to_numpy(float))
    if not len(values):
        return None
    interval = t_interval(values)
    ends = (interval.low, interval.high) if interval else (None, None)
    sd = float(values.std(ddof=1)) if len(values) > 1 else None
    return Estimate(float(values.mean()), *ends, sd=sd, n=len(values))


def clearly_best(estimates: Mapping[str, Estimate | None], best: str) -> str | None:
    """Return the method with the best value (`best`: highest or lowest), if its interval overlaps no other.

    Return None also if a method has no interval: then the necessary difference is unknown.
    """
    known = {method: estimate for method, estimate in estimates.items() if estimate}
    if len(known) < 2 or any(estimate.low is None or estimate.high is None for estimate in known.values()):
        return None
    more = best == "highest"
    winner = (max if more else min)(known, key=lambda method: known[method].value)
    rest = [estimate for method, estimate in known.items() if method != winner]
    apart = [e.high < known[winner].low if more else e.low > known[winner].high for e in rest]
    return winner if all(apart) else None

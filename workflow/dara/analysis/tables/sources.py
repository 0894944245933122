"""What a table needs of a source beyond its view: single runs, and the numbers of another experiment.

The classes of views are imported where they are used, because they import this package.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from dara.analysis.tables.at_step import no_numbers
from dara.analysis.view import Setting, View


def frame_of(view: View, name: str) -> pd.DataFrame:
    """A tidy frame of the runs behind a view. ValueError for a source that has no frames."""
    from dara.analysis.view_runs import RunsView

    if not isinstance(view, RunsView):
        raise no_numbers(view, f"it has no single runs, and so no frame `{name}`")
    return view.frames[name]


def published_rows(view: View) -> pd.DataFrame:
    """All rows that the authors published. ValueError for another source."""
    from dara.analysis.view_published import PublishedView

    if not isinstance(view, PublishedView):
        raise no_numbers(view, "it is not the published source")
    return view.published


def completed_runs(view: View, setting: Setting, method: str) -> pd.DataFrame:
    """Columns run_id, seed, repeat of the runs of a method that exist and did not diverge."""
    runs = frame_of(view, "runs")
    mine = (runs["experiment"] == view.experiment.experiment) & (runs["method"] == method)
    mine &= (runs["model"] == setting[0]) & (runs["group_size"] == setting[1])
    mine &= (runs["origin"] != "missing") & (runs["outcome"] != "diverged")
    return runs.loc[mine, ["run_id", "seed", "repeat"]]


def scores_by_seed(view: View, setting: Setting, step: int | None, metric: str, method: str) -> dict[Any, float]:
    """A score at a step of each completed run, by (seed, repeat)."""
    scores = frame_of(view, "checkpoint_scores")
    scores = scores[(scores["metric"] == metric) & (scores["step"] == step)]
    merged = completed_runs(view, setting, method).merge(scores[["run_id", "value"]], on="run_id")
    return {(int(row.seed), int(row.repeat)): float(row.value) for row in merged.itertuples()}


def of_experiment(view: View, name: str, rewards: tuple[str, ...]) -> View:
    """The same source, methods and models for another experiment. ValueError where the source has nothing of it."""
    from dara.analysis.view_published import PublishedView
    from dara.analysis.view_runs import RunsView

    thresholds = {key: levels for key, levels in view.experiment.thresholds.items() if key in rewards}
    other = view.experiment.model_copy(update={"experiment": name, "rewards": rewards, "thresholds": thresholds})
    models = {model for model, _ in view.settings}
    if isinstance(view, PublishedView):
        rows = view.published
        return PublishedView(rows[rows["model"].isin([*models, "all"])], other, view.entries)
    if isinstance(view, RunsView):
        runs = view.frames["runs"]
        frames = {**view.frames, "runs": runs[runs["model"].isin(models)]}
        return RunsView(frames, other, view.entries, view.source)
    raise no_numbers(view, f"it cannot be asked for the experiment {name}")


def with_methods(view: View, methods: Sequence[str]) -> View:
    """The published source with some of its methods only, so that its notes speak of no other."""
    from dara.analysis.view_published import PublishedView

    experiment = view.experiment.model_copy(update={"methods": tuple(methods)})
    return PublishedView(published_rows(view), experiment, view.entries)

"""What a table needs of a source beyond its view: single runs, and the numbers of another experiment."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence

import pandas as pd

from dara.analysis.view import Setting, View, missing_data
from dara.analysis.view_published import PublishedView
from dara.analysis.view_runs import RUN, RunsView


def runs_view(view: View) -> RunsView:
    """The view as one of single runs. ValueError for a source that has none."""
    if not isinstance(view, RunsView):
        raise missing_data(view, "single runs")
    return view


def published_rows(view: View) -> pd.DataFrame:
    """All rows that the authors published. ValueError for another source."""
    if not isinstance(view, PublishedView):
        raise missing_data(view, "published numbers; it is not their source")
    return view.published


def completed_runs(view: View, setting: Setting, method: str) -> pd.DataFrame:
    """Columns run_id, seed, repeat of the runs of a method that exist and did not diverge."""
    selection = runs_view(view).selection
    runs = selection.of_setting(selection.present, setting)
    return runs.loc[(runs["method"] == method) & (runs["outcome"] != "diverged"), ["run_id", *RUN]]


def of_experiment(view: View, name: str, rewards: tuple[str, ...]) -> View:
    """The same source, methods and models for another experiment. ValueError where the source has nothing of it."""
    thresholds = {key: levels for key, levels in view.experiment.thresholds.items() if key in rewards}
    other = view.experiment.model_copy(update={"experiment": name, "rewards": rewards, "thresholds": thresholds})
    models = {setting.model for setting in view.settings}
    if isinstance(view, PublishedView):
        rows = view.published
        return PublishedView(rows[rows["model"].isin([*models, "all"])], other, view.entries)
    runs = runs_view(view).frames["runs"]
    frames = ChainMap({"runs": runs[runs["model"].isin(models)]}, view.frames)
    return RunsView(frames, other, view.entries, view.source)


def with_methods(view: View, methods: Sequence[str]) -> View:
    """The published source with some of its methods only, so that its notes speak of no other."""
    experiment = view.experiment.model_copy(update={"methods": tuple(methods)})
    return PublishedView(published_rows(view), experiment, view.entries)

"""What an experiment shows: its own runs, its methods in their order, and what is missing.

Tables and figures both go through here, so that they never disagree about which runs they speak of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pandas as pd

from dara.config import Experiment, MethodEntry

Frames = Mapping[str, pd.DataFrame]
Setting = tuple[str, int]


@dataclass(frozen=True)
class Selection:
    """The runs of one experiment.

    `planned` has one row a planned run, `present` those of them that exist (origin is not "missing"); `methods` is
    in the order of the experiment, and may hold a method without a run; `settings` are the (model, group size) pairs.
    """

    experiment: Experiment
    planned: pd.DataFrame
    present: pd.DataFrame
    methods: dict[str, MethodEntry]
    settings: tuple[Setting, ...]

    def of_setting(self, frame: pd.DataFrame, setting: Setting) -> pd.DataFrame:
        """The rows of `frame` that belong to one (model, group size)."""
        return frame[(frame["model"] == setting[0]) & (frame["group_size"] == setting[1])]

    def setting_label(self, setting: Setting) -> str:
        """`model, G=4`; empty where the experiment has one setting and needs no label."""
        return f"{setting[0]}, G={setting[1]}" if len(self.settings) > 1 else ""

    def method_label(self, method: str) -> str:
        """The method's label, with the number of its runs where some of the planned ones are missing."""
        planned = int((self.planned["method"] == method).sum())
        present = int((self.present["method"] == method).sum())
        label = self.methods[method].label
        if present == 0:
            return f"{label} (no runs)"
        return label if present == planned else f"{label} ({present} of {planned} runs)"


def select(frames: Frames, experiment: Experiment, methods: Mapping[str, MethodEntry]) -> Selection:
    """The experiment's own runs, from the frame `runs`; ValueError without any, or with an unknown method."""
    runs = frames["runs"]
    planned = runs[runs["experiment"] == experiment.experiment]
    if planned.empty:
        raise ValueError(
            f"experiment {experiment.experiment}: the frame `runs` has no run of it (it has "
            f"{sorted(runs['experiment'].unique())}); add the experiment to the preset and collect again"
        )
    listed = list(methods) if experiment.methods == "all" else list(experiment.methods)
    others = sorted(set(planned["method"]) - set(listed))
    for method in [*listed, *others]:
        if method not in methods:
            raise ValueError(
                f"experiment {experiment.experiment}: method {method!r} has no row in the methods "
                f"({', '.join(methods)}); add it with a label and a color to config/methods.yaml"
            )
    planned = planned.sort_values(["model", "group_size", "seed", "repeat"], kind="stable").reset_index(drop=True)
    settings = planned[["model", "group_size"]].drop_duplicates().itertuples(index=False, name=None)
    return Selection(
        experiment=experiment,
        planned=planned,
        present=planned[planned["origin"] != "missing"],
        methods={method: methods[method] for method in [*listed, *others]},
        settings=tuple((str(model), int(size)) for model, size in settings),
    )


def rows_of(selection: Selection, frames: Frames, name: str, what: str, **equal: object) -> pd.DataFrame:
    """The rows of frame `name` for the selection's runs with the given column values; ValueError if none is left."""
    frame = frames[name]
    chosen = frame[frame["run_id"].isin(selection.present["run_id"])]
    for column, value in equal.items():
        chosen = chosen[chosen[column].isin(value)] if isinstance(value, list) else chosen[chosen[column] == value]
    if chosen.empty:
        raise ValueError(
            f"experiment {selection.experiment.experiment}: no {what} in the frame `{name}` for its "
            f"{len(selection.present)} finished of {len(selection.planned)} planned runs"
        )
    return chosen


def base_rows(selection: Selection, frames: Frames, metrics: Iterable[str]) -> pd.DataFrame:
    """The step-0 scores of the base models that the experiment's runs start from; empty where they were not scored."""
    frame = frames["checkpoint_scores"]
    models = {model for model, _ in selection.settings}
    chosen = (frame["method"] == "base") & (frame["task"] == selection.experiment.task) & frame["model"].isin(models)
    return frame[chosen & frame["metric"].isin(list(metrics))]


def run_name(run: object) -> str:
    """`seed 101`, or `seed 101 (repeat 1)`, of a row of the frame `runs` (named tuple)."""
    repeat = f" (repeat {run.repeat})" if run.repeat else ""
    return f"seed {run.seed}{repeat}"


def run_notes(selection: Selection) -> list[str]:
    """What stands under every table: the seeds, which planned runs are missing, and which ended early."""
    seeds = [str(seed) for seed in sorted(selection.planned["seed"].unique())]
    notes = [f"Seeds: {', '.join(seeds)}."]
    present, missing = selection.present, selection.planned[selection.planned["origin"] == "missing"]
    notes.append(_note(selection, "Missing", missing))
    notes.append(_note(selection, "Diverged", present[present["outcome"] == "diverged"]))
    unplanned = [m for m in selection.methods if m not in set(selection.planned["method"])]
    if unplanned:
        names = ", ".join(selection.methods[method].label for method in unplanned)
        notes.append(f"Without any run: {names}.")
    return notes


def _note(selection: Selection, title: str, runs: pd.DataFrame) -> str:
    """`Diverged: GRPO seed 101 at step 23.`; a missing run has no step."""
    parts = []
    for run in runs.itertuples():
        setting = selection.setting_label((run.model, run.group_size))
        where = f" ({setting})" if setting else ""
        at = "" if run.origin == "missing" else f" at step {run.steps}"
        parts.append(f"{selection.methods[run.method].label} {run_name(run)}{where}{at}")
    return f"{title}: {', '.join(parts) if parts else 'none'}."

"""View of the numbers that the authors published."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from dara.analysis.crossing import HOLD, CrossingEvent, Kind
from dara.analysis.names import BASE
from dara.analysis.paper_numbers import FILES, MODELS, SETTING, published_notes
from dara.analysis.view import (
    CURVE,
    Estimate,
    Setting,
    View,
    common_steps,
    first_event,
    known,
    shown_methods,
)
from dara.config import Experiment, MethodEntry

SOURCE = "published"

MARK_METRIC = {"first": "first_step", "stable": "stable_crossing"}


class PublishedView(View):
    """The published numbers of one experiment; see `View`.

    Args:
        published: all published rows, from `read_published`.
        experiment: the experiment as config/published.yaml has it.
        methods: all rows of config/methods.yaml.

    Raises:
        ValueError: nothing of the experiment and its methods was published, or a method has no row.
    """

    def __init__(self, published: pd.DataFrame, experiment: Experiment, methods: Mapping[str, MethodEntry]) -> None:
        self.published = published
        self.source = SOURCE
        self.experiment = experiment
        self.entries = methods
        self.methods = shown_methods(experiment, methods)
        numbers = published[(published["experiment"] == experiment.experiment) & (published["unit"] != SETTING)]
        self.rows = numbers[numbers["method"].isin([*self.methods, BASE])]
        """The published numbers of this experiment and its methods; with the columns of `read_published`."""
        if self.rows.empty:
            raise ValueError(
                f"experiment {experiment.experiment}: nothing was published of it and its methods "
                f"({', '.join(self.methods)}); published are {', '.join(sorted(set(published['experiment'])))}"
            )
        self.settings: tuple[Setting, ...] = _settings(self.rows)
        self._by_method = dict(list(self.rows.groupby(["method", "model"])))
        settings = published[(published["experiment"] == experiment.experiment) & (published["unit"] == SETTING)]
        self._planned_steps = settings.loc[settings["metric"] == "steps", "value"].dropna().to_list()
        self._budgets = {setting: self._budget(setting) for setting in self.settings}

    def budget(self, setting: Setting) -> int:
        """Return the published number of steps; more if a later crossing shows that a run was longer."""
        return self._budgets[setting]

    def planned(self, method: str, setting: Setting) -> list[int | None]:
        """Return the seeds of the runs whose crossings were published; empty if their seeds were not."""
        metrics = tuple(f"{name}/{self.experiment.sparse_reward}/" for name in MARK_METRIC.values())
        mine = self._rows(method, setting, "crossings")
        mine = mine[mine["metric"].str.startswith(metrics)]
        return sorted(int(seed) for seed in mine["seed"].dropna().unique())

    def curve(self, metric: str, method: str, setting: Setting) -> pd.DataFrame:
        """Return median and quartiles if they were published, else means (or medians) without a band."""
        rows = self._curve_rows(metric, method, setting)
        middle = rows[rows["metric"].isin([metric, f"{metric}:median"])].sort_values("step")
        steps = pd.Index(middle["step"].astype(int), name="step")
        columns = {"middle": middle["value"].to_numpy(), "n": middle["n_seeds"].astype("float64").to_numpy()}
        curve = pd.DataFrame(columns, index=steps)
        for column, quartile in (("low", "q25"), ("high", "q75")):
            values = rows[rows["metric"] == f"{metric}:{quartile}"]
            curve[column] = pd.Series(values["value"].to_numpy(), values["step"].astype(int)).reindex(steps)
        return curve[list(CURVE)].astype(float)

    def curve_note(self, metric: str) -> str:
        """Return `median and quartiles over 5 runs`, or `means over runs (GRPO 3, GDPO 2), no band`."""
        curves = {
            method: [rows for setting in self.settings if len(rows := self._curve_rows(metric, method, setting))]
            for method in self.methods
        }
        found = [rows for of_method in curves.values() for rows in of_method]
        if not found:
            return ""
        counts = {method: _count(of_method) for method, of_method in curves.items() if of_method}
        if set(counts.values()) == {"1"}:
            return "one run a method"
        statistics = {name.partition(":")[2] for rows in found for name in rows["metric"]}
        text = "median and quartiles" if "q25" in statistics else "median" if "median" in statistics else "mean"
        if len(set(counts.values())) == 1:
            text += f" over {next(iter(counts.values()))} runs"
        else:
            listed = ", ".join(f"{self.methods[method].label} {count}" for method, count in counts.items())
            text += f" over runs ({listed})"
        others = _steps_of_other_runs(found)
        return text + (f"; of other runs at step {', '.join(map(str, others))}" if others else "")

    def marks(self, kind: Kind, reward: str, threshold: float, method: str, setting: Setting) -> list[CrossingEvent]:
        """Return one crossing for each published run; the seed is None if it was not published."""
        mine = self._rows(method, setting, "crossings")
        mine = mine[mine["metric"] == f"{MARK_METRIC[kind]}/{reward}/{threshold:g}"].sort_values("seed", kind="stable")
        events = [(known(row.seed), known(row.value)) for row in mine.itertuples()]
        return [first_event(seed, step, self.budget(setting)) for seed, step in events]

    def score(self, metric: str, method: str, setting: Setting, step: int | None) -> Estimate | None:
        """Return the published score over seeds with its SD; `step` None is for scores that have none."""
        rows = self._score_rows(method, setting)
        rows = rows[(rows["metric"] == metric) & (rows["step"].isna() if step is None else rows["step"] == step)]
        if rows.empty:
            return None
        row = rows.iloc[0]
        return Estimate(
            value=float(row["value"]),
            sd=known(row["sd"], float),
            n=known(row["n_seeds"]),
            note=row["note"],
        )

    def last_step(self, metrics: Sequence[str], setting: Setting) -> int | None:
        """Return the last step at which every method that was scored has all of these scores."""
        steps = []
        for method in self.methods:
            rows = self._score_rows(method, setting)
            rows = rows[rows["metric"].isin(list(metrics)) & rows["step"].notna()]
            steps += [found for _, found in rows.groupby("metric")["step"]]
        return max(common_steps(steps), default=None)

    def notes(self, metrics: Sequence[str] | None = None, steps: Sequence[int | None] | None = None) -> list[str]:
        """Return the sources of the numbers, their seeds, and remarks of their sources and docs/published.md."""
        labels = {method: entry.label for method, entry in self.methods.items()}
        return published_notes(self._shown(metrics, steps), labels)

    def _budget(self, setting: Setting) -> int:
        mine = self.rows[(self.rows["model"] == setting.model) & _of_size(self.rows, setting.group_size)]
        stable = mine.loc[mine["metric"].str.startswith(f"{MARK_METRIC['stable']}/"), "value"].dropna()
        longest = mine["step"].max()
        found = [*self._planned_steps, *(stable + HOLD), *([] if pd.isna(longest) else [longest])]
        return int(max(found, default=0))

    def _rows(self, method: str, setting: Setting, use: str) -> pd.DataFrame:
        """Return the rows of a method in the files of one use (see `FILES`)."""
        rows = self._by_method.get((method, setting.model), self.rows[:0])
        # The base model has no group size; the runs of all group sizes start from it.
        return rows[
            rows["file"].isin([file for file, uses in FILES.items() if use in uses])
            & _of_size(rows, None if method == BASE else setting.group_size)
        ]

    def _curve_rows(self, metric: str, method: str, setting: Setting) -> pd.DataFrame:
        """Return the rows over seeds of one curve: value (or median) and quartiles, all of one file."""
        rows = self._rows(method, setting, "curves")
        names = [metric, *(f"{metric}:{suffix}" for suffix in ("median", "q25", "q75"))]
        rows = rows[rows["metric"].isin(names) & rows["seed"].isna() & rows["step"].notna() & rows["value"].notna()]
        return rows[rows["file"] == min(rows["file"], key=list(FILES).index)] if len(rows) else rows

    def _score_rows(self, method: str, setting: Setting) -> pd.DataFrame:
        """Return the scores over seeds, one row a metric and step, from the first file that has it."""
        rows = self._rows(method, setting, "scores")
        rows = rows[rows["seed"].isna() & rows["value"].notna()]
        rank = rows["file"].map(list(FILES).index)
        return rows.iloc[rank.argsort(kind="stable")].drop_duplicates(["metric", "step"]) if len(rows) else rows

    def _shown(self, metrics: Sequence[str] | None, steps: Sequence[int | None] | None) -> pd.DataFrame:
        """Return the rows of scores and crossings, in the order of settings and methods."""
        found = []
        for setting in self.settings:
            for method in (BASE, *self.methods):
                found += [self._score_rows(method, setting), self._rows(method, setting, "crossings")]
        rows = pd.concat(found)
        rows = rows[~rows.index.duplicated()]
        if metrics is not None:
            rows = rows[rows["metric"].isin(list(metrics))]
        if steps is not None:
            known = rows["step"].isin([step for step in steps if step is not None])
            rows = rows[known | (rows["step"].isna() & (None in steps))]
        return rows


def _settings(rows: pd.DataFrame) -> tuple[Setting, ...]:
    """Return the (model, group size) pairs of trained models, in the order of `MODELS`."""
    trained = rows.loc[rows["method"] != BASE, ["model", "group_size"]].drop_duplicates()
    found = {Setting(model, known(size)) for model, size in trained.itertuples(index=False)}
    return tuple(sorted(found, key=lambda setting: (MODELS.index(setting.model), setting.group_size or 0)))


def _of_size(rows: pd.DataFrame, size: int | None) -> pd.Series:
    return rows["group_size"].isna() if size is None else rows["group_size"] == size


def _count(curves: Sequence[pd.DataFrame]) -> str:
    """Return the number of seeds of most points of a method's curves: `3`, `2 to 3` over settings, or `unknown`."""
    usual = [rows["n_seeds"].dropna().mode() for rows in curves]
    counts = sorted({int(modes.iloc[0]) for modes in usual if len(modes)})
    if not counts:
        return "unknown"
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _steps_of_other_runs(curves: Iterable[pd.DataFrame]) -> list[int]:
    """Return the steps at which a curve has other seeds than at most of its steps, if both are known."""
    steps = set()
    for rows in curves:
        for _, mine in rows.groupby(["model", "group_size", "metric"], dropna=False):
            usual = mine["seeds"].mode()
            steps |= set(mine.loc[mine["seeds"] != usual.iloc[0], "step"].astype(int)) if len(usual) else set()
    return sorted(steps)

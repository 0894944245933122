"""The numbers that the authors of the paper published: their declaration, reading with every check, and their view.

They are tidy CSV files in `results/published/data/`, one subject a file, one number a row. docs/published.md describes
the content of each file, the names of metrics, and contradictions of the authors' sources.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, get_args

import pandas as pd
from pydantic import AfterValidator, Field, model_validator

from dara.analysis.crossing import HOLD, CrossingEvent, Kind
from dara.analysis.frames import FrameError, Row, Text, check_unique, read_rows
from dara.analysis.names import BASE
from dara.analysis.view import CURVE, Estimate, Setting, View, common_steps, first_event, known, shown_methods
from dara.config import Experiment, MethodEntry
from dara.specs import Positive

FILES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("tool_step100", "tool_step60", "three_rewards", "math_step50"), ("scores",)),
    **dict.fromkeys(("fixed_weights", "extended"), ("scores",)),
    **dict.fromkeys(("training_rewards", "training_densities"), ("curves",)),
    **dict.fromkeys(("heldout", "tool_checkpoints", "validation"), ("scores", "curves")),
    **dict.fromkeys(("group_size_densities", "energy_ratios"), ("curves",)),
    **dict.fromkeys(("first_steps", "group_size_crossings", "thresholds"), ("crossings",)),
}
"""Use of each file in tables and figures: `scores`, `curves` over steps, `crossings`.

If two files have a score, the first one counts (files with standard deviations come first). Other files are read and
checked too: settings, and other selections of the same runs, which serve to compare sources.
"""

SETTING = "setting"
"""The unit of a hyperparameter. It has no step, and a value that is not a number is in the note."""

MARK_METRIC = {"first": "first_step", "stable": "stable_crossing"}
"""Kind of crossing -> its metric."""

Published = Literal["tool_main", "group_size", "three_rewards", "math_main", "fixed_weight", "extended"]
Model = Literal[
    "Qwen2.5-1.5B-Instruct", "Qwen2.5-3B-Instruct", "DeepSeek-R1-Distill-Qwen-1.5B", "DeepSeek-R1-Distill-Qwen-7B",
    "Qwen3-4B-Instruct-2507", "Qwen3-4B-Thinking-2507", "all",
]  # fmt: skip
# The product's names. `base` is the model before training, `rvpo` a method that the authors tried and this project does
# not have, and `all` is in settings that all methods of an experiment share.
Method = Literal[
    "base", "grpo", "gdpo", "dvao", "gd2po_hard", "dara_asym", "dara_sym", "static_asym", "static_sym", "gdpo_saw",
    "rvpo", "all",
]  # fmt: skip
Count = Annotated[int, Field(ge=0)]


def _check_metric(name: str) -> str:
    if not re.fullmatch(r"[a-z0-9_.]+(/[a-z0-9_.]+)*(:[a-z0-9_]+)?", name):
        raise ValueError(f"{name!r} is not a metric such as 'reward/format/mean' or 'density/format:median'")
    return name


class PublishedRow(Row):
    """A published number; `sd` is the sample standard deviation over seeds, in the unit of the value.

    The key is unique within a file. Two files may have the same quantity, if the authors published it in two places.
    What was printed in percent is a fraction; the value of a `step` is a step of training, which the column step
    repeats; a `reward` is in its own range.
    """

    what = "a file of published numbers"
    remedy = "; leave the cell empty and say why in the note"
    key = ("experiment", "model", "method", "seed", "group_size", "step", "metric")

    experiment: Published
    model: Model
    method: Method
    seed: Count | None
    group_size: Positive | None
    step: Count | None
    metric: Annotated[Text, AfterValidator(_check_metric)]
    unit: Literal["fraction", "step", "ratio", "reward", "count", "setting"]
    value: float | None
    sd: Annotated[float, Field(ge=0)] | None
    n_seeds: Positive | None
    seeds: Text | None
    source: Text
    note: Text | None

    @classmethod
    def keys_of(cls, frame: pd.DataFrame) -> pd.DataFrame:
        # Where the value is a step, the column step repeats it and cannot distinguish two rows.
        return frame[list(cls.key)].assign(step=frame["step"].where(frame["unit"] != "step"))

    @model_validator(mode="after")
    def _check_value(self) -> PublishedRow:
        value, step = self.value, self.step
        # A setting has no step and no seeds, so their absence needs no note.
        explained = ("value",) if self.unit == SETTING else ("step", "value", "n_seeds")
        empty = [name for name in explained if getattr(self, name) is None]
        if empty and self.note is None:
            raise ValueError(f"{empty[0]}: empty, and the note does not say why")
        if self.unit == SETTING and step is not None:
            raise ValueError(f"step: a setting belongs to no step (given: {step})")
        if self.unit == "step" and value != step:
            raise ValueError(f"step: {step} does not repeat the value {value}, which is a step")
        needed, good = {
            "fraction": ("a share in [0, 1]", lambda given: 0 <= given <= 1),
            "ratio": ("a quotient or a weight, at least 0", lambda given: given >= 0),
            "count": ("a whole number, at least 0", lambda given: given >= 0 and given.is_integer()),
        }.get(self.unit, ("", lambda _: True))
        if value is not None and not good(value):
            raise ValueError(f"value: {value} is not {needed}")
        return self

    @model_validator(mode="after")
    def _check_seeds(self) -> PublishedRow:
        """Check that `seeds` lists n_seeds distinct seeds, and that a row of one seed lists that one."""
        seeds, seed, count = self.seeds, self.seed, self.n_seeds
        if seed is not None and (seeds != str(seed) or count != 1):
            raise ValueError(
                f"seeds: a row of seed {seed} has n_seeds 1 and the seeds {seed} (given: {count} and {seeds})"
            )
        listed = seeds.split(" ") if seeds else []
        if not all(one.isdecimal() for one in listed) or len(set(listed)) != len(listed):
            raise ValueError(f"seeds: {seeds!r} is not a list of distinct seeds such as '0 1 2'")
        if seeds and len(listed) != count:
            raise ValueError(f"n_seeds: {count}, but seeds lists {len(listed)} ({seeds})")
        return self


def read_published(directory: Path) -> pd.DataFrame:
    """Read all published numbers: the rows of every CSV file of a directory, file by file.

    The columns are those of `PublishedRow` after a first one `file`, the name of the file without `.csv`: text as str
    (an empty cell is ""), integers as Int64, value and sd as float64. Raise FrameError if there is no CSV file, or one
    is not text or breaks the declaration; rows are counted as lines of the file, whose header is row 1.
    """
    paths = sorted(Path(directory).glob("*.csv"))
    if not paths:
        raise FrameError(f"{directory}: no published numbers; they are CSV files in results/published/data/")
    frames = []
    for path in paths:
        frame = read_rows(path.read_bytes(), PublishedRow, path)
        check_unique(frame, PublishedRow, str(path))
        frame.insert(0, "file", pd.Series(path.stem, index=frame.index, dtype="str"))
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


class PublishedView(View):
    """The published numbers of one experiment; see `View`.

    It is made of all rows of `read_published`, the experiment as config/published.yaml has it, and all rows of
    config/methods.yaml. Raise ValueError if nothing of the experiment and its methods was published, or a method has no
    row.
    """

    source = "published"

    def __init__(self, published: pd.DataFrame, experiment: Experiment, methods: Mapping[str, MethodEntry]) -> None:
        self.published = published
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
        trained = self.rows.loc[self.rows["method"] != BASE, ["model", "group_size"]].drop_duplicates()
        settings = [Setting(model, known(size)) for model, size in trained.itertuples(index=False)]
        models = get_args(Model)
        self.settings = tuple(sorted(settings, key=lambda one: (models.index(one.model), one.group_size or 0)))
        self._by_method = dict(list(self.rows.groupby(["method", "model"])))

    def budget(self, setting: Setting) -> int:
        """Return the published number of steps; more if a later crossing shows that a run was longer."""
        of_experiment = self.published[self.published["experiment"] == self.experiment.experiment]
        planned = of_experiment[(of_experiment["unit"] == SETTING) & (of_experiment["metric"] == "steps")]["value"]
        mine = self.rows[(self.rows["model"] == setting.model) & _of_size(self.rows, setting.group_size)]
        stable = mine.loc[mine["metric"].str.startswith(f"{MARK_METRIC['stable']}/"), "value"]
        found = pd.concat([planned, stable + HOLD, mine["step"].astype(float)])
        return int(max(found.dropna(), default=0))

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
        rows = pd.concat(found)
        statistics = set(rows["metric"].str.partition(":")[2])
        text = "median and quartiles" if "q25" in statistics else "median" if "median" in statistics else "mean"
        if len(set(counts.values())) == 1:
            text += f" over {next(iter(counts.values()))} runs"
        else:
            listed = ", ".join(f"{self.methods[method].label} {count}" for method, count in counts.items())
            text += f" over runs ({listed})"
        # At some steps a curve has other seeds than at most of its steps.
        others: set[int] = set()
        for _, mine in rows.groupby(["method", "model", "group_size", "metric"], dropna=False):
            usual = mine["seeds"].mode().iloc[0]
            others |= set(mine.loc[mine["seeds"] != usual, "step"].astype(int))
        return text + (f"; of other runs at step {', '.join(map(str, sorted(others)))}" if others else "")

    def marks(self, kind: Kind, reward: str, threshold: float, method: str, setting: Setting) -> list[CrossingEvent]:
        """Return one crossing for each published run; the seed is None if it was not published."""
        mine = self._rows(method, setting, "crossings")
        mine = mine[mine["metric"] == f"{MARK_METRIC[kind]}/{reward}/{threshold:g}"].sort_values("seed", kind="stable")
        budget = self.budget(setting)
        return [first_event(known(row.seed), known(row.value), budget) for row in mine.itertuples()]

    def score(self, metric: str, method: str, setting: Setting, step: int | None) -> Estimate | None:
        """Return the published score over seeds with its SD; `step` None is for scores that have none."""
        rows = self._score_rows(method, setting)
        rows = rows[(rows["metric"] == metric) & (rows["step"].isna() if step is None else rows["step"] == step)]
        if rows.empty:
            return None
        row = rows.iloc[0]
        return Estimate(float(row["value"]), sd=known(row["sd"], float), n=known(row["n_seeds"]))

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
        found = []
        for setting in self.settings:
            for method in (BASE, *self.methods):
                found += [self._score_rows(method, setting), self._rows(method, setting, "crossings")]
        rows = pd.concat(found)
        rows = rows[~rows.index.duplicated()]
        if metrics is not None:
            rows = rows[rows["metric"].isin(list(metrics))]
        if steps is not None:
            at = rows["step"].isin([step for step in steps if step is not None])
            rows = rows[at | (rows["step"].isna() & (None in steps))]
        return _notes(rows, {method: entry.label for method, entry in self.methods.items()})

    def _rows(self, method: str, setting: Setting, use: str) -> pd.DataFrame:
        """Return the rows of a method in the files of one use (see `FILES`)."""
        rows = self._by_method.get((method, setting.model), self.rows[:0])
        # The base model has no group size; the runs of all group sizes start from it.
        size = None if method == BASE else setting.group_size
        return rows[rows["file"].isin([file for file, uses in FILES.items() if use in uses]) & _of_size(rows, size)]

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


def _of_size(rows: pd.DataFrame, size: int | None) -> pd.Series:
    return rows["group_size"].isna() if size is None else rows["group_size"] == size


def _count(curves: Sequence[pd.DataFrame]) -> str:
    """Return the number of seeds of most points of a method's curves: `3`, `2 to 3` over settings, or `unknown`."""
    usual = [rows["n_seeds"].dropna().mode() for rows in curves]
    counts = sorted({int(modes.iloc[0]) for modes in usual if len(modes)})
    if not counts:
        return "unknown"
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


Who = tuple[str, str, int | None]
"""Subject of a number: the model or group size (if there are several), the method, the seed."""


def _notes(rows: pd.DataFrame, labels: Mapping[str, str]) -> list[str]:
    """Return sources, seeds and remarks of published numbers; `labels` are the names of their methods.

    A remark appears once, with its methods and seeds unless it applies to all. Contradictions of docs/published.md come
    first: they change the reading of a number.
    """
    if rows.empty:
        return []
    models, sizes = (rows.loc[rows["method"] != BASE, name].nunique() for name in ("model", "group_size"))
    who: list[Who] = []
    for row in rows.itertuples():
        parts = [row.model] if models > 1 else []
        parts += [f"G={row.group_size}"] if sizes > 1 and not pd.isna(row.group_size) else []
        who.append((" ".join(parts), row.method, known(row.seed)))
    notes = [f"Numbers that the authors published (docs/published.md): {'; '.join(dict.fromkeys(rows['source']))}."]
    runs: dict[Who, set[int]] = {}
    about: dict[str, list[Who]] = {}
    for one, seeds, note in zip(who, rows["seeds"], rows["note"], strict=True):
        if one[1] != BASE:
            runs.setdefault((*one[:2], None), set()).update(map(int, seeds.split()))
        for remark in filter(None, note.split("; ")):
            about.setdefault(remark, []).append(one)
    by_seeds: dict[str, list[Who]] = {}
    for one, seeds in runs.items():
        by_seeds.setdefault(", ".join(map(str, sorted(seeds))), []).append(one)
    parts = [f"{seeds}{_named(them, runs, labels)}" for seeds, them in by_seeds.items() if seeds]
    notes += [f"Seeds: {'; '.join(parts)}."] if parts else []
    remarks: list[tuple[str, list[Who]]] = []
    for remark, them in about.items():
        # Consecutive remarks on the same numbers are one; a contradiction starts a new one.
        if remarks and remarks[-1][1] == them and not remark.startswith("Contradiction"):
            remarks[-1] = (f"{remarks[-1][0]}; {remark}", them)
        else:
            remarks.append((remark, them))
    texts = [f"{remark[0].upper()}{remark[1:]}{_named(them, who, labels)}." for remark, them in remarks]
    return notes + sorted(texts, key=lambda text: not text.startswith("Contradiction"))


def _named(them: Iterable[Who], everyone: Iterable[Who], labels: Mapping[str, str]) -> str:
    """Return ` (GRPO, GDPO seed 2; DVAO of G=8)` for the given numbers; empty if only base models are not given."""
    meant, runs = set(them), {}  # (place, method) -> its seeds
    for place, method, seed in dict.fromkeys(everyone):
        runs.setdefault((place, method), []).append(seed)
    if all((*one, seed) in meant for one, seeds in runs.items() for seed in seeds if one[1] != BASE):
        return ""
    names = {}  # (place, method) -> its name, with seeds unless all are given
    for one, seeds in runs.items():
        given = [str(seed) for seed in seeds if (*one, seed) in meant]
        label = "base model" if one[1] == BASE else labels[one[1]]
        if given:
            some = f" seed{'s' * (len(given) > 1)} {', '.join(given)}"
            names[one] = label + some * (len(given) < len(seeds))
    # A name that is the same in all places of its method appears once, the others with their places.
    everywhere, by_place = [], {}
    for (place, method), name in names.items():
        if all(names.get(other) == name for other in runs if other[1] == method):
            everywhere.append(name)
        else:
            by_place.setdefault(place, []).append(name)
    places_of: dict[str, list[str]] = {}
    for place, found in by_place.items():
        methods = {method for other, method in runs if other == place} - {BASE}
        complete = len(found) == len(methods) and set(found) <= set(labels.values())
        places_of.setdefault("all methods" if complete else ", ".join(found), []).append(place)
    parts = [", ".join(dict.fromkeys(everywhere))] if everywhere else []
    parts += [f"{text} of {', '.join(places)}" for text, places in places_of.items()]
    return f" ({'; '.join(parts)})"

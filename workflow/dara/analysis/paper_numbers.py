"""The numbers that the authors of the paper published: their declaration, reading them with every check, and notes.

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

from dara.analysis.frames import FrameError, Row, Text, check_unique, read_rows
from dara.analysis.names import BASE

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
checked too: settings, and other selections of the same runs (`tool_step100_all_seeds`, `tool_step100_page`), which
serve to compare sources.
"""

SETTING = "setting"
"""The unit of a hyperparameter. It has no step, and a value that is not a number is in the note."""

UNITS = {
    "fraction": "a share in [0, 1]; what was printed in percent is divided by 100",
    "step": "a step of training, which the column step repeats",
    "ratio": "a quotient or a weight, at least 0",
    "reward": "a reward in its own range",
    "count": "a whole number, at least 0",
    SETTING: "a hyperparameter, in the unit that its name says",
}

Experiment = Literal["tool_main", "group_size", "three_rewards", "math_main", "fixed_weight", "extended"]
Model = Literal[
    "Qwen2.5-1.5B-Instruct", "Qwen2.5-3B-Instruct", "DeepSeek-R1-Distill-Qwen-1.5B", "DeepSeek-R1-Distill-Qwen-7B",
    "Qwen3-4B-Instruct-2507", "Qwen3-4B-Thinking-2507", "all",
]  # fmt: skip
MODELS = get_args(Model)
# The product's names. `base` is the model before training, `rvpo` a method that the authors tried and this project does
# not have, and `all` is in settings that all methods of an experiment share.
Method = Literal[
    "base", "grpo", "gdpo", "dvao", "gd2po_hard", "dara_asym", "dara_sym", "static_asym", "static_sym", "gdpo_saw",
    "rvpo", "all",
]  # fmt: skip
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]


METRIC = re.compile(r"[a-z0-9_.]+(/[a-z0-9_.]+)*(:[a-z0-9_]+)?")


def _check_metric(name: str) -> str:
    if not METRIC.fullmatch(name):
        raise ValueError(f"{name!r} is not a metric such as 'reward/format/mean' or 'density/format:median'")
    return name


class PublishedError(FrameError):
    """A file of published numbers breaks its declaration; the message names the file, the row and the column."""


class PublishedRow(Row):
    """A published number; `sd` is the sample standard deviation over seeds, in the unit of the value.

    The key is unique within a file. Two files may have the same quantity, if the authors published it in two places.
    """

    what = "a file of published numbers"
    remedy = "; leave the cell empty and say why in the note"
    key = ("experiment", "model", "method", "seed", "group_size", "step", "metric")

    experiment: Experiment
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
    def _check_empty(self) -> PublishedRow:
        # A setting has no step and no seeds, so their absence needs no note.
        explained = ("value",) if self.unit == SETTING else ("step", "value", "n_seeds")
        empty = [name for name in explained if getattr(self, name) is None]
        if empty and self.note is None:
            raise ValueError(f"{empty[0]}: empty, and the note does not say why")
        return self

    @model_validator(mode="after")
    def _check_value(self) -> PublishedRow:
        value, step = self.value, self.step
        if self.unit == SETTING and step is not None:
            raise ValueError(f"step: a setting belongs to no step (given: {step})")
        if self.unit == "step" and value != step:
            raise ValueError(f"step: {step} does not repeat the value {value}, which is a step")
        wrong = value is not None and {
            "fraction": not 0 <= value <= 1,
            "ratio": value < 0,
            "count": value < 0 or not value.is_integer(),
        }.get(self.unit)
        if wrong:
            raise ValueError(f"value: {value} is not {UNITS[self.unit].split(';')[0]}")
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

    Returns:
        The columns of `PublishedRow` after a first column `file`: the name of the file without `.csv`.

    Raises:
        PublishedError: there is no CSV file, or one breaks the declaration.
    """
    paths = sorted(Path(directory).glob("*.csv"))
    if not paths:
        raise PublishedError(f"{directory}: no published numbers; they are CSV files in results/published/data/")
    frames = []
    for path in paths:
        frame = read_published_file(path)
        frame.insert(0, "file", pd.Series(path.stem, index=frame.index, dtype="str"))
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def read_published_file(path: Path) -> pd.DataFrame:
    """Read the published numbers of one file, in the order of its rows.

    Returns:
        The columns of `PublishedRow`: text as str (an empty cell is ""), integers as Int64, value and sd as float64.

    Raises:
        PublishedError: the file is missing, is not text, or breaks the declaration. Rows are counted as lines of the
            file; the header is row 1.
    """
    try:
        frame = read_rows(Path(path).read_bytes(), PublishedRow, path)
        check_unique(frame, PublishedRow, str(path))
    except FileNotFoundError:
        raise PublishedError(f"{path}: the file does not exist; it is part of the repository") from None
    except FrameError as error:
        raise PublishedError(str(error)) from None
    return frame


Who = tuple[str, str, int | None]
"""Subject of a number: the model or group size (if there are several), the method, the seed."""


def published_notes(rows: pd.DataFrame, labels: Mapping[str, str]) -> list[str]:
    """Return sources, seeds and remarks of rows of `read_published`; `labels` are the names of their methods.

    A remark appears once, with its methods and seeds unless it applies to all. Contradictions of docs/published.md come
    first: they change the reading of a number.
    """
    if rows.empty:
        return []
    who = _who(rows)
    sources = "; ".join(dict.fromkeys(rows["source"]))
    notes = [f"Numbers that the authors published (docs/published.md): {sources}."]
    notes += _seeds_note(rows, who, labels)
    about: dict[str, list[Who]] = {}
    for note, one in zip(rows["note"], who, strict=True):
        for remark in filter(None, note.split("; ")):
            about.setdefault(remark, []).append(one)
    remarks = [
        f"{remark[0].upper()}{remark[1:]}{_named(them, who, labels)}." for remark, them in _merged(about).items()
    ]
    return notes + sorted(remarks, key=lambda remark: not remark.startswith("Contradiction"))


def seeds_of(rows: pd.DataFrame) -> list[int]:
    """Return all seeds of the rows, if they were published."""
    return sorted({int(seed) for text in rows["seeds"] for seed in text.split()})


def _who(rows: pd.DataFrame) -> list[Who]:
    trained = rows[rows["method"] != BASE]
    several = [name for name in ("model", "group_size") if trained[name].nunique() > 1]
    places = []
    for row in rows.itertuples():
        parts = {"model": row.model, "group_size": "" if pd.isna(row.group_size) else f"G={row.group_size}"}
        places.append(" ".join(filter(None, (parts[name] for name in several))))
    seeds = [None if pd.isna(seed) else int(seed) for seed in rows["seed"]]
    return list(zip(places, rows["method"], seeds, strict=True))


def _seeds_note(rows: pd.DataFrame, who: Sequence[Who], labels: Mapping[str, str]) -> list[str]:
    """Return `Seeds: 0, 2, 5 (GRPO); 0, 1 (GDPO).` for the rows with known seeds."""
    everyone = [(place, method, None) for place, method, _ in who]
    by_run: dict[Who, list[int]] = {}
    for one, index in zip(everyone, range(len(rows)), strict=True):
        if one[1] != BASE:
            by_run.setdefault(one, []).append(index)
    by_seeds: dict[str, list[Who]] = {}
    for one, indices in by_run.items():
        if seeds := seeds_of(rows.iloc[indices]):
            by_seeds.setdefault(", ".join(map(str, seeds)), []).append(one)
    parts = [f"{seeds}{_named(them, everyone, labels)}" for seeds, them in by_seeds.items()]
    return [f"Seeds: {'; '.join(parts)}."] if parts else []


def _merged(about: Mapping[str, list[Who]]) -> dict[str, list[Who]]:
    """Merge consecutive remarks on exactly the same numbers; a contradiction starts a new remark."""
    merged: dict[str, list[Who]] = {}
    for remark, them in about.items():
        last = next(reversed(merged), None)
        if last is not None and merged[last] == them and not remark.startswith("Contradiction"):
            merged[f"{last}; {remark}"] = merged.pop(last)
        else:
            merged[remark] = them
    return merged


def _named(them: Iterable[Who], everyone: Sequence[Who], labels: Mapping[str, str]) -> str:
    """Return ` (GRPO, GDPO seed 2; DVAO of G=8)` for the given numbers; empty if only base models are not given."""
    meant = set(them)
    if {one for one in everyone if one[1] != BASE} <= meant:
        return ""
    order = list(dict.fromkeys(everyone))
    names = {}  # (place, method) -> its name, with seeds unless all are given
    for place, method in dict.fromkeys((place, method) for place, method, _ in order):
        own = [one for one in order if one[:2] == (place, method)]
        seeds = [str(one[2]) for one in own if one in meant]
        label = "base model" if method == BASE else labels[method]
        if seeds:
            some = f" seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}"
            names[place, method] = label if len(seeds) == len(own) else label + some
    # A name that is the same in all places of its method appears once, the others with their places.
    everywhere, by_place = [], {}
    for (place, method), name in names.items():
        places = [place for place, other in dict.fromkeys((one[0], one[1]) for one in order) if other == method]
        if all(names.get((other, method)) == name for other in places):
            everywhere.append(name)
        else:
            by_place.setdefault(place, []).append(name)
    places_of: dict[str, list[str]] = {}
    for place, found in by_place.items():
        complete = len(found) == len({one[1] for one in order if one[0] == place and one[1] != BASE})
        text = "all methods" if complete and set(found) <= set(labels.values()) else ", ".join(found)
        places_of.setdefault(text, []).append(place)
    parts = [", ".join(dict.fromkeys(everywhere))] if everywhere else []
    parts += [f"{text} of {', '.join(places)}" for text, places in places_of.items()]
    return f" ({'; '.join(parts)})"

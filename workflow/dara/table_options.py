"""The registry of tables that an experiment may have, and the keys that describe a table of scores.

A table is a function in dara/analysis/tables/ and a line here. A table of scores needs no code: its entry in
config/experiments/*.yaml (or config/published.yaml) says what it shows.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from dara.specs import Model, Positive

SCORES = "scores"
"""The table that a mapping describes; every other table is given by name."""

TABLES = {
    "comparisons": "crossings:build_comparisons",
    "crossings": "crossings:build",
    "engines": "crossings:build_engines",
    "hyperparameters": "hyperparameters:build",
    "runs": "hyperparameters:build_runs",
    SCORES: "scores:build",
    "threshold_crossings": "crossings:build_thresholds",
}
"""Name -> module and function in dara/analysis/tables/, for tables of one source."""

SIDE_BY_SIDE = {
    "hyperparameters": "hyperparameters:build_side_by_side",
    SCORES: "side_by_side:build_scores",
    "side_by_side": "side_by_side:build",
}
"""Name -> module and function, for tables of our numbers beside the paper's."""

BEST_OF = "best of "
"""Prefix of a step that is chosen by a metric."""


class ScoreColumn(Model):
    """A metric in a table of scores, or only its title."""

    title: str = Field(min_length=1, description="heading of the column")
    unit: Literal["percent", "plain"] = Field("percent", description="percent: the CSV has fractions")
    decimals: int | None = Field(
        None, ge=0, le=9, description="digits after the point; none: 2 of published percentages, 1 of ours, else 3"
    )
    best: Literal["highest", "lowest"] | None = Field(
        None,
        description="which value is the best; it is set in bold where its interval overlaps that of no other method",
    )
    window: Positive | None = Field(
        None, description="of a training metric (reward/format/mean): mean over so many steps up to the table's step"
    )
    alone: bool = Field(False, description="in a table with `beside`: not compared with the other experiment")


_TITLED = BeforeValidator(lambda value: {"title": value} if isinstance(value, str) else value)


class Beside(Model):
    """Another experiment whose scores are shown next to the table's own."""

    experiment: str = Field(description="name of the other experiment")
    label: str = Field(description="what its columns are called")
    own_label: str = Field(description="what the columns of the table's own experiment are called")


def _check_step(value: Any) -> Any:
    """Return a step unchanged; raise ValueError for anything but a step or one of the words."""
    number = isinstance(value, int) and not isinstance(value, bool) and value > 0
    word = value in ("last", "each", "unstated") or (isinstance(value, str) and value.startswith(BEST_OF))
    if not (number or word):
        raise ValueError(f"must be a step of the authors' training, last, each, unstated or `{BEST_OF}METRIC`")
    return value


class ScoreTable(Model):
    """A table of scores at one step: one row per method, one column per metric."""

    table: Literal["scores"] = Field(description="the table that these keys describe")
    title: str = Field(min_length=1, description="what stands above it; `{step}` is replaced by its step")
    note: str = Field("", description="what its columns are, in one or two short sentences, below the table")
    metrics: dict[str, Annotated[ScoreColumn, _TITLED]] = Field(
        min_length=1, description="metric -> its column; a metric that no run has is left out"
    )
    sets: dict[str, str] = Field(
        default={},
        description="part of the benchmark -> title: columns are these parts and rows the metrics; `mean`: all parts",
    )
    step: Annotated[int | str, BeforeValidator(_check_step)] = Field(
        "last",
        description="a step of the authors' training (of a shorter one of ours: the same share of it); `last` that all "
        "completed runs have; `best of METRIC` of each method; `each` that is compared, with a row a score; `unstated` "
        "by the authors",
    )
    spread: Literal["sd", "seeds", "questions", "hierarchical", "none"] = Field(
        "sd",
        description="beside the mean: SD over seeds, or a 95 % interval over seeds, over seeds or the questions of a "
        "single run, or over seeds and questions together",
    )
    differences: dict[str, str] = Field(
        default={}, description="method -> the one that is subtracted: rows of paired differences below the methods"
    )
    beside: Beside | None = Field(None, description="another experiment beside this one")
    benchmark: str | None = Field(None, description="only of presets whose task has this benchmark")

    @property
    def chosen_by(self) -> str | None:
        """Return the metric whose best value chooses the step of each method, if there is one."""
        return self.step.removeprefix(BEST_OF) if str(self.step).startswith(BEST_OF) else None

    @model_validator(mode="after")
    def _consistent(self) -> ScoreTable:
        if self.chosen_by is not None:
            chosen = self.metrics.get(self.chosen_by)
            if chosen is None or chosen.best is None:
                raise ValueError(f"step: {self.step!r} needs that metric among metrics, with its key best")
        if self.step == "each" and (self.spread != "hierarchical" or self.sets or self.beside):
            raise ValueError(
                "step: each has both intervals: it goes with spread: hierarchical, without sets and beside"
            )
        if sum(map(bool, (self.sets, self.beside, self.differences))) > 1:
            raise ValueError("a table has only one of sets, beside and differences")
        return self


def _kind(value: Any) -> str | None:
    if isinstance(value, dict):
        return "[mapping]" if value.get("table") == SCORES else None
    return "[mapping]" if isinstance(value, ScoreTable) else "[name]"


TableEntry = Annotated[
    Annotated[str, Tag("[name]")] | Annotated[ScoreTable, Tag("[mapping]")],
    Discriminator(
        _kind,
        custom_error_type="table",
        custom_error_message="must be the name of a table, or a mapping with `table: scores` and what it shows",
    ),
]
"""Entry of a table in config/experiments/."""


def table_name(entry: str | ScoreTable) -> str:
    """Return the name of the table that an entry asks for, a key of `TABLES` or `SIDE_BY_SIDE`."""
    return entry if isinstance(entry, str) else entry.table

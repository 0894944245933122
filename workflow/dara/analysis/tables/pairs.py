"""Ours and the published beside each other: a pair of numbers a row, with their difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from dara.analysis.tables.cells import MISSING, number
from dara.analysis.tables.render import Table
from dara.analysis.view import Setting, View, missing_data, name_of

SCALE_NOTE = (
    "The scales differ: tiny models on generated problems against models of 1.5 to 7 billion parameters on the "
    "authors' benchmarks. Signs and the order of methods can be compared, sizes cannot."
)
COLUMNS = ("Ours", "n", "Published", "n pub.", "Difference")


@dataclass(frozen=True)
class Value:
    """One source's number: `text` where it is not a plain one (`>60`); low and high are NaN without an interval."""

    value: float
    low: float = math.nan
    high: float = math.nan
    n: str = MISSING
    text: str = ""


@dataclass(frozen=True)
class Pair:
    """A quantity of one method in both sources; `scale` 100 prints a share in percent."""

    quantity: str
    method: str
    label: str
    setting: Setting
    ours: Value
    published: Value
    scale: float = 1.0
    digits: int | None = None


def common_methods(ours: View, published: View) -> list[str]:
    """The methods of both sources, in the order of ours."""
    return [method for method in ours.methods if method in published.methods]


def pairs_table(
    ours: View, published: View, pairs: Sequence[Pair], title: str, notes: Sequence[str], sources: Sequence[str]
) -> Table:
    """One row a pair; `sources` are the notes on the published numbers. ValueError without a pair."""
    if not pairs:
        raise missing_data(ours, f"quantity in common with the published numbers of {published.experiment.experiment}")
    models = [model for model, *_ in published.settings if any(pair.setting.model == model for pair in pairs)]
    columns = ["Quantity", *(["Published model"] if len(models) > 1 else []), "Method", *COLUMNS]
    mine, *others = (name_of(setting, ours.settings) for setting in ours.settings)
    about = f"Ours: {mine}" + (f" (not shown: {'; '.join(others)})" if others else "")
    about += f", preset {ours.source}. Published: {', '.join(models)}. Difference: ours minus published."
    return Table(
        pd.DataFrame([_row(pair) for pair in pairs]),
        f"{title} ({ours.experiment.experiment})",
        [about, SCALE_NOTE, *notes, *ours.notes(), *(f"Published: {note}" for note in dict.fromkeys(sources))],
        columns,
        numeric=COLUMNS,
    )


def _row(pair: Pair) -> dict[str, object]:
    difference = pair.ours.value - pair.published.value
    shown = _number(difference, pair)
    row: dict[str, object] = {"Published model": pair.setting.model, "Quantity": pair.quantity, "Method": pair.label}
    row |= {"Ours": _text(pair.ours, pair), "n": pair.ours.n}
    row |= {"Published": _text(pair.published, pair), "n pub.": pair.published.n}
    row["Difference"] = f"+{shown}" if math.isfinite(difference) and difference > 0 else shown
    row["method"] = pair.method
    for name, value in (("ours", pair.ours), ("published", pair.published)):
        row |= {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
    return row | {"difference": difference}


def _number(value: float, pair: Pair) -> str:
    if pair.digits is not None and math.isfinite(value):
        value = round(pair.scale * value, pair.digits) + 0.0  # no negative zero
        return number(value, pair.digits)
    return number(pair.scale * value)


def _text(value: Value, pair: Pair) -> str:
    """The number with its interval; a dash as an end that the budget leaves open, no interval where both ends are."""
    shown = value.text or _number(value.value, pair)
    if math.isnan(value.low) or not (math.isfinite(value.low) or math.isfinite(value.high)):
        return shown
    return f"{shown} [{_number(value.low, pair)}, {_number(value.high, pair)}]"

"""Held-out scores of both sources at one step, side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping

from dara.analysis.intervals import LEVEL
from dara.analysis.names import BASE
from dara.analysis.tables.at_step import BASE_LABEL, runs_behind, steps_at
from dara.analysis.tables.pairs import Pair, Value, common_methods, pairs_table
from dara.analysis.tables.render import Table
from dara.analysis.tables.sources import with_methods
from dara.analysis.view import View


def scores_side_by_side(ours: View, published: View, metrics: Mapping[str, str], at: int) -> Table:
    """The held-out scores of both sources at one step (`steps_at`), for the first setting of ours; metric -> name."""
    published = with_methods(published, common_methods(ours, published))
    pairs = score_pairs(ours, published, metrics, at)
    notes = score_notes(ours, published, metrics, at)
    return pairs_table(
        ours, published, pairs, "Held-out scores, ours and published", notes, published.notes(list(metrics), [0, at])
    )


def score_pairs(ours: View, published: View, metrics: Mapping[str, str], at: int) -> list[Pair]:
    """The scores that both sources have, the base model's among them; none where a source has no such step."""
    found = _score_steps(ours, published, metrics, at)
    pairs = []
    for metric, name in metrics.items() if found else ():
        for other in published.settings:
            for method in (BASE, *published.methods):
                mine = ours.score(metric, method, ours.settings[0], 0 if method == BASE else found)
                theirs = published.score(metric, method, other, 0 if method == BASE else at)
                if mine and theirs:
                    label = BASE_LABEL if method == BASE else ours.methods[method].label
                    values = [Value(e.value, _or_nan(e.low), _or_nan(e.high), runs_behind([e])) for e in (mine, theirs)]
                    pairs.append(Pair(f"{name} (%)", method, label, other, *values, 100, 1))
    return pairs


def _score_steps(ours: View, published: View, metrics: Mapping[str, str], at: int) -> int | None:
    """The step of ours to compare at; None where one of the sources has no such score."""
    try:
        steps_at(published, list(metrics), at)
        return steps_at(ours, list(metrics), at).get(ours.settings[0])
    except ValueError:
        return None


def score_notes(ours: View, published: View, metrics: Mapping[str, str], at: int) -> list[str]:
    """What stands under a table of `score_pairs`."""
    step = _score_steps(ours, published, metrics, at)
    if step is None:
        return []
    return [
        f"{', '.join(metrics.values())}: held-out scores, mean over seeds [{100 * LEVEL:g} % Student's t; none was "
        f"published], ours at step {step} of {ours.budget(ours.settings[0])} (docs/statistics.md), "
        f"published at step {at}; differences in percentage points."
    ]


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value

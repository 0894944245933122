"""Categories of the function-calling benchmarks, and how they make an average.

BFCL-v4 in the paper has 14 categories and three groups. Non-Live is the mean of Simple (itself a mean over three
languages), multiple, parallel and parallel_multiple; Live counts each of its cases alike; Multi-Turn is the mean of
its four. The average is the mean of the three groups: not the leaderboard's "Overall", which has other weights and
more categories.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dara.evaluation.records import Metric


@dataclass(frozen=True)
class Pooled:
    """Every case counts alike, whatever its category."""

    categories: tuple[str, ...]


@dataclass(frozen=True)
class Mean:
    """Every part counts alike, however many cases it has."""

    parts: tuple[Pooled | Mean, ...]


def _each(*categories: str) -> Mean:
    """The mean over categories."""
    return Mean(tuple(Pooled((category,)) for category in categories))


SIMPLE = _each("simple_python", "simple_java", "simple_javascript")
NON_LIVE = Mean((SIMPLE, *_each("multiple", "parallel", "parallel_multiple").parts))
LIVE = Pooled(("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple"))
MULTI_TURN = _each("multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param", "multi_turn_long_context")

# Benchmark -> how the categories make the average. The laptop's: the mean of Few (one parameter) and Many (two, three).
GROUPS: dict[str, Mean] = {
    "laptop_tools": Mean(
        (
            Pooled(("multiple_one_parameter",)),
            Pooled(("multiple_two_parameters", "multiple_three_parameters")),
        )
    ),
    "bfcl_v4": Mean((NON_LIVE, LIVE, MULTI_TURN)),
}
# Benchmark -> the groups that have a metric of their own.
NAMED_GROUPS: dict[str, dict[str, Mean | Pooled]] = {
    "laptop_tools": {},
    "bfcl_v4": {"simple": SIMPLE, "non_live": NON_LIVE, "live": LIVE, "multi_turn": MULTI_TURN},
}
# Benchmark -> its categories, each with the language its calls are written in.
CATEGORIES: dict[str, dict[str, str]] = {
    "laptop_tools": {
        "multiple_one_parameter": "PYTHON",
        "multiple_two_parameters": "PYTHON",
        "multiple_three_parameters": "PYTHON",
    },
    "bfcl_v4": {
        "simple_python": "PYTHON",
        "simple_java": "JAVA",
        "simple_javascript": "JAVASCRIPT",
        "multiple": "PYTHON",
        "parallel": "PYTHON",
        "parallel_multiple": "PYTHON",
        "live_simple": "PYTHON",
        "live_multiple": "PYTHON",
        "live_parallel": "PYTHON",
        "live_parallel_multiple": "PYTHON",
        "multi_turn_base": "PYTHON",
        "multi_turn_miss_func": "PYTHON",
        "multi_turn_miss_param": "PYTHON",
        "multi_turn_long_context": "PYTHON",
    },
}
# The number of cases of each category of BFCL-v4: 3,301 in all.
BFCL_V4_COUNTS: dict[str, int] = {
    "simple_python": 400,
    "simple_java": 100,
    "simple_javascript": 50,
    "multiple": 200,
    "parallel": 200,
    "parallel_multiple": 200,
    "live_simple": 258,
    "live_multiple": 1053,
    "live_parallel": 16,
    "live_parallel_multiple": 24,
    "multi_turn_base": 200,
    "multi_turn_miss_func": 200,
    "multi_turn_miss_param": 200,
    "multi_turn_long_context": 200,
}


def is_multi_turn(category: str) -> bool:
    """Whether a case of the category is a dialogue of several turns, with tools that are really executed."""
    return category.startswith("multi_turn_")


def categories_of(group: Mean | Pooled) -> tuple[str, ...]:
    """The categories that a group is made of, in its order."""
    if isinstance(group, Pooled):
        return group.categories
    return tuple(category for part in group.parts for category in categories_of(part))


def category_weights(group: Mean | Pooled, counts: Mapping[str, int]) -> dict[str, float]:
    """Weight of each category's mean in the average of `group`; they sum to 1. `counts`: cases of each category.

    Raises:
        ValueError: a group has no case.
    """
    if isinstance(group, Pooled):
        total = sum(counts.get(category, 0) for category in group.categories)
        if total == 0:
            raise ValueError(
                f"no case of {', '.join(group.categories)}: their average does not exist; hold out more cases"
            )
        return {category: counts.get(category, 0) / total for category in group.categories}
    weights: dict[str, float] = {}
    for part in group.parts:
        for category, weight in category_weights(part, counts).items():
            weights[category] = weights.get(category, 0.0) + weight / len(group.parts)
    return weights


def grouped(metric: Metric, group: Mean | Pooled) -> Metric:
    """`metric`, in which every question counts alike, weighted as `group` says; its strata are categories.

    Raises:
        ValueError: a group has no case, or a category belongs to no group.
    """
    counts = {category: int((metric.strata == category).sum()) for category in set(metric.strata)}
    weights = category_weights(group, counts)
    unknown = sorted(set(counts) - set(weights))
    if unknown:
        raise ValueError(f"category {unknown[0]!r} belongs to no group; the groups hold {', '.join(weights)}")
    each = {category: weights[category] / count for category, count in counts.items()}
    return Metric(metric.values, metric.strata, np.array([each[category] for category in metric.strata]))

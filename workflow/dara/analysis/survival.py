"""Crossing times as right-censored data: a run that did not get there crosses later than it was watched, if ever.

Kaplan-Meier and the log-rank test are SciPy's; docs/statistics.md says what is censored when, and why.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dara.analysis.crossing import HOLD
from dara.analysis.intervals import median

if TYPE_CHECKING:
    from scipy.stats import CensoredData

    from dara.analysis.view import Mark

Kind = Literal["first", "stable"]

EXACT_LIMIT = 20_000
"""Splits of the runs into two groups up to which a permutation test looks at all of them (8 against 8: 12,870)."""


@dataclass(frozen=True)
class CrossingTimes:
    """When the runs of one method cross, sorted by key.

    Attributes:
        keys: names of the runs that pair them with those of another method, such as seeds.
        steps: the step of the crossing, or the last step at which a crossing could have been seen.
        crossed: whether the run crossed; where not, its crossing is later than `steps`.
        horizon: last step at which a crossing could have been seen in every run; 0 where the runs are too short.
    """

    keys: tuple[Any, ...]
    steps: tuple[float, ...]
    crossed: tuple[bool, ...]
    horizon: float

    @property
    def reached(self) -> int:
        """How many of the runs crossed."""
        return sum(self.crossed)


@dataclass(frozen=True)
class Survival:
    """Kaplan-Meier estimate of the share of runs that have not crossed yet, as a step function.

    From `steps[i]` on, up to but not at `steps[i + 1]`, the share is `share[i]`; steps[0] is 0 and share[0] is 1. The
    last step is the last crossing or the end of what was seen. Draw it with `where="post"`.
    """

    steps: np.ndarray
    share: np.ndarray


@dataclass(frozen=True)
class LogRank:
    """A log-rank test of equal crossing times.

    `statistic` is standard normal if the times are equal, negative where the first group crosses later; `p` is its
    two-sided p. `exact_p` is that of the permutation test, NaN above EXACT_LIMIT splits. All three are NaN
    where there is no test, and `reason` says why; it is empty otherwise.
    """

    statistic: float
    p: float
    exact_p: float
    reason: str = ""


def times_of(marks: Sequence[Mark], kind: Kind) -> CrossingTimes | None:
    """The marks as censored times, keyed by (seed, repeat); None without a mark.

    A run without a crossing (a pending one too) is censored at the last step at which one could have been seen: its
    budget, less the steps that a stable crossing must hold. A run that diverged before it crossed is censored there as
    well: it did not cross within the budget. A seed that is not known is -1 and pairs by its place.

    Raises:
        ValueError: two marks of one seed and repeat, which are runs of different settings, or a crossing after the last
            step at which one can be seen.
    """
    rows = {}
    for place, mark in enumerate(marks):
        key = (-1, place) if mark.seed is None else (mark.seed, mark.repeat)
        if key in rows:
            raise ValueError(f"crossings: two runs with seed {key[0]}, repeat {key[1]}; give the runs of one setting")
        horizon = max(0, mark.budget - (HOLD if kind == "stable" else 0))
        if mark.step is not None and mark.step > horizon:
            raise ValueError(
                f"crossings: seed {key[0]}: the {kind} crossing at step {mark.step} is later than {horizon}, the last "
                "step that its budget allows"
            )
        crossed = mark.step is not None
        rows[key] = (float(mark.step if crossed else horizon), crossed, horizon)
    if not rows:
        return None
    steps, reached, horizons = zip(*(rows[key] for key in sorted(rows)), strict=True)
    return CrossingTimes(tuple(sorted(rows)), steps, reached, float(min(horizons)))


def kaplan_meier(times: CrossingTimes) -> Survival:
    """Share of runs that have not crossed yet, by step (Kaplan and Meier 1958; scipy.stats.ecdf)."""
    from scipy.stats import ecdf  # scipy.stats takes most of a second to import; few tables need it

    survival = ecdf(_censored(times)).sf
    steps, share = survival.quantiles, survival.probabilities
    if steps[0] > 0:
        steps, share = np.concatenate(([0.0], steps)), np.concatenate(([1.0], share))
    return Survival(steps, share)


def restricted_mean(times: CrossingTimes, tau: float) -> float:
    """Restricted mean crossing step: the integral of the Kaplan-Meier step function from 0 to tau (Irwin 1949).

    It is the mean of min(crossing, tau), which is defined also where runs do not cross, and uses all runs. Compare
    methods at one tau: the smaller horizon of the two.

    Raises:
        ValueError: tau is not above 0, or is beyond the horizon.
    """
    if not 0 < tau <= times.horizon:
        raise ValueError(f"tau must be above 0 and at most the horizon of all runs, {times.horizon:g} (given: {tau:g})")
    survival = kaplan_meier(times)
    edges = np.append(np.minimum(survival.steps, tau), tau)
    return math.fsum(np.diff(edges) * survival.share)


def median_step(times: CrossingTimes) -> float:
    """Median crossing step; a run that did not cross is later than every crossing. Infinite: beyond the horizon."""
    return median(np.where(times.crossed, times.steps, np.inf))


def median_text(times: CrossingTimes) -> str:
    """The median crossing step as text; `>60` where it is only known to be later than step 60.

    With an even number of runs of which one of the two middle ones crossed at 20 and the other not within 60, the
    median is only known to be later than 40.
    """
    value = median_step(times)
    return f"{value:g}" if math.isfinite(value) else f">{median(times.steps):g}"


def log_rank(first: CrossingTimes, second: CrossingTimes) -> LogRank:
    """Log-rank test of two methods (Mantel 1966; scipy.stats.logrank), not paired, with the permutation p beside it.

    The normal approximation promises too much with few runs: with 3 against 3 it can give .02, where no split of six
    runs has a p below .1. The permutation test takes all splits of the runs into groups of these sizes, and
    counts those whose observed minus expected crossings is at least as far from 0.

    Where every run crosses it is the ordinary log-rank test of complete data. Without any crossing, with a single run
    in a group, or where all runs cross at one step, there is no test.
    """
    runs = (len(first.steps), len(second.steps))
    if first.reached + second.reached == 0:
        return LogRank(math.nan, math.nan, math.nan, "no run crosses")
    if min(runs) < 2:
        return LogRank(math.nan, math.nan, math.nan, "one run in a group")
    scores = _log_rank_scores(first, second)
    if not scores.any():
        return LogRank(math.nan, math.nan, math.nan, "all runs cross at the same step")
    from scipy.stats import logrank

    with np.errstate(invalid="ignore"):  # no variance: judged by the result
        result = logrank(_censored(first), _censored(second))
    if not math.isfinite(result.statistic):
        return LogRank(math.nan, math.nan, math.nan, "no crossing while both groups have runs left")
    return LogRank(float(result.statistic), float(result.pvalue), _permutation_p(scores, runs[0]))


def _log_rank_scores(first: CrossingTimes, second: CrossingTimes) -> np.ndarray:
    """Score of each run, of the first group first: crossed minus the cumulative hazard of all runs at its step.

    The sum over a group is its observed minus its expected crossings.
    """
    steps = np.array([*first.steps, *second.steps])
    crossed = np.array([*first.crossed, *second.crossed])
    events = np.unique(steps[crossed])
    deaths = ((steps[:, None] == events) & crossed[:, None]).sum(axis=0)
    hazard = deaths / (steps[:, None] >= events).sum(axis=0)
    scores = crossed - ((steps[:, None] >= events) * hazard).sum(axis=1)
    return np.where(np.abs(scores) < 1e-12, 0.0, scores)


def _permutation_p(scores: np.ndarray, size: int) -> float:
    """Two-sided p of the sum of the first `size` scores among all choices of as many; NaN above EXACT_LIMIT."""
    if math.comb(len(scores), size) > EXACT_LIMIT:
        return math.nan
    splits = np.array(list(combinations(range(len(scores)), size)))
    sums = np.abs(scores[splits].sum(axis=1))
    return float((sums >= abs(scores[:size].sum()) - 1e-9).mean())


def _censored(times: CrossingTimes) -> CensoredData:
    from scipy.stats import CensoredData

    steps, crossed = np.array(times.steps), np.array(times.crossed)
    return CensoredData(uncensored=steps[crossed], right=steps[~crossed])

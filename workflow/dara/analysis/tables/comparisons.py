"""Table: each method against GDPO at each threshold of the sparse reward: pairs, tests, speed-up."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from dara.analysis.crossing import HOLD
from dara.analysis.intervals import LEVEL, RESAMPLES, Interval, wilson_interval
from dara.analysis.names import BASELINE
from dara.analysis.paired import PairedDifference, paired_crossings
from dara.analysis.selection import RUN, Selection, rows_of
from dara.analysis.speed_up import SpeedUp, speed_up
from dara.analysis.survival import (
    CrossingTimes,
    LogRank,
    crossing_times,
    log_rank,
    median_step,
    median_text,
    restricted_mean,
)
from dara.analysis.tables.cells import MISSING, WILSON_NOTE, number, with_interval
from dara.analysis.tables.marks import saved_text
from dara.analysis.tables.render import Table
from dara.analysis.view import Setting, View
from dara.analysis.view_runs import RunsView

COMPARED = [
    "Pairs",
    "First: difference",
    "Stable: difference",
    "Earlier",
    "Restricted mean: difference",
    "Log-rank p",
    "Speed-up (%)",
]
DISPLAY = ["Threshold", "Method", "Got there (%)", "Median", "Restricted mean", *COMPARED]

_PAIR = ("known", "difference", "difference_low", "difference_high", "earlier", "later", "tied", "undecided", "sign_p")
_SPEED = ("difference", "difference_low", "difference_high", "saved", "saved_low", "saved_high")
RAW_OWN = ["runs", "reached", "median", "restricted_mean", "tau"]
RAW_COMPARED = [
    *("pairs", "unpaired", "unpaired_baseline"),
    *(f"{kind}_{part}" for kind in ("first", "stable") for part in _PAIR),
    *("log_rank", "log_rank_p", "log_rank_exact_p", "log_rank_reason"),
    *(f"{of}_{part}" for of in ("median", "restricted_mean") for part in _SPEED),
    "not_estimable",
]

Times = dict[str, CrossingTimes | None]


def build(view: View) -> Table:
    """One row a (setting, threshold of the sparse reward, method); the baseline's row has its own numbers only.

    Raw columns: RAW_OWN and RAW_COMPARED, of stable crossings unless named first_; steps as steps, shares as fractions,
    empty where a number is not estimable. ValueError where the experiment does not have GDPO, has no crossing, or is
    not of own runs.
    """
    if not isinstance(view, RunsView):
        raise ValueError(
            f"{view.source}: experiment {view.experiment.experiment}: comparisons needs first and stable crossings of "
            "single runs; the table threshold_crossings shows what was published"
        )
    experiment, selection = view.experiment, view.selection
    if BASELINE not in view.methods:
        raise ValueError(
            f"experiment {experiment.experiment}: the table comparisons is against {BASELINE}, which is not among its "
            f"methods ({', '.join(view.methods)}); add it, or leave the table out"
        )
    reward = experiment.sparse_reward
    if reward not in experiment.thresholds:
        raise ValueError(f"experiment {experiment.experiment}: no thresholds of its sparse reward {reward!r}")
    crossings = rows_of(selection, view.frames, "crossings", "crossing", reward=reward)
    crossings = crossings.merge(selection.present[["run_id", "repeat"]], on="run_id")
    rows = []
    for setting in view.settings:
        here = selection.of_setting(crossings, setting)
        for threshold in experiment.thresholds[reward]:
            rows += _block(selection, setting, here[np.isclose(here["threshold"], threshold)], threshold)
    title = f"Crossings of {reward} compared with {view.methods[BASELINE].label} ({experiment.experiment})"
    display = [*(["Setting"] if len(view.settings) > 1 else []), *DISPLAY]
    return Table(pd.DataFrame(rows), title, _notes(view), display)


def _block(selection: Selection, setting: Setting, crossings: pd.DataFrame, threshold: float) -> list[dict]:
    """The rows of all methods at one threshold."""
    by_method = dict(list(crossings.groupby("method")))
    first, stable = (
        {
            name: crossing_times(by_method[name], kind, key=RUN) if name in by_method else None
            for name in selection.methods
        }
        for kind in ("first", "stable")
    )
    experiment, place = selection.experiment, (setting.model, str(setting.group_size))
    rows = []
    for method, entry in selection.methods.items():
        row = {
            "Setting": selection.setting_label(setting),
            "Threshold": f"{threshold:g}",
            "Method": entry.label,
            "method": method,
        }
        where = (experiment.experiment, *place, experiment.sparse_reward, f"{threshold:g}", method)
        rows.append(
            row | _own(stable[method], _horizon(stable)) | _compared(method, first, stable, ("comparisons", *where))
        )
    return rows


def _horizon(times: Times) -> float:
    """Last step at which a crossing could have been seen in every run of every method; 0 without a run."""
    return min((found.horizon for found in times.values() if found), default=0.0)


def _own(times: CrossingTimes | None, tau: float) -> dict[str, object]:
    """The cells and raw columns of one method, all of stable crossings."""
    raw = _raw_own(times, tau)
    if times is None:
        return {"Got there (%)": "missing", "Median": MISSING, "Restricted mean": MISSING} | raw
    share = wilson_interval(times.reached, len(times.steps))
    return {
        "Got there (%)": f"{times.reached}/{len(times.steps)} [{100 * share.low:.0f}, {100 * share.high:.0f}]",
        "Median": median_text(times) if times.horizon > 0 else MISSING,
        "Restricted mean": number(raw["restricted_mean"], 1),
    } | raw


def _raw_own(times: CrossingTimes | None, tau: float) -> dict[str, float]:
    mean = restricted_mean(times, tau) if times and tau > 0 else math.nan
    runs, reached = (len(times.steps), times.reached) if times else (0, 0)
    middle = median_step(times) if times else math.nan
    return {
        "runs": runs,
        "reached": reached,
        "median": middle if math.isfinite(middle) else math.nan,
        "restricted_mean": mean,
        "tau": tau,
    }


def _compared(method: str, first: Times, stable: Times, key: tuple[str, ...]) -> dict[str, object]:
    """The cells and raw columns of one method against the baseline; dashes for the baseline, and without runs."""
    times, baseline = stable[method], stable[BASELINE]
    if method == BASELINE or times is None or baseline is None:
        return dict.fromkeys(COMPARED, MISSING) | dict.fromkeys(RAW_COMPARED, math.nan)
    pairs = {
        "first": paired_crossings(first[method], first[BASELINE]),
        "stable": paired_crossings(times, baseline),
    }
    test = log_rank(times, baseline)
    speed = {of: speed_up(times, baseline, key=key, of=of) for of in ("median", "restricted_mean")}
    order = pairs["stable"]
    mean = speed["restricted_mean"]
    decided = order.first_lower + order.second_lower
    return {
        "Pairs": str(order.n),
        "First: difference": _difference(pairs["first"]),
        "Stable: difference": _difference(order),
        "Earlier": f"{order.first_lower}/{decided}, p {order.sign_p:.2f}" if decided else MISSING,
        "Restricted mean: difference": _with_ends(mean.difference, mean.difference_interval),
        "Log-rank p": _test(test),
        "Speed-up (%)": _saved(speed["median"]),
    } | _raw_compared(pairs, test, speed)


def _raw_compared(
    pairs: Mapping[str, PairedDifference], test: LogRank, speed: Mapping[str, SpeedUp]
) -> dict[str, object]:
    raw: dict[str, object] = {"pairs": pairs["stable"].n, "unpaired": len(pairs["stable"].only_first)}
    raw["unpaired_baseline"] = len(pairs["stable"].only_second)
    for kind, pair in pairs.items():
        raw |= {f"{kind}_known": pair.known, f"{kind}_difference": pair.mean}
        raw |= _ends(f"{kind}_difference", pair.interval)
        raw |= {f"{kind}_earlier": pair.first_lower, f"{kind}_later": pair.second_lower, f"{kind}_tied": pair.ties}
        raw |= {f"{kind}_undecided": pair.undecided, f"{kind}_sign_p": pair.sign_p}
    raw |= {"log_rank": test.statistic, "log_rank_p": test.p, "log_rank_exact_p": test.exact_p}
    raw["log_rank_reason"] = test.reason
    for of, found in speed.items():
        low, high = found.saved_interval or (math.nan, math.nan)
        raw |= {f"{of}_difference": found.difference} | _ends(f"{of}_difference", found.difference_interval)
        raw |= {f"{of}_saved": found.saved, f"{of}_saved_low": low, f"{of}_saved_high": high}
    return raw | {"not_estimable": speed["median"].reason}


def _ends(name: str, interval: Interval | None) -> dict[str, float]:
    low, high = (interval.low, interval.high) if interval else (math.nan, math.nan)
    return {f"{name}_low": low, f"{name}_high": high}


def _difference(pairs: PairedDifference) -> str:
    """`−12.5 [−20.1, −4.9], 4 of 5`: mean of the known differences, t interval, how many of the pairs are known."""
    if not pairs.known:
        return MISSING
    low, high = (pairs.interval.low, pairs.interval.high) if pairs.interval else (math.nan, math.nan)
    of = "" if pairs.known == pairs.n else f", {pairs.known} of {pairs.n}"
    return with_interval(pairs.mean, low, high, 1) + of


def _with_ends(value: float, interval: Interval | None) -> str:
    """A value with its interval; a dash as an end that the budget leaves open."""
    shown = number(value, 1)
    return f"{shown} [{number(interval.low, 1)}, {number(interval.high, 1)}]" if interval else shown


def _test(test: LogRank) -> str:
    if math.isnan(test.p):
        return MISSING
    exact = "" if math.isnan(test.exact_p) else f" ({test.exact_p:.3f})"
    return f"{test.p:.3f}{exact}"


def _saved(speed: SpeedUp) -> str:
    """Percent of the baseline's steps that the method saves, of the medians, and the runs behind it."""
    if math.isnan(speed.saved):
        return saved_text(speed, "not estimable")
    return f"{saved_text(speed)}, n {speed.runs}+{speed.baseline_runs}"


def _notes(view: View) -> list[str]:
    label = view.methods[BASELINE].label
    return [
        f"Of stable crossings, except `First`. Differences are method minus {label}, in steps: negative is earlier.",
        "Pairs: runs of both methods with the same seed. First, Stable: mean of the known differences with the "
        f"{100 * LEVEL:g} % Student's t interval over pairs (none for one pair). `2 of 3`: in the third pair a run did "
        "not cross, so that only a bound of its difference is known. Such a mean leaves slow runs out; the columns "
        "after it do not.",
        f"Earlier: pairs in which the method crosses before {label}, of the pairs whose order is known and not a tie "
        "(a run that crossed was before one that did not); p is the two-sided exact binomial one.",
        "Censoring: a run without a stable crossing, pending and diverged ones included, crosses later than "
        f"N − {HOLD}, where N are its planned steps. A median `>60` is only known to be later than step 60.",
        f"Restricted mean: area under the Kaplan-Meier curve up to the smallest N − {HOLD} at this threshold; its "
        f"difference to {label} up to the smaller one of the two methods, with a bootstrap interval as the speed-up.",
        "Log-rank p: of equal crossing times, by the normal approximation, and in brackets from all splits of the "
        f"runs into two groups. {MISSING}: no run crosses, one run in a group, or all cross at one step. No p is "
        "corrected for the number of comparisons in the table.",
        f"Speed-up: steps saved by the median run, as a share of {label}'s median; not estimable where a median is "
        f"beyond the budget. Interval: {100 * LEVEL:g} % percentile bootstrap over runs ({RESAMPLES:,} resamples, "
        f"common seeds drawn together), rough for few runs; {MISSING} as an end: the budget leaves it open. n: runs of "
        f"the method + runs of {label}.",
        WILSON_NOTE,
        *view.notes(),
    ]

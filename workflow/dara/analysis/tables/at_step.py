"""Tables of scores at one step: which step, mean and spread as cells, and what stands under the table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from dara.analysis.compare import PUBLISHED_STEPS, nearest_step
from dara.analysis.names import BASE, ENGINES
from dara.analysis.tables.cells import MISSING, number
from dara.analysis.tables.render import Table
from dara.analysis.view import Estimate, Setting, View, missing_data, name_of

PUBLISHED = "published"
BASE_LABEL = "Base"
RAW = ("low", "high", "sd", "n")
"""Raw columns beside the value of each metric: `<metric>_low`, ..."""

Steps = Mapping[Setting, int | None]
"""The step to show of each setting; None where the source does not say at which step its scores are."""

Scored = tuple[dict[str, object], dict[str, Estimate | None]]
"""A row of a table of scores, and its estimates by metric."""


def is_published(view: View) -> bool:
    """Whether the numbers are the authors'."""
    return view.source == PUBLISHED


def steps_at(view: View, metrics: Sequence[str], at: int) -> dict[Setting, int | None]:
    """The step to compare at, of each setting that has scores there.

    Of the published that is step `at`, of ours the `nearest_step`.

    Raises:
        ValueError: no setting has one of these metrics at such a step.
    """
    steps: dict[Setting, int | None] = {}
    for setting in view.settings:
        if is_published(view):
            if _any_score(view, metrics, setting, at):
                steps[setting] = at
            continue
        scored = [set(view.curve(metric, method, setting).index) for metric in metrics for method in view.methods]
        common = set.intersection(*[found for found in scored if found] or [set()])
        if common:
            steps[setting] = nearest_step(common, at, view.budget(setting))
    if not steps:
        where = f"at step {at}" if is_published(view) else "that all methods have at one step"
        raise missing_data(view, f"score ({', '.join(metrics)}) {where}")
    return steps


def score_table(
    view: View,
    metrics: Mapping[str, str],
    steps: Steps,
    title: str,
    notes: Sequence[str],
    best: Mapping[str, bool] | None = None,
) -> Table:
    """One row a (setting, method) that has a score, the base model first: `mean ± SD` in percent, and n.

    Args:
        metrics: metric -> header.
        steps: of each setting to show.
        notes: what the table says besides spread, steps, and the view's own notes.
        best: metric -> whether more is better, of the columns whose best method is set in bold (`clearly_best`).

    Returns:
        Raw columns: method, step, and for each metric the value as a fraction, and _low, _high, _sd, _n.
    """
    rows: list[dict[str, object]] = []
    bold: set[tuple[int, str]] = set()
    empty: list[str] = []
    for setting, step in steps.items():
        found = _scored_rows(view, setting, step, metrics)
        bold |= {(len(rows) + place, metrics[metric]) for metric, place in _best_places(found, best or {}).items()}
        rows += [row for row, _ in found.values()]
        where = _place(view, setting)
        empty += [f"{view.method_label(method)}{where}" for method in view.methods if method not in found]
    if not rows:
        raise missing_data(view, f"score ({', '.join(metrics)})")
    missing = [f"Without a score here: {', '.join(empty)}."] if empty else []
    base = ["Base: the model before training (step 0)."] if any(row["method"] == BASE for row in rows) else []
    shown = [0, *dict.fromkeys(steps.values())]
    return Table(
        pd.DataFrame(rows),
        title_of(view, title),
        [*notes, *base, spread_note(view), *missing, *view.notes(list(metrics), shown)],
        [*setting_columns(view), "Method", "n", *metrics.values()],
        numeric=("G", "n", *metrics.values()),
        bold=frozenset(bold),
    )


def _scored_rows(view: View, setting: Setting, step: int | None, metrics: Mapping[str, str]) -> dict[str, Scored]:
    """The rows of the methods that have one of the scores, the base model first."""
    found = {method: row_of(view, setting, method, step, metrics) for method in (BASE, *view.methods)}
    return {method: scored for method, scored in found.items() if any(scored[1].values())}


def _best_places(found: Mapping[str, Scored], best: Mapping[str, bool]) -> dict[str, int]:
    """Metric -> the place of its best method among the rows, where one is `clearly_best`."""
    places = {}
    for metric, more in best.items():
        estimates = {method: scored[1][metric] for method, scored in found.items() if method != BASE}
        if winner := clearly_best(estimates, more=more):
            places[metric] = list(found).index(winner)
    return places


def row_of(view: View, setting: Setting, method: str, step: int | None, metrics: Mapping[str, str]) -> Scored:
    """One row of a table of scores, and its estimates by metric; the base model always at step 0."""
    at = 0 if method == BASE else step
    found = {metric: view.score(metric, method, setting, at) for metric in metrics}
    row: dict[str, object] = setting_cells(setting)
    row["Method"] = BASE_LABEL if method == BASE else view.method_label(method)
    row["n"] = runs_behind(found.values())
    row |= {header: mean_sd(found[metric], digits(view)) for metric, header in metrics.items()}
    row |= {"method": method, "step": math.nan if at is None else at}
    for metric, estimate in found.items():
        row[metric] = estimate.value if estimate else math.nan
        row |= {f"{metric}_{name}": _raw(getattr(estimate, name, None)) for name in RAW}
    return row, found


def runs_behind(estimates: Sequence[Estimate | None]) -> str:
    """`3`, or `2 to 3` where the scores of one row have different numbers of runs; a dash where it is not known."""
    counts = sorted({estimate.n for estimate in estimates if estimate and estimate.n is not None})
    if not counts:
        return MISSING
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def clearly_best(estimates: Mapping[str, Estimate | None], *, more: bool) -> str | None:
    """The method with the best value, where its interval does not overlap that of any other method; else None.

    None too where a method has no interval: then nothing says how large a difference must be.
    """
    known = {method: estimate for method, estimate in estimates.items() if estimate}
    if len(known) < 2 or any(estimate.low is None or estimate.high is None for estimate in known.values()):
        return None
    best = (max if more else min)(known, key=lambda method: known[method].value)
    rest = [estimate for method, estimate in known.items() if method != best]
    apart = [e.high < known[best].low if more else e.low > known[best].high for e in rest]
    return best if all(apart) else None


def mean_sd(estimate: Estimate | None, decimals: int) -> str:
    """`50.66 ± 0.23` in percent; the value alone without a spread, a dash without a value."""
    if estimate is None:
        return MISSING
    shown = number(100 * estimate.value, decimals)
    return f"{shown} ± {number(100 * estimate.sd, decimals)}" if estimate.sd is not None else shown


def digits(view: View) -> int:
    """Decimals of a percentage: as many as the authors print; of ours one, of a few hundred questions."""
    return 2 if is_published(view) else 1


def setting_cells(setting: Setting) -> dict[str, object]:
    """The cells `Model`, `G` and, of our own runs, `Engine` of a setting."""
    cells = {"Model": setting.model, "G": MISSING if setting.group_size is None else str(setting.group_size)}
    return cells | ({"Engine": ENGINES.get(setting.engine, setting.engine)} if setting.engine else {})


def setting_columns(view: View) -> list[str]:
    """Those of `Model`, `G` and `Engine` in which the settings of a view differ."""
    columns = zip(("Model", "G", "Engine"), zip(*view.settings, strict=True), strict=True)
    return [column for column, values in columns if len(set(values)) > 1]


def _place(view: View, setting: Setting) -> str:
    """` of model, G=4`, of what settings differ in; empty where there is one."""
    cells = setting_cells(setting)
    parts = [f"G={cells[column]}" if column == "G" else str(cells[column]) for column in setting_columns(view)]
    return f" of {', '.join(parts)}" if parts else ""


def title_of(view: View, what: str) -> str:
    """`what (experiment, source)`, with the model where there is only one."""
    models = {setting.model for setting in view.settings}
    model = f", {next(iter(models))}" if len(models) == 1 else ""
    return f"{what} ({view.experiment.experiment}{model}, {view.source})"


def spread_note(view: View) -> str:
    """What `±` and n are, and which intervals there are."""
    common = "In percent (CSV: fractions). Mean ± sample SD over training seeds, and n, the runs behind it"
    if is_published(view):
        return f"{common}; no SD where none was published. Interval: none was published."
    return (
        f"{common}; no SD of one run. Interval: 95 % Student's t over seeds, of the mean, in the columns _low and "
        "_high of the CSV. Diverged runs are left out of the means."
    )


def step_note(view: View, steps: Steps, at: int) -> str:
    """At which steps the scores are, and of how many."""
    if is_published(view):
        return f"Scores at step {at}."
    texts = {setting: f"step {step} of {view.budget(setting)}" for setting, step in steps.items()}
    where = each_setting(view, texts)
    if not _shorter(view, steps):
        return f"Scores at the scored step nearest to {at}: {where}."
    return f"Scores at the scored step nearest to {at} of {PUBLISHED_STEPS} steps as a share of the training: {where}."


def each_setting(view: View, texts: Mapping[Setting, str]) -> str:
    """`step 80`, or `tiny, G=4: step 80; tiny, G=8: step 60` where it is not the same for all."""
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{name_of(setting, view.settings)}: {text}" for setting, text in texts.items())


def last_steps(view: View, metrics: Sequence[str], what: str) -> dict[Setting, int]:
    """The last step at which all completed runs of a setting have these scores, of each setting that has one.

    ValueError where none has, which says that the source has no `what`.
    """
    found = {setting: view.last_step(metrics, setting) for setting in view.settings}
    steps = {setting: step for setting, step in found.items() if step is not None}
    if not steps:
        raise missing_data(view, what)
    return steps


def last_steps_note(view: View, steps: Mapping[Setting, int]) -> str:
    """At which steps `last_steps` are."""
    where = each_setting(view, {setting: str(step) for setting, step in steps.items()})
    return (
        f"Mean over seeds at the last step of which all completed runs have scores ({where}); the base model at step 0."
    )


def hidden_note(view: View, steps: Mapping[Setting, object]) -> list[str]:
    """The settings that a table leaves out, because none of their runs exists or all of them diverged."""
    hidden = [name_of(setting, view.settings) for setting in view.settings if setting not in steps]
    return [f"Not shown, without a score of a run that did not diverge: {'; '.join(hidden)}."] if hidden else []


def step_name(view: View, steps: Steps, at: int) -> str:
    """`step 60`, or `60 % of training` where ours is shorter than the authors'."""
    return f"{at} % of training" if not is_published(view) and _shorter(view, steps) else f"step {at}"


def _shorter(view: View, steps: Steps) -> bool:
    return any(view.budget(setting) < PUBLISHED_STEPS for setting in steps)


def _any_score(view: View, metrics: Sequence[str], setting: Setting, step: int | None) -> bool:
    return any(view.score(metric, method, setting, step) for metric in metrics for method in view.methods)


def _raw(value: float | None) -> float:
    return math.nan if value is None else value

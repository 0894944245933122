"""The paper's own numbers for a claim, as text: one part a published model, computed by the functions that ours are."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dara.analysis.compare import Difference, Level, paired
from dara.analysis.paired import paired_steps
from dara.analysis.survival import CrossingTimes, Kind, median_text, times_of
from dara.analysis.tables.crossings import curve_crossing
from dara.analysis.tables.render import MISSING, number, with_interval
from dara.analysis.view import Setting
from dara.analysis.view_published import PublishedView

SHORT = {
    "Qwen2.5-1.5B-Instruct": "1.5B",
    "Qwen2.5-3B-Instruct": "3B",
    "DeepSeek-R1-Distill-Qwen-1.5B": "R1-1.5B",
    "DeepSeek-R1-Distill-Qwen-7B": "R1-7B",
    "Qwen3-4B-Instruct-2507": "Qwen3-4B",
    "Qwen3-4B-Thinking-2507": "Qwen3-4B-Thinking",
}
"""The paper's names of its models."""

UNKNOWN = "no number is known"


def crossings(
    theirs: PublishedView | None, kind: Kind, level: Level, pair: tuple[str, str], group_size: int | None = None
) -> str:
    """`14 against 19 steps, 26 % fewer (median curves, 1.5B)`, and the paired difference over the seeds.

    group_size: where the published group sizes differ, only this one; None is all of them.
    """
    parts = []
    for setting in theirs.settings if theirs else ():
        several = len({other.group_size for other in theirs.settings}) > 1
        if several and group_size not in (None, setting.group_size):
            continue
        name = f"{_short(setting)}, G = {setting.group_size}" if several else _short(setting)
        curves = [curve_crossing(theirs, *level, method, setting) for method in pair] if kind == "first" else [math.nan]
        if not any(math.isnan(step) for step in curves):
            parts.append(f"{_steps(*curves)} (median curves, {name})")
        times = [times_of(theirs.marks(kind, *level, method, setting), kind) for method in pair]
        if None not in times:
            parts.append(_times(times, name))
    return "; ".join(parts) or UNKNOWN


def first_checkpoints(theirs: PublishedView | None, level: Level, pair: tuple[str, str]) -> str:
    """`step 50 against 70 (R1-7B)`; `never` for a method that does not get there."""
    metric = f"first_checkpoint/{level[0]}/{level[1]:g}"
    parts = []
    for setting in theirs.settings if theirs else ():
        rows = theirs.rows[(theirs.rows["metric"] == metric) & (theirs.rows["model"] == setting.model)]
        if len(rows):
            values = rows.set_index("method")["value"]
            texts = [number(values[method]) if method in values.index else "never" for method in pair]
            parts.append(f"step {texts[0]} against {texts[1]} ({_short(setting)})")
    return "; ".join(parts) or UNKNOWN


def scores(theirs: PublishedView | None, metric: str, pair: tuple[str, str], at: int) -> str:
    """`45.8 against 44.1 %, +1.7 points (R1-1.5B)`, with the paired interval where single runs were published."""
    parts = []
    for setting in theirs.settings if theirs else ():
        # Scores whose step the authors do not say stand without one.
        found = [
            theirs.score(metric, method, setting, at) or theirs.score(metric, method, setting, None) for method in pair
        ]
        if not all(found):
            continue
        runs = [_by_seed(theirs, metric, method, setting, at) for method in pair]
        plain = Difference(found[0].value - found[1].value, math.nan, math.nan, 0)
        difference = difference_text(paired(*runs) if all(runs) else plain, 1, "points", 100)
        parts.append(f"{shares_text([one.value for one in found])}, {difference} ({_short(setting)})")
    return "; ".join(parts) or UNKNOWN


def group_densities(theirs: PublishedView | None, method: str, steps: int) -> str:
    """The mean of the published median densities at the first and at a later step, by group size."""
    found = {}
    for setting in theirs.settings if theirs else ():
        curve = theirs.curve(f"density/{theirs.experiment.sparse_reward}", method, setting)["middle"]
        if {1, steps} <= set(curve.index):
            found[setting.group_size] = number((curve[1] + curve[steps]) / 2, 3)
    return f"{', '.join(found.values())} for G = {', '.join(map(str, found))}" if found else UNKNOWN


def group_steps(theirs: PublishedView | None, level: Level, method: str) -> str:
    """The median first crossing of the published runs, by group size."""
    found = {}
    for setting in theirs.settings if theirs else ():
        times = times_of(theirs.marks("first", *level, method, setting), "first")
        if times:
            found[setting.group_size] = median_text(times)
    return f"medians {', '.join(found.values())} for G = {', '.join(map(str, found))}" if found else UNKNOWN


def shares_text(values: Sequence[float]) -> str:
    """`45.8 against 44.1 %`; below two percent `0.25 against 0.70 %`."""
    digits = 2 if max(values) < 0.02 else 1
    return f"{' against '.join(number(100 * value, digits) for value in values)} %"


def difference_text(found: Difference, digits: int, unit: str, scale: float = 1.0) -> str:
    """`−4.3 [−6.8, −1.9] steps, 3 pairs`; a dash without a pair."""
    if math.isnan(found.value):
        return MISSING
    # Enough digits that no end is printed as 0 which is not 0: whether the interval contains it must be seen.
    ends = (found.value, found.low, found.high)
    small = [abs(end * scale) for end in ends if math.isfinite(end) and end != 0]
    while small and digits < 5 and min(small) < 0.5 * 10**-digits:
        digits += 1
    shown = with_interval(found.value, found.low, found.high, digits, scale)
    sign = "+" if found.value * scale > 0 and not shown.startswith("0 ") else ""
    text = f"{sign}{shown}{f' {unit}' if unit else ''}"
    if not found.pairs:
        return text
    text += f", {found.pairs} {'pair' if found.pairs == 1 else 'pairs'}"
    return text if math.isfinite(found.low) else f"{text}, no interval"


def _times(times: list[CrossingTimes], name: str) -> str:
    """The steps of single runs, or the paired difference over seeds."""
    if len(times[0].steps) == len(times[1].steps) == 1 and times[0].reached and times[1].reached:
        return f"{_steps(times[0].steps[0], times[1].steps[0])} ({name})"
    medians = " against ".join(map(median_text, times))
    difference = Difference.of(paired_steps(*times)[0])
    return f"medians {medians}, over its seeds {difference_text(difference, 1, 'steps')} ({name})"


def _steps(step: float, baseline: float) -> str:
    """`14 against 19 steps, 26 % fewer`."""
    saved = 100 * (1 - step / baseline)
    return f"{step:g} against {baseline:g} steps, {abs(saved):.0f} % {'fewer' if saved >= 0 else 'more'}"


def _by_seed(theirs: PublishedView, metric: str, method: str, setting: Setting, at: int) -> dict[int, float]:
    """The published scores of single runs at a step, by seed."""
    rows = theirs.rows[(theirs.rows["metric"] == metric) & (theirs.rows["method"] == method)]
    rows = rows[(rows["model"] == setting.model) & rows["seed"].notna() & rows["step"].eq(at).fillna(False)]
    return {int(seed): float(value) for seed, value in zip(rows["seed"], rows["value"], strict=True)}


def _short(setting: Setting) -> str:
    return SHORT.get(setting.model, setting.model)

"""The sparse reward's energy over that of the dense one, before the method and after it, and where the cap binds."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from dara.analysis.crossing import WINDOW
from dara.analysis.figures.style import INK, draw_band, legend_below, new_figure, step_axis, style_of, styled
from dara.analysis.intervals import quartiles
from dara.analysis.names import BASELINE
from dara.analysis.view import CURVE, Setting, View, missing_data
from dara.analysis.view_runs import RunsView

WEIGHTED = ("dara_sym", "dara_asym")  # their weight has a cap
W_MAX = 5.0
"""Default of the methods, for a row of methods.yaml without w_max."""
TOLERANCE = 1e-9
SHADE = "#f5dfb0"


class Ratios(NamedTuple):
    """Curves (`CURVE` by step) of the ratio on the same batches, and by step the share of runs at the cap."""

    before: pd.DataFrame
    after: pd.DataFrame
    capped: pd.Series


@styled
def draw(view: View) -> Figure:
    """Draw a panel per setting and DARA method: the ratio with GDPO's weighting and the method's, on its batches.

    Shading marks steps at which the weight of the sparse reward is at its cap (opacity: the share of runs); if it binds
    until the end, the first such step is annotated. For runs, energies are summed over the last WINDOW steps (a step
    near saturation has one active group or none), and the lines are medians over runs with quartiles. Published ratios
    are those of single steps. Raise ValueError if the source has neither energies nor ratios of a DARA method.
    """
    if BASELINE not in view.entries:
        raise ValueError(f"the energy ratio needs the row {BASELINE!r} of config/methods.yaml, for its label and color")
    find = runs_ratios if isinstance(view, RunsView) else curve_ratios
    panels = {(s, m): find(view, s, m) for s in view.settings for m in WEIGHTED if m in view.methods}
    panels = {key: found for key, found in panels.items() if len(found.after)}
    if not panels:
        raise missing_data(view, f"energy ratio of {view.experiment.sparse_reward} for any of {', '.join(WEIGHTED)}")
    methods = list(dict.fromkeys(method for _, method in panels))
    columns = len(methods) if len(methods) > 1 else min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure, grid = new_figure(rows, columns, 2.1, sharey=True)
    for axes, ((setting, method), found) in zip(grid.flat, panels.items(), strict=False):
        _shade(axes, found.capped)
        for curve, name in ((found.before, BASELINE), (found.after, method)):
            draw_band(axes, curve, style_of(name, view.entries))
        axes.axhline(1, color=INK, linewidth=0.8, linestyle="--", zorder=1)
        axes.set_title(_title(view, setting, method), loc="left")
        step_axis(axes, max(int(found.after.index.max()) for found in panels.values()))
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    grid[0, 0].set_ylim(bottom=0)  # the axis is shared, so set it after all curves
    for axes in grid[:, 0]:
        axes.set_ylabel(_ratio_name(view))
    metric = f"density/{view.experiment.sparse_reward}" if isinstance(view, RunsView) else "energy_ratio"
    legend_below(figure, _handles(view, methods), columns=3, note=view.curve_note(metric))
    return figure


def runs_ratios(view: RunsView, setting: Setting, method: str) -> Ratios:
    """Return ratios of trailing sums over WINDOW steps from the frame `energies`, of each run and then over runs."""
    sparse, dense = rewards_of(view)
    rows = view.rows("energies", "energies", reward=[sparse, dense])
    rows = view.selection.of_setting(rows, setting)
    rows = rows[rows["method"] == method].sort_values(["run_id", "step"])
    rows = rows.assign(
        before=rows["energy_pos"] + rows["energy_neg"], after=rows["contributed_pos"] + rows["contributed_neg"]
    )
    curves = []
    for column in ("before", "after"):
        energy = rows.pivot(index=["run_id", "step"], columns="reward", values=column).reindex(columns=[sparse, dense])
        sums = energy.groupby(level="run_id").rolling(WINDOW, min_periods=1).sum().droplevel(0)
        ratio = sums[sparse] / sums[dense].where(sums[dense] > 0)
        curves.append(_over_runs(ratio.dropna()))
    weights = rows[rows["reward"] == sparse].groupby("step")["weight"]
    capped = weights.apply(lambda found: float((found >= cap_of(view, method) - TOLERANCE).mean()))
    return Ratios(*curves, capped.astype(float))


def curve_ratios(view: View, setting: Setting, method: str) -> Ratios:
    """Return ratios from the curves energy_ratio and weight/<sparse reward> of the source."""
    sparse, _ = rewards_of(view)
    before, after = (view.curve("energy_ratio", name, setting) for name in (BASELINE, method))
    weight = view.curve(f"weight/{sparse}", method, setting)["middle"].astype(float)
    return Ratios(before, after, (weight >= cap_of(view, method) - TOLERANCE).astype(float))


def rewards_of(view: View) -> tuple[str, str]:
    """Return the sparse reward, and the first of the others: correctness in every experiment of this project."""
    sparse = view.experiment.sparse_reward
    others = [reward for reward in view.experiment.rewards if reward != sparse]
    if not others:
        raise ValueError(f"experiment {view.experiment.experiment}: a ratio of energies needs two rewards")
    return sparse, others[0]


def cap_of(view: View, method: str) -> float:
    """Return w_max of the method's row."""
    return float(view.methods[method].params.get("w_max", W_MAX))


def cap_start(capped: pd.Series) -> int | None:
    """Return the step from which on all runs are at the cap until the end; None without such a step."""
    below = capped.index[capped < 1]
    later = capped.index[capped.index > below.max()] if len(below) else capped.index
    return int(later.min()) if len(later) else None


def _over_runs(ratio: pd.Series) -> pd.DataFrame:
    by_step = {
        int(step): (*quartiles(found.to_numpy(dtype=float)), len(found)) for step, found in ratio.groupby(level="step")
    }
    return pd.DataFrame(
        list(by_step.values()), index=pd.Index(list(by_step), dtype=int), columns=list(CURVE), dtype=float
    )


def _shade(axes: Axes, capped: pd.Series) -> None:
    """Shade each step at which runs are at the cap, and annotate the step from which on all are."""
    for step, share in capped[capped > 0].items():
        axes.axvspan(step - 0.5, step + 0.5, color=SHADE, alpha=float(share), linewidth=0, zorder=0)
    start = cap_start(capped)
    if start is not None:
        axes.annotate(
            f"cap from step {start}", xy=(1, 1), xycoords="axes fraction", xytext=(-2, -2),
            textcoords="offset points", ha="right", va="top", fontsize=7, color=INK,
        )  # fmt: skip


def _title(view: View, setting: Setting, method: str) -> str:
    """Return a panel's title: the method, after the setting if there are several; the model has its own line."""
    model, _, size = view.setting_label(setting).rpartition(", ")
    return f"{model}\n{size}, {view.method_label(method)}" if model else view.method_label(method)


def _ratio_name(view: View) -> str:
    sparse, dense = rewards_of(view)
    return f"energy of {sparse} / {dense}" + (f"\n(sums over {WINDOW} steps)" if isinstance(view, RunsView) else "")


def _handles(view: View, methods: list[str]) -> list:
    style = style_of(BASELINE, view.entries)
    before = f"{view.entries[BASELINE].label}'s weighting"
    handles = [Line2D([], [], color=style.color, linestyle=style.linestyle, label=before)]
    for method in methods:
        style = style_of(method, view.entries)
        label = f"{view.methods[method].label}, the same batches"
        handles.append(Line2D([], [], color=style.color, linestyle=style.linestyle, label=label))
    handles.append(Line2D([], [], color=INK, linewidth=0.8, linestyle="--", label="equal energies"))
    caps = {cap_of(view, method) for method in methods}
    cap = f" of {caps.pop():g}" if len(caps) == 1 else ""
    return [*handles, Patch(color=SHADE, linewidth=0, label=f"weight at its cap{cap}")]

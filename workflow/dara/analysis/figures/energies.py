"""The sparse reward's energy before the method and after it: as a share of all rewards', and over the dense one's."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from dara.analysis.crossing import WINDOW
from dara.analysis.figures.style import (
    INK,
    draw_band,
    legend_below,
    method_handles,
    new_figure,
    step_axis,
    style_of,
)
from dara.analysis.names import BASELINE
from dara.analysis.view import Setting, View, missing_data
from dara.analysis.view_runs import RunsView, curve_over_runs

COLUMNS = {"before": "before the method (z-scores)", "after": "after the method (contributions)"}
ENERGIES = {"before": ("energy_pos", "energy_neg"), "after": ("contributed_pos", "contributed_neg")}
WEIGHTED = ("dara_sym", "dara_asym")  # their weight has a cap
W_MAX = 5.0
"""Default of the methods, for a row of methods.yaml without w_max."""
TOLERANCE = 1e-9
SHADE = "#f5dfb0"


def draw_shares(view: View) -> Figure:
    """Draw the sparse reward's share of the advantage energy, before the method and after it.

    A row of two panels per setting: the share in the z-scores, and in what the method contributes. Fractions of the
    energy of all rewards, averaged over the last WINDOW steps of a run (near saturation a step has one active group or
    none, and its share varies strongly); medians over runs, with a 25 to 75 % band. Raise ValueError without energies;
    only our runs have those of single steps.
    """
    return _draw_shares(view, {"share": "share of {} in the energy"}, "energies of single steps")


def draw_by_sign(view: View) -> Figure:
    """Draw the sparse reward's share of the advantage energy by sign: of positive and of negative advantages.

    Two rows of two panels a setting: positive and negative advantages, before the method and after it.

    Shares of the energy of all rewards as in `energy_shares`; the two rows add up to that figure. DARA-Asym weights
    positive advantages only, DARA-Sym both. Raise ValueError without energies by sign; only our runs have them.
    """
    parts = {sign: f"share of {sign}\n{{}} advantages" for sign in ("positive", "negative")}
    return _draw_shares(view, parts, "energies of single steps by sign")


def draw_ratio(view: View) -> Figure:
    """Draw the sparse reward's energy over that of the dense one, before the method and after it, and where the cap
    binds.

    A panel per setting and DARA method: the ratio with GDPO's weighting and the method's, on its batches. Shading marks
    steps at which the weight of the sparse reward is at its cap (opacity: the share of runs); if it binds until the
    end, the first such step is annotated. For runs, energies are summed over the last WINDOW steps (a step near
    saturation has one active group or none), and the lines are medians over runs with quartiles. Published ratios are
    those of single steps. Raise ValueError if the source has neither energies nor ratios of a DARA method.
    """
    if BASELINE not in view.entries:
        raise ValueError(f"the energy ratio needs the row {BASELINE!r} of config/methods.yaml, for its label and color")
    sparse, dense = _two_rewards(view)
    panels = {(s, m): ratios(view, s, m) for s in view.settings for m in WEIGHTED if m in view.methods}
    panels = {key: found for key, found in panels.items() if len(found[1])}
    if not panels:
        raise missing_data(view, f"energy ratio of {sparse} for any of {', '.join(WEIGHTED)}")
    methods = list(dict.fromkeys(method for _, method in panels))
    columns = len(methods) if len(methods) > 1 else min(3, len(panels))
    figure, grid = new_figure(-(-len(panels) // columns), columns, 2.1, sharey=True)
    last = max(int(after.index.max()) for _, after, _ in panels.values())
    for axes, ((setting, method), (before, after, capped)) in zip(grid.flat, panels.items(), strict=False):
        _shade(axes, capped)
        for curve, name in ((before, BASELINE), (after, method)):
            draw_band(axes, curve, view, name)
        axes.axhline(1, color=INK, linewidth=0.8, linestyle="--", zorder=1)
        # The method, after the setting if there are several; the model has its own line.
        model, _, size = view.setting_label(setting).rpartition(", ")
        label = view.method_label(method)
        axes.set_title(f"{model}\n{size}, {label}" if model else label, loc="left")
        step_axis(axes, last)
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    grid[0, 0].set_ylim(bottom=0)  # the axis is shared, so set it after all curves
    ours = isinstance(view, RunsView)
    for axes in grid[:, 0]:
        axes.set_ylabel(f"energy of {sparse} / {dense}" + (f"\n(sums over {WINDOW} steps)" if ours else ""))
    note = view.curve_note(f"density/{sparse}" if ours else "energy_ratio")
    legend_below(figure, _handles(view, methods), columns=3, note=note)
    return figure


def shares_by_sign(energies: pd.DataFrame, reward: str) -> pd.DataFrame:
    """Return the rows of `reward`, with its positive and negative energy as shares of all rewards' energy at that step.

    Adds positive_before, negative_before (z-scores) and positive_after, negative_after (contributions), which add up to
    share_before and share_after; a share of no energy is undefined (NaN).
    """
    energies = energies.copy()
    for when, (positive, negative) in ENERGIES.items():
        both = energies[positive] + energies[negative]
        total = both.groupby([energies["run_id"], energies["step"]]).transform("sum")
        energies[f"positive_{when}"] = energies[positive] / total.where(total > 0)
        energies[f"negative_{when}"] = energies[negative] / total.where(total > 0)
    return energies[energies["reward"] == reward]


def ratios(view: View, setting: Setting, method: str) -> tuple[pd.DataFrame, pd.DataFrame, pd.Series]:
    """Return the ratio before and after the method (`CURVE` by step), and by step the share of runs at the cap.

    Ratios of runs are those of trailing sums over WINDOW steps, of each run and then over runs.
    """
    sparse, dense = _two_rewards(view)
    cap = _cap_of(view, method) - TOLERANCE
    if not isinstance(view, RunsView):
        weight = view.curve(f"weight/{sparse}", method, setting)["middle"].astype(float)
        curves = (view.curve("energy_ratio", name, setting) for name in (BASELINE, method))
        return *curves, (weight >= cap).astype(float)
    rows = view.selection.of_setting(view.rows("energies", "energies", reward=[sparse, dense]), setting)
    rows = rows[rows["method"] == method].sort_values(["run_id", "step"])
    curves = []
    for positive, negative in ENERGIES.values():
        both = rows.assign(both=rows[positive] + rows[negative])
        energy = both.pivot(index=["run_id", "step"], columns="reward", values="both").reindex(columns=[sparse, dense])
        sums = energy.groupby(level="run_id").rolling(WINDOW, min_periods=1).sum().droplevel(0)
        ratio = sums[sparse] / sums[dense].where(sums[dense] > 0)
        curves.append(curve_over_runs(ratio.rename("value").reset_index()))
    weights = rows[rows["reward"] == sparse].groupby("step")["weight"]
    return *curves, weights.apply(lambda found: float((found >= cap).mean())).astype(float)


def cap_start(capped: pd.Series) -> int | None:
    """Return the step from which on all runs are at the cap until the end; None without such a step."""
    below = capped.index[capped < 1]
    later = capped.index[capped.index > below.max()] if len(below) else capped.index
    return int(later.min()) if len(later) else None


def _draw_shares(view: View, parts: Mapping[str, str], what: str) -> Figure:
    """Draw a row of panels per setting and part (share, positive or negative, with its name: {} is the reward)."""
    if not isinstance(view, RunsView):
        raise missing_data(view, f"{what}; they are computed from the rewards of own runs")
    reward, of_setting = view.experiment.sparse_reward, view.selection.of_setting
    shares = shares_by_sign(view.rows("energies", "energies"), reward).sort_values(["run_id", "step"])
    if shares.empty:
        raise ValueError(
            f"experiment {view.experiment.experiment}: the frame `energies` has no row of the reward {reward!r}"
        )
    # Means over the last WINDOW steps of each run, fewer at the start, without undefined shares.
    names = [f"{part}_{when}" for part in parts for when in COLUMNS]
    means = shares.groupby("run_id")[names].rolling(WINDOW, min_periods=1).mean()
    shares = shares.assign(**means.droplevel(0))
    rows = [(setting, part) for setting in view.settings for part in parts if len(of_setting(shares, setting))]
    figure, panels = new_figure(len(rows), len(COLUMNS), 1.9, sharex="row", sharey=True)
    for place, (row, (setting, part)) in enumerate(zip(panels, rows, strict=True)):
        chosen = of_setting(shares, setting)
        for axes, (when, title) in zip(row, COLUMNS.items(), strict=True):
            for method in view.methods:
                curve = curve_over_runs(chosen[chosen["method"] == method], f"{part}_{when}")
                draw_band(axes, curve, view, method)
            axes.set_title(title if place == 0 else "")
            step_axis(axes, int(chosen["step"].max()), label=place == len(rows) - 1)
        label, name = view.setting_label(setting), parts[part].format(reward)
        row[0].set_ylabel(f"{label}\n{name}" if label else name)
    panels[0, 0].set_ylim(bottom=-0.015)  # room for a line at 0; the axis is shared, so set it after all curves
    note = f"{view.curve_note(f'density/{reward}')}, of means over the last {WINDOW} steps of a run"
    legend_below(figure, method_handles(view, set(shares["method"]), marked=False), columns=6, note=note)
    return figure


def _two_rewards(view: View) -> tuple[str, str]:
    """Return the sparse reward, and the first of the others: correctness in every experiment of this project."""
    sparse = view.experiment.sparse_reward
    others = [reward for reward in view.experiment.rewards if reward != sparse]
    if not others:
        raise ValueError(f"experiment {view.experiment.experiment}: a ratio of energies needs two rewards")
    return sparse, others[0]


def _cap_of(view: View, method: str) -> float:
    return float(view.methods[method].params.get("w_max", W_MAX))


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


def _handles(view: View, methods: list[str]) -> list:
    labels = {BASELINE: f"{view.entries[BASELINE].label}'s weighting"}
    labels |= {method: f"{view.methods[method].label}, the same batches" for method in methods}
    handles = []
    for method, label in labels.items():
        style = style_of(method, view.entries)
        handles.append(Line2D([], [], color=style.color, linestyle=style.linestyle, label=label))
    handles.append(Line2D([], [], color=INK, linewidth=0.8, linestyle="--", label="equal energies"))
    caps = {_cap_of(view, method) for method in methods}
    cap = f" of {caps.pop():g}" if len(caps) == 1 else ""
    return [*handles, Patch(color=SHADE, linewidth=0, label=f"weight at its cap{cap}")]

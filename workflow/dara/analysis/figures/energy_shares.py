"""The sparse reward's share of the advantage energy, before the method and after it."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from dara.analysis.crossing import WINDOW
from dara.analysis.figures.style import draw_band, legend_below, method_handles, new_figure, step_axis, style_of, styled
from dara.analysis.view import View, missing_data
from dara.analysis.view_runs import RunsView, curve_over_runs

COLUMNS = {"before": "before the method (z-scores)", "after": "after the method (contributions)"}
PARTS = ("share", "positive", "negative")


@styled
def draw(view: View) -> Figure:
    """Draw a row of two panels per setting: the share in the z-scores, and in what the method contributes.

    Fractions of the energy of all rewards, averaged over the last WINDOW steps of a run (near saturation a step has one
    active group or none, and its share varies strongly); medians over runs, with a 25 to 75 % band. Raise ValueError
    without energies; only our runs have those of single steps.
    """
    return draw_shares(view, {"share": "share of {} in the energy"}, "energies of single steps")


@styled
def draw_by_sign(view: View) -> Figure:
    """Draw the sparse reward's share of the advantage energy by sign: of positive and of negative advantages.

    Two rows of two panels a setting: positive and negative advantages, before the method and after it.

    Shares of the energy of all rewards as in `energy_shares`; the two rows add up to that figure. DARA-Asym weights
    positive advantages only, DARA-Sym both. Raise ValueError without energies by sign; only our runs have them.
    """
    parts = {
        "positive": "share of positive\n{} advantages",
        "negative": "share of negative\n{} advantages",
    }
    return draw_shares(view, parts, "energies of single steps by sign")


def draw_shares(view: View, parts: Mapping[str, str], what: str) -> Figure:
    """Draw a row of panels per setting and part (of `PARTS`, with its name, in which {} is the sparse reward)."""
    if not isinstance(view, RunsView):
        raise missing_data(view, f"{what}; they are computed from the rewards of own runs")
    experiment, selection = view.experiment, view.selection
    energies = view.rows("energies", "energies")
    shares = _trailing_means(shares_by_sign(energies, experiment.sparse_reward))
    if shares.empty:
        raise ValueError(
            f"experiment {experiment.experiment}: the frame `energies` has no row "
            f"of the reward {experiment.sparse_reward!r}"
        )
    rows = [
        (setting, part) for setting in view.settings for part in parts if len(selection.of_setting(shares, setting))
    ]
    figure, panels = new_figure(len(rows), len(COLUMNS), 1.9, sharex="row", sharey=True)
    for place, (row, (setting, part)) in enumerate(zip(panels, rows, strict=True)):
        chosen = selection.of_setting(shares, setting)
        for axes, (when, title) in zip(row, COLUMNS.items(), strict=True):
            for method in view.methods:
                curve = curve_over_runs(chosen[chosen["method"] == method], f"{part}_{when}")
                draw_band(axes, curve, style_of(method, view.entries))
            axes.set_title(title if place == 0 else "")
            step_axis(axes, int(chosen["step"].max()), label=place == len(rows) - 1)
        label = view.setting_label(setting)
        name = parts[part].format(experiment.sparse_reward)
        row[0].set_ylabel(f"{label}\n{name}" if label else name)
    panels[0, 0].set_ylim(bottom=-0.015)  # room for a line at 0; the axis is shared, so set it after all curves
    note = f"{view.curve_note(f'density/{experiment.sparse_reward}')}, of means over the last {WINDOW} steps of a run"
    legend_below(figure, method_handles(view, set(shares["method"]), marked=False), columns=6, note=note)
    return figure


def shares_by_sign(energies: pd.DataFrame, reward: str) -> pd.DataFrame:
    """Return the rows of `reward`, with its positive and negative energy as shares of all rewards' energy at that step.

    Adds positive_before, negative_before (z-scores) and positive_after, negative_after (contributions), which add up to
    share_before and share_after; a share of no energy is undefined (NaN).
    """
    columns = {"before": ("energy_pos", "energy_neg"), "after": ("contributed_pos", "contributed_neg")}
    energies = energies.copy()
    for when, (positive, negative) in columns.items():
        total = (
            (energies[positive] + energies[negative]).groupby([energies["run_id"], energies["step"]]).transform("sum")
        )
        energies[f"positive_{when}"] = energies[positive] / total.where(total > 0)
        energies[f"negative_{when}"] = energies[negative] / total.where(total > 0)
    return energies[energies["reward"] == reward]


def _trailing_means(shares: pd.DataFrame) -> pd.DataFrame:
    """Return each run's shares averaged over the last WINDOW steps (fewer at the start), without undefined ones."""
    shares = shares.sort_values(["run_id", "step"])
    names = [f"{part}_{when}" for part in PARTS for when in COLUMNS]
    means = shares.groupby("run_id")[names].rolling(WINDOW, min_periods=1).mean()
    return shares.assign(**means.droplevel(0))

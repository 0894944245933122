"""The formulas of the paper, checked at every step of every run: where one does not hold, the code is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from dara.analysis.tables.render import MISSING, number
from dara.analysis.view_runs import RunsView
from dara.report.measures import Comparison
from dara.report.sources import Sources
from dara.report.verdicts import TOLERANCE, Judgement, Verdict, judge_exact, overall

FRAME = "data/energies.csv"


@dataclass(frozen=True)
class Check:
    """A formula: a name for links, what it says, how it is checked, and its check in the runs of one experiment."""

    id: str
    statement: str
    number: str
    measure: Callable[[RunsView, str], Comparison | None]


@dataclass(frozen=True)
class Checked:
    """A formula with what every experiment says of it."""

    check: Check
    comparisons: list[Comparison]
    judgement: Judgement


def run_checks(sources: Sources) -> list[Checked]:
    """Every formula in every experiment that has runs."""
    results = []
    for check in CHECKS:
        found = [made for name, ours in sources.ours.items() if (made := check.measure(ours, name))]
        nothing = Judgement(Verdict.NOT_TESTED, "no runs to check it in")
        results.append(Checked(check, found, overall([made.judgement for made in found] or [nothing])))
    return results


def balanced_energy(ours: RunsView, name: str) -> Comparison | None:
    """Compare the energies that DARA-Sym contributes, where every reward is active and no weight is at its cap."""
    energies = _energies(ours, "dara_sym")
    if energies.empty:
        return None
    by_step = energies.groupby(["run_id", "step"])
    smallest, largest = by_step["contributed"].min(), by_step["contributed"].max()
    active, capped = by_step["density"].min() > 0, by_step["capped"].any()
    ratio = (smallest / largest.where(largest > 0))[active]
    free, bound = ratio[~capped[active]], ratio[capped[active]]
    worst = float((1 - free).abs().max()) if len(free) else 0.0
    detail = f"the cap binds at {len(bound)} of {len(ratio)} steps"
    detail += f"; the ratio there: median {number(float(bound.median()), 2)}" if len(bound) else ""
    text = f"1 ± {_tiny(worst)} at {len(free):,} steps" if len(free) else MISSING
    return Comparison("dara_sym", name, "", text, detail, judge_exact(worst, len(free)), FRAME)


def bounded_energy(ours: RunsView, name: str) -> Comparison | None:
    """Compare the energies that DARA-Asym contributes with those of its z-scores and the weights."""
    energies = _energies(ours, "dara_asym")
    energies = energies[(energies["energy"] > 0) & energies["weight"].notna()]
    if energies.empty:
        return None
    low, high = energies["energy"], energies["energy"] * energies["weight"] ** 2
    below, above = (low - energies["contributed"]) / low, (energies["contributed"] - high) / high
    worst = max(0.0, float(below.max()), float(above.max()))
    inside = int(((below <= TOLERANCE) & (above <= TOLERANCE)).sum())
    raised = energies["weight"] > 1 + TOLERANCE
    place = ((energies["contributed"] - low) / (high - low).where(raised))[raised]
    detail = f"at a share {number(float(place.median()), 2)} of the way to w² E (median)" if len(place) else ""
    text = f"inside at {inside:,} of {len(energies):,} steps and rewards"
    return Comparison("dara_asym", name, "", text, detail, judge_exact(worst, len(energies)), FRAME)


def energy_of_density(ours: RunsView, name: str) -> Comparison | None:
    """Compare the energies of the z-scores of all runs with B pi (G - 1)."""
    energies, curves = _energies(ours, None), ours.frames["training_curves"]
    groups = curves.loc[curves["metric"] == "groups", ["run_id", "step", "value"]]
    energies = energies.merge(groups.rename(columns={"value": "groups"}), on=["run_id", "step"])
    if energies.empty:
        return None
    expected = energies["groups"] * energies["density"] * (energies["group_size"] - 1)
    # Without an active group both are 0, and a deviation would be relative to nothing.
    worst = float(((energies["energy"] - expected).abs() / expected.where(expected > 0, 1.0)).max())
    text = f"largest deviation {_tiny(worst)} at {len(energies):,} steps and rewards"
    return Comparison("", name, "", text, "", judge_exact(worst, len(energies)), FRAME)


def _energies(ours: RunsView, method: str | None) -> pd.DataFrame:
    """The rows of the frame energies, with sums over the signs and whether the weight is at its cap."""
    runs = ours.selection.present
    runs = runs if method is None else runs[runs["method"] == method]
    rows = ours.frames["energies"]
    rows = rows[rows["run_id"].isin(runs["run_id"])].copy()
    rows["energy"] = rows["energy_pos"] + rows["energy_neg"]
    rows["contributed"] = rows["contributed_pos"] + rows["contributed_neg"]
    densest = rows.groupby(["run_id", "step"])["density"].transform("max")
    wanted = np.sqrt(densest / rows["density"].where(rows["density"] > 0))
    rows["capped"] = wanted > rows["weight"] * (1 + 1e-9)
    return rows


def _tiny(value: float) -> str:
    """A small deviation, as short as it can be read: 0, or 3e-6."""
    return "0" if value == 0 else f"{value:.0e}".replace("e-0", "e-")


CHECKS = (
    Check(
        "energy-density",
        "A reward's energy is B π (G − 1): half the density, half the energy.",
        "Energy of the z-scores of B groups of G responses, of which the share π is active, at each step of each run.",
        energy_of_density,
    ),
    Check(
        "energy-sym",
        "While its cap does not bind, DARA-Sym gives every active reward the same energy: the ratio is 1.",
        "Smallest over largest energy of the contributions, at steps at which every reward is active.",
        balanced_energy,
    ),
    Check(
        "energy-asym",
        "The energy of DARA-Asym lies between that of GDPO and that of DARA-Sym.",
        "Energy E of a reward's z-scores, its weight w: the contributions of DARA-Asym have an energy in [E, w² E].",
        bounded_energy,
    ),
)

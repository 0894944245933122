"""Table: the same question asked of two training stacks: the crossings of each engine's runs side by side."""

from __future__ import annotations

from collections import ChainMap

import pandas as pd

from dara.analysis.names import ENGINES
from dara.analysis.tables import crossings
from dara.analysis.tables.cells import signed
from dara.analysis.tables.render import Table
from dara.analysis.view import Setting, View, missing_data, name_of
from dara.analysis.view_runs import RunsView


def build(view: View) -> Table:
    """One row a (setting, reward, threshold, method); for each engine the stable crossing of each run and the median.

    Raw columns: `median_<engine>`, `reached_<engine>`, `planned_<engine>`, and `difference` of the medians, the second
    engine's minus the first's. ValueError for a source without runs of two engines.
    """
    engines = by_engine(view)
    if len(engines) < 2:
        raise missing_data(view, f"runs of two engines (there are runs of {', '.join(engines) or 'none'})")
    places = list(dict.fromkeys(setting._replace(engine=None) for setting in view.settings))
    rows = [
        {"Setting": name_of(place, places)} | _row(engines, place, reward, threshold, method)
        for place in places
        for reward, thresholds in view.experiment.thresholds.items()
        for threshold in thresholds
        for method in view.methods
    ]
    first, second = (ENGINES[engine] for engine in list(engines)[:2])
    display = [*(["Setting"] if len(places) > 1 else []), "Reward", "Threshold", "Method"]
    display += [f"{ENGINES[engine]}: {column}" for engine in engines for column in ("crossing", "median")]
    display.append(f"Difference {second} - {first}")
    frame = pd.DataFrame(rows).rename(columns={"Difference": display[-1]})
    notes = [
        f"{crossings.KINDS['stable']} One value a run, in the order of the seeds: a dash not reached; (n) pending "
        "since step n, too short to confirm. In a median, a run that did not get there is later than every crossing.",
        "The engines share methods, rewards, prompts with their order, and settings; sampling, loss and optimiser are "
        "their own, so that runs of one seed are independent draws.",
        *(f"{ENGINES[engine]}: {' '.join(own.notes())}" for engine, own in engines.items()),
    ]
    return Table(frame, f"Two training stacks ({view.experiment.experiment})", notes, display)


def by_engine(view: View) -> dict[str, RunsView]:
    """The runs of each engine as a view of their own; empty for published numbers, which have one."""
    if not isinstance(view, RunsView):
        return {}
    runs = view.frames["runs"]
    mine = runs[runs["experiment"] == view.experiment.experiment]
    return {
        engine: RunsView(
            ChainMap({"runs": mine[mine["engine"] == engine]}, view.frames), view.experiment, view.entries, view.source
        )
        for engine in ENGINES
        if (mine["engine"] == engine).any()
    }


def _row(engines: dict[str, RunsView], place: Setting, reward: str, threshold: float, method: str) -> dict:
    """The runs of every engine at one model and group size."""
    view = next(iter(engines.values()))
    row: dict[str, object] = {
        "Reward": reward,
        "Threshold": f"{threshold:g}",
        "Method": view.methods[method].label,
        "method": method,
    }
    for engine, own in engines.items():
        setting = place._replace(engine=engine)
        marks = {"stable": own.marks("stable", reward, threshold, method, setting)}
        cells = crossings.cells_of(marks, own.planned(method, setting))
        row |= {
            f"{ENGINES[engine]}: crossing": cells["Stable crossing"],
            f"{ENGINES[engine]}: median": cells["Median stable"],
            **{f"{column}_{engine}": cells[column] for column in ("reached", "planned")},
            f"median_{engine}": cells["median_stable"],
        }
    first, second = list(engines)[:2]
    row["difference"] = row[f"median_{second}"] - row[f"median_{first}"]
    row["Difference"] = signed(row["difference"])
    return row

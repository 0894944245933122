"""The table that stands the crossings of two training stacks beside each other."""

import pandas as pd
import pytest

from dara.analysis.tables import TABLES
from synthetic import experiment, simulate, view

PAIR = ("gdpo", "dara_sym")
build = TABLES["engines"].build


def frames() -> dict[str, pd.DataFrame]:
    """Runs of both engines; those of OpenRLHF cross three steps later, and one of them does not get there."""
    ours = simulate(methods=PAIR)
    theirs = {name: ours[name].copy() for name in ("runs", "crossings")}
    for frame in theirs.values():
        frame["run_id"] = "openrlhf-" + frame["run_id"]
    theirs["runs"]["engine"] = "openrlhf"
    theirs["crossings"][["first_step", "stable_step"]] += 3
    late = (theirs["crossings"]["method"] == "gdpo") & (theirs["crossings"]["seed"] == 102)
    theirs["crossings"].loc[late, ["stable_step", "status"]] = [float("nan"), "not_reached"]
    return {**ours, **{name: pd.concat([ours[name], theirs[name]], ignore_index=True) for name in theirs}}


def test_each_engine_has_its_own_runs_and_medians():
    made = frames()
    table = build(view(made, experiment(methods=PAIR)))
    rows = table.frame.set_index(["Threshold", "method"])
    crossings = made["crossings"].set_index(["run_id", "threshold"])["stable_step"]
    mine = made["runs"]
    for method in PAIR:
        of_trl = mine[(mine["method"] == method) & (mine["engine"] == "trl")].sort_values("seed")["run_id"]
        steps = [int(crossings[run, 0.8]) for run in of_trl]
        row = rows.loc[("0.8", method)]
        assert row["TRL: crossing"] == " ".join(map(str, steps))
        assert row["median_trl"] == sorted(steps)[1]
        later = [step + 3 for step in steps]
        if method == "gdpo":
            assert row["OpenRLHF: crossing"] == f"{later[0]} {later[1]} –"
            assert (row["reached_openrlhf"], row["planned_openrlhf"]) == (2, 3)
            assert row["median_openrlhf"] == max(later[:2])
        else:
            assert row["OpenRLHF: crossing"] == " ".join(map(str, later))
            assert row["difference"] == 3
            assert row["Difference OpenRLHF - TRL"] == "+3"
    assert any(note.startswith("OpenRLHF: ") for note in table.notes)


def test_one_engine_is_an_error():
    with pytest.raises(ValueError, match="no runs of two engines \\(there are runs of trl\\)"):
        build(view(simulate(methods=PAIR), experiment(methods=PAIR)))

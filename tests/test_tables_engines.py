"""The table that stands the crossings of two training stacks beside each other."""

import pandas as pd
import pytest

from dara.analysis.compare import score_difference
from dara.analysis.tables import TABLES
from dara.analysis.view import Setting
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


def test_no_other_table_pools_the_engines():
    """The runs of two engines with the same seeds are two settings, each with its own rows."""
    made = frames()
    theirs = made["checkpoint_scores"][made["checkpoint_scores"]["method"] != "base"].copy()
    theirs["run_id"], theirs["value"] = "openrlhf-" + theirs["run_id"], 0.0
    curves = made["training_curves"].assign(run_id="openrlhf-" + made["training_curves"]["run_id"], value=0.0)
    intervals = made["score_intervals"].assign(engine="openrlhf", value=0.0)
    for name, more in {"checkpoint_scores": theirs, "training_curves": curves, "score_intervals": intervals}.items():
        made[name] = pd.concat([made[name], more], ignore_index=True)
    both = view(made, experiment(methods=PAIR))
    trl, openrlhf = both.settings
    assert both.settings == (Setting("laptop-base", 4, "trl"), Setting("laptop-base", 4, "openrlhf"))
    assert both.setting_label(openrlhf) == "laptop-base, G=4, OpenRLHF"
    alone = view(simulate(methods=PAIR), experiment(methods=PAIR))
    for method in PAIR:
        assert both.planned(method, trl) == [100, 101, 102]
        assert both.marks("stable", "format", 0.8, method, trl) == alone.marks("stable", "format", 0.8, method, trl)
        for metric in ("average_format", "reward/format/mean"):
            pd.testing.assert_frame_equal(both.curve(metric, method, trl), alone.curve(metric, method, trl))
            assert both.curve(metric, method, openrlhf)["middle"].max() == 0
        assert both.score("average_format", method, openrlhf, 80).value == 0
        assert both.score("average_format", method, trl, 80) == alone.score("average_format", method, trl, 80)
    assert both.curve_note("average_format") == "median and quartiles over 3 runs"
    for name in ("crossings", "comparisons", "final_scores"):
        table = TABLES[name].build(both)
        assert table.frame["Setting"].unique().tolist() == ["laptop-base, G=4, TRL", "laptop-base, G=4, OpenRLHF"]
    for name in ("tool_scores", "threshold_crossings", "score_intervals"):
        table = TABLES[name].build(both)
        assert table.display[0] == "Engine"
        assert table.frame["Engine"].unique().tolist() == ["TRL", "OpenRLHF"]
    step, difference = score_difference(both, "average_format", ("dara_sym", "gdpo"), openrlhf, 100)
    assert (step, difference.value, difference.pairs) == (80, 0.0, 3)
    of_trl = [score_difference(shown, "average_format", ("dara_sym", "gdpo"), trl, 100) for shown in (both, alone)]
    assert of_trl[0] == of_trl[1]
    runs = TABLES["runs"].build(both).frame
    assert runs.loc[runs["Method"] == "GDPO", "Engine"].tolist() == ["trl"] * 3 + ["openrlhf"] * 3


def test_runs_that_differ_in_what_is_no_setting_are_never_pooled():
    made = simulate(methods=PAIR)
    twice = made["runs"][made["runs"]["seed"] == 101].assign(run_id=lambda frame: "batch-" + frame["run_id"])
    made["runs"] = pd.concat([made["runs"], twice], ignore_index=True)
    with pytest.raises(ValueError, match=r"experiment tool_main: batch-.* and .* are two runs of one method, model"):
        view(made, experiment(methods=PAIR))


def test_one_engine_is_an_error():
    with pytest.raises(ValueError, match="no runs of two engines \\(there are runs of trl\\)"):
        build(view(simulate(methods=PAIR), experiment(methods=PAIR)))

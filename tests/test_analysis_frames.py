"""Tidy frames: identical bytes, exact numbers, and messages that name the file, the row and the column."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dara.analysis.frames import FRAMES, FrameError, FrameFiles, read_frame, rows_to_frame, write_frame

RUN = {"run_id": "r1", "task": "math", "model": "m", "method": "gdpo", "group_size": 8, "seed": 100}
CURVE = RUN | {"step": 1, "metric": "reward/length/mean", "value": 0.1}
CROSSING = RUN | {"reward": "length", "threshold": 0.8, "first_step": 12, "stable_step": None, "status": "pending"}
CROSSING |= {"pending_step": 14, "budget": 30}
COLUMNS = {
    "runs": "experiment,run_id,task,model,method,group_size,seed,repeat,steps,engine,outcome,origin",
    "training_curves": "run_id,task,model,method,group_size,seed,step,metric,value",
    "checkpoint_scores": "run_id,task,model,method,group_size,seed,step,benchmark,metric,value,low,high,n_questions",
    "score_intervals": "experiment,model,group_size,engine,step,benchmark,metric,method,baseline,"
    "value,t_low,t_high,low,high,n_seeds,n_questions",
    "crossings": "run_id,task,model,method,group_size,seed,"
    "reward,threshold,first_step,stable_step,status,pending_step,budget",
    "energies": "run_id,task,model,method,group_size,seed,"
    "step,reward,density,weight,energy_pos,energy_neg,contributed_pos,contributed_neg,share_before,share_after",
}


@pytest.mark.parametrize("name", FRAMES)
def test_columns_are_the_contract(name, tmp_path):
    write_frame(rows_to_frame([], name), name, tmp_path / "frame.csv")
    assert (tmp_path / "frame.csv").read_text() == COLUMNS[name] + "\n"
    assert read_frame(tmp_path / "frame.csv", name).empty


def test_what_a_row_looks_like(tmp_path):
    path = tmp_path / "new" / "crossings.csv"
    write_frame(rows_to_frame([CROSSING], "crossings"), "crossings", path)
    assert path.read_text().splitlines()[1] == "r1,math,m,gdpo,8,100,length,0.8,12,,pending,14,30"
    row = read_frame(path, "crossings").iloc[0]
    assert row["first_step"] == 12
    assert row["stable_step"] is pd.NA
    assert row["threshold"] == 0.8


@settings(max_examples=25, deadline=None)
@given(values=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=8), data=st.data())
def test_round_trip_is_exact_and_row_order_does_not_matter(tmp_path_factory, values, data):
    folder = tmp_path_factory.mktemp("frames")
    rows = [CURVE | {"step": step, "value": value} for step, value in enumerate(values, start=1)]
    write_frame(rows_to_frame(rows, "training_curves"), "training_curves", folder / "a.csv")
    shuffled = pd.DataFrame(data.draw(st.permutations(rows)))
    write_frame(shuffled[list(reversed(shuffled.columns))], "training_curves", folder / "b.csv")
    back = read_frame(folder / "a.csv", "training_curves")
    assert back["value"].tolist() == values
    assert (back["step"].dtype, back["value"].dtype) == (np.dtype("int64"), np.dtype("float64"))
    write_frame(back, "training_curves", folder / "c.csv")
    assert (folder / "a.csv").read_bytes() == (folder / "b.csv").read_bytes() == (folder / "c.csv").read_bytes()


def test_rows_are_sorted_by_the_key(tmp_path):
    rows = [CURVE | {"run_id": run, "step": step} for run in ("r2", "r10", "r1") for step in (10, 9)]
    frame = rows_to_frame(rows, "training_curves")
    assert [*zip(frame["run_id"], frame["step"], strict=True)] == [(r, s) for r in ("r1", "r10", "r2") for s in (9, 10)]


def test_a_base_model_has_neither_group_size_nor_seed(tmp_path):
    row = RUN | {"run_id": "base-m", "method": "base", "group_size": None, "seed": None, "step": 0}
    row |= {"benchmark": "laptop_math", "metric": "acc", "value": 0.5, "low": math.nan, "high": None, "n_questions": 1}
    write_frame(rows_to_frame([row], "checkpoint_scores"), "checkpoint_scores", tmp_path / "frame.csv")
    assert (tmp_path / "frame.csv").read_text().splitlines()[1] == "base-m,math,m,base,,,0,laptop_math,acc,0.5,,,1"


def test_text_that_may_be_empty_reads_back_as_an_empty_string(tmp_path):
    row = {"experiment": "main", "model": "m", "group_size": 8, "engine": "trl", "step": 80, "benchmark": "laptop_math"}
    row |= {"metric": "acc", "method": "gdpo", "baseline": None, "value": 0.5, "n_seeds": 1, "n_questions": 4}
    write_frame(rows_to_frame([row], "score_intervals"), "score_intervals", tmp_path / "frame.csv")
    assert (tmp_path / "frame.csv").read_text().splitlines()[1] == "main,m,8,trl,80,laptop_math,acc,gdpo,,0.5,,,,,1,4"
    back = read_frame(tmp_path / "frame.csv", "score_intervals")
    assert back["baseline"].tolist() == [""]
    pd.testing.assert_frame_equal(back, rows_to_frame([row], "score_intervals"))


def test_reading_at_once_and_by_cell_agree(tmp_path):
    """Quoted cells are read cell by cell; the frames are the same, row order and types included."""
    rows = [CURVE | {"metric": metric, "step": step, "value": value} for metric in ("kl", "lr") for step, value in
            ((2, 1 / 3), (1, None), (3, 5e-324))]  # fmt: skip
    path = tmp_path / "frame.csv"
    write_frame(rows_to_frame(rows, "training_curves"), "training_curves", path)
    plain = read_frame(path, "training_curves")
    path.write_text(path.read_text().replace("m,gdpo", '"m",gdpo'))
    pd.testing.assert_frame_equal(read_frame(path, "training_curves"), plain, check_exact=True)


def test_a_row_too_short_is_found_among_others(tmp_path):
    path = tmp_path / "frame.csv"
    write_frame(rows_to_frame([CURVE, CURVE | {"step": 2}], "training_curves"), "training_curves", path)
    path.write_text(path.read_text().removesuffix(",0.1\n") + "\n")
    with pytest.raises(FrameError, match="row 3 has 8 cells; the header has 9 columns"):
        read_frame(path, "training_curves")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FrameError, match="not a CSV file in UTF-8"):
        read_frame(path, "training_curves")


def test_frames_of_a_directory_are_read_when_asked_for(tmp_path):
    write_frame(rows_to_frame([CURVE], "training_curves"), "training_curves", tmp_path / "training_curves.csv")
    files = FrameFiles(tmp_path)
    assert files["training_curves"]["value"].tolist() == [0.1]
    (tmp_path / "training_curves.csv").unlink()
    assert len(files["training_curves"]) == 1
    with pytest.raises(FrameError, match=r"runs.csv: the file does not exist"):
        files["runs"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budget": "many"}, "frame.csv: row 2, column budget: 'many' is not an integer"),
        ({"budget": "30.5"}, "row 2, column budget: '30.5' is not an integer"),
        ({"threshold": "high"}, "row 2, column threshold: 'high' is not a number"),
        ({"threshold": "nan"}, "row 2, column threshold: nan is not a finite number"),
        ({"threshold": ""}, "row 2, column threshold: empty"),
        ({"method": ""}, "row 2, column method: empty"),
        ({"status": "maybe"}, "row 2, column status: 'maybe' is not one of reached, pending, not_reached"),
    ],
)
def test_a_wrong_cell_is_named(change, message, tmp_path):
    cells = {name: "" if value is None else str(value) for name, value in (CROSSING | change).items()}
    path = tmp_path / "frame.csv"
    path.write_text(",".join(cells) + "\n" + ",".join(cells.values()) + "\n")
    with pytest.raises(FrameError, match=message):
        read_frame(path, "crossings")


@pytest.mark.parametrize(("column", "value"), [("density", "1.5"), ("share_after", "-0.1")])
def test_a_share_outside_its_range_is_named(column, value, tmp_path):
    row = RUN | {"step": 1, "reward": "length", "density": 0.5, "weight": 1, "energy_pos": 3, "energy_neg": 4}
    write_frame(rows_to_frame([row], "energies"), "energies", tmp_path / "frame.csv")
    names, cells = ((line.split(",")) for line in (tmp_path / "frame.csv").read_text().splitlines())
    cells[names.index(column)] = value
    (tmp_path / "frame.csv").write_text(",".join(names) + "\n" + ",".join(cells) + "\n")
    with pytest.raises(FrameError, match=rf"frame.csv: row 2, column {column}: {value} is not a share in \[0, 1\]"):
        read_frame(tmp_path / "frame.csv", "energies")


def test_a_wrong_structure_is_named(tmp_path):
    path = tmp_path / "frame.csv"
    for text, message in {
        "": "column 'run_id' is missing",
        COLUMNS["crossings"].replace(",budget", "")
        + "\n": "column 'budget' is missing; the frame crossings has the columns",
        COLUMNS["crossings"] + ",extra\n": "'extra' is not a column of the frame crossings",
        COLUMNS["crossings"] + ",budget\n": "'budget' stands twice in the frame crossings",
        COLUMNS["crossings"] + "\nr1,math\n": "row 2 has 2 cells; the header has 13 columns",
    }.items():
        path.write_text(text)
        with pytest.raises(FrameError, match=message):
            read_frame(path, "crossings")
    with pytest.raises(FrameError, match=r"none.csv: the file does not exist"):
        read_frame(tmp_path / "none.csv", "crossings")


def test_a_repeated_key_and_nan_are_errors_when_writing(tmp_path):
    with pytest.raises(
        FrameError, match="row 3 repeats the key of row 2: run_id r1, metric reward/length/mean, step 1"
    ):
        write_frame(pd.DataFrame([CURVE, CURVE]), "training_curves", tmp_path / "f.csv")
    with pytest.raises(FrameError, match="row 2, column threshold: empty or NaN"):
        write_frame(pd.DataFrame([CROSSING | {"threshold": math.nan}]), "crossings", tmp_path / "f.csv")
    with pytest.raises(FrameError, match="row 2, column value: inf is not a finite number"):
        write_frame(pd.DataFrame([CURVE | {"value": math.inf}]), "training_curves", tmp_path / "f.csv")
    assert not (tmp_path / "f.csv").exists()


def test_a_row_may_leave_out_what_may_be_empty_and_nothing_else():
    rows = [{name: value for name, value in CROSSING.items() if value is not None}]
    assert rows_to_frame(rows, "crossings")["stable_step"].isna().all()
    with pytest.raises(FrameError, match="row 2, column budget: empty or NaN"):
        rows_to_frame([{name: value for name, value in CROSSING.items() if name != "budget"}], "crossings")
    with pytest.raises(FrameError, match="'extra' is not a column of the frame crossings"):
        rows_to_frame([CROSSING | {"extra": 1}], "crossings")

"""Tidy frames: identical bytes, exact numbers, and messages that name the file, the row and the column."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dara.analysis import FRAMES, FrameError, read_frame, write_frame
from dara.analysis.frames import empty_frame, rows_to_frame

RUN = {"run_id": "r1", "task": "math", "model": "m", "method": "gdpo", "group_size": 8, "seed": 100}
CURVE = RUN | {"step": 1, "metric": "reward/length/mean", "value": 0.1}
CROSSING = RUN | {
    "reward": "length",
    "threshold": 0.8,
    "first_step": 12,
    "stable_step": None,
    "status": "pending",
    "pending_step": 14,
    "budget": 30,
}
COLUMNS = {
    "runs": "experiment,run_id,task,model,method,group_size,seed,repeat,steps,engine,outcome,origin",
    "training_curves": "run_id,task,model,method,group_size,seed,step,metric,value",
    "checkpoint_scores": "run_id,task,model,method,group_size,seed,step,benchmark,metric,value,low,high,n_questions",
    "crossings": "run_id,task,model,method,group_size,seed,"
    "reward,threshold,first_step,stable_step,status,pending_step,budget",
    "energies": "run_id,task,model,method,group_size,seed,"
    "step,reward,density,weight,energy_pos,energy_neg,contributed_pos,contributed_neg,share_before,share_after",
}


@pytest.mark.parametrize("name", FRAMES)
def test_columns_are_the_contract(name, tmp_path):
    write_frame(empty_frame(name), name, tmp_path / "frame.csv")
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
    write_frame(back, "training_curves", folder / "c.csv")
    assert (folder / "a.csv").read_bytes() == (folder / "b.csv").read_bytes() == (folder / "c.csv").read_bytes()


def test_types_and_order(tmp_path):
    rows = [CURVE | {"run_id": run, "step": step} for run in ("r2", "r10", "r1") for step in (10, 9)]
    write_frame(rows_to_frame(rows, "training_curves"), "training_curves", tmp_path / "frame.csv")
    frame = read_frame(tmp_path / "frame.csv", "training_curves")
    assert list(zip(frame["run_id"], frame["step"], strict=True)) == [
        (run, step) for run in ("r1", "r10", "r2") for step in (9, 10)
    ]
    assert (frame["step"].dtype, frame["value"].dtype) == (np.dtype("int64"), np.dtype("float64"))


def test_a_base_model_has_neither_group_size_nor_seed(tmp_path):
    row = RUN | {"run_id": "base-m", "method": "base", "group_size": None, "seed": None, "step": 0}
    row |= {"benchmark": "laptop_math", "metric": "acc", "value": 0.5, "low": math.nan, "high": None, "n_questions": 1}
    write_frame(rows_to_frame([row], "checkpoint_scores"), "checkpoint_scores", tmp_path / "frame.csv")
    assert (tmp_path / "frame.csv").read_text().splitlines()[1] == "base-m,math,m,base,,,0,laptop_math,acc,0.5,,,1"


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
    with pytest.raises(FrameError, match="'curves' is not a frame; the frames are runs"):
        read_frame(path, "curves")


def test_a_repeated_key_and_nan_are_errors_when_writing(tmp_path):
    with pytest.raises(FrameError, match="row 3: the key stands twice: run_id r1, metric reward/length/mean, step 1"):
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

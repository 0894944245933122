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


BASE = RUN | {"run_id": "base-m", "method": "base", "group_size": None, "seed": None, "step": 0, "metric": "acc"}
BASE |= {"benchmark": "laptop_math", "value": 0.5, "low": math.nan, "high": None, "n_questions": 1}
SCORE = {"experiment": "main", "model": "m", "group_size": 8, "engine": "trl", "step": 80, "benchmark": "laptop_math"}
SCORE |= {"metric": "acc", "method": "gdpo", "baseline": None, "value": 0.5, "n_seeds": 1, "n_questions": 4}
ENERGY = RUN | {"step": 1, "reward": "length", "density": 0.5, "weight": 1, "energy_pos": 3, "energy_neg": 4}


@pytest.mark.parametrize(
    ("name", "row", "line"),
    [
        ("crossings", CROSSING, "r1,math,m,gdpo,8,100,length,0.8,12,,pending,14,30"),
        ("checkpoint_scores", BASE, "base-m,math,m,base,,,0,laptop_math,acc,0.5,,,1"),
        ("score_intervals", SCORE, "main,m,8,trl,80,laptop_math,acc,gdpo,,0.5,,,,,1,4"),
    ],
)
def test_a_row_and_its_empty_cells(name, row, line, tmp_path):
    path = tmp_path / "new" / "frame.csv"
    write_frame(rows_to_frame([row], name), name, path)
    assert path.read_text().splitlines()[1] == line
    back = read_frame(path, name)
    pd.testing.assert_frame_equal(back, rows_to_frame([row], name))
    assert not back.select_dtypes("str").isna().any().any()  # an empty text is an empty string


@settings(max_examples=8, deadline=None)
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


def test_reading_at_once_and_by_cell_agree(tmp_path):
    """Quoted cells are read cell by cell; the frames are the same, row order and types included."""
    rows = [CURVE | {"metric": metric, "step": step, "value": value} for metric in ("kl", "lr") for step, value in
            ((2, 1 / 3), (1, None), (3, 5e-324))]  # fmt: skip
    path = tmp_path / "frame.csv"
    write_frame(rows_to_frame(rows, "training_curves"), "training_curves", path)
    plain = read_frame(path, "training_curves")
    path.write_text(path.read_text().replace("m,gdpo", '"m",gdpo'))
    pd.testing.assert_frame_equal(read_frame(path, "training_curves"), plain, check_exact=True)


def test_frames_of_a_directory_are_read_when_asked_for(tmp_path):
    write_frame(rows_to_frame([CURVE], "training_curves"), "training_curves", tmp_path / "training_curves.csv")
    files = FrameFiles(tmp_path)
    assert files["training_curves"]["value"].tolist() == [0.1]
    (tmp_path / "training_curves.csv").unlink()
    assert len(files["training_curves"]) == 1
    with pytest.raises(FrameError, match=r"runs.csv: the file does not exist"):
        files["runs"]


def test_rows_are_sorted_by_the_key():
    rows = [CURVE | {"run_id": run, "step": step} for run in ("r2", "r10", "r1") for step in (10, 9)]
    frame = rows_to_frame(rows, "training_curves")
    assert [*zip(frame["run_id"], frame["step"], strict=True)] == [(r, s) for r in ("r1", "r10", "r2") for s in (9, 10)]


@pytest.mark.parametrize(
    ("name", "row", "change", "message"),
    [
        ("crossings", CROSSING, {"budget": "many"}, "budget: 'many' is not an integer"),
        ("crossings", CROSSING, {"budget": "30.5"}, "budget: '30.5' is not an integer"),
        ("crossings", CROSSING, {"threshold": "high"}, "threshold: 'high' is not a number"),
        ("crossings", CROSSING, {"threshold": "nan"}, "threshold: nan is not a finite number"),
        ("crossings", CROSSING, {"threshold": ""}, "threshold: empty"),
        ("crossings", CROSSING, {"method": ""}, "method: empty"),
        ("crossings", CROSSING, {"status": "maybe"}, "status: 'maybe' is not one of reached, pending, not_reached"),
        ("energies", ENERGY, {"density": "1.5"}, r"density: 1.5 is not a share in \[0, 1\]"),
        ("energies", ENERGY, {"share_after": "-0.1"}, r"share_after: -0.1 is not a share in \[0, 1\]"),
    ],
)
def test_a_wrong_cell_is_named(name, row, change, message, tmp_path):
    columns = COLUMNS[name].split(",")
    cells = ["" if value is None else str(value) for value in map((row | change).get, columns)]
    path = tmp_path / "frame.csv"
    path.write_text(f"{COLUMNS[name]}\n{','.join(cells)}\n")
    with pytest.raises(FrameError, match=f"frame.csv: row 2, column {message}"):
        read_frame(path, name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "column 'run_id' is missing"),
        (
            COLUMNS["crossings"].replace(",budget", "").encode(),
            "column 'budget' is missing; the frame crossings has the columns",
        ),
        (f"{COLUMNS['crossings']},extra".encode(), "'extra' is not a column of the frame crossings"),
        (f"{COLUMNS['crossings']},budget".encode(), "'budget' stands twice in the frame crossings"),
        (f"{COLUMNS['crossings']}\nr1,math\n".encode(), "row 2 has 2 cells; the header has 13 columns"),
        (b"\xff\xfe\x00", "not a CSV file in UTF-8"),
    ],
)
def test_a_wrong_structure_is_named(text, message, tmp_path):
    (tmp_path / "frame.csv").write_bytes(text)
    with pytest.raises(FrameError, match=f"frame.csv: {message}"):
        read_frame(tmp_path / "frame.csv", "crossings")


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

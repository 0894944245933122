"""Whose the work in scratch is, where several clones or several results share one."""

import json
from pathlib import Path

import pytest

from dara.owners import owners, record_owner, why_kept
from dara.runs import run_id
from dara.training.deadline import OutOfTime
from dara.training.lifecycle import Job, train_run
from training_tiny import tiny_spec, write_inputs


def test_every_owner_is_recorded_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    work = tmp_path / "scratch/run"
    assert owners(work) == []
    for out in ("results/a/runs/run", tmp_path / "results/a/runs/run", "other/a/runs/run"):
        record_owner(work, Path(out))
    assert owners(work) == [str(tmp_path / "results/a/runs/run"), str(tmp_path / "other/a/runs/run")]


def test_what_is_of_others_too_or_of_nobody_known_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    work, results = tmp_path / "scratch/run", Path("results")
    assert why_kept(work, results) == "it has no owners.json, which says whose it is"
    record_owner(work, results / "a/runs/run")
    record_owner(work, results / "b/runs/run")
    assert why_kept(work, results) is None
    record_owner(work, Path("results2/a/runs/run"))
    assert why_kept(work, results) == f"it belongs to {tmp_path}/results2/a/runs/run"


def test_results_are_the_same_through_a_link(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "results")
    record_owner(tmp_path / "work", tmp_path / "link/a/runs/run")
    assert why_kept(tmp_path / "work", tmp_path / "results") is None
    assert why_kept(tmp_path / "work", tmp_path / "link") is None


def test_a_training_records_its_owner_when_it_begins(tmp_path):
    def stops(start):
        raise OutOfTime("stopped at step 0 before the time limit")

    job = Job(**write_inputs(tmp_path), scratch=tmp_path / "scratch", out=tmp_path / "results/tiny/runs/run")
    with pytest.raises(OutOfTime):
        train_run(tiny_spec(), stops, job, libraries=("numpy",))
    written = json.loads((tmp_path / "scratch" / run_id(tiny_spec()) / "owners.json").read_text())
    assert written == [str(tmp_path / "results/tiny/runs/run")]

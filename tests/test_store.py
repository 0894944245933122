"""The artifact store: locks, journals, directories that are complete or absent, and owners."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dara import store
from dara.runs import run_id
from dara.store import (
    Journal,
    LockedError,
    assembled,
    checksums,
    directory_lock,
    is_held,
    owners,
    reason_to_keep,
    record_owner,
)
from dara.training.run import RunInputs, train_run
from dara.training.stopping import OutOfTime
from training_tiny import tiny_spec, write_inputs

HOLDER = """
import signal, sys
from pathlib import Path
from dara.store import directory_lock
with directory_lock(Path(sys.argv[1]), seconds=0):
    print("held", flush=True)
    signal.pause()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of tmp_path / "run"."""
    command = [sys.executable, "-c", HOLDER, tmp_path / "run"]
    here = {**os.environ, "PYTHONPATH": str(Path(store.__file__).parents[1])}
    process = subprocess.Popen(command, env=here, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_the_second_process_is_told_who_holds_the_lock(tmp_path, holder):
    sentence = f"{tmp_path / 'run'} is in use by process {holder.pid} on {socket.gethostname()}; wait until it ends"
    with pytest.raises(LockedError) as error, directory_lock(tmp_path / "run", seconds=0):
        pytest.fail("two processes hold one lock")
    assert str(error.value).startswith(sentence)
    assert is_held(tmp_path / "run/lock")
    assert not is_held(tmp_path / "lock")
    (tmp_path / "run/lock").write_text("")  # it has not yet signed
    with pytest.raises(LockedError, match="in use by another process"), directory_lock(tmp_path / "run", seconds=0):
        pytest.fail("two processes hold one lock")


def test_a_killed_holder_frees_the_lock(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    with directory_lock(tmp_path / "run", seconds=30):
        assert str(os.getpid()) in (tmp_path / "run" / "lock").read_text()


def test_waiting_ends_when_the_lock_is_freed(tmp_path, holder, monkeypatch):
    polls = []

    def sleep(seconds):
        polls.append(seconds)
        if len(polls) == 3:
            holder.kill()
            holder.wait()

    monkeypatch.setattr(store.time, "sleep", sleep)
    with directory_lock(tmp_path / "run", seconds=30):
        assert len(polls) == 3


def test_waiting_has_an_end(tmp_path, holder, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(store.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(store.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    with pytest.raises(LockedError), directory_lock(tmp_path / "run", seconds=5):
        pytest.fail("two processes hold one lock")
    assert 5 <= now[0] < 6


def test_locks_of_one_process_exclude_each_other_and_are_freed(tmp_path):
    for _ in range(2):
        with directory_lock(tmp_path / "new/run", seconds=0), directory_lock(tmp_path / "other", seconds=0):
            message = f"process {os.getpid()} on"
            with pytest.raises(LockedError, match=message), directory_lock(tmp_path / "new/run", seconds=0):
                pytest.fail("held twice")


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
    results.mkdir()
    assert reason_to_keep(work, results) == "it has no owners.json, which says whose it is"
    record_owner(work, results / "a/runs/run")
    record_owner(work, results / "b/runs/run")
    (tmp_path / "link").symlink_to(tmp_path / "results")
    record_owner(work, tmp_path / "link/a/runs/run")
    assert reason_to_keep(work, results) is reason_to_keep(work, tmp_path / "link") is None
    record_owner(work, Path("results2/a/runs/run"))
    assert reason_to_keep(work, results) == f"it belongs to {tmp_path}/results2/a/runs/run"


def test_a_training_records_its_owner_when_it_begins(tmp_path):
    def stops(start):
        raise OutOfTime("stopped at step 0 before the time limit")

    job = RunInputs(**write_inputs(tmp_path), scratch=tmp_path / "scratch", out=tmp_path / "results/tiny/runs/run")
    with pytest.raises(OutOfTime):
        train_run(tiny_spec(), stops, job, libraries=("numpy",))
    written = json.loads((tmp_path / "scratch" / run_id(tiny_spec()) / "owners.json").read_text())
    assert written == [str(tmp_path / "results/tiny/runs/run")]


def test_a_directory_is_complete_or_as_it_was(tmp_path):
    with assembled(tmp_path / "data/set") as staging:
        (staging / "a.txt").write_text("old")
    with pytest.raises(FileNotFoundError), assembled(tmp_path / "data/set") as staging:
        (staging / "b.txt").rename(tmp_path / "c.txt")
    assert checksums(tmp_path / "data/set").keys() == {"a.txt"}
    with assembled(tmp_path / "data/set") as staging:
        (staging / "b.txt").write_text("new")
    assert checksums(tmp_path / "data/set").keys() == {"b.txt"}
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["set"]


def parse(row, line):
    key, _, entry = line.partition(" ")
    return key, entry


@pytest.mark.parametrize("head", [None, "head"])
def test_a_journal_continues_after_its_last_whole_line(tmp_path, head):
    path = tmp_path / "work/journal"
    with Journal(path, parse, head) as journal:
        journal.add("a", "1", "a 1")
        with pytest.raises(ValueError, match="a is already there"):
            journal.add("a", "2", "a 2")
    with path.open("a") as stream:
        stream.write("b 2")  # a kill came before the end of the line
    with Journal(path, parse, head) as journal:
        assert journal.done == {"a": "1"}
        journal.add("c", "3", "c 3\u2028")
    with Journal(path, parse, head) as journal:
        assert journal.done == {"a": "1", "c": "3\u2028"}


def test_a_journal_of_other_work_is_begun_again(tmp_path):
    for head, before in (("one", {}), ("one", {"a": "1"}), ("two", {})):
        with Journal(tmp_path / "journal", parse, head) as journal:
            assert journal.done == before
            if not before:
                journal.add("a", "1", "a 1")


@pytest.mark.parametrize(("content", "error"), [(b"a 1\na 2\n", "row 2: a again"), (b"\xff\n", "not UTF-8 text")])
def test_what_no_kill_can_do_to_a_journal_is_an_error(tmp_path, content, error):
    (tmp_path / "journal").write_bytes(content)
    with pytest.raises(ValueError, match=error):
        Journal(tmp_path / "journal", parse)

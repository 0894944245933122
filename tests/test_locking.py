"""The lock of a directory: one process at a time, freed by the kernel, and a sentence that says who holds it."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import dara
from dara import locking
from dara.locking import LockedError, directory_lock

PACKAGE = Path(dara.__file__).parents[1]
HOLDER = """
import signal, sys
from pathlib import Path
from dara.locking import directory_lock
with directory_lock(Path(sys.argv[1]), seconds=0):
    print("held", flush=True)
    signal.pause()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of tmp_path / "run"."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path / "run"],
        env={**os.environ, "PYTHONPATH": str(PACKAGE)},
        stdout=subprocess.PIPE,
        text=True,
    )
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
    assert "\n" not in str(error.value)


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

    monkeypatch.setattr(locking.time, "sleep", sleep)
    with directory_lock(tmp_path / "run", seconds=30):
        assert len(polls) == 3


def test_waiting_has_an_end(tmp_path, holder, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(locking.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(locking.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    with pytest.raises(LockedError), directory_lock(tmp_path / "run", seconds=5):
        pytest.fail("two processes hold one lock")
    assert 5 <= now[0] < 6


def test_locks_of_one_process_exclude_each_other_and_are_freed(tmp_path):
    with directory_lock(tmp_path / "new" / "run", seconds=0):
        with (
            pytest.raises(LockedError, match=f"process {os.getpid()} on"),
            directory_lock(tmp_path / "new" / "run", seconds=0),
        ):
            pytest.fail("held twice")
        with directory_lock(tmp_path / "other", seconds=0):
            pass
    with directory_lock(tmp_path / "new" / "run", seconds=0):
        pass


def test_a_holder_that_has_not_yet_signed_is_named_so(tmp_path, holder):
    (tmp_path / "run" / "lock").write_text("")
    with pytest.raises(LockedError, match="in use by another process"), directory_lock(tmp_path / "run", seconds=0):
        pytest.fail("two processes hold one lock")

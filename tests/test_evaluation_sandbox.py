"""The scoring worker: hostile responses cost themselves only, mistakes of ours are raised."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dara.evaluation.isolation import WALL_FACTOR
from dara.evaluation.sandbox import Outcome, Sandbox, SandboxError, ScorerSpec

SCORER = r"""
import os, signal, sys, time
from pathlib import Path

def make(marker=None, refuse=False, slow=False):
    if slow:
        time.sleep(10**6)
    if refuse:
        raise RuntimeError("a known answer got a wrong score")
    def score(item):
        yield {"early": 1}
        kind = item["response"]
        if kind == "loop":
            while True:
                pass
        if kind == "wait":
            time.sleep(1.5)
        if kind == "wait forever":
            time.sleep(10**6)
        if kind == "huge":
            bytearray(2**40)
        if kind == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "killed once" and not Path(marker).exists():
            Path(marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "mistake":
            raise KeyError("ours")
        if kind == "noise":
            print("noise on the standard output")
            os.write(1, b"more noise\n")
        yield {"late": len(kind)}
    return score
"""


def sandbox(tmp_path: Path, seconds: float = 0.6, **settings: object) -> Sandbox:
    (tmp_path / "hostile_scorer.py").write_text(SCORER)
    return Sandbox(ScorerSpec("hostile_scorer:make", settings, seconds, (tmp_path,)))


def items(*responses: str) -> list[dict[str, str]]:
    return [{"response": response} for response in responses]


OK = Outcome({"early": 1, "late": 4}, "ok")
LOST = Outcome({"early": 1}, "timeout")


def test_a_response_that_hangs_or_kills_costs_itself_only(tmp_path: Path) -> None:
    with sandbox(tmp_path) as box:
        outcomes = box.score(items("good", "loop", "fine", "killed", "huge", "last"))
    assert outcomes == [OK, LOST, OK, LOST, LOST, OK]


def test_time_is_the_processors_and_the_clock_ends_what_waits(tmp_path: Path) -> None:
    """A busy machine, on which everything takes longer by the clock, must not change a score."""
    started = time.monotonic()
    with sandbox(tmp_path, seconds=0.3) as box:
        outcomes = box.score(items("wait", "wait forever", "good"))
    assert outcomes == [OK, LOST, OK]
    assert time.monotonic() - started > 2 * WALL_FACTOR * 0.3


def test_a_stopped_worker_only_loses_time(tmp_path: Path) -> None:
    """As where other processes have the processor: it is stopped for longer than its limit, while it scores."""
    with sandbox(tmp_path, seconds=1.0) as box:
        box.start()
        pid = box._worker._process.pid
        os.kill(pid, signal.SIGSTOP)
        awake = threading.Timer(2.5, os.kill, (pid, signal.SIGCONT))
        awake.start()
        assert box.score(items("good", "fine")) == [OK, OK]
        assert box._worker._process.pid == pid
        awake.join()


def test_a_worker_that_is_closed_while_it_starts_is_gone(tmp_path: Path) -> None:
    """As when another worker of the same job has failed."""
    box = sandbox(tmp_path, slow=True)
    with ThreadPoolExecutor(1) as threads:
        scoring = threads.submit(box.score, items("good"))
        while box._worker is None:
            time.sleep(0.01)
        pid, folder = box._worker._process.pid, Path(box._directory.name)
        box.__exit__()
        with pytest.raises(SandboxError, match="does not start"):
            scoring.result()
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(SandboxError, match="is closed"):
        box.score(items("good"))


def test_only_the_response_that_ends_a_worker_twice_loses_by_it(tmp_path: Path) -> None:
    """Another process may have killed the worker, what a scorer prints is no score, and a response may be long."""
    with sandbox(tmp_path, seconds=5.0, marker=str(tmp_path / "marker")) as box:
        outcomes = box.score(items("good", "killed once", "noise", "x" * 5_000_000))
    assert outcomes == [OK, *(Outcome({"early": 1, "late": length}, "ok") for length in (11, 5, 5_000_000))]


def test_a_mistake_in_the_scorer_is_raised_with_the_response_it_failed_on(tmp_path: Path) -> None:
    with sandbox(tmp_path) as box, pytest.raises(SandboxError, match=r"(?s)response 2 of this call.*KeyError: 'ours'"):
        box.score(items("good", "fine", "mistake", "last"))


def test_a_worker_that_cannot_start_is_an_error(tmp_path: Path) -> None:
    with sandbox(tmp_path, refuse=True) as box, pytest.raises(SandboxError, match=r"(?s)does not start.*known answer"):
        box.score(items("good"))

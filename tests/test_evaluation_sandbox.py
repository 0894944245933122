"""The scoring worker: hostile responses cost themselves only, mistakes of ours are raised."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dara.evaluation import sandbox as module
from dara.evaluation.isolation import WALL_FACTOR
from dara.evaluation.sandbox import BATCH_CHARACTERS, BATCH_ITEMS, Outcome, Sandbox, SandboxError, ScorerSpec

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


def test_texts_count_wherever_they_stand_in_an_item(tmp_path: Path) -> None:
    """Dialogues have their texts in lists of lists; a batch of a bounded size is what a worker gets at once."""
    third = "x" * (BATCH_CHARACTERS // 3)
    flat, nested = {"response": third}, {"turns": [[third[:100]], [third[100:]]], "gold": {"answer": [1, None, 2.5]}}
    for item in (flat, nested):
        assert module._batch_length([item] * 10, 0) in (2, 3)
        assert module._batch_length([item] * 10, 8) == 2
    assert module._batch_length([{"turns": [["x" * (2 * BATCH_CHARACTERS)]]}] * 3, 0) == 1
    assert module._batch_length([{"response": "x"}] * 100, 0) == BATCH_ITEMS
    assert module._batch_length([{"response": "x"}] * 100, 95) == 5


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


def test_a_foreign_kill_is_not_the_fault_of_the_response(tmp_path: Path) -> None:
    with sandbox(tmp_path, seconds=5.0, marker=str(tmp_path / "marker")) as box:
        assert box.score(items("good", "killed once")) == [OK, Outcome({"early": 1, "late": 11}, "ok")]


def test_a_mistake_in_the_scorer_is_raised_with_the_response_it_failed_on(tmp_path: Path) -> None:
    with sandbox(tmp_path) as box, pytest.raises(SandboxError, match=r"(?s)response 2 of this call.*KeyError: 'ours'"):
        box.score(items("good", "fine", "mistake", "last"))


def test_a_worker_that_cannot_start_is_an_error(tmp_path: Path) -> None:
    with sandbox(tmp_path, refuse=True) as box, pytest.raises(SandboxError, match=r"(?s)does not start.*known answer"):
        box.score(items("good"))


def test_what_a_scorer_prints_does_not_mix_with_the_scores(tmp_path: Path) -> None:
    with sandbox(tmp_path) as box:
        assert box.score(items("noise", "good")) == [Outcome({"early": 1, "late": 5}, "ok"), OK]


def test_many_and_large_responses_keep_their_order(tmp_path: Path) -> None:
    with sandbox(tmp_path, seconds=10.0) as box:
        sizes = [*range(3 * BATCH_ITEMS), 1_000_000, 5_000_000, 7]
        outcomes = box.score(items(*("x" * size for size in sizes)))
    assert [outcome.scores["late"] for outcome in outcomes] == sizes
    assert {outcome.outcome for outcome in outcomes} == {"ok"}

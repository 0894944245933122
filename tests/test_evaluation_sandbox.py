"""The scoring worker: hostile responses cost themselves only, mistakes of ours are raised."""

import time
from pathlib import Path

import pytest

from dara.evaluation.sandbox import BATCH_ITEMS, Outcome, Sandbox, SandboxError, ScorerSpec

SCORER = r"""
import os, signal, sys
from pathlib import Path

def make(marker=None, refuse=False):
    if refuse:
        raise RuntimeError("a known answer got a wrong score")
    def score(item):
        yield {"early": 1}
        kind = item["response"]
        if kind == "loop":
            while True:
                pass
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
    started = time.monotonic()
    with sandbox(tmp_path) as box:
        outcomes = box.score(items("good", "loop", "fine", "killed", "huge", "last"))
    assert outcomes == [OK, LOST, OK, LOST, LOST, OK]
    assert time.monotonic() - started < 20


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

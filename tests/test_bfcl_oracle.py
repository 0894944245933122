"""Gold calls in ToolRL's format score everything that can be scored: nothing is lost between text and average."""

import os
from collections import Counter
from functools import cache

import pytest

from dara.evaluation import bfcl_v4, bfcl_v4_score
from dara.evaluation.bfcl import BFCL_V4_COUNTS
from dara.evaluation.records import Case
from dara.evaluation.sandbox import Outcome, ScorerSpec, ScoringPool, cores
from oracle import UNSATISFIED, oracle_response, parse_call


@cache
def cases() -> list[Case]:
    return bfcl_v4.load_cases(bfcl_v4.data_directory())


def processor_seconds() -> float:
    """Used by this process and by those that it has waited for."""
    return sum(os.times()[:4])


def test_the_oracle_satisfies_every_case_that_can_be_satisfied() -> None:
    started = processor_seconds()
    everything = cases()
    items = {n: bfcl_v4_score.scorer_item(oracle_response(case), case) for n, case in enumerate(everything)}
    outcomes: dict[int, Outcome] = {}
    with ScoringPool(ScorerSpec(bfcl_v4_score.SCORER, {"think_limit": 16, "seconds": 30.0}, 30.0), cores()) as pool:
        pool.score(items, outcomes.__setitem__)
    assert processor_seconds() - started < 60  # on any machine, however busy: within a minute on a single core
    assert Counter(case.category for case in everything) == BFCL_V4_COUNTS
    assert len(outcomes) == 3301
    lost = {everything[n].id for n, outcome in outcomes.items() if outcome.scores.get("accuracy") != 1}
    assert lost == set(UNSATISFIED)
    for outcome in outcomes.values():
        assert outcome.outcome == "ok"
        assert (outcome.scores["format"], outcome.scores["decode_error"], outcome.scores["think_length"]) == (1, 0, 1)


def test_each_case_that_is_not_satisfied_has_a_reason() -> None:
    assert all(UNSATISFIED.values())
    assert set(UNSATISFIED) <= {case.id for case in cases()}


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("sort('a.txt')", {"sort": {"file_name": "a.txt"}}),
        ("f(1, c=[True, None])", {"f": {"a": 1, "c": [True, None]}}),
        (" f(b={'k': -1.5}) ", {"f": {"b": {"k": -1.5}}}),
    ],
)
def test_gold_calls_are_read(text: str, call: dict[str, dict[str, object]]) -> None:
    assert parse_call(text, {"sort": ["file_name"], "f": ["a", "b", "c"]}) == call


def test_a_gold_call_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"'os.system\(1\)' is no call of a function by its name"):
        parse_call("os.system(1)", {})
    with pytest.raises(ValueError, match="malformed node"):
        parse_call("f(a=open('x'))", {})

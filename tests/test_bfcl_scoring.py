"""BFCL-v4: what the real checkers say to single calls and dialogues, and how 14 categories become one average."""

import csv
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from dara.evaluation import bfcl_v4_score
from dara.evaluation.bfcl import (
    BFCL_V4_COUNTS,
    CATEGORIES,
    GROUPS,
    NAMED_GROUPS,
    categories_of,
    category_weights,
    grouped,
)
from dara.evaluation.records import Case, Response, plain_metric
from dara.evaluation.sandbox import Sandbox, ScorerSpec
from project import ROOT

PUBLISHED = ROOT / "results" / "published" / "data"


def turn(*calls: dict[str, Any] | str, think: str = "t") -> str:
    """An output with calls, `{name: parameters}` or as they are written."""
    lines = [
        call if isinstance(call, str) else json.dumps(dict(zip(("name", "parameters"), *call.items(), strict=True)))
        for call in calls
    ]
    return f"<think>{think}</think>\n<tool_call>\n" + "\n".join(lines) + "\n</tool_call>"


SAID = "<think>t</think>\n<response>Done.</response>"


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    settings = {"think_limit": 16, "seconds": 5.0}
    with Sandbox(ScorerSpec(bfcl_v4_score.SCORER, settings, 5.0)) as sandbox:
        yield sandbox


def score(box: Sandbox, case: Case, *responses: Response) -> list[dict[str, Any]]:
    outcomes = box.score([bfcl_v4_score.scorer_item(response, case) for response in responses])
    assert {outcome.outcome for outcome in outcomes} == {"ok"}
    return [
        bfcl_v4_score.score_row(response, outcome.scores, None)
        for response, outcome in zip(responses, outcomes, strict=True)
    ]


def single(category: str, language: str, kind: dict[str, Any], values: list[Any]) -> Case:
    parameters = {"type": "dict", "properties": {"x": {"description": "x", **kind}}, "required": ["x"]}
    function = {"name": "a.f", "description": "f", "parameters": parameters}
    gold = {"functions": [function], "answer": [{"a.f": {"x": values}}], "category": category, "language": language}
    return Case(f"{category}_0", category, {}, gold)


@pytest.mark.parametrize(
    ("category", "language", "kind", "values", "right", "wrong"),
    [
        ("simple_python", "PYTHON", {"type": "integer"}, [3], 3, "3"),
        ("simple_python", "PYTHON", {"type": "float"}, [3.0], 3, 3.5),
        ("simple_python", "PYTHON", {"type": "array", "items": {"type": "string"}}, [["a b", "C"]], ["ab", "c"], ["a"]),
        ("multiple", "PYTHON", {"type": "string"}, ["New York"], "new york", "york"),
        ("live_simple", "PYTHON", {"type": "dict"}, [{"k": ["v"]}], {"k": "V"}, {"k": "w"}),
        ("simple_java", "JAVA", {"type": "integer"}, [3], "3", 3),
        ("simple_java", "JAVA", {"type": "long"}, [3], "3L", "3"),
        ("simple_java", "JAVA", {"type": "boolean"}, [True], "true", "True"),
        (
            "simple_java",
            "JAVA",
            {"type": "ArrayList", "items": {"type": "String"}},
            [["a", "b"]],
            'new ArrayList<>(Arrays.asList("a", "b"))',
            '["a", "b"]',
        ),
        ("simple_javascript", "JAVASCRIPT", {"type": "Boolean"}, [True], "true", True),
        (
            "simple_javascript",
            "JAVASCRIPT",
            {"type": "array", "items": {"type": "integer"}},
            [[1, 2]],
            "[1, 2]",
            [1, 2],
        ),
    ],
)
def test_single_calls_in_three_languages(
    box: Sandbox, category: str, language: str, kind: dict[str, Any], values: list[Any], right: Any, wrong: Any
) -> None:
    case = single(category, language, kind, values)
    texts = [turn({"a.f": {"x": right}}), turn({"a.f": {"x": wrong}}), turn({"a.f": {}}), "no call"]
    rows = score(box, case, *(Response(text, 9, True) for text in texts))
    assert [row["accuracy"] for row in rows] == [1, 0, 0, 0]
    assert [row["decode_error"] for row in rows] == [0, 0, 0, 1]
    assert [row["format"] for row in rows] == [1, 1, 1, 0]


def test_parallel_calls_may_come_in_any_order(box: Sandbox) -> None:
    one = single("parallel", "PYTHON", {"type": "integer"}, [1])
    case = Case(one.id, "parallel", {}, {**one.gold, "answer": [{"a.f": {"x": [1]}}, {"a.f": {"x": [2]}}]})
    first, second = {"a.f": {"x": 1}}, {"a.f": {"x": 2}}
    texts = [turn(first, second), turn(second, first), turn(first), turn(first, first)]
    rows = score(box, case, *(Response(text, 9, True) for text in texts))
    assert [row["accuracy"] for row in rows] == [1, 1, 0, 0]


def dialogue(answer: list[list[str]], case_id: str = "multi_turn_base_900") -> Case:
    files = {"a.txt": {"type": "file", "content": "hello"}}
    root = {"workspace": {"type": "directory", "contents": files}}
    entry = {
        "id": case_id,
        "involved_classes": ["GorillaFileSystem", "MathAPI"],
        "initial_config": {"GorillaFileSystem": {"root": root}},
    }
    category = case_id.rsplit("_", 1)[0]
    return Case(case_id, category, {}, {"entry": entry, "answer": answer, "category": category})


def talk(*turns: list[str], finished: bool = True, stopped: str | None = None) -> Response:
    return Response("", 30, finished, tuple(map(tuple, turns)), stopped)


MKDIR, CAT = {"mkdir": {"dir_name": "new"}}, {"cat": {"file_name": "a.txt"}}
GOLD = [["mkdir(dir_name='new')"], ["cat('a.txt')"]]


@pytest.mark.parametrize(
    ("turns", "accuracy"),
    [
        ([[turn(MKDIR), SAID], [turn(CAT), SAID]], 1),
        ([[turn(MKDIR), turn(CAT), SAID], [turn({"ls": {}}), SAID]], 1),  # said in an earlier turn is said
        (
            [[turn({"nothing": {}}), turn(MKDIR), SAID], [turn({"add": {"a": 1}}), turn(CAT)]],
            1,
        ),  # failed calls do no harm
        ([[turn(MKDIR)], [turn(CAT)]], 1),
        ([[turn(MKDIR), SAID], [SAID]], 0),  # a turn without a call
        ([[turn(MKDIR), SAID], [turn({"ls": {}}), SAID]], 0),  # the result is missing
        ([[turn({"mkdir": {"dir_name": "other"}}), SAID], [turn(CAT), SAID]], 0),  # another state
        ([[turn(MKDIR), SAID]], 0),  # stopped after a turn
        ([[SAID], [SAID]], 0),
        # ToolRL's handler runs the right ones of an output's calls beside an odd one, and none beside what it cannot write.
        ([[turn(MKDIR, {"get-weather": {"x": 1}}), SAID], [turn({"": {}}, CAT)]], 1),
        ([[turn({"add": math.nan}, MKDIR), SAID], [turn({"add": {"a": math.inf}}, CAT)]], 0),
        ([[turn({"add": {"a": math.inf}}, MKDIR), SAID], [turn({"None": 7}, {"cat ": CAT["cat"]})]], 1),
        ([[turn({"add": None}, MKDIR), SAID], [turn(CAT)]], 0),
        ([[turn(MKDIR, '{"name": 7}'), SAID], [turn(CAT)]], 0),
        ([[turn('{"name": "pwd"}'), turn(MKDIR), SAID], [turn(CAT)]], 1),
    ],
)
def test_dialogues_are_executed(box: Sandbox, turns: list[list[str]], accuracy: int) -> None:
    (row,) = score(box, dialogue(GOLD), talk(*turns))
    assert row["accuracy"] == accuracy
    assert row["format"] == 1
    assert row["decode_error"] == int(all(step == SAID for steps in turns for step in steps))


def test_a_case_that_was_stopped_says_why(box: Sandbox) -> None:
    """Too many steps in the last turn leave it as it is; without room, all that is kept of it is an error."""
    right = [[turn(MKDIR), SAID], [turn(CAT), "no format"]]
    rows = score(
        box,
        dialogue(GOLD),
        talk(*right),
        talk(*right, stopped="step_limit"),
        talk(*right, finished=False, stopped="context_overflow"),
        talk(*right, finished=False),
        talk([], stopped="context_overflow"),
    )
    assert [row["accuracy"] for row in rows] == [1, 1, 0, 1, 0]
    assert [row["format"] for row in rows] == [0.75, 0.75, 0, 0.75, 0]
    assert [row["think_length"] for row in rows] == [0.75, 0.75, 0, 0.75, 0]
    assert [row["think_words"] for row in rows] == [1, 1, "", 1, ""]
    assert [row["step_limit"] for row in rows] == [0, 1, 0, 0, 0]
    assert [row["context_overflow"] for row in rows] == [0, 0, 1, 0, 1]
    assert [row["truncated"] for row in rows] == [0, 0, 1, 1, 0]
    (early,) = score(box, dialogue(GOLD), talk([turn(MKDIR)] * 21, stopped="step_limit"))
    assert (early["accuracy"], early["format"], early["step_limit"]) == (0, 1, 1)  # the last turn is missing
    (alone,) = score(
        box, single("multiple", "PYTHON", {"type": "integer"}, [1]), Response("", 0, False, None, "context_overflow")
    )
    assert (alone["accuracy"], alone["format"], alone["context_overflow"]) == (0, 0, 1)


def test_where_nothing_could_be_said_nothing_was_unreadable(box: Sandbox) -> None:
    lone = single("multiple", "PYTHON", {"type": "integer"}, [1])
    overflow = Response("", 0, False, None, "context_overflow")
    rows = score(box, lone, overflow, Response("", 0, True), Response("no call", 3, True))
    assert [row["decode_error"] for row in rows] == [0, 1, 1]
    at_once, later = talk([], finished=False, stopped="context_overflow"), talk([""], [], stopped="context_overflow")
    rows = score(box, dialogue(GOLD), at_once, later, talk(["", ""]), talk([SAID], [turn(MKDIR)]))
    assert [row["decode_error"] for row in rows] == [0, 1, 1, 0]


def test_lost_calls_stand_beside_the_scores(box: Sandbox) -> None:
    right = talk([turn(MKDIR), SAID], [turn(CAT), SAID])
    rows = score(box, dialogue(GOLD), right, replace(right, lost_calls=3))
    assert [(row["accuracy"], row["lost_calls"]) for row in rows] == [(1, 0), (1, 3)]
    frame = hand_made(BY_HAND)
    frame.loc[[0, 3, 4], "lost_calls"] = [1, 7, 2]
    assert bfcl_v4_score.summarise(frame)["lost_call_rate"].score == pytest.approx(3 / 33)


def test_words_of_thought(box: Sandbox) -> None:
    long = "w " * 17
    rows = score(
        box, dialogue(GOLD), talk([turn(MKDIR, think="a b"), turn(CAT, think=long)], [SAID, "bare"]), talk(["bare"])
    )
    assert rows[0]["think_length"] == 2 / 4
    assert rows[0]["think_words"] == (2 + 17 + 1) / 3
    assert (rows[1]["think_length"], rows[1]["think_words"]) == (0, "")


def test_no_state_goes_from_one_case_to_the_next(box: Sandbox) -> None:
    case, right = dialogue(GOLD), talk([turn(MKDIR)], [turn(CAT)])
    bad = talk(
        [turn({"rm": {"file_name": "a.txt"}}), turn({"mkdir": {"dir_name": "x"}})], [turn({"cd": {"folder": "x"}})]
    )
    rows = score(box, case, bad, right, bad, right, right)
    assert [row["accuracy"] for row in rows] == [0, 1, 0, 1, 1]


def test_there_are_14_categories_and_3301_cases() -> None:
    assert len(BFCL_V4_COUNTS) == 14
    assert sum(BFCL_V4_COUNTS.values()) == 3301
    assert list(CATEGORIES["bfcl_v4"]) == list(BFCL_V4_COUNTS) == list(categories_of(GROUPS["bfcl_v4"]))


def test_weights_of_the_categories() -> None:
    weights = category_weights(GROUPS["bfcl_v4"], BFCL_V4_COUNTS)
    assert sum(weights.values()) == pytest.approx(1)
    assert weights["simple_java"] == weights["simple_python"] == pytest.approx(1 / 36)
    assert weights["multiple"] == weights["parallel_multiple"] == pytest.approx(1 / 12)
    assert weights["live_multiple"] == pytest.approx(1053 / 1351 / 3)
    assert weights["multi_turn_base"] == pytest.approx(1 / 12)


# Category -> (right, cases): the groups by hand are simple (1/2 + 1 + 0) / 3, non-live (1/2 + 1 + 0 + 1/4) / 4 = 7/16,
# live 4/8, multi-turn (1 + 0 + 0 + 1/2) / 4 = 3/8.
BY_HAND = {
    "simple_python": (1, 2),
    "simple_java": (3, 3),
    "simple_javascript": (0, 1),
    "multiple": (2, 2),
    "parallel": (0, 5),
    "parallel_multiple": (1, 4),
    "live_simple": (0, 1),
    "live_multiple": (3, 4),
    "live_parallel": (1, 1),
    "live_parallel_multiple": (0, 2),
    "multi_turn_base": (2, 2),
    "multi_turn_miss_func": (0, 3),
    "multi_turn_miss_param": (0, 1),
    "multi_turn_long_context": (1, 2),
}


def hand_made(categories: dict[str, tuple[int, int]]) -> pd.DataFrame:
    rows = [
        {
            "category": category,
            "case": f"{category}_{number}",
            "accuracy": int(number < right),
            "format": number < right,
        }
        for category, (right, cases) in categories.items()
        for number in range(cases)
    ]
    columns = {"sample": 0, "think_length": 1.0, "think_words": "", "decode_error": 0, "lost_calls": 0, "truncated": 0}
    frame = pd.DataFrame(rows).assign(**columns, context_overflow=0, step_limit=0, n_tokens=3, outcome="ok")
    return frame.astype({"format": float})


def test_fourteen_categories_make_three_groups() -> None:
    metrics = bfcl_v4_score.summarise(hand_made(BY_HAND))
    expected = {"simple": 1 / 2, "non_live": 7 / 16, "live": 4 / 8, "multi_turn": 3 / 8}
    for column in ("accuracy", "format"):
        for group, value in expected.items():
            assert metrics[f"{column}/{group}"].score == pytest.approx(value)
        assert metrics[f"average_{column}"].score == pytest.approx((7 / 16 + 4 / 8 + 3 / 8) / 3)
    assert metrics["accuracy/live_multiple"].score == 3 / 4
    assert metrics["average_think_length"].score == pytest.approx(1)
    assert len(metrics["average_accuracy"].values) == 33
    assert "think_words" not in metrics


def test_an_average_needs_all_its_categories() -> None:
    few = {category: BY_HAND[category] for category in BY_HAND if category != "live_parallel"}
    metrics = bfcl_v4_score.summarise(hand_made(few))
    assert {"accuracy/non_live", "format/multi_turn", "accuracy/live_multiple", "truncated_rate"} <= set(metrics)
    assert not {"accuracy/live", "average_accuracy", "average_format"} & set(metrics)
    strange = pd.concat([hand_made(BY_HAND), hand_made({"strange": (1, 1)})])
    with pytest.raises(ValueError, match="category 'strange' is none of bfcl_v4; they are simple_python, "):
        bfcl_v4_score.summarise(strange)


def test_words_are_averaged_over_cases_that_think() -> None:
    frame = hand_made(BY_HAND)
    frame["think_words"] = frame["think_words"].astype(object)
    frame.loc[0, "think_words"], frame.loc[5, "think_words"] = "3.0", "6.0"
    words = bfcl_v4_score.summarise(frame)["think_words"]
    assert words.score == 4.5
    assert len(words.values) == 2


@pytest.mark.parametrize(("file", "least"), [("tool_step100.csv", 50), ("tool_step60.csv", 16)])
def test_published_groups_give_the_published_averages(file: str, least: int) -> None:
    with (PUBLISHED / file).open(encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["seed"]]
    runs: dict[tuple[str, ...], dict[str, float]] = {}
    for row in rows:
        runs.setdefault((row["model"], row["method"], row["seed"], row["source"]), {})[row["metric"]] = float(
            row["value"]
        )
    assert len(runs) >= least
    for run, values in runs.items():
        for column in ("accuracy", "format"):
            # A case in each category that has its group's value, so that the groups have theirs.
            rows = [
                {"category": category, "case": category, column: values[f"{column}/{group}"]}
                for group in ("non_live", "live", "multi_turn")
                for category in categories_of(NAMED_GROUPS["bfcl_v4"][group])
            ]
            average = grouped(plain_metric(pd.DataFrame(rows), column), GROUPS["bfcl_v4"]).score
            # Shares, so this is 1e-6 percentage points; the rest is for the last bit of a float.
            assert math.isclose(average, values[f"average_{column}"], rel_tol=0, abs_tol=1e-8 + 1e-12), run

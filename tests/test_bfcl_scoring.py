"""BFCL: what the real checkers say to single calls and dialogues, and how categories become one average."""

import csv
import math
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bfcl_v4_fakes import SAID, files_case, real_cases, scorer, single, talk, turn
from dara.evaluation import bfcl
from dara.evaluation.bfcl import AVERAGES, BFCL_V4_COUNTS, LAPTOP_TOOLS, V4_GROUPS, grouped
from dara.evaluation.records import Case, Response, plain_metric
from dara.evaluation.sandbox import Outcome, Sandbox, ScorerSpec, ScoringPool, cores
from evaluation_fakes import write_cases
from oracle import UNSATISFIED, oracle_response
from project import ROOT

PUBLISHED = ROOT / "results" / "published" / "data"
ROW = ("accuracy", "format", "decode_error")


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with Sandbox(scorer()) as sandbox:
        yield sandbox


def score(box: Sandbox, case: Case, *said: Response | str) -> list[dict[str, Any]]:
    responses = [Response(one, 9, True) if isinstance(one, str) else one for one in said]
    outcomes = box.score([bfcl.scorer_item(response, case) for response in responses])
    assert {outcome.outcome for outcome in outcomes} == {"ok"}
    return [bfcl.v4_row(response, outcome.scores, None) for response, outcome in zip(responses, outcomes, strict=True)]


def column(rows: list[dict[str, Any]], name: str) -> list[Any]:
    return [row[name] for row in rows]


LISTS = {
    "JAVA": {"type": "ArrayList", "items": {"type": "String"}},
    "JAVASCRIPT": {"type": "array", "items": {"type": "integer"}},
    "PYTHON": {"type": "array", "items": {"type": "string"}},
}


@pytest.mark.parametrize(
    ("category", "language", "kind", "values", "right", "wrong"),
    [
        ("simple_python", "PYTHON", {"type": "integer"}, [3], 3, "3"),
        ("simple_python", "PYTHON", {"type": "float"}, [3.0], 3, 3.5),
        ("simple_python", "PYTHON", LISTS["PYTHON"], [["a b", "C"]], ["ab", "c"], ["a"]),
        ("multiple", "PYTHON", {"type": "string"}, ["New York"], "new york", "york"),
        ("live_simple", "PYTHON", {"type": "dict"}, [{"k": ["v"]}], {"k": "V"}, {"k": "w"}),
        ("simple_java", "JAVA", {"type": "integer"}, [3], "3", 3),
        ("simple_java", "JAVA", {"type": "long"}, [3], "3L", "3"),
        ("simple_java", "JAVA", {"type": "boolean"}, [True], "true", "True"),
        ("simple_java", "JAVA", LISTS["JAVA"], [["a", "b"]], 'new ArrayList<>(Arrays.asList("a", "b"))', '["a", "b"]'),
        ("simple_javascript", "JAVASCRIPT", {"type": "Boolean"}, [True], "true", True),
        ("simple_javascript", "JAVASCRIPT", LISTS["JAVASCRIPT"], [[1, 2]], "[1, 2]", [1, 2]),
    ],
)
def test_single_calls_in_three_languages(
    box: Sandbox, category: str, language: str, kind: dict[str, Any], values: list[Any], right: Any, wrong: Any
) -> None:
    case = single(language, kind, values, category)
    rows = score(box, case, turn({"a.f": {"x": right}}), turn({"a.f": {"x": wrong}}), turn({"a.f": {}}), "no call")
    assert [tuple(row[name] for name in ROW) for row in rows] == [(1, 1, 0), (0, 1, 0), (0, 1, 0), (0, 0, 1)]


def test_parallel_calls_may_come_in_any_order(box: Sandbox) -> None:
    one = single("PYTHON", {"type": "integer"}, [1], "parallel")
    case = replace(one, gold={**one.gold, "answer": [{"a.f": {"x": [1]}}, {"a.f": {"x": [2]}}]})
    first, second = {"a.f": {"x": 1}}, {"a.f": {"x": 2}}
    rows = score(box, case, turn(first, second), turn(second, first), turn(first), turn(first, first))
    assert column(rows, "accuracy") == [1, 1, 0, 0]


CALL = '{"name":"weather","parameters":{"city":"paris"}}'


def paris() -> dict[str, Any]:
    """A laptop's case whose right call is weather(city="paris")."""
    properties = {name: {"type": "string", "description": name} for name in ("city", "day")}
    functions = [
        {"name": name, "description": name, "parameters": {"type": "dict", "properties": properties, "required": []}}
        for name in ("music", "weather")
    ]
    answer = [{"weather": {"city": ["paris"]}}]
    return {"functions": functions, "answer": answer, "category": "multiple_one_parameter", "language": "PYTHON"}


def laptop_rows(gold: list[dict[str, Any]], texts: list[str]) -> list[tuple[int, ...]]:
    responses = [Response(text, 9, True) for text in texts]
    items = [bfcl.scorer_item(one, Case("c", "c", {}, case)) for one, case in zip(responses, gold, strict=True)]
    with Sandbox(ScorerSpec(LAPTOP_TOOLS.scorer, {}, 5.0)) as box:
        outcomes = box.score(items)
    assert {outcome.outcome for outcome in outcomes} == {"ok"}
    rows = [LAPTOP_TOOLS.score_row(*one, None) for one in zip(responses, [o.scores for o in outcomes], strict=True)]
    assert {tuple(row) for row in rows} == {(*ROW, "truncated")}
    return [tuple(row[name] for name in ROW) for row in rows]


def test_the_real_checker_scores_the_laptops_responses() -> None:
    table = [
        (turn(CALL), (1, 1, 0)),
        ("  " + turn(CALL) + "<|im_end|>more", (1, 1, 0)),
        (turn(CALL.replace("paris", "Paris")), (1, 1, 0)),  # BFCL ignores case and punctuation of strings
        (turn(CALL.replace("paris", "rome")), (0, 1, 0)),
        (turn(CALL.replace("weather", "music")), (0, 1, 0)),
        (turn(CALL.replace('"paris"', '"paris","day":"monday"')), (0, 1, 0)),
        (turn(CALL.replace('"paris"', "[1]")), (0, 1, 0)),
        (turn(CALL, CALL), (0, 1, 0)),
        (f"<tool_call>\n{CALL}\n</tool_call>", (1, 0, 0)),
        (f"<think>t</think>\n{CALL}", (0, 0, 1)),
        ("<think>t</think>\n<response>no</response>", (0, 1, 1)),
        (turn('{"name":"none","parameters":{}}'), (0, 1, 0)),
    ]
    assert laptop_rows([paris()] * len(table), [text for text, _ in table]) == [expected for _, expected in table]
    late = LAPTOP_TOOLS.score_row(Response("", 1, False), {}, None)
    assert late == {"accuracy": 0, "format": 0, "decode_error": 1, "truncated": 1}


def test_every_held_out_case_of_the_laptop_accepts_its_own_answer(tmp_path: Path) -> None:
    answers = write_cases("laptop_tools", tmp_path, rows=60)
    cases = bfcl.load_cases(tmp_path)
    texts = [answers[bfcl.prompt(case)] for case in cases]
    assert laptop_rows([case.gold for case in cases], texts) == [(1, 1, 0)] * 60


def test_a_wrong_case_names_file_and_row(tmp_path: Path) -> None:
    write_cases("laptop_tools", tmp_path)
    path = tmp_path / "BFCL_v4_multiple_two_parameters.json"
    first = path.read_text().splitlines(keepends=True)[0]
    for content, message in (
        (first + '{"id": "x"}\n', f"{path.name}, row 2: must be an object with id, que"),
        (first.replace("multiple_two_parameters_0", "x"), "row 1: case 'x' has no answer in .*possible_answer"),
        (None, f"{path.name}: the file does not exist"),
    ):
        path.unlink() if content is None else path.write_text(content)
        with pytest.raises(ValueError, match=message):
            bfcl.load_cases(tmp_path)


MKDIR, CAT, LS = {"mkdir": {"dir_name": "new"}}, {"cat": {"file_name": "a.txt"}}, {"ls": {}}
GOLD = files_case(900, ["mkdir(dir_name='new')"], ["cat('a.txt')"])
RIGHT = talk([turn(MKDIR), SAID], [turn(CAT), SAID])


@pytest.mark.parametrize(
    ("turns", "accuracy"),
    [
        (RIGHT.turns, 1),
        ([[turn(MKDIR), turn(CAT), SAID], [turn(LS), SAID]], 1),  # said in an earlier turn is said
        ([[turn({"nothing": {}}), turn(MKDIR), SAID], [turn({"add": {"a": 1}}), turn(CAT)]], 1),  # failures do no harm
        ([[turn(MKDIR)], [turn(CAT)]], 1),
        ([[turn(MKDIR), SAID], [SAID]], 0),  # a turn without a call
        ([[turn(MKDIR), SAID], [turn(LS), SAID]], 0),  # the result is missing
        ([[turn({"mkdir": {"dir_name": "other"}}), SAID], [turn(CAT), SAID]], 0),  # another state
        ([[turn(MKDIR), SAID]], 0),  # stopped after a turn
        ([[SAID], [SAID]], 0),
        # ToolRL's handler runs the right ones of an output's calls beside an odd one, and none beside what it cannot
        # write.
        ([[turn(MKDIR, {"get-weather": {"x": 1}}), SAID], [turn({"": {}}, CAT)]], 1),
        ([[turn({"add": math.nan}, MKDIR), SAID], [turn({"add": {"a": math.inf}}, CAT)]], 0),
        ([[turn({"add": {"a": math.inf}}, MKDIR), SAID], [turn({"None": 7}, {"cat ": CAT["cat"]})]], 1),
        ([[turn({"add": None}, MKDIR), SAID], [turn(CAT)]], 0),
        ([[turn(MKDIR, '{"name": 7}'), SAID], [turn(CAT)]], 0),
        ([[turn('{"name": "pwd"}'), turn(MKDIR), SAID], [turn(CAT)]], 1),
    ],
)
def test_dialogues_are_executed(box: Sandbox, turns: list[list[str]], accuracy: int) -> None:
    (row,) = score(box, GOLD, talk(*turns))
    silent = all(step == SAID for steps in turns for step in steps)
    assert tuple(row[name] for name in ROW) == (accuracy, 1, int(silent))


def test_a_case_that_was_stopped_says_why(box: Sandbox) -> None:
    """Too many steps in the last turn leave it as it is; without room, all that is kept of it is an error."""
    right = [[turn(MKDIR), SAID], [turn(CAT), "no format"]]
    overflow = "context_overflow"
    rows = score(
        *(box, GOLD, talk(*right), talk(*right, stopped="step_limit")),
        *(talk(*right, finished=False, stopped=overflow), talk(*right, finished=False), talk([], stopped=overflow)),
        talk([turn(MKDIR)] * 21, stopped="step_limit"),  # the last turn is missing
    )
    assert column(rows, "accuracy") == [1, 1, 0, 1, 0, 0]
    assert column(rows, "format") == [0.75, 0.75, 0, 0.75, 0, 1]
    assert column(rows, "think_length") == [0.75, 0.75, 0, 0.75, 0, 1]
    assert column(rows, "think_words") == [1, 1, "", 1, "", 1]
    assert column(rows, "step_limit") == [0, 1, 0, 0, 0, 1]
    assert column(rows, "context_overflow") == [0, 0, 1, 0, 1, 0]
    assert column(rows, "truncated") == [0, 0, 1, 1, 0, 0]


def test_where_nothing_could_be_said_nothing_was_unreadable(box: Sandbox) -> None:
    lone, overflow = single("PYTHON", {"type": "integer"}, [1], "multiple"), "context_overflow"
    rows = score(box, lone, Response("", 0, False, None, overflow), "", "no call")
    assert column(rows, "decode_error") == [0, 1, 1]
    assert [rows[0][name] for name in ("accuracy", "format", overflow)] == [0, 0, 1]
    at_once, later = talk([], finished=False, stopped=overflow), talk([""], [], stopped=overflow)
    rows = score(box, GOLD, at_once, later, talk(["", ""]), talk([SAID], [turn(MKDIR)]))
    assert column(rows, "decode_error") == [0, 1, 1, 0]


def test_lost_calls_stand_beside_the_scores(box: Sandbox) -> None:
    rows = score(box, GOLD, RIGHT, replace(RIGHT, lost_calls=3))
    assert [(row["accuracy"], row["lost_calls"]) for row in rows] == [(1, 0), (1, 3)]
    frame = hand_made(BY_HAND)
    frame.loc[[0, 3, 4], "lost_calls"] = [1, 7, 2]
    assert bfcl.summarise_v4(frame)["lost_call_rate"].score == pytest.approx(3 / 33)


def test_words_of_thought(box: Sandbox) -> None:
    thinking = talk([turn(MKDIR, think="a b"), turn(CAT, think="w " * 17)], [SAID, "bare"])
    rows = score(box, GOLD, thinking, talk(["bare"]))
    assert [(row["think_length"], row["think_words"]) for row in rows] == [(2 / 4, (2 + 17 + 1) / 3), (0, "")]


def test_no_state_goes_from_one_case_to_the_next(box: Sandbox) -> None:
    ruined = [turn({"rm": {"file_name": "a.txt"}}), turn({"mkdir": {"dir_name": "x"}})]
    bad = talk(ruined, [turn({"cd": {"folder": "x"}})])
    assert column(score(box, GOLD, bad, RIGHT, bad, RIGHT, RIGHT), "accuracy") == [0, 1, 0, 1, 1]


def processor_seconds() -> float:
    """Used by this process and by those that it has waited for."""
    return sum(os.times()[:4])


def test_the_oracle_satisfies_every_case_that_can_be_satisfied() -> None:
    """Gold calls in ToolRL's format score all that can be scored: nothing is lost between text and average."""
    cases, started = real_cases(None), processor_seconds()
    items = {n: bfcl.scorer_item(oracle_response(case), case) for n, case in enumerate(cases)}
    outcomes: dict[int, Outcome] = {}
    with ScoringPool(scorer(30.0), cores()) as workers:
        workers.score(items, outcomes.__setitem__)
    assert processor_seconds() - started < 60  # on any machine, however busy: within a minute on a single core
    assert Counter(case.category for case in cases) == BFCL_V4_COUNTS
    assert (len(BFCL_V4_COUNTS), len(cases)) == (14, 3301)
    lost = {cases[n].id for n, outcome in outcomes.items() if outcome.scores.get("accuracy") != 1}
    assert lost == set(UNSATISFIED)
    expected = ("ok", 1, 0, 1)
    for outcome in outcomes.values():
        found = (outcome.scores[name] for name in ("format", "decode_error", "think_length"))
        assert (outcome.outcome, *found) == expected


# Category -> (right, cases): the groups by hand are simple (1/2 + 1 + 0) / 3, non-live (1/2 + 1 + 0 + 1/4) / 4 = 7/16,
# live 4/8, multi-turn (1 + 0 + 0 + 1/2) / 4 = 3/8.
BY_HAND = dict(
    zip(
        BFCL_V4_COUNTS,
        [
            *((1, 2), (3, 3), (0, 1)),
            *((2, 2), (0, 5), (1, 4)),
            *((0, 1), (3, 4), (1, 1), (0, 2)),
            *((2, 2), (0, 3), (0, 1), (1, 2)),
        ],
        strict=True,
    )
)


def hand_made(categories: dict[str, tuple[int, int]]) -> pd.DataFrame:
    rows = [
        {"category": category, "case": f"{category}_{number}", "accuracy": int(number < right)}
        for category, (right, cases) in categories.items()
        for number in range(cases)
    ]
    columns = {"sample": 0, "think_length": 1.0, "think_words": "", "decode_error": 0, "lost_calls": 0, "truncated": 0}
    frame = pd.DataFrame(rows).assign(**columns, context_overflow=0, step_limit=0, n_tokens=3, outcome="ok")
    return frame.assign(format=frame["accuracy"].astype(float))


def test_fourteen_categories_make_three_groups() -> None:
    metrics = bfcl.summarise_v4(hand_made(BY_HAND))
    expected = {"simple": 1 / 2, "non_live": 7 / 16, "live": 4 / 8, "multi_turn": 3 / 8, "live_multiple": 3 / 4}
    for name in ("accuracy", "format"):
        assert {group: metrics[f"{name}/{group}"].score for group in expected} == pytest.approx(expected)
        assert metrics[f"average_{name}"].score == pytest.approx((7 / 16 + 4 / 8 + 3 / 8) / 3)
    assert metrics["average_think_length"].score == pytest.approx(1)
    average = metrics["average_accuracy"]
    weights = {category: math.fsum(average.weights[average.strata == category]) for category in BY_HAND}
    expected = {"simple_java": 1 / 36, "multiple": 1 / 12, "live_multiple": 4 / 8 / 3, "multi_turn_base": 1 / 12}
    assert {category: weights[category] for category in expected} == pytest.approx(expected)
    assert (len(average.values), sum(weights.values())) == (33, pytest.approx(1))
    assert "think_words" not in metrics


def test_an_average_needs_all_its_categories() -> None:
    few = {category: BY_HAND[category] for category in BY_HAND if category != "live_parallel"}
    metrics = bfcl.summarise_v4(hand_made(few))
    assert {"accuracy/non_live", "format/multi_turn", "accuracy/live_multiple", "truncated_rate"} <= set(metrics)
    assert not {"accuracy/live", "average_accuracy", "average_format"} & set(metrics)
    with pytest.raises(ValueError, match="category 'strange' is none of bfcl_v4; they are simple_python, "):
        bfcl.summarise_v4(hand_made({**BY_HAND, "strange": (1, 1)}))


def test_words_are_averaged_over_cases_that_think() -> None:
    frame = hand_made(BY_HAND).astype({"think_words": object})
    frame.loc[[0, 5], "think_words"] = ["3.0", "6.0"]
    words = bfcl.summarise_v4(frame)["think_words"]
    assert (words.score, len(words.values)) == (4.5, 2)


@pytest.mark.parametrize(("file", "least"), [("tool_step100.csv", 50), ("tool_step60.csv", 16)])
def test_published_groups_give_the_published_averages(file: str, least: int) -> None:
    runs: dict[tuple[str, ...], dict[str, float]] = {}
    with (PUBLISHED / file).open(encoding="utf-8", newline="") as stream:
        for row in filter(lambda row: row["seed"], csv.DictReader(stream)):
            key = tuple(row[name] for name in ("model", "method", "seed", "source"))
            runs.setdefault(key, {})[row["metric"]] = float(row["value"])
    assert len(runs) >= least
    for run, values in runs.items():
        for name in ("accuracy", "format"):
            # A case in each category that has its group's value, so that the groups have theirs.
            rows = [
                {"category": category, "case": category, name: values[f"{name}/{group}"]}
                for group in ("non_live", "live", "multi_turn")
                for _, categories in V4_GROUPS[group]
                for category in categories
            ]
            average = grouped(plain_metric(pd.DataFrame(rows), name), AVERAGES["bfcl_v4"]).score
            # Shares, so this is 1e-6 percentage points; the rest is for the last bit of a float.
            assert math.isclose(average, values[f"average_{name}"], rel_tol=0, abs_tol=1e-8 + 1e-12), run


def frame(rows: list[tuple[str, str, int, int, int]]) -> pd.DataFrame:
    data = pd.DataFrame(rows, columns=["category", "case", "sample", "accuracy", "format"])
    return data.assign(decode_error=1 - data["format"], truncated=0, n_tokens=5, outcome="ok")


LAPTOP = [
    ("multiple_one_parameter", "a", 0, 1, 1),
    ("multiple_one_parameter", "b", 0, 0, 1),
    ("multiple_two_parameters", "c", 0, 1, 0),
    ("multiple_two_parameters", "d", 0, 1, 1),
    ("multiple_two_parameters", "e", 0, 1, 1),
    ("multiple_three_parameters", "f", 0, 0, 0),
]


def test_summary_of_the_laptops_scores() -> None:
    metrics = bfcl.summarise(frame(LAPTOP))
    expected = {
        "average_accuracy": (1 / 2 + 3 / 4) / 2,
        "average_format": (1 + 2 / 4) / 2,
        "accuracy/multiple_one_parameter": 1 / 2,
        "accuracy/multiple_two_parameters": 1.0,
        "accuracy/multiple_three_parameters": 0.0,
        "format/multiple_one_parameter": 1.0,
        "format/multiple_two_parameters": 2 / 3,
        "format/multiple_three_parameters": 0.0,
        "decode_error_rate": 2 / 6,
        "truncated_rate": 0.0,
    }
    assert {name: metric.score for name, metric in metrics.items()} == pytest.approx(expected)
    average = metrics["average_accuracy"]
    assert average.values.tolist() == [1, 0, 0, 1, 1, 1]  # sorted by category, then case
    assert average.weights.tolist() == pytest.approx([0.25, 0.25, 0.125, 0.125, 0.125, 0.125])
    assert average.strata[2] == "multiple_three_parameters"
    with pytest.raises(ValueError, match="no case of multiple_one_parameter"):
        bfcl.summarise(frame(LAPTOP[2:]))
    with pytest.raises(ValueError, match="category 'strange' belongs to no group"):
        bfcl.summarise(frame([*LAPTOP, ("strange", "g", 0, 1, 1)]))


def test_the_order_of_rows_does_not_matter_and_samples_are_averaged() -> None:
    twice = LAPTOP + [(category, case, 1, 0, 1) for category, case, *_ in LAPTOP]
    one, other = (bfcl.summarise(frame(rows)) for rows in (twice, twice[::-1]))
    for name, metric in one.items():
        np.testing.assert_array_equal(metric.values, other[name].values)
        np.testing.assert_array_equal(metric.weights, other[name].weights)
    assert one["average_accuracy"].score == pytest.approx((1 / 4 + 3 / 8) / 2)

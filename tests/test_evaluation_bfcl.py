"""Tool calling: what is read from a response, what the real BFCL checker says, and how categories are averaged."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dara.evaluation import bfcl
from dara.evaluation.bfcl import GROUPS, Mean, Pooled, category_weights
from dara.evaluation.bfcl_calls import decode_calls
from dara.evaluation.sandbox import Sandbox, ScorerSpec
from evaluation_fakes import write_cases

CALL = '{"name":"weather","parameters":{"city":"paris"}}'


def turn(*lines: str) -> str:
    return "<think>t</think>\n<tool_call>\n" + "\n".join(lines) + "\n</tool_call>"


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (turn(CALL), [{"weather": {"city": "paris"}}]),
        (turn("no json", CALL, "{]"), [{"weather": {"city": "paris"}}]),
        (turn(CALL, CALL), [{"weather": {"city": "paris"}}] * 2),
        (turn('{"name":"a.b_c","parameters":{}}'), [{"a.b_c": {}}]),
        (turn('{"name":"None","parameters":{}}'), []),
        (turn('{"name":"none","parameters":{}}', CALL), [{"weather": {"city": "paris"}}]),
        ("<tool_call>\nold\n</tool_call> " + turn(CALL), [{"weather": {"city": "paris"}}]),
        (turn(CALL) + "<tool_call>\n</tool_call>", None),
        (f"<tool_call>\n{CALL}", [{"weather": {"city": "paris"}}]),
        (CALL, None),
        ("", None),
        (turn('{"name":"__import__(\'os\').system","parameters":{"command":"true"}}'), None),
        (turn('{"name":"os.system(1)","parameters":{}}', CALL), None),
        (turn('{"name":"weather\\n","parameters":{}}'), None),
        (turn('{"name":"weather","parameters":["paris"]}'), None),
        (turn('{"name":7,"parameters":{}}'), None),
        (turn('{"name":"weather"}'), None),
        (turn("{" * 10_000), None),
        (turn('{"a":' * 10_000), None),
        (turn('{"name":"weather","parameters":{"n":' + "9" * 5000 + "}}"), None),
    ],
)
def test_calls_are_read_from_the_last_block(text: str, calls: list[dict[str, Any]] | None) -> None:
    assert decode_calls(text) == calls


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with Sandbox(ScorerSpec(bfcl.LAPTOP_TOOLS.scorer, {}, 5.0)) as sandbox:
        yield sandbox


def gold(**values: str) -> dict[str, Any]:
    """A case whose right call is weather(**values)."""
    properties = {name: {"type": "string", "description": name} for name in ("city", "day")}
    functions = [
        {"name": name, "description": name, "parameters": {"type": "dict", "properties": properties, "required": []}}
        for name in ("music", "weather")
    ]
    answer = [{"weather": {name: [value] for name, value in values.items()}}]
    return {"functions": functions, "answer": answer, "category": "multiple_one_parameter", "language": "PYTHON"}


@pytest.mark.parametrize(
    ("response", "accuracy", "form", "decode_error"),
    [
        (turn(CALL), 1, 1, 0),
        ("  " + turn(CALL) + "<|im_end|>more", 1, 1, 0),
        (turn(CALL.replace("paris", "Paris")), 1, 1, 0),  # BFCL ignores case and punctuation of strings
        (turn(CALL.replace("paris", "rome")), 0, 1, 0),
        (turn(CALL.replace("weather", "music")), 0, 1, 0),
        (turn(CALL.replace('"paris"', '"paris","day":"monday"')), 0, 1, 0),
        (turn(CALL.replace('"paris"', "[1]")), 0, 1, 0),
        (turn(CALL, CALL), 0, 1, 0),
        (f"<tool_call>\n{CALL}\n</tool_call>", 1, 0, 0),
        (f"<think>t</think>\n{CALL}", 0, 0, 1),
        ("<think>t</think>\n<response>no</response>", 0, 1, 1),
        (turn('{"name":"none","parameters":{}}'), 0, 1, 0),
    ],
)
def test_the_real_checker_scores_a_response(
    box: Sandbox, response: str, accuracy: int, form: int, decode_error: int
) -> None:
    (outcome,) = box.score([{"response": response, **gold(city="paris")}])
    assert outcome.scores == {"accuracy": accuracy, "format": form, "decode_error": decode_error}
    assert outcome.outcome == "ok"


def test_hostile_responses_end_and_the_next_one_is_still_scored(box: Sandbox, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    command = json.dumps({"name": "__import__('os').system", "parameters": {"command": f"touch {marker}"}})
    hostile = [
        turn(command),
        turn(CALL.replace("paris", "x" * 1_000_000)),
        "{" * 10_000,
        turn(CALL.replace('"paris"', "[" * 10_000 + "]" * 10_000)),
        turn(CALL.replace('"paris"', "[" * 900 + "]" * 900)),
        "<tool_call>" * 100_000,
    ]
    outcomes = box.score([{"response": response, **gold(city="paris")} for response in [*hostile, turn(CALL)]])
    assert [outcome.scores["accuracy"] for outcome in outcomes] == [0] * len(hostile) + [1]
    assert {outcome.outcome for outcome in outcomes} == {"ok"}
    assert not marker.exists()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.lists(st.sampled_from(["weather", "music", "city", ""]) | st.text(), min_size=1, max_size=3),
    parameters=st.dictionaries(st.sampled_from(["city", "day"]) | st.text(), JSON, max_size=3) | JSON,
    around=st.text(),
)
def test_no_text_makes_the_scorer_raise(box: Sandbox, names: list[str], parameters: Any, around: str) -> None:
    text = turn(*(json.dumps({"name": name, "parameters": parameters}) for name in names))
    outcomes = box.score([{"response": response, **gold(city="paris")} for response in (text, text + around, around)])
    assert {value for outcome in outcomes for value in outcome.scores.values()} <= {0, 1}


def test_every_held_out_case_accepts_its_own_answer(box: Sandbox, tmp_path: Path) -> None:
    answers = write_cases("laptop_tools", tmp_path, rows=60)
    cases = bfcl.load_cases(tmp_path)
    assert len(cases) == 60
    outcomes = box.score([{"response": answers[bfcl.prompt(case)], **case.gold} for case in cases])
    assert all(outcome.scores == {"accuracy": 1, "format": 1, "decode_error": 0} for outcome in outcomes)


def test_a_wrong_case_names_file_and_row(tmp_path: Path) -> None:
    write_cases("laptop_tools", tmp_path)
    path = tmp_path / "BFCL_v4_multiple_two_parameters.json"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], '{"id": "x"}\n']))
    with pytest.raises(
        ValueError, match=r"BFCL_v4_multiple_two_parameters.json, row 2: must be an object with id, que"
    ):
        bfcl.load_cases(tmp_path)
    path.write_text(lines[0].replace("multiple_two_parameters_0", "stranger"))
    with pytest.raises(ValueError, match=r"row 1: case 'stranger' has no answer in .*possible_answer"):
        bfcl.load_cases(tmp_path)
    path.unlink()
    with pytest.raises(ValueError, match=r"BFCL_v4_multiple_two_parameters.json: the file does not exist"):
        bfcl.load_cases(tmp_path)


def test_weights_of_the_laptop_groups() -> None:
    counts = {"multiple_one_parameter": 10, "multiple_two_parameters": 30, "multiple_three_parameters": 10}
    # Few counts half, whatever its size; in Many each case counts alike.
    expected = {"multiple_one_parameter": 0.5, "multiple_two_parameters": 0.375, "multiple_three_parameters": 0.125}
    assert category_weights(GROUPS["laptop_tools"], counts) == pytest.approx(expected)


def test_weights_of_nested_groups() -> None:
    # Simple is a mean over languages inside Non-Live; Live weighs cases: the shape of BFCL's own average.
    simple = Mean((Pooled(("python",)), Pooled(("java",))))
    tree = Mean((Mean((simple, Pooled(("parallel",)))), Pooled(("live_a", "live_b"))))
    weights = category_weights(tree, {"python": 400, "java": 100, "parallel": 200, "live_a": 3, "live_b": 1})
    expected = {"python": 0.125, "java": 0.125, "parallel": 0.25, "live_a": 0.375, "live_b": 0.125}
    assert weights == pytest.approx(expected)
    assert sum(weights.values()) == pytest.approx(1)
    with pytest.raises(ValueError, match="no case of live_a, live_b"):
        category_weights(tree, {"python": 1, "java": 1, "parallel": 1})


def frame(rows: list[tuple[str, str, int, int, int]]) -> pd.DataFrame:
    data = pd.DataFrame(rows, columns=["category", "case", "sample", "accuracy", "format"])
    return data.assign(decode_error=1 - data["format"], truncated=0, n_tokens=5, outcome="ok")


HAND_MADE = [
    ("multiple_one_parameter", "a", 0, 1, 1),
    ("multiple_one_parameter", "b", 0, 0, 1),
    ("multiple_two_parameters", "c", 0, 1, 0),
    ("multiple_two_parameters", "d", 0, 1, 1),
    ("multiple_two_parameters", "e", 0, 1, 1),
    ("multiple_three_parameters", "f", 0, 0, 0),
]


def test_summary_of_hand_made_scores() -> None:
    metrics = bfcl.summarise(frame(HAND_MADE))
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


def test_the_order_of_rows_does_not_matter_and_samples_are_averaged() -> None:
    twice = HAND_MADE + [(category, case, 1, 0, 1) for category, case, *_ in HAND_MADE]
    one, other = (bfcl.summarise(frame(rows)) for rows in (twice, twice[::-1]))
    for name, metric in one.items():
        np.testing.assert_array_equal(metric.values, other[name].values)
        np.testing.assert_array_equal(metric.weights, other[name].weights)
    assert one["average_accuracy"].score == pytest.approx((1 / 4 + 3 / 8) / 2)


def test_a_category_without_cases_is_an_error() -> None:
    with pytest.raises(ValueError, match="no case of multiple_one_parameter"):
        bfcl.summarise(frame(HAND_MADE[2:]))
    with pytest.raises(ValueError, match="category 'strange' belongs to no group"):
        bfcl.summarise(frame([*HAND_MADE, ("strange", "g", 0, 1, 1)]))

"""The table of rewards, gold answers of the real data sets, and a user's own reward from a file."""

import re
import shutil
import textwrap

import pytest

from dara import rewards
from dara.loading import ConfigurationError, load_preset
from dara.preflight import check_method_parameters
from dara.rewards import REWARDS, load_rewards, reward_ranges, score
from dara.rewards.math import math_correctness, numeric_equal
from dara.rewards.tool_calling import tool_correctness, tool_format
from dara.runs import check_source, plan_runs
from dara.training.openrlhf.command import REWARD_FILE
from dara.training.openrlhf.launch import write_reward_file
from dara.training.step import run_method, score_sample
from project import ROOT

REFERENCE = '<think> x </think>\n<tool_call>\n{"name": "f", "parameters": {"a": 1}}\n</tool_call>'
ANSWER = '<think>a b c</think>\n<tool_call>\n{"name": "f", "parameters": {"a": 1}}\n</tool_call>'


def tool(names, response=ANSWER, **changes):
    given = {"response": response, "reference": REFERENCE, "n_tokens": 9, "params": {}, **changes}
    return score("tool_calling", names, **given)


def math(names, response=r"\boxed{42}", **changes):
    return score("math", names, **{"response": response, "reference": "42", "n_tokens": 24, "params": {}, **changes})


# ---- the table ----


def test_scores_are_in_the_order_of_the_names():
    assert tool(("correctness", "format", "length")) == [3.0, 1.0, 1.0]
    broken = ANSWER.replace("</think>\n", "</think>")
    assert tool(("format", "correctness"), broken) == [0.0, 3.0]
    assert tool(("correctness", "format"), broken) == [3.0, 0.0]
    assert math(("length", "correctness"), params={"length": {"limit": 23}}) == [0.0, 1.0]
    assert math(["correctness"], "") == [0.0]


def test_the_assistant_turn_is_taken_once_for_tools_and_not_for_math():
    wrapped = f"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n{ANSWER}<|im_end|>\n"
    assert tool_format(wrapped, REFERENCE) == 0.0
    assert tool(("correctness", "format"), wrapped) == [3.0, 1.0]
    assert tool_correctness(wrapped, REFERENCE) == 3.0
    assert math(["correctness"], r"\boxed{42}<|im_end|>\boxed{41}") == [0.0]


def test_parameters_have_the_defaults_of_the_paper():
    sixteen = ANSWER.replace("a b c", "w " * 16)
    assert tool(["length"], sixteen) == [1.0]
    assert tool(["length"], sixteen.replace("w w", "w w w", 1)) == [0.0]
    assert tool(["length"], params={"length": {"limit": 2}}) == [0.0]
    assert tool(["format"], params={"length": {"limit": 2}}) == [1.0]  # a parameter of a reward that is not selected
    assert [math(["length"], n_tokens=n) for n in (4000, 4001)] == [[1.0], [0.0]]


def test_ranges():
    assert {task: list(found) for task, found in REWARDS.items()} == {
        "tool_calling": ["correctness", "format", "length"],
        "math": ["correctness", "length"],
    }
    assert reward_ranges("tool_calling", ("format", "correctness", "length")) == [(0, 1), (-3, 3), (0, 1)]
    assert reward_ranges("math", ("correctness", "length")) == [(0, 1), (0, 1)]
    with pytest.raises(ValueError, match="unknown reward 'size'"):
        reward_ranges("tool_calling", ["size"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task": "maths"}, "unknown task 'maths': the tasks are tool_calling, math"),
        ({"names": ["format", "size"]}, "unknown reward 'size' of task tool_calling: .* correctness, format, length"),
        ({"params": {"size": {}}}, "unknown reward 'size' of task tool_calling: .* correctness, format, length"),
        ({"params": {"length": {"max": 3}}}, "unknown parameter 'max' of reward length .* its parameters are limit"),
        ({"params": {"format": {"limit": 3}}}, "unknown parameter 'limit' of reward format .* its parameters are none"),
        ({"params": {"length": {"limit": -3}}}, "limit of a length reward must be a number >= 0, got -3"),
        ({"reference": None}, "reference must be a string, got NoneType"),
        ({"reference": "<tool_call>{</tool_call>"}, "reference: line 1 of its <tool_call> is not JSON"),
        ({"task": "math", "names": ["length"], "n_tokens": None}, "n_tokens must be an integer"),
    ],
)
def test_errors_name_the_right_ones(changes, words):
    valid = {"task": "tool_calling", "names": ["correctness", "format", "length"], "response": ANSWER}
    call = {**valid, "reference": REFERENCE, "n_tokens": 9, "params": {}, **changes}
    with pytest.raises(ValueError, match=words):
        score(call.pop("task"), call.pop("names"), **call)
    assert tool(("correctness", "format", "length"), n_tokens=None) == [3.0, 1.0, 1.0]  # needed only where it counts


# ---- gold answers of the real data sets ----


def test_toolrl_gold_answers_are_perfect_alone_and_inside_a_conversation(real_rows):
    rows = real_rows("toolrl_rlla_4k_val80.jsonl")
    calls = 0
    for row in rows:
        gold = row["reward_model"]["ground_truth"]
        turns = [f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in row["prompt"]]
        calls += "<tool_call>" in gold
        for text in (gold, "".join(turns) + f"<|im_start|>assistant\n{gold}<|im_end|>\n"):
            expected = [3.0 if "<tool_call>" in gold else 0.0, 1.0]
            assert tool(("correctness", "format"), text, reference=gold) == expected
    assert (len(rows), calls) == (80, 71)


def test_toolrl_demonstrations_that_name_the_tag_in_their_thoughts_are_refused_as_references(real_rows):
    accepted, refused = [], []
    for row in real_rows("toolrl_rlla_sft400.jsonl"):
        gold = row["output"]
        try:
            accepted += tool(["correctness"], gold, reference=gold)
        except ValueError as error:
            refused.append(str(error))
            assert gold.count("<tool_call>") == 2
        else:
            assert tool_format(gold, gold) == 1.0
    assert (len(refused), accepted.count(3.0), accepted.count(0.0)) == (17, 329, 54)
    assert all(re.search("is not JSON|without a </tool_call>", message) for message in refused)


@pytest.mark.parametrize(
    ("name", "count", "numbers"),
    [
        ("math500.jsonl", 500, 338),
        ("aime24.jsonl", 30, 30),
        ("amc.jsonl", 83, 83),
        ("minerva.jsonl", 272, 180),
        ("deepscaler_200.jsonl", 200, 122),
    ],
)
def test_gold_answers_equal_themselves(name, count, numbers, real_rows):
    answers = [row["answer"] for row in real_rows(name)]
    boxed = [(f"So it is $\\boxed{{{answer}}}$.", answer) for answer in answers]
    assert len(answers) == count
    assert all(math_correctness(*pair) == 1.0 for pair in boxed)
    assert sum(numeric_equal(*pair) for pair in boxed) == numbers
    assert not any(math_correctness("\\boxed{-987654321}", answer) for answer in answers)


# ---- a user's own ----

FILE = """
    RANGES = {"signed": (-1.0, 1.0)}

    def brevity(response, n_tokens, *, limit=10):
        return len(response) <= limit and n_tokens <= limit

    def signed(reference, response):
        return 1.0 if reference in response else -1.0

    def large(response):
        return 7

    def starred(*texts): ...
    def nothing(*, limit=1): ...
    def other(response, prompt): ...
"""


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    monkeypatch.setattr(rewards, "REWARDS", {task: dict(own) for task, own in REWARDS.items()})


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "my_rewards.py"
    path.write_text(textwrap.dedent(FILE))
    return path


def test_a_batch_is_scored_with_built_in_and_own_rewards_together(file):
    load_rewards("math", {"short": "my_rewards.py:brevity", "sign": "my_rewards.py:signed"}, file.parent)
    names, params = ("correctness", "short", "sign"), {"short": {"limit": 12}}
    responses = [r"\boxed{42}", r"well, \boxed{42}", "41"]
    given = {"prompt_id": "p", "prompt": "6*7", "reference": "42", "n_tokens": 5}
    batch = [score_sample("math", names, params, response=text, **given) for text in responses]
    assert [list(values.values()) for values in batch] == [[1.0, 1.0, 1.0], [1.0, 0.0, 1.0], [0.0, 1.0, -1.0]]
    assert all(type(value) is float for values in batch for value in values.values())
    assert reward_ranges("math", names) == [(0, 1), (0, 1), (-1, 1)]
    with pytest.raises(
        ValueError, match="unknown parameter 'max' of reward short of task math: its parameters are limit"
    ):
        score("math", names, response="", reference="42", n_tokens=1, params={"short": {"max": 1}})


def test_the_assistant_turn_is_what_an_own_reward_of_tools_gets(file):
    load_rewards("tool_calling", {"short": "my_rewards.py:brevity"}, file.parent)
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n"
    given = {"response": text, "reference": "x", "n_tokens": 3, "params": {}}
    assert score("tool_calling", ["short"], **given) == [1.0]


@pytest.mark.parametrize(
    ("name", "function", "message"),
    [
        ("correctness", "my_rewards.py:brevity", "'correctness' is the name of a built-in reward"),
        ("short", "my_rewards.py:brevit", "no function or class 'brevit'. Did you mean 'brevity'?"),
        ("short", "my_rewards.py", r"names no function: write 'my_rewards.py:brevity' \(a file\) or 'package.module"),
        ("short", "absent.py:brevity", "there is no file"),
        ("short", "my_rewards.py:starred", r"has \*args, \*\* or /; write it as brevity\(response, reference"),
        ("short", "my_rewards.py:nothing", "no input; write it as"),
        ("short", "my_rewards.py:other", "parameter 'prompt' has no default and is none of response, reference, n_tok"),
        ("short", "ranges.py:brevity", r"RANGES must be like {\"brevity\": \(0.0, 1.0\)}"),
    ],
)
def test_a_function_that_is_no_reward_is_one_sentence(file, name, function, message):
    (file.parent / "ranges.py").write_text("RANGES = {'brevity': (1, 0)}\ndef brevity(response): return 0\n")
    with pytest.raises(ValueError, match=message):
        load_rewards("math", {name: function}, file.parent)


def test_a_value_outside_of_the_declared_range_is_an_error(file):
    load_rewards("math", {"large": "my_rewards.py:large"}, file.parent)
    message = r"reward large is 7, outside of its range 0 to 1; declare the range in the file of 'my_rewards.py:large'"
    with pytest.raises(ValueError, match=message):
        score("math", ["large"], response="", reference="42", n_tokens=1, params={})


@pytest.fixture
def own_preset(tmp_path, file):
    """A copy of the configuration whose math experiment has an own reward beside correctness."""
    shutil.copytree(ROOT / "config", tmp_path / "config")
    shutil.move(file, tmp_path / "config" / "my_rewards.py")
    path = tmp_path / "config" / "experiments" / "math_main.yaml"
    text = path.read_text().replace("rewards: [correctness, length]", "rewards: [correctness, length, short]")
    path.write_text(text + "reward_functions: {short: 'my_rewards.py:brevity'}\n")
    preset = tmp_path / "config" / "presets" / "own.yaml"
    preset.write_text(
        "extends: laptop\npreset: own\ntasks: {math: {reward_params: {length: {limit: 23}, short: {limit: 30}}}}\n"
    )
    return tmp_path, preset


def planned(own_preset):
    return next(run for run in plan_runs(load_preset(*own_preset)).runs.values() if run.reward_functions)


def test_an_own_reward_belongs_to_a_runs_identity_and_is_loaded_with_its_method(own_preset):
    root, _ = own_preset
    check_method_parameters(load_preset(*own_preset))
    spec = planned(own_preset)
    assert spec.rewards == ("correctness", "length", "short")
    assert spec.reward_params["short"] == {"limit": 30}
    assert type(spec).model_validate_json(spec.model_dump_json()) == spec
    assert "reward_functions" not in spec.model_copy(update={"reward_functions": {}}).model_dump()
    check_source(spec, root / "config")
    run_method(spec, root / "config")
    assert score("math", ["short"], response="x" * 31, reference="1", n_tokens=1, params=spec.reward_params) == [0.0]
    write_reward_file(root, spec, root / "config")
    written = (root / REWARD_FILE).read_text()
    assert "reward_functions = {'short': 'my_rewards.py:brevity'}" in written
    assert f"own_files = {str(root / 'config')!r}" in written

    file = root / "config" / "my_rewards.py"
    file.write_text(file.read_text() + "# edited\n")
    with pytest.raises(ValueError, match=r"my_rewards.py:brevity \(reward short\) was edited after run .* was planned"):
        check_source(spec, root / "config")
    assert planned(own_preset) != spec


@pytest.mark.parametrize(
    ("edited", "old", "new", "message"),
    [
        ("presets/own.yaml", "short: {limit", "shor: {limit", r"own\.yaml: tasks.math.reward_params: unknown reward 'shor'"),
        ("presets/own.yaml", "short: {limit", "short: {lim", r"math_main.yaml: reward_functions: unknown parameter 'lim'"),
        ("experiments/math_main.yaml", ":brevity", ":brevit", r"math_main.yaml: reward_functions: .*Did you mean 'brevity"),
        ("experiments/math_main.yaml", "my_rew", "no_rew", r"math_main.yaml: reward_functions.short: .*there is no file"),
        ("experiments/math_main.yaml", "short: 'my", "long: 'my", "unknown reward 'short' of task math"),
        ("experiments/math_main.yaml", "{short: 'my", "{short: 'my_rewards.py:large', length: 'my", "'length' is the name"),
    ],
)  # fmt: skip
def test_mistakes_of_the_configuration_name_file_and_key(own_preset, edited, old, new, message):
    path = own_preset[0] / "config" / edited
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ConfigurationError, match=message):
        check_method_parameters(load_preset(*own_preset))

"""A user's own reward from a file: what it is called with, its range and parameters, its place in a run's identity."""

import shutil
import textwrap

import pytest

from dara import rewards
from dara.loading import ConfigurationError, load_preset
from dara.preflight import check_method_parameters
from dara.rewards import REWARDS, load_rewards, reward_ranges, score
from dara.runs import check_source, plan_runs
from dara.training.openrlhf.launch import REWARD_FILE, write_reward_file
from dara.training.step import run_method, score_sample
from project import ROOT

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

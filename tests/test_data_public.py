"""Public data and a user's own: ToolRL, DeepScaleR and `file.py:function`, prepared; problems that are in a benchmark."""

import csv
import json
import re
import shutil
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dara.data import prepare as preparation
from dara.data.prepare import LENGTH, Match, files_of, matches, prepare
from dara.data.public import SETS, deepscaler, own_problems, toolrl, words
from dara.loading import ConfigurationError, load_preset
from dara.runs import data_id, plan_runs
from dara.specs import HubData, OwnData
from hub_fakes import fetch_settings, save_tokenizer
from project import ROOT

COUNTS = {name: one.questions for name, one in SETS.items()}
FILES = {name: f"{name}.jsonl" for name in SETS} | {"olympiadbench": "olympiadbench_675.jsonl"}
MODEL = {"tokenizer": "owner/model@" + "0" * 40}
LARGE = {"revision": "0123456789", "max_prompt_tokens": 100_000, **MODEL}
TOOLS = HubData(source="toolrl", validation_rows=80, **LARGE)
MATH = HubData(source="deepscaler", validation_rows=20, **LARGE)
SUFFIX = " Let's think step by step and output the final answer within \\boxed{}."
INSTRUCTION = "\n\nPlease reason step by step, and put your final answer within \\boxed{}."


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_parquet(path, rows):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def read_rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def prepared(spec, out, **given):
    """Training rows, validation rows, manifest, and the excluded rows of a data set."""
    prepare(spec, out, **given)
    excluded = list(csv.DictReader((out / "excluded.csv").open()))
    rows = (read_rows(out / name) for name in ("train.jsonl", "validation/problems.jsonl"))
    return *rows, json.loads((out / "manifest.json").read_text()), excluded


# ---- ToolRL ----


@pytest.fixture
def tool_rows(real_rows):
    return real_rows("toolrl_rlla_4k_val80.jsonl")


@pytest.fixture
def tools(tmp_path, tool_rows):
    """The real validation rows, and as training rows the same with two that cannot be used."""
    broken = json.loads(json.dumps(tool_rows[:2]))
    broken[0]["reward_model"]["ground_truth"] = "<think> x </think>\n<tool_call>\nno JSON\n</tool_call>"
    broken[1]["prompt"][1]["content"] = "**Dialogue Records History**\n<user> " + "again " * 3000 + "</user>"
    local = {
        "toolrl_train": write_rows(tmp_path / "train.jsonl", [*tool_rows, *broken]),
        "toolrl_validation": write_rows(tmp_path / "test.jsonl", tool_rows),
    }
    return fetch_settings(tmp_path, {"toolrl_train": 82, "toolrl_validation": 80}, local)


def test_the_files_of_tool_data(tools, tool_rows, tmp_path):
    limit = 7605  # of the longest real prompt; the tokenizer here spells most words in bytes
    spec = TOOLS.model_copy(update={"max_prompt_tokens": limit})
    train, validation, manifest, excluded = prepared(spec, tmp_path / "out", fetch=tools)
    assert manifest["data"] == spec.model_dump(mode="json")
    assert manifest["rows"] == {"train.jsonl": 80, "validation/problems.jsonl": 80}
    assert manifest["excluded"] == {"too_long": 1, "unusable_reference": 1}
    assert set(manifest["sha256"]) == {"train.jsonl", "validation/problems.jsonl", "excluded.csv", "contamination.csv"}
    assert manifest["sources"]["toolrl_train"]["local"] is True
    assert manifest["contamination"]["training_problems"] == {"bfcl_v4": 0}
    assert {row["id"]: row["reason"] for row in excluded} == {"train_80": "unusable_reference", "train_81": "too_long"}
    assert "is not JSON" in excluded[0]["detail"]
    assert [row["id"] for row in train] == [f"train_{i}" for i in range(80)]
    system, user = (message["content"] for message in tool_rows[0]["prompt"])
    assert train[0]["prompt"] == f"<system>{system}</system><user>{user}</user><assistant>"
    assert train[0]["reference"] == tool_rows[0]["reward_model"]["ground_truth"]
    assert validation[0]["messages"] == [{"role": "system", "content": system}, {"role": "user", "content": user}]
    assert Counter(row["category"] for row in validation) == {"tool_call": 71, "response": 9}


def test_the_same_specification_gives_the_same_files(tools, tmp_path, monkeypatch):
    monkeypatch.setattr(preparation, "_questions", lambda *_: [])  # seconds to read
    first, *others = (prepared(TOOLS, tmp_path / name, fetch=tools)[2] for name in ("a", "b", "b"))
    assert others == [first, first]


def test_another_number_of_rows_and_a_malformed_row_are_refused(tools, tmp_path, tool_rows):
    write_rows(tmp_path / "train.jsonl", tool_rows)
    with pytest.raises(ValueError, match=r"train.jsonl: has 80 rows; toolrl_train has 82, so this is another set"):
        toolrl(tools)
    tool_rows[3]["prompt"] = tool_rows[3]["prompt"][1:]
    write_rows(tmp_path / "train.jsonl", [*tool_rows, *tool_rows[:2]])
    with pytest.raises(ValueError, match=r"toolrl_train, row 4: needs a prompt of a system and a user message"):
        toolrl(tools)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"revision": "fffffff"},
            r"data.revision: fffffff, but .*data.lock.yaml pins toolrl_train at 0123456789abcdef",
        ),
        ({"version": 2}, r"data.version: toolrl is prepared in version 1 here, version 2 was asked for"),
        ({"tokenizer": None}, r"data.tokenizer: None must be ID@REVISION"),
        ({"tokenizer": "owner/model"}, r"data.tokenizer: 'owner/model' must be ID@REVISION"),
        ({"validation_rows": 79}, r"data.validation_rows: 79, but toolrl has 80 validation rows; set that"),
    ],
)
def test_a_specification_that_does_not_fit(tools, tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        prepare(TOOLS.model_copy(update=change), tmp_path / "out", fetch=tools)
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_without_a_chat_template(tools, tmp_path):
    (tools.models_local["owner/model"] / "chat_template.jinja").unlink(missing_ok=True)
    save_tokenizer(tools.models_local["owner/model"], template=None)
    with pytest.raises(ValueError, match=r"data.tokenizer: owner/model has no chat template"):
        prepare(TOOLS, tmp_path / "out", fetch=tools)


def test_what_the_user_says_is_compared_with_benchmarks(tools):
    train, validation, _ = toolrl(tools)
    assert validation[0].text == (
        "Hey, I'm looking to stay current on Azure services. Could you fetch the latest news on that topic for me?"
    )
    assert not any("<tool_call>" in problem.text or "Dialogue Records" in problem.text for problem in train)


def test_parquet_rows_are_read_as_the_published_file_has_them(tmp_path, tool_rows):
    path = write_parquet(tmp_path / "rows.parquet", tool_rows)
    local = dict.fromkeys(("toolrl_train", "toolrl_validation"), path)
    train, validation, excluded = toolrl(fetch_settings(tmp_path, dict.fromkeys(local, 80), local))
    assert (len(train), len(validation), excluded) == (80, 80, [])
    assert [one.reference for one in validation] == [row["reward_model"]["ground_truth"] for row in tool_rows]


# ---- DeepScaleR ----


def math_row(problem, answer):
    """A row as verl's preparation writes it."""
    return {
        "data_source": "deepscaler",
        "prompt": [{"role": "user", "content": problem + INSTRUCTION}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": answer},
    }


@pytest.fixture
def problems(real_rows):
    return [(one["problem"].removesuffix(SUFFIX), one["answer"]) for one in real_rows("deepscaler_200.jsonl")]


@pytest.fixture
def math(tmp_path, problems, real_rows):
    """187 training rows: 180 real ones, six without an answer, a problem of MATH-500; 20 of validation; real benchmarks."""
    in_benchmark = (real_rows("math500.jsonl")[7]["problem"] + "\n", "1")
    train = [*problems[20:], *((problem, "") for problem, _ in problems[20:26]), in_benchmark]
    local = {
        "deepscaler_train": write_parquet(tmp_path / "train.parquet", [math_row(*one) for one in train]),
        "deepscaler_validation": write_parquet(tmp_path / "test.parquet", [math_row(*one) for one in problems[:20]]),
    }
    for name, count in COUNTS.items():
        local[name] = write_rows(tmp_path / f"{name}.jsonl", real_rows(FILES[name])[:count])
    return fetch_settings(tmp_path, {"deepscaler_train": 187, "deepscaler_validation": 20, **COUNTS}, local)


def test_math_data_is_taken_as_it_is_and_filters_are_counted_and_listed(math, problems, tmp_path):
    train, validation, manifest, excluded = prepared(MATH, tmp_path / "out", fetch=math)
    assert manifest["rows"] == {"train.jsonl": 181, "validation/problems.jsonl": 20}
    assert manifest["excluded"] == {"no_answer": 6}
    assert set(manifest["sources"]) == {"deepscaler_train", "deepscaler_validation"}
    assert [one["id"] for one in excluded] == [f"train_{i}" for i in range(180, 186)]
    assert [one["id"] for one in train] == [*(f"train_{i}" for i in range(180)), "train_186"]
    problem, answer = problems[20]
    assert train[0]["prompt"] == f"<user>{problem}{INSTRUCTION}</user><assistant>"
    assert train[0]["reference"] == answer
    assert [one["id"] for one in validation] == [f"validation_{i}" for i in range(20)]
    assert validation[0]["messages"] == [{"role": "user", "content": problems[0][0] + INSTRUCTION}]
    assert (validation[0]["category"], validation[0]["reference"]) == ("deepscaler", r"\frac{3}{7}")


def test_an_answer_is_compared_as_the_authors_wrote_it(math):
    write_parquet(math.data_local["deepscaler_train"], [math_row("x", "$\\frac{1}{2}$")] * 187)
    assert deepscaler(math)[0][0].reference == "$\\frac{1}{2}$"


def test_long_prompts_are_dropped_from_training_and_counted(math, tmp_path):
    spec = MATH.model_copy(update={"max_prompt_tokens": 400})
    train, validation, manifest, excluded = prepared(spec, tmp_path / "out", fetch=math)
    dropped = [one for one in excluded if one["reason"] == "too_long"]
    assert 0 < len(dropped) == manifest["excluded"]["too_long"] < 181
    assert (len(train), len(validation)) == (181 - len(dropped), 20)
    assert all(int(one["detail"]) > 400 for one in dropped)


def test_copies_of_validation_problems_are_not_trained(math, problems, tmp_path):
    rows = [math_row(*one) for one in problems[20:]] + [math_row(problems[3][0].replace("$", " $ ").upper(), "1")] * 7
    write_parquet(math.data_local["deepscaler_train"], rows)
    train, validation, manifest, excluded = prepared(MATH, tmp_path / "out", fetch=math)
    assert manifest["excluded"] == {"copy_of_validation": 7}
    assert (len(train), len(validation)) == (180, 20)
    assert {one["id"]: one["detail"] for one in excluded} == {f"train_{i}": "validation_3" for i in range(180, 187)}


@pytest.mark.parametrize("decontaminate", [False, True])
def test_problems_of_a_benchmark_are_listed_and_removed_by_option(math, tmp_path, decontaminate):
    spec = MATH.model_copy(update={"decontaminate": decontaminate})
    train, _, manifest, _ = prepared(spec, tmp_path / "out", fetch=math)
    assert len(train) == 181 - decontaminate
    assert manifest["contamination"]["training_problems"] == {name: int(name == "math500") for name in SETS}
    assert manifest["contamination"]["removed"] is decontaminate
    listed = list(csv.DictReader((tmp_path / "out" / "contamination.csv").open()))
    expected = {"problem": "train_186", "benchmark": "math500", "case": "math500_7", "rule": "equal", "share": "1.000"}
    assert listed == [expected]
    assert manifest["excluded"].get("in_benchmark", 0) == int(decontaminate)


@pytest.mark.parametrize(
    "spoilt",
    [
        {"prompt": [{"role": "system", "content": "x"}, {"role": "user", "content": "1+1"}]},
        {"prompt": "1+1"},
        {"reward_model": {"style": "rule"}},
    ],
)
def test_a_malformed_row_is_named(math, spoilt):
    rows = [math_row("1+1", "2")] * 19 + [math_row("1+1", "2") | spoilt]
    path = math.data_local["deepscaler_validation"].with_suffix(".json")
    path.write_text(json.dumps(rows))
    math.data_local["deepscaler_validation"] = path
    message = r"deepscaler_validation, row 20: needs a prompt of a user message, and reward_model.ground_truth"
    with pytest.raises(ValueError, match=message):
        deepscaler(math)


def test_the_data_sets_that_are_needed():
    assert files_of(TOOLS) == ("toolrl_train", "toolrl_validation")
    assert files_of(MATH) == ("deepscaler_train", "deepscaler_validation", *SETS)


# ---- a user's own ----

OWN = "{source: 'my_data.py:problems', max_prompt_tokens: 300}"
FILE = """
def problems(split):
    for number in range(3 if split == "train" else 1):
        question = f"{number} + 1" + " again" * 500 * (number == 2)
        yield {"messages": [{"role": "user", "content": question}], "reference": str(number + 1)}

def wrong(split):
    return [{"messages": "1 + 1", "reference": "2"}]

def none(split):
    return []
"""


@pytest.fixture
def own_preset(tmp_path):
    """A copy of the configuration in which the paper's math task has a user's own data."""
    shutil.copytree(ROOT / "config", tmp_path / "config")
    (tmp_path / "config" / "my_data.py").write_text(FILE)
    preset, paper = tmp_path / "config" / "presets" / "own.yaml", ROOT / "config" / "presets" / "paper.yaml"
    text = re.sub(r"data: {source: deepscaler.*}", f"data: {OWN}", paper.read_text())
    preset.write_text(text.replace("preset: paper", "preset: own"))
    return tmp_path, preset


def planned(own_preset):
    return next(spec for spec in plan_runs(load_preset(*own_preset)).data.values() if isinstance(spec, OwnData))


def test_own_rows_are_prepared_for_the_model(own_preset, tmp_path):
    spec = planned(own_preset)
    assert data_id(spec).startswith("problems-")
    given = {"fetch": fetch_settings(tmp_path, {}, {}), "own_files": tmp_path / "config"}
    train, _, manifest, _ = prepared(spec.model_copy(update=MODEL), tmp_path / "out", **given)
    assert train[1] == {"id": "train_1", "prompt": "<user>1 + 1</user><assistant>", "reference": "2"}
    assert manifest["rows"] == {"train.jsonl": 2, "validation/problems.jsonl": 1}
    assert manifest["excluded"] == {"too_long": 1}
    (tmp_path / "config" / "my_data.py").write_text(FILE + "# edited\n")
    with pytest.raises(ValueError, match=r"my_data.py:problems was edited after the data was planned"):
        prepare(spec.model_copy(update=MODEL), tmp_path / "again", **given)
    assert planned(own_preset).source_sha256 != spec.source_sha256


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("my_data.py:wrong", r"row 1 of train: must be {'messages': \[{'role': 'user'.*, not {'messages': '1 \+ 1'"),
        ("my_data.py:none", "'my_data.py:none': gives no row of 'train'"),
        ("my_data.py", r"names no function: write 'my_data.py:problems' \(a file\)"),
    ],
)
def test_wrong_rows_and_functions(tmp_path, function, message):
    (tmp_path / "my_data.py").write_text(FILE)
    with pytest.raises(ValueError, match=message):
        own_problems(function, tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("my_data.py:problems", "no_data.py:problems", r"own.yaml: tasks.math.data.source: .*there is no file"),
        ("max_prompt_tokens: 300}", "max_prompt_token: 3}", r"tasks.math.data.max_prompt_token: unknown key"),
        ("my_data.py:problems", "deepscale", r"tasks.math.data: .*deepscaler"),
    ],
)
def test_mistakes_of_the_configuration(own_preset, old, new, message):
    text = own_preset[1].read_text()
    assert old in text
    own_preset[1].write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigurationError, match=message):
        load_preset(*own_preset)


# ---- problems that are also in a benchmark ----


@pytest.fixture
def questions(real_rows):
    return [
        (name, f"{name}_{number}", row["problem"])
        for name, file in FILES.items()
        for number, row in enumerate(real_rows(file))
    ]


def test_no_real_training_problem_is_in_a_benchmark(problems, questions):
    assert (len(problems), len(questions)) == (200, 500 + 30 + 83 + 272 + 675)
    assert matches(((f"train_{i}", problem) for i, (problem, _) in enumerate(problems)), questions) == []


def test_a_question_in_other_dress_is_found(questions):
    original = questions[0][2]
    assert original.startswith("Convert the point $(0,3)$ in rectangular coordinates")
    equal = {
        "same": original,
        "spaces": "  " + original.replace(" ", "  \n"),
        "latex": original.replace("$", r"\( ", 1).replace(r"\theta", r"\left.\theta\right."),
        "capitals": original.upper(),
    }
    similar = {
        "addition": original + " Show your work. Put the answer in a box.",
        "beginning": "Here is a task. " + original,
    }
    found = matches([*equal.items(), *similar.items()], questions)
    assert found == [
        *(Match(name, "math500", "math500_0", "equal", 1.0) for name in equal),
        *(Match(name, "math500", "math500_0", "similar", 1.0) for name in similar),
    ]


def words_of(letter, number):
    return [letter + chr(97 + i) for i in range(number)]


@pytest.mark.parametrize(
    ("questions", "problems", "expected"),
    [
        (  # other numbers and signs are another question
            ["What is $12 + 7$?"],
            ["What is 12+7 ?", "What is $12 + 8$?", "What is $12 - 7$?", "What is 127?"],
            [(0, 0, "equal", 1.0)],
        ),
        (  # 24 words have 12 sequences of 13; a text that has the first 18 of them shares 6, one that has 17 shares 5
            [" ".join(words_of("w", 24))],
            [" ".join([*words_of("w", 24)[:kept], *words_of("x", 30)]) for kept in (LENGTH - 1, LENGTH, 17, 18, 24)],
            [(3, 0, "similar", 0.5), (4, 0, "similar", 1.0)],
        ),
        (  # a long frame around a short question does not hide it
            [" ".join(words_of("q", LENGTH))],
            [" ".join([*words_of("f", 26), *words_of("q", LENGTH), *words_of("f", 26)])],
            [(0, 0, "similar", 1.0)],
        ),
        (["How many apples?", "How many apples"], ["how many apples"], [(0, 0, "equal", 1.0), (0, 1, "equal", 1.0)]),
    ],
)
def test_what_counts_as_the_same_text(questions, problems, expected):
    asked = [("b", f"b_{i}", text) for i, text in enumerate(questions)]
    found = matches([(str(i), text) for i, text in enumerate(problems)], asked)
    assert found == [Match(str(i), "b", f"b_{j}", rule, share) for i, j, rule, share in expected]


@given(st.lists(st.text(alphabet="abc 12+$\\", max_size=80), max_size=6))
def test_every_text_equals_itself_and_order_does_not_matter(texts):
    questions = [("b", str(i), text) for i, text in enumerate(texts)]
    problems = [(str(i), text) for i, text in enumerate(texts)]
    found = set(matches(problems, questions))
    assert {(match.problem, match.case) for match in found} >= {(str(i), str(i)) for i in range(len(texts))}
    assert set(matches(problems[::-1], questions[::-1])) == found


def test_words():
    assert words(r"Find $\dfrac{1}{2}+x$.") == ["find", "frac", "1", "2", "+", "x"]
    assert words(r"$\left( 3, \frac{\pi}{2} \right)$") == ["3", "frac", "pi", "2"]
    assert words("Zoë's 3rd try: x_1 < 2") == ["zoë", "s", "3", "rd", "try", "x", "_", "1", "<", "2"]
    assert words("  ") == []

"""Preparing data: files, determinism, and that held-out problems stay out of training."""

import hashlib
import json
import random
import re
import sys
from collections import Counter
from types import ModuleType, SimpleNamespace

import pytest

from dara.config import DataSpec
from dara.data import laptop_math, laptop_tools
from dara.data.generated import demonstration_parameters, draw, held_out, held_out_problems
from dara.data.laptop_tools import bfcl_prompt
from dara.data.prepare import prepare

SOURCES = {"laptop_tools": laptop_tools, "laptop_math": laptop_math}
SPECS = {name: DataSpec(source=name, version=1, seed=5, train_rows=300, held_out_rows=60) for name in SOURCES}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    root = tmp_path_factory.mktemp("inputs")
    for name, spec in SPECS.items():
        prepare(spec, root / name)
    return root


def read_rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("name", SOURCES)
def test_manifest_describes_every_file(prepared, name):
    folder = prepared / name
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["data"] == SPECS[name].model_dump(mode="json")
    files = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()} - {"manifest.json"}
    assert set(manifest["sha256"]) == files
    for file, checksum in manifest["sha256"].items():
        assert hashlib.sha256((folder / file).read_bytes()).hexdigest() == checksum
    for file, rows in manifest["rows"].items():
        assert len(read_rows(folder / file)) == rows
    assert manifest["rows"]["train.jsonl"] == 300


@pytest.mark.parametrize("name", SOURCES)
def test_same_specification_same_files(prepared, tmp_path, name):
    prepare(SPECS[name], tmp_path)
    prepare(SPECS[name], tmp_path)  # over its own files
    assert (tmp_path / "manifest.json").read_text() == (prepared / name / "manifest.json").read_text()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("name", SOURCES)
def test_another_seed_gives_other_rows_and_more_rows_the_same_cases(name):
    spec = SPECS[name]
    assert held_out(spec) != held_out(spec.model_copy(update={"seed": 6}))
    assert held_out(spec) == held_out(spec.model_copy(update={"train_rows": 999}))


def problem_of_prompt(name, text):
    """The problem of a prompt, read back from its text."""
    if name == "laptop_math":
        numbers = [int(x) for x in re.findall(r"\d+", text)]
        return numbers[0], tuple(sorted(numbers[1:]))
    tools = re.findall(r"(\w+)\(", text)
    verb, *values = re.search(r"<user>(.*)</user>", text)[1].split()
    tool = next(t for t in tools if verb in laptop_tools.TOOLS[t][0])
    given = [(p, v) for p in laptop_tools.TOOLS[tool][1] for v in values if v in laptop_tools.VALUES[p]]
    return tuple(sorted(tools)), tool, tuple(given)


@pytest.mark.parametrize("name", SOURCES)
def test_no_held_out_problem_is_trained(prepared, name):
    folder = prepared / name / "benchmark"
    if name == "laptop_math":
        prompts = [row["prompt"] for row in read_rows(folder / "problems.jsonl")]
    else:
        prompts = [bfcl_prompt(case) for file in sorted(folder.glob("*.json")) for case in read_rows(file)]
    problems = {problem_of_prompt(name, text) for text in prompts}
    assert len(problems) == len(prompts) == 60
    assert problems == held_out_problems(SPECS[name])
    trained = {problem_of_prompt(name, row["prompt"]) for row in read_rows(prepared / name / "train.jsonl")}
    assert len(trained) > 200
    assert not trained & problems


@pytest.mark.parametrize("name", SOURCES)
def test_leaving_problems_out_keeps_the_mix_of_categories(name):
    spec = SPECS[name].model_copy(update={"held_out_rows": 400})
    task, rng, excluded = SOURCES[name], random.Random(0), held_out_problems(spec)
    free, kept = random.Random(1), Counter(task.category(draw(spec, rng, excluded)) for _ in range(10_000))
    plain = Counter(task.category(task.example(free)) for _ in range(10_000))
    assert {c: kept[c] / 1e4 for c in plain} == pytest.approx({c: plain[c] / 1e4 for c in plain}, abs=0.02)


def test_train_rows_hold_prompt_and_reference(prepared):
    rows = read_rows(prepared / "laptop_math" / "train.jsonl")
    assert [row["id"] for row in rows[:2]] == ["train_0", "train_1"]
    for row in rows:
        assert set(row) == {"id", "prompt", "reference"}
        assert eval(re.search(r"[\d+]+", row["prompt"])[0]) == int(row["reference"])


@pytest.fixture
def ast_checker(monkeypatch):
    """The leaderboard's own checker; its list of models, which needs every provider's client, is replaced."""
    stand_in = ModuleType("bfcl_eval.constants.model_config")
    stand_in.MODEL_CONFIG_MAPPING = {"laptop": SimpleNamespace(underscore_to_dot=False)}
    monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)
    module = pytest.importorskip("bfcl_eval.eval_checker.ast_eval.ast_checker")
    language = pytest.importorskip("bfcl_eval.constants.enums").Language

    def check(functions, calls, answer, category):
        return module.ast_checker(functions, calls, answer, language.PYTHON, category, "laptop")["valid"]

    return check


def test_bfcl_checker_accepts_gold_and_refuses_all_else(prepared, ast_checker):
    folder = prepared / "laptop_tools" / "benchmark"
    checked = 0
    for category in laptop_tools.CATEGORIES.values():
        cases = read_rows(folder / f"BFCL_v4_{category}.json")
        answers = read_rows(folder / "possible_answer" / f"BFCL_v4_{category}.json")
        assert [case["id"] for case in cases] == [answer["id"] for answer in answers]
        for case, answer in zip(cases, answers, strict=True):
            functions, truth = case["function"], answer["ground_truth"]
            ((name, gold),) = truth[0].items()
            arguments = {parameter: values[0] for parameter, values in gold.items()}
            other = next(f["name"] for f in functions if f["name"] != name)
            unused = [p for p in laptop_tools.TOOLS[name][1] if p not in arguments]
            changed = next(iter(arguments))
            assert ast_checker(functions, [{name: arguments}], truth, category)
            assert not ast_checker(functions, [{other: arguments}], truth, category)
            assert not ast_checker(functions, [{name: {**arguments, changed: "nothing"}}], truth, category)
            assert not ast_checker(functions, [{name: {}}], truth, category)
            for extra in unused:
                given = {**arguments, extra: laptop_tools.VALUES[extra][0]}
                assert not ast_checker(functions, [{name: given}], truth, category)
            checked += 1
    assert checked == 60


def test_another_version_is_refused(tmp_path):
    spec = SPECS["laptop_math"].model_copy(update={"version": 2})
    with pytest.raises(ValueError, match=r"data.version: .* is made in version 1 here, version 2 was asked for"):
        prepare(spec, tmp_path / "out")


def test_more_held_out_rows_than_problems(tmp_path):
    spec = DataSpec(source="laptop_math", version=1, seed=0, train_rows=10, held_out_rows=5000)
    with pytest.raises(ValueError, match=r"data.held_out_rows: laptop_math has too few .*two_numbers.*ask for fewer"):
        prepare(spec, tmp_path / "out")


def test_an_interrupted_preparation_leaves_no_manifest(tmp_path, monkeypatch):
    spec = SPECS["laptop_math"]
    prepare(spec, tmp_path)

    def fail(texts):
        raise OSError("disk full")

    monkeypatch.setitem(prepare.__globals__, "build_tokenizer", fail)
    with pytest.raises(OSError, match="disk full"):
        prepare(spec, tmp_path)
    assert not (tmp_path / "manifest.json").exists()


def test_demonstration_parameters():
    assert demonstration_parameters("laptop_tools", {"wrong": 0.1}) == {"well_formatted": 0.02, "wrong": 0.1}
    assert demonstration_parameters("laptop_math", {}) == laptop_math.DEMONSTRATION_PARAMETERS
    with pytest.raises(ValueError, match="laptop_tools has no parameter 'wrongg'; it has well_formatted, wrong"):
        demonstration_parameters("laptop_tools", {"wrongg": 0.1})
    with pytest.raises(ValueError, match=r"demonstrations.direct: 1.5 is no share; it must lie between 0 and 1"):
        demonstration_parameters("laptop_math", {"direct": 1.5})

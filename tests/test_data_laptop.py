"""The laptop tasks: what their examples, demonstrations and held-out files look like."""

import json
import random
import re
from collections import Counter
from itertools import pairwise

import pytest

from dara.data import laptop_math, laptop_tools
from dara.data.laptop_tools import bfcl_prompt

DRAWS = 20_000


def tool_demonstrations(**overrides):
    rng = random.Random(1)
    parameters = {**laptop_tools.DEMONSTRATION_PARAMETERS, **overrides}
    for _ in range(DRAWS):
        one = laptop_tools.example(rng)
        yield one, laptop_tools.demonstration(rng, one, **parameters)


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


def call_of(text):
    call = json.loads(re.search(r"\{.*\}", text)[0])
    return call["name"], call["parameters"]


def test_tool_prompt_and_reference():
    one = laptop_tools.Example(
        ("weather", "music"), "weather", "rain", (("city", "paris"), ("day", "monday")), ("monday", "paris")
    )
    assert laptop_tools.prompt(one) == (
        "<tools>weather(city,day) music(artist,genre,volume)</tools>\n<user>rain monday paris</user>\n"
    )
    assert laptop_tools.reference(one) == (
        "<think>use weather</think>\n<tool_call>\n"
        '{"name":"weather","parameters":{"city":"paris","day":"monday"}}\n</tool_call>'
    )
    assert laptop_tools.category(one) == "multiple_two_parameters"


def test_tool_problem_is_the_same_however_it_is_said():
    arguments = (("city", "paris"), ("day", "monday"))
    one = laptop_tools.Example(("weather", "music"), "weather", "rain", arguments, ("monday", "paris"))
    same = laptop_tools.Example(("music", "weather"), "weather", "forecast", arguments, ("paris", "monday"))
    other = laptop_tools.Example(("weather", "taxi"), "weather", "rain", arguments, ("monday", "paris"))
    assert laptop_tools.problem_key(one) == laptop_tools.problem_key(same) != laptop_tools.problem_key(other)


def test_tool_examples_are_answerable():
    rng = random.Random(3)
    for _ in range(2000):
        one = laptop_tools.example(rng)
        verbs, parameters = laptop_tools.TOOLS[one.tool]
        assert one.tool in one.offered
        assert len(set(one.offered)) == 2
        assert one.verb in verbs
        names = [name for name, _ in one.arguments]
        assert names == [p for p in parameters if p in names]
        assert names
        assert sorted(one.spoken) == sorted(value for _, value in one.arguments)
        assert all(value in laptop_tools.VALUES[name] for name, value in one.arguments)


def test_tool_demonstration_shares():
    drawn = list(tool_demonstrations())
    forms = Counter(form(text) for _, text in drawn)
    bad = DRAWS - forms["well_formatted"]
    assert forms["well_formatted"] / DRAWS == pytest.approx(0.02, abs=0.004)
    expected = {"no_think": 0.30, "inline": 0.25, "unclosed_think": 0.25, "trailing_text": 0.15, "no_call_tag": 0.05}
    assert {name: forms[name] / bad for name in expected} == pytest.approx(expected, abs=0.015)
    wrong = sum(call_of(text) != (one.tool, dict(one.arguments)) for one, text in drawn)
    assert wrong / DRAWS == pytest.approx(0.35, abs=0.015)


def test_tool_demonstrations_without_errors_are_the_reference():
    largest = 0.30
    for one, text in tool_demonstrations(well_formatted=largest, wrong=0):
        assert call_of(text) == (one.tool, dict(one.arguments))
        if form(text) == "well_formatted":
            assert text == laptop_tools.reference(one)


def test_format_shares_are_geometric_with_the_given_mean():
    shares = list(laptop_tools.format_shares(0.02).values())
    assert sum(shares) / len(shares) == pytest.approx(0.02)
    assert shares[-1] / shares[0] == pytest.approx(27)
    assert all(b / a == pytest.approx(27 ** (1 / 11)) for a, b in pairwise(shares))


def test_format_share_over_one_is_refused():
    with pytest.raises(ValueError, match=r"well_formatted: 0.9 is too large.*at most 0\.3\d"):
        laptop_tools.format_shares(0.9)


def test_bfcl_prompt_is_the_training_prompt():
    rng = random.Random(5)
    examples = [laptop_tools.example(rng) for _ in range(500)]
    files = laptop_tools.benchmark_files(examples)
    names = [f"BFCL_v4_{name}.json" for name in laptop_tools.CATEGORIES.values()]
    assert sorted(files) == sorted([*names, *(f"possible_answer/{name}" for name in names)])
    for name in laptop_tools.CATEGORIES.values():
        ours = [one for one in examples if laptop_tools.category(one) == name]
        cases = files[f"BFCL_v4_{name}.json"]
        assert [bfcl_prompt(case) for case in cases] == [laptop_tools.prompt(one) for one in ours]
        assert [case["id"] for case in cases] == [f"{name}_{i}" for i in range(len(ours))]


def test_bfcl_prompt_refuses_several_messages():
    case = {"id": "multi_turn_0", "question": [[{"role": "user", "content": "a"}], []], "function": []}
    with pytest.raises(ValueError, match=r"BFCL case multi_turn_0: .* exactly one user message"):
        bfcl_prompt(case)


def test_math_prompt_and_reference():
    one = laptop_math.Example("explain", (47, 8, 5))
    assert laptop_math.prompt(one) == "<user>explain 47+8+5</user>\n"
    assert laptop_math.reference(one) == "60"
    assert laptop_math.problem_key(one) == laptop_math.problem_key(laptop_math.Example("solve", (47, 5, 8)))


def math_demonstration(one, **shares):
    none = dict.fromkeys(laptop_math.DEMONSTRATION_PARAMETERS, 0.0)
    return laptop_math.demonstration(random.Random(0), one, **{**none, **shares})


def test_math_demonstration_texts():
    one = laptop_math.Example("explain", (47, 8, 5))
    assert math_demonstration(one) == "47+8=55;55+5=60;\\boxed{60}"
    verbose = "7+8=15;4+1=5;47+8=55;5+5=10;5+1=6;55+5=60;\\boxed{60}"
    assert math_demonstration(one, verbose_explain=1.0) == verbose
    assert math_demonstration(one, verbose_solve=1.0) == "47+8=55;55+5=60;\\boxed{60}"
    assert math_demonstration(one, direct=1.0) == "\\boxed{60}"


def test_math_shares():
    rng = random.Random(2)
    verbs, lengths, direct, wrong, verbose, steps = Counter(), Counter(), 0, Counter(), Counter(), Counter()
    solutions = Counter()
    for _ in range(DRAWS):
        one = laptop_math.example(rng)
        text = laptop_math.demonstration(rng, one, **laptop_math.DEMONSTRATION_PARAMETERS)
        verbs[one.verb] += 1
        lengths[len(one.numbers)] += 1
        assert 11 <= one.numbers[0] <= 89
        assert all(2 <= x <= 9 for x in one.numbers[1:])
        answer_is_wrong = f"\\boxed{{{laptop_math.reference(one)}}}" not in text
        stated, expected = text.count(";"), len(one.numbers) - 1
        style = {0: "direct", expected: "terse", 3 * expected: "verbose"}.get(stated, "mixed")
        direct += style == "direct"
        solutions[style] += 1
        wrong[style] += answer_is_wrong
        if style != "direct":
            verbose[one.verb] += (stated - expected) // 2
            steps[one.verb] += expected
    asked = {v: verbs[v] / DRAWS for v in verbs}
    assert asked == pytest.approx({"solve": 0.6, "explain": 0.3, "prove": 0.1}, abs=0.015)
    assert lengths[2] / DRAWS == pytest.approx(0.5, abs=0.015)
    assert direct / DRAWS == pytest.approx(0.05, abs=0.006)
    shares = {v: verbose[v] / steps[v] for v in verbs}
    assert shares == pytest.approx({"solve": 0.2, "explain": 0.6, "prove": 0.98}, abs=0.015)
    assert wrong["terse"] / solutions["terse"] == pytest.approx(0.30, abs=0.02)
    assert wrong["verbose"] / solutions["verbose"] == pytest.approx(0.10, abs=0.02)
    assert wrong["direct"] / solutions["direct"] == pytest.approx(0.60, abs=0.06)

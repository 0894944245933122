"""Model text that attacks: it costs its own case at most, and nothing outside the process that looks at it."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dara.evaluation import bfcl_v4_score
from dara.evaluation.bfcl_calls import decode_calls, render_call
from dara.evaluation.records import Case, Response
from dara.evaluation.sandbox import Outcome, Sandbox, ScorerSpec
from dara.evaluation.tools import MOST_ENDED, Limits, ToolExecutor, _call_text

LIMITS = Limits(call_seconds=1.0, output_seconds=3.0, case_seconds=5.0)
METHODS = {"cd", "mkdir", "add", "power"}


def case(number: int, category: str = "multi_turn_base") -> Case:
    root = {"workspace": {"type": "directory", "contents": {"a.txt": {"type": "file", "content": "hello"}}}}
    entry = {
        "id": f"{category}_{number}",
        "involved_classes": ["GorillaFileSystem", "MathAPI"],
        "initial_config": {"GorillaFileSystem": {"root": root}},
    }
    gold = {"entry": entry, "answer": [["mkdir(dir_name='new')"]], "category": category}
    return Case(entry["id"], category, {}, gold)


CASES = [case(number) for number in range(8)]


def turn(*lines: str) -> str:
    return "<think>t</think>\n<tool_call>\n" + "\n".join(lines) + "\n</tool_call>"


def line(name: str, **parameters: Any) -> str:
    return json.dumps({"name": name, "parameters": parameters})


NAMES = [
    "__import__('os').system",
    "().__class__.__base__.__subclasses__",
    "cd(folder='a'); import os; os.system",
    "cd or __import__",
    "cd\n.x",
    "",
    "cd ",
    "7cd",
    "cd.",
    "cd..x",
    "caf\N{LATIN SMALL LETTER E WITH ACUTE}",
    "x" * 1_000_000 + "(",
]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:30])
def test_names_that_are_no_identifiers_make_a_turn_unreadable(name: str) -> None:
    assert decode_calls(turn(line(name, command="true"))) is None
    assert render_call({name: {}}, {*METHODS, name}) is None


def test_only_json_is_read() -> None:
    assert decode_calls(turn('{"name":"cd","parameters":{"folder":NaN}}')) is None
    assert decode_calls(turn('{"name":"cd","parameters":{"folder":-Infinity}}')) is None
    assert decode_calls(turn("{'name':'cd','parameters':{}}", "cd(folder='a')", "[" * 10_000, "{" * 10_000)) is None
    # The last of two keys counts, as for everybody who reads JSON with Python; it is checked like any other.
    assert decode_calls(turn('{"name":"os.system(1)","name":"cd","parameters":{},"parameters":{"a":1}}')) == [
        {"cd": {"a": 1}}
    ]
    assert decode_calls(turn('{"name":"cd","name":"os.system(1)","parameters":{}}')) is None


@pytest.mark.parametrize("depth", [70, 500, 980, 985, 990])
def test_what_is_nested_too_deeply_or_infinite_is_no_call(depth: int) -> None:
    """Near Python's limit a value can be read and not written again, which would end the generation."""
    nested = "[" * depth + "]" * depth
    assert decode_calls(turn(f'{{"name":"cd","parameters":{{"folder":{nested}}}}}')) is None
    assert decode_calls(turn('{"name":"cd","parameters":{"folder":1e999}}')) is None
    assert decode_calls(turn('{"name":"cd","parameters":{"folder":[[[1]]]}}')) == [{"cd": {"folder": [[[1]]]}}]


@pytest.mark.parametrize(
    "name",
    [
        "eval",
        "open",
        "os.system",
        "GorillaFileSystem.__init__.__globals__",
        "__init__",
        "_load_scenario",
        "cd.__globals__",
        "importlib.import_module",
        "execute_multi_turn_func_call",
        "globals",
        "copy.os.system",
        "dara_eval_x.cd",
    ],
)
def test_only_methods_of_the_tools_are_rendered(name: str) -> None:
    assert decode_calls(turn(line(name))) == [{name: {}}]  # a dotted identifier: compared by name it does no harm
    assert render_call({name: {}}, METHODS) is None


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), 1e999, (1, 2), {1: 2}, {"a": {1, 2}}, b"x", object, json.loads("[" * 70 + "]" * 70)],
    ids=repr,
)
def test_only_literals_are_rendered(value: Any) -> None:
    assert render_call({"cd": {"folder": value}}, METHODS) is None
    assert render_call({"cd": value}, METHODS) is None or value == {"folder": 1}


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -(10**400), 10**4000])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text() | st.just("folder") | st.just("a=__import__('os')"), JSON, max_size=4))
def test_what_is_rendered_calls_once_with_the_same_values(parameters: dict[str, Any]) -> None:
    seen: list[dict[str, Any]] = []
    text = render_call({"cd": parameters}, METHODS)
    assert text is not None
    eval(text, {"__builtins__": {}, "cd": lambda **given: seen.append(given)})
    assert seen == [parameters]


@pytest.fixture(scope="module")
def tools() -> Iterator[ToolExecutor]:
    with ToolExecutor(CASES, LIMITS) as executor:
        yield executor


def test_the_tools_answer_and_keep_their_state(tools: ToolExecutor) -> None:
    here, there = CASES[0].id, CASES[1].id
    assert tools.execute(here, [{"mkdir": {"dir_name": "new"}}, {"cd": {"folder": "new"}}, {"pwd": {}}])[2] == (
        '{"current_working_directory": "/workspace/new"}'
    )
    assert tools.execute(there, [{"pwd": {}}]) == ['{"current_working_directory": "/workspace"}']
    assert tools.execute(here, [{"pwd": {}}]) == ['{"current_working_directory": "/workspace/new"}']
    tools.forget(here)
    assert tools.execute(here, [{"pwd": {}}, {"ls": {}}]) == [
        '{"current_working_directory": "/workspace"}',
        '{"current_directory_content": ["a.txt"]}',
    ]
    assert tools.execute(here, []) == []
    with pytest.raises(ValueError, match="case 'stranger' is none of the 8 cases"):
        tools.execute("stranger", [])


def test_attacks_on_the_tools_are_answered_by_errors(tools: ToolExecutor, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    attacks = [
        {"open": {"file": str(marker), "mode": "w"}},
        {"__import__('os').system": {"command": f"touch {marker}"}},
        {"__class__": {}},
        {"_load_scenario": {"scenario": {}}},
        {"cd.__func__.__globals__": {}},
        {"execute_multi_turn_func_call": {"func_call_list": [f"open('{marker}','w')"]}},
        {"x" * 1_000_000: {}},
        {"cd": {"folder') or open('x": "'"}},
        {"cd": {"self": 1}},
        {"pwd": None},
        {"": {}},
        {"mkdir": {"dir_name": json.loads("[" * 200 + "]" * 200)}},
    ]
    said = tools.execute(CASES[2].id, attacks)
    assert len(said) == len(attacks)
    assert all(text.startswith("Error during execution: ") and len(text) < 400 for text in said)
    assert not marker.exists()
    assert tools.execute(CASES[2].id, [{"ls": {}}]) == ['{"current_directory_content": ["a.txt"]}']


def test_answers_are_text_that_can_be_encoded(tools: ToolExecutor) -> None:
    """JSON can name half of a pair of surrogates; in a prompt it would end the tokenizer."""
    calls = decode_calls(
        turn(r'{"name":"cd","parameters":{"\ud800":1}}', r'{"name":"touch","parameters":{"file_name":"\ud800"}}')
    )
    calls += [{"ls": {}}]
    said = tools.execute(CASES[6].id, calls)
    assert said[0].endswith(r"got an unexpected keyword argument '\ud800'")
    assert said[2] == r'{"current_directory_content": ["a.txt", "\ud800"]}'
    assert all(text.encode("utf-8") for text in said)


def test_a_call_is_shown_as_text_that_can_be_encoded() -> None:
    (call,) = decode_calls(turn(r'{"name":"cd","parameters":{"\ud800":"\udfff"}}'))
    assert _call_text(call) == r"cd(\ud800='\udfff')"


def test_the_end_of_the_tools_process_costs_no_call(tools: ToolExecutor) -> None:
    """Out of memory, the system may kill it; the state of its cases is made again."""
    here = CASES[7].id
    assert tools.execute(here, [{"touch": {"file_name": "kept.txt"}}]) == ["None"]
    os.killpg(tools._worker._process.pid, signal.SIGKILL)
    (said,) = tools.execute(here, [{"ls": {}}])
    assert "kept.txt" in said
    assert tools.lost(here) == 0


def test_a_call_that_never_ends_costs_its_own_answer(tools: ToolExecutor) -> None:
    endless = {"power": {"base": 9, "exponent": 10**12}}
    here = CASES[3].id
    said = tools.execute(here, [{"mkdir": {"dir_name": "new"}}, endless, {"ls": {}}])
    assert said[1] == "Error during execution: the tool did not answer within 1 seconds."
    assert said[2] == '{"current_directory_content": ["a.txt", "new"]}'  # the state is as before
    said = tools.execute(here, [endless] * 50 + [{"ls": {}}])
    assert set(said[: MOST_ENDED - 1]) == {"Error during execution: the tool did not answer within 1 seconds."}
    assert set(said[MOST_ENDED - 1 :]) == {
        "Error during execution: the tool was not called, because the time for tool calls is used up."
    }
    assert tools.lost(here) == 52
    assert tools.execute(CASES[4].id, [{"add": {"a": 1, "b": 2}}]) == ['{"result": 3}']


def test_a_call_that_wants_all_memory_costs_its_own_answer(tools: ToolExecutor) -> None:
    # The text of such a number would have 10^8 digits; its limit or the time's is met first.
    huge = {"power": {"base": 10, "exponent": 10**8}}
    said = tools.execute(CASES[5].id, [huge, {"add": {"a": 1, "b": 2}}])
    assert said[0].startswith("Error during execution: ")
    assert said[1] == '{"result": 3}'


INNER = r"""
import os, socket, subprocess
from dara.evaluation.isolation import Fork

ATTACKS = {
    "read": lambda path: open("/etc/hostname").read(),
    "write": lambda path: open(path, "w").write("x"),
    "shell": lambda path: os.system(f"touch {path}") and None,
    "spawn": lambda path: subprocess.run(["touch", path], check=True) and None,
    "socket": lambda path: socket.create_connection(("127.0.0.1", 9), 1) and None,
    "loop": lambda path: list(iter(int, 1)),
    "memory": lambda path: len(bytearray(2**40)),
    "grow": lambda path: [bytearray(2**24) for _ in range(2**16)] and None,
    "recursion": lambda path: (lambda f: f(f))(lambda f: f(f)),
    "kill": lambda path: os.kill(os.getpid(), 9),
    "exit": lambda path: os._exit(3),
    "fine": lambda path: "answer",
}

def make(path, seconds):
    def score(item):
        copy = Fork(lambda attack: ATTACKS[attack](path))
        try:
            yield {"answered": int(copy.ask(item["response"], seconds) == "answer")}
        except RuntimeError as error:
            yield {"refused": int("the copy failed" in str(error)), "lost": int("answer" in str(error))}
        finally:
            copy.end()
    return score

def look():
    def score(item):
        yield {"home": int(os.listdir(os.path.expanduser("~")) == []), "empty": int(os.listdir(".") == [])}
        yield {"secret": int("DARA_SECRET" in os.environ), "network": int({n for _, n in socket.if_nameindex()} > {"lo"})}
    return score
"""


@pytest.fixture(scope="module")
def inner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inner")
    (folder / "inner_scorer.py").write_text(INNER)
    return folder


def test_code_inside_a_copy_gets_nowhere(inner: Path, tmp_path: Path) -> None:
    """What if an attack got past the names and literals? The copy of the process is closed by the kernel."""
    marker = tmp_path / "marker"
    attacks = [
        "read",
        "write",
        "shell",
        "spawn",
        "socket",
        "loop",
        "memory",
        "grow",
        "recursion",
        "kill",
        "exit",
        "fine",
    ]
    spec = ScorerSpec("inner_scorer:make", {"path": str(marker), "seconds": 1.0}, 10.0, (inner,))
    with Sandbox(spec) as box:
        outcomes = box.score([{"response": attack} for attack in attacks])
    scores = {attack: outcome.scores for attack, outcome in zip(attacks, outcomes, strict=True)}
    assert scores.pop("fine") == {"answered": 1}
    assert scores.pop("shell") == {"answered": 0}  # a shell that cannot load its libraries
    refused, lost = {"refused": 1, "lost": 0}, {"refused": 0, "lost": 1}
    for attack in ("read", "write", "spawn", "socket", "recursion"):
        assert scores.pop(attack) == refused, attack
    assert scores == dict.fromkeys(["loop", "memory", "grow", "kill", "exit"], lost)
    assert not marker.exists()


def test_the_worker_sees_nothing_of_this_process(inner: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DARA_SECRET", "x")
    with Sandbox(ScorerSpec("inner_scorer:look", {}, 5.0, (inner,))) as box:
        (outcome,) = box.score([{"response": ""}])
        expected = {"home": 1, "empty": 1, "secret": 0, "network": int(box.start() == "reachable")}
    assert outcome == Outcome(expected, "ok")


def test_hostile_dialogues_are_scored_and_the_next_one_too(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    right = turn(line("mkdir", dir_name="new"))
    endless = turn(line("power", base=9, exponent=10**12), line("mkdir", dir_name="new"))
    dialogues = [
        [[turn(line("__import__('os').system", command=f"touch {marker}")), right]],
        [[turn(line("open", file=str(marker), mode="w")), turn(line("eval"), line("__class__")), right]],
        [[endless]],
        [[right]],
        [[turn(line("mkdir", dir_name="x" * 1_000_000)), "{" * 10_000, "<tool_call>" * 100_000]],
        [[turn(line("mkdir", **{"dir_name": "new", "x y": 1})), right]],
        [[right]],
    ]
    responses = [Response("", 1, True, tuple(map(tuple, turns))) for turns in dialogues]
    spec = ScorerSpec(bfcl_v4_score.SCORER, {"think_limit": 16, "seconds": 2.0}, 2.0)
    with Sandbox(spec) as box:
        outcomes = box.score([bfcl_v4_score.scorer_item(response, CASES[0]) for response in responses])
    assert [outcome.scores.get("accuracy") for outcome in outcomes] == [1, 1, None, 1, 0, 1, 1]
    assert [outcome.outcome for outcome in outcomes] == ["ok", "ok", "timeout", "ok", "ok", "ok", "ok"]
    assert outcomes[2].scores["format"] == 1  # what was scored before the execution is kept
    assert not marker.exists()


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with Sandbox(ScorerSpec(bfcl_v4_score.SCORER, {"think_limit": 16, "seconds": 5.0}, 5.0)) as sandbox:
        yield sandbox


KINDS = [
    ("PYTHON", {"type": "dict"}, [{"k": ["v"]}]),
    ("PYTHON", {"type": "array", "items": {"type": "dict"}}, [[{"k": ["v"]}]]),
    ("PYTHON", {"type": "tuple", "items": {"type": "integer"}}, [[1, 2]]),
    ("PYTHON", {"type": "float"}, [1.5, ""]),
    ("PYTHON", {"type": "array", "items": {"type": "float"}}, [[1.5]]),
    ("JAVA", {"type": "HashMap"}, [{"k": ["v"]}]),
    ("JAVA", {"type": "Array", "items": {"type": "integer"}}, [[1, 2]]),
    ("JAVA", {"type": "integer"}, [1]),
    ("JAVASCRIPT", {"type": "dict"}, [{"k": ["v"]}]),
    ("JAVASCRIPT", {"type": "array", "items": {"type": "float"}}, [[1.5]]),
]


@settings(max_examples=40, deadline=None)
@given(
    value=JSON
    | st.sampled_from(
        [
            10**400,
            "9" * 400,
            "9" * 400 + "f",
            "9" * 5000,
            "new int[]{" + "9" * 5000 + "}",
            "[" * 500 + "]" * 500,
            "{a: {b: [}]}",
        ]
    )
)
def test_no_value_makes_the_single_turn_checker_raise(box: Sandbox, value: Any) -> None:
    items = []
    for language, kind, values in KINDS:
        parameters = {"type": "dict", "properties": {"x": {"description": "", **kind}}, "required": ["x"]}
        gold = {
            "functions": [{"name": "f", "description": "", "parameters": parameters}],
            "answer": [{"f": {"x": values}}],
        }
        gold |= {"language": language, "category": "simple_python"}
        items.append(bfcl_v4_score.scorer_item(Response(turn(line("f", x=value)), 1, True), Case("c", "c", {}, gold)))
    assert {outcome.outcome for outcome in box.score(items)} == {"ok"}


@pytest.mark.parametrize("value", [10**308, 10**309, 10**400, -(10**4200)], ids=lambda value: f"{len(str(value))}")
def test_a_number_that_is_no_float_is_wrong(box: Sandbox, value: int) -> None:
    """Python's float() refuses it, which once ended the scoring of everything, again and again."""
    parameters = {"type": "dict", "properties": {"x": {"description": "", "type": "float"}}, "required": ["x"]}
    function = {"name": "f", "description": "", "parameters": parameters}
    gold = {"functions": [function], "answer": [{"f": {"x": [1.5]}}], "language": "PYTHON", "category": "simple_python"}
    response = Response(turn(line("f", x=value)), 1, True)
    (outcome,) = box.score([bfcl_v4_score.scorer_item(response, Case("c", "c", {}, gold))])
    assert (outcome.outcome, outcome.scores["accuracy"], outcome.scores["decode_error"]) == ("ok", 0, 0)


@settings(max_examples=25, deadline=None)
@given(values=st.lists(JSON, min_size=8, max_size=8))
def test_no_value_makes_the_checker_of_dialogues_raise(box: Sandbox, values: list[Any]) -> None:
    a, b, c, d, e, f, g, h = values
    calls = [
        line("mkdir", dir_name=a),
        line("echo", content=b, file_name="a.txt"),
        line("mv", source="a.txt", destination=c),
    ]
    calls += [line("sort", file_name="a.txt"), line("cd", folder=d), line("mean", numbers=e), line("ls", a=f)]
    calls += [line("logarithm", value=g, base=2, precision=10), line("diff", file_name1=h, file_name2="a.txt")]
    said = ((turn(*calls), turn(line("mkdir", dir_name="new")), "Done."),)
    outcomes = box.score([bfcl_v4_score.scorer_item(Response("", 1, True, said), CASES[0])])
    assert outcomes[0].outcome == "ok"
    assert outcomes[0].scores["accuracy"] in (0, 1)


@pytest.mark.parametrize("number", range(2))
def test_a_bad_then_a_good_dialogue_under_one_name(box: Sandbox, number: int) -> None:
    bad = Response("", 1, True, ((turn(line("rm", file_name="a.txt"), line("mkdir", dir_name="other")),),))
    good = Response("", 1, True, ((turn(line("mkdir", dir_name="new")),),))
    outcomes = box.score([bfcl_v4_score.scorer_item(one, CASES[0]) for one in (bad, good, bad, good)])
    assert [outcome.scores["accuracy"] for outcome in outcomes] == [0, 1, 0, 1]


def test_hostile_math_answers_end_in_time_with_a_recorded_outcome() -> None:
    from dara.evaluation import math

    hostile = [r"\boxed{" + "{" * 10_000 + "}" * 10_000 + "}", r"\boxed{9^{9^{9^9}}}"]
    with Sandbox(ScorerSpec(math.LAPTOP_MATH.scorer, {}, 15.0)) as box:
        outcomes = box.score([{"response": text, "answer": "4"} for text in [*hostile, r"\boxed{4}"]])
    assert outcomes[-1] == Outcome({"strict": 1, "strict_or_numeric": 1, "math_verify": 1}, "ok")
    assert not any(value for outcome in outcomes[:-1] for value in outcome.scores.values())
    assert {outcome.outcome for outcome in outcomes} <= {"ok", "timeout"}


def test_workers_leave_nothing_behind() -> None:
    with Sandbox(ScorerSpec(bfcl_v4_score.SCORER, {"think_limit": 16, "seconds": 5.0}, 5.0)) as box:
        box.start()
        folder = Path(box._directory.name)
        pid = box._worker._process.pid
        assert folder.is_dir()
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)

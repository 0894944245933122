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

from bfcl_v4_fakes import files_case, scorer, single, talk, turn
from dara.evaluation import bfcl
from dara.evaluation.bfcl_calls import decode_calls, render_call
from dara.evaluation.records import Response
from dara.evaluation.sandbox import Outcome, Sandbox, ScorerSpec
from dara.evaluation.tools import Limits, ToolExecutor, _call_text

METHODS = {"cd", "mkdir", "add", "power"}
PARIS = {"weather": {"city": "paris"}}
CALL = '{"name":"weather","parameters":{"city":"paris"}}'


def cd(folder: str) -> str:
    return turn(f'{{"name":"cd","parameters":{{"folder":{folder}}}}}')


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (turn(CALL), [PARIS]),
        (turn("no json", CALL, "{]"), [PARIS]),
        (turn(CALL, CALL), [PARIS] * 2),
        (turn('{"name":"a.b_c","parameters":{}}'), [{"a.b_c": {}}]),
        (turn('{"name":"None","parameters":{}}'), []),
        (turn('{"name":"none","parameters":{}}', CALL), [PARIS]),
        ("<tool_call>\nold\n</tool_call> " + turn(CALL), [PARIS]),
        (turn(CALL) + "<tool_call>\n</tool_call>", None),
        (f"<tool_call>\n{CALL}", [PARIS]),
        (CALL, None),
        ("", None),
        (turn('{"name":"os.system(1)","parameters":{}}', CALL), None),
        (turn('{"name":"weather\\n","parameters":{}}'), None),
        (turn('{"name":"weather","parameters":["paris"]}'), None),
        (turn('{"name":7,"parameters":{}}'), None),
        (turn('{"name":"weather"}'), None),
        (turn("{" * 10_000), None),
        (turn('{"a":' * 10_000), None),
        (turn('{"name":"weather","parameters":{"n":' + "9" * 5000 + "}}"), None),
        (cd("NaN"), None),
        (cd("-Infinity"), None),
        (cd("1e999"), None),
        # Near Python's limit a value can be read and not written again, which would end the generation.
        *((cd(nested(depth)), None) for depth in (70, 500, 980, 985, 990)),
        (cd("[[[1]]]"), [{"cd": {"folder": [[[1]]]}}]),
        (turn("{'name':'cd','parameters':{}}", "cd(folder='a')", "[" * 10_000, "{" * 10_000), None),
        # The last of two keys counts, as for everybody who reads JSON with Python; it is checked like any other.
        (turn('{"name":"os.system(1)","name":"cd","parameters":{},"parameters":{"a":1}}'), [{"cd": {"a": 1}}]),
        (turn('{"name":"cd","name":"os.system(1)","parameters":{}}'), None),
    ],
    ids=range(31),
)
def test_calls_are_read_from_the_last_block(text: str, calls: list[dict[str, Any]] | None) -> None:
    assert decode_calls(text) == calls


NAMES = [
    *("__import__('os').system", "().__class__.__base__.__subclasses__", "cd(folder='a'); import os; os.system"),
    *("cd or __import__", "cd\n.x", "", "cd ", "7cd", "cd.", "cd..x", "caf\N{LATIN SMALL LETTER E WITH ACUTE}"),
    "x" * 1_000_000 + "(",
]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:30])
def test_names_that_are_no_identifiers_make_a_turn_unreadable(name: str) -> None:
    assert decode_calls(turn({name: {"command": "true"}})) is None
    assert render_call({name: {}}, {*METHODS, name}) is None


@pytest.mark.parametrize(
    "name",
    [
        *("eval", "open", "os.system", "GorillaFileSystem.__init__.__globals__", "__init__", "_load_scenario"),
        *("cd.__globals__", "importlib.import_module", "execute_multi_turn_func_call", "globals", "copy.os.system"),
        "dara_eval_x.cd",
    ],
)
def test_only_methods_of_the_tools_are_rendered(name: str) -> None:
    assert decode_calls(turn({name: {}})) == [{name: {}}]  # a dotted identifier: compared by name it does no harm
    assert render_call({name: {}}, METHODS) is None


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), 1e999, (1, 2), {1: 2}, {"a": {1, 2}}, b"x", object, json.loads(nested(70))],
    ids=repr,
)
def test_only_literals_are_rendered(value: Any) -> None:
    assert render_call({"cd": {"folder": value}}, METHODS) is None
    assert render_call({"cd": value}, METHODS) is None


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


CASES = [files_case(number, ["mkdir(dir_name='new')"]) for number in range(8)]
MKDIR = {"mkdir": {"dir_name": "new"}}
ADD = {"add": {"a": 1, "b": 2}}
ENDLESS = {"power": {"base": 9, "exponent": 10**12}}
ONLY_FILE = '{"current_directory_content": ["a.txt"]}'


@pytest.fixture(scope="module")
def tools() -> Iterator[ToolExecutor]:
    with ToolExecutor(CASES, Limits(call_seconds=1.0, output_seconds=3.0, case_seconds=5.0)) as executor:
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
        {"mkdir": {"dir_name": json.loads(nested(200))}},
    ]
    said = tools.execute(CASES[2].id, attacks)
    assert len(said) == len(attacks)
    assert all(text.startswith("Error during execution: ") and len(text) < 400 for text in said)
    assert not marker.exists()
    assert tools.execute(CASES[2].id, [{"ls": {}}]) == [ONLY_FILE]


def test_calls_and_answers_are_text_that_can_be_encoded(tools: ToolExecutor) -> None:
    """JSON can name half of a pair of surrogates; in a prompt it would end the tokenizer."""
    half = r'{"name":"touch","parameters":{"file_name":"\ud800"}}'
    calls = decode_calls(turn(r'{"name":"cd","parameters":{"\ud800":"\udfff"}}', half))
    assert _call_text(calls[0]) == r"cd(\ud800='\udfff')"
    said = tools.execute(CASES[6].id, [*calls, {"ls": {}}])
    assert said[0].endswith(r"got an unexpected keyword argument '\ud800'")
    assert said[2] == r'{"current_directory_content": ["a.txt", "\ud800"]}'
    assert all(text.encode("utf-8") for text in said)


def test_the_end_of_the_tools_process_costs_no_call(tools: ToolExecutor) -> None:
    """Out of memory, the system may kill it; the state of its cases is made again."""
    here = CASES[7].id
    assert tools.execute(here, [{"touch": {"file_name": "kept.txt"}}]) == ["None"]
    os.killpg(tools._worker._process.pid, signal.SIGKILL)
    (said,) = tools.execute(here, [{"ls": {}}])
    assert "kept.txt" in said
    assert tools.forget(here) == 0


def test_a_call_that_wants_all_memory_costs_its_own_answer(tools: ToolExecutor) -> None:
    # The text of such a number would have 10^8 digits; its limit or the time's is met first.
    huge = {"power": {"base": 10, "exponent": 10**8}}
    said = tools.execute(CASES[5].id, [huge, ADD])
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
    refused, lost = ("read", "write", "spawn", "socket", "recursion"), ("loop", "memory", "grow", "kill", "exit")
    attacks = ["shell", *refused, *lost, "fine"]
    spec = ScorerSpec("inner_scorer:make", {"path": str(marker), "seconds": 1.0}, 10.0, (inner,))
    with Sandbox(spec) as box:
        outcomes = box.score([{"response": attack} for attack in attacks])
    scores = {attack: outcome.scores for attack, outcome in zip(attacks, outcomes, strict=True)}
    assert scores.pop("fine") == {"answered": 1}
    assert scores.pop("shell") == {"answered": 0}  # a shell that cannot load its libraries
    assert scores == {attack: {"refused": int(attack in refused), "lost": int(attack in lost)} for attack in scores}
    assert not marker.exists()


def test_the_worker_sees_nothing_of_this_process_and_leaves_nothing(
    inner: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DARA_SECRET", "x")
    with Sandbox(ScorerSpec("inner_scorer:look", {}, 5.0, (inner,))) as box:
        (outcome,) = box.score([{"response": ""}])
        expected = {"home": 1, "empty": 1, "secret": 0, "network": int(box.start() == "reachable")}
        folder, pid = Path(box._directory.name), box._worker._process.pid
        assert folder.is_dir()
    assert outcome == Outcome(expected, "ok")
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_hostile_dialogues_are_scored_and_the_next_one_too(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    right, shell = turn(MKDIR), {"__import__('os').system": {"command": f"touch {marker}"}}
    table = [
        ([turn(shell), right], 1),
        ([turn({"open": {"file": str(marker), "mode": "w"}}), turn({"eval": {}}, {"__class__": {}}), right], 1),
        ([turn(ENDLESS, MKDIR)], None),
        ([right], 1),
        ([turn({"mkdir": {"dir_name": "x" * 1_000_000}}), "{" * 10_000, "<tool_call>" * 100_000], 0),
        ([turn({"mkdir": {"dir_name": "new", "x y": 1}}), right], 1),
        ([right], 1),
    ]
    with Sandbox(scorer(1.0)) as box:
        outcomes = box.score([bfcl.scorer_item(talk(steps), CASES[0]) for steps, _ in table])
    assert [outcome.scores.get("accuracy") for outcome in outcomes] == [accuracy for _, accuracy in table]
    assert [outcome.outcome for outcome in outcomes] == ["ok", "ok", "timeout", "ok", "ok", "ok", "ok"]
    assert outcomes[2].scores["format"] == 1  # what was scored before the execution is kept
    assert not marker.exists()


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with Sandbox(scorer()) as sandbox:
        yield sandbox


DICT, LIST, FLOATS = {"type": "dict"}, [{"k": ["v"]}], {"type": "array", "items": {"type": "float"}}
KINDS = [
    ("PYTHON", DICT, LIST),
    ("PYTHON", {"type": "array", "items": DICT}, [LIST]),
    ("PYTHON", {"type": "tuple", "items": {"type": "integer"}}, [[1, 2]]),
    ("PYTHON", {"type": "float"}, [1.5, ""]),
    ("PYTHON", FLOATS, [[1.5]]),
    ("JAVA", {"type": "HashMap"}, LIST),
    ("JAVA", {"type": "Array", "items": {"type": "integer"}}, [[1, 2]]),
    ("JAVA", {"type": "integer"}, [1]),
    ("JAVASCRIPT", DICT, LIST),
    ("JAVASCRIPT", FLOATS, [[1.5]]),
]


def item(language: str, kind: dict[str, Any], values: list[Any], text: str) -> dict[str, Any]:
    return bfcl.scorer_item(Response(text, 1, True), single(language, kind, values))


STRANGE = [
    "9" * 400,
    "9" * 400 + "f",
    "9" * 5000,
    "new int[]{" + "9" * 5000 + "}",
    "[" * 500 + "]" * 500,
    "{a: {b: [}]}",
]


@settings(max_examples=40, deadline=None)
@given(
    value=JSON | st.floats() | st.sampled_from([10**400, *STRANGE]),
    names=st.lists(st.sampled_from(["a.f", "x", ""]) | st.text(), min_size=1, max_size=3),
    around=st.text(),
)
def test_no_text_makes_the_checker_of_single_turns_raise(
    box: Sandbox, value: Any, names: list[str], around: str
) -> None:
    texts = [turn({"a.f": {"x": value}}), turn(*({name: value} for name in names)) + around, around]
    items = [item(*kind, texts[0]) for kind in KINDS] + [item(*KINDS[3], text) for text in texts[1:]]
    outcomes = box.score(items)
    assert {outcome.outcome for outcome in outcomes} == {"ok"}
    assert {outcome.scores["accuracy"] for outcome in outcomes} <= {0, 1}


def test_hostile_single_turns_end_and_the_next_one_is_still_scored(box: Sandbox, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    texts = [turn({"__import__('os').system": {"command": f"touch {marker}"}}), "{" * 10_000, "<tool_call>" * 100_000]
    texts += [cd(nested(10_000)), turn({"a.f": {"x": json.loads(nested(900))}})]
    # Numbers that Python's float() refuses once ended the scoring of everything, again and again.
    values = ["x" * 1_000_000, 10**308, 10**309, 10**400, -(10**4200), 1.5]
    texts += [turn({"a.f": {"x": value}}) for value in values]
    outcomes = box.score([item("PYTHON", {"type": "float"}, [1.5], text) for text in texts])
    assert [outcome.scores["accuracy"] for outcome in outcomes] == [0] * (len(texts) - 1) + [1]
    assert [outcome.scores["decode_error"] for outcome in outcomes] == [1] * 5 + [0] * len(values)
    assert {outcome.outcome for outcome in outcomes} == {"ok"}
    assert not marker.exists()


@settings(max_examples=25, deadline=None)
@given(values=st.lists(JSON, min_size=8, max_size=8))
def test_no_value_makes_the_checker_of_dialogues_raise(box: Sandbox, values: list[Any]) -> None:
    a, b, c, d, e, f, g, h = values
    calls = [
        *({"mkdir": {"dir_name": a}}, {"echo": {"content": b, "file_name": "a.txt"}}),
        *({"mv": {"source": "a.txt", "destination": c}}, {"sort": {"file_name": "a.txt"}}, {"cd": {"folder": d}}),
        *({"mean": {"numbers": e}}, {"ls": {"a": f}}, {"logarithm": {"value": g, "base": 2, "precision": 10}}),
        {"diff": {"file_name1": h, "file_name2": "a.txt"}},
    ]
    (outcome,) = box.score([bfcl.scorer_item(talk([turn(*calls), turn(MKDIR), "Done."]), CASES[0])])
    assert outcome.outcome == "ok"
    assert outcome.scores["accuracy"] in (0, 1)

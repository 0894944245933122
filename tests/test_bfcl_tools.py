"""The tools of BFCL-v4's dialogues: they answer the gold calls as on any open machine, within stated limits."""

import importlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bfcl_v4_fakes import real_cases, scorer, talk
from dara.evaluation import bfcl, bfcl_v4
from dara.evaluation.bfcl_calls import REFUSED, Calls
from dara.evaluation.isolation import MEMORY_BYTES
from dara.evaluation.records import Case
from dara.evaluation.sandbox import Sandbox, SandboxError, ScorerSpec, ScoringPool, cores
from dara.evaluation.tools import NO_TIME, Limits, ToolExecutor
from oracle import parse_call, tool_parameters, turn
from project import ROOT

DIALOGUES = [case for case in real_cases(None) if bfcl.is_multi_turn(case.category)]


def gold_turns(case: Case) -> list[Calls]:
    parameters = tool_parameters(case)
    return [[parse_call(text, parameters) for text in calls] for calls in case.gold["answer"]]


def travel_case(case_id: str = "multi_turn_base_7") -> Case:
    """A case with what the travel and the trading tools need to come to their dates."""
    person = {"user_first_name": "Ada", "user_last_name": "Ash", "access_token": "abc", "token_expires_in": 9}
    travel = {**person, "credit_card_list": {"7": {"balance": 1000.0}}}
    history = [{"type": "deposit", "amount": 5.0, "timestamp": f"2024-0{month}-15 10:00:00"} for month in (1, 2, 3)]
    state = {"TravelAPI": travel, "TradingBot": {"transaction_history": history, "authenticated": True}}
    entry = {"id": case_id, "involved_classes": [*state, "MathAPI", "GorillaFileSystem"], "initial_config": state}
    return Case(case_id, "multi_turn_base", {}, {"entry": entry, "answer": [[]], "category": "multi_turn_base"})


BOOKING = {"access_token": "abc", "card_id": "7", "travel_class": "economy", "travel_from": "SFO", "travel_to": "LAX"}
TRAVELER = {"first_name": "Ada", "last_name": "Ash", "passport_number": "US1"}


def test_the_gold_calls_of_all_dialogues_are_answered_and_never_cut() -> None:
    """A date check once failed on our own limits, for model and gold calls alike, and no score showed it."""
    failed, called, longest, longest_turn, processor = [], set(), 0, 0, 0.0
    with ToolExecutor(DIALOGUES) as tools:
        for case in DIALOGUES:
            for calls in gold_turns(case):
                answers = tools.execute(case.id, calls)
                failed += [(case.id, calls, text) for text in answers if text.startswith("Error during execution: ")]
                called |= {name for call in calls for name in call}
                longest = max([longest, *map(len, answers)])
                longest_turn = max(longest_turn, sum(map(len, answers)))
            processor = max(processor, tools._live[case.id].seconds)
            assert tools.forget(case.id) == 0
    assert failed == []
    assert len(DIALOGUES) == 800
    assert {"book_flight", "verify_traveler_information"} <= called
    assert (longest, longest_turn) == (31_706, 70_423)
    limits = Limits()
    assert 3 * longest < limits.answer_characters
    assert 3 * longest_turn < limits.output_characters
    assert 10 * processor < limits.case_seconds


def test_tools_that_look_at_dates_answer() -> None:
    dates = {"start_date": "2024-02-01", "end_date": "2024-02-28"}
    calls = [
        {"book_flight": {**BOOKING, "travel_date": "2024-11-10"}},
        {"book_flight": {**BOOKING, "travel_date": "10.11.2024"}},
        {"verify_traveler_information": {**TRAVELER, "date_of_birth": "1980-01-01"}},
        {"verify_traveler_information": {**TRAVELER, "date_of_birth": "the 1st"}},
        {"get_transaction_history": dates},
    ]
    case = travel_case()
    with ToolExecutor([case]) as tools:
        booked, no_date, adult, no_birthday, history = map(json.loads, tools.execute(case.id, calls))
    assert booked["booking_status"] is True
    assert no_date == {"booking_status": False, "error": "Invalid date format. Use YYYY-MM-DD."}
    assert adult == {"verification_status": True}
    assert no_birthday["verification_failure"] == "Invalid date of birth format. Please use YYYY-MM-DD."
    assert history == {"transaction_history": [{"type": "deposit", "amount": 5.0, "timestamp": "2024-02-15 10:00:00"}]}


LATE = r"""
import json, sys
from dara.evaluation.bfcl_calls import Tools
tools, work = Tools(), json.load(sys.stdin)
opened, before = [], set(sys.modules)
sys.addaudithook(lambda event, details: opened.append(str(details[0])) if event == "open" else None)
for entry, calls in work:
    tools.execute(calls, entry, False)
print(json.dumps([sorted(set(sys.modules) - before), opened]))
"""


def test_the_tools_import_and_open_nothing_once_they_are_loaded(tmp_path: Path) -> None:
    """Not for a call of any public method, with values of the types that it asks for, nor for dates."""
    kinds = {"str": "2024-01-01", "int": 3, "float": 3.0, "bool": True, "List": [3.0, 4.0], "Dict": {}}
    dates = [{"book_flight": {**BOOKING, "travel_date": "2024-11-10"}}, {"get_transaction_history": {}}]
    work: list[tuple[dict[str, Any], Calls]] = [(travel_case().gold["entry"], dates)]
    for tool, file in bfcl_v4.TOOL_DOCS.items():
        package = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"
        module = importlib.import_module(f"{package}.{file.removesuffix('.json')}")
        entry = {"id": f"every_{tool}", "involved_classes": [tool], "initial_config": {}}
        for name, method in inspect.getmembers(getattr(module, tool), inspect.isfunction):
            parameters = list(inspect.signature(method).parameters.values())[1:]
            values = {
                parameter.name: next((kinds[kind] for kind in kinds if kind in str(parameter.annotation)), "x")
                for parameter in parameters
            }
            if not name.startswith("_"):
                work.append((entry, [{name: values}]))
    assert len(work) > 120
    done = subprocess.run(
        [sys.executable, "-c", LATE],
        input=json.dumps(work), text=True, capture_output=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "workflow"), "BFCL_PROJECT_ROOT": str(tmp_path)}, cwd=tmp_path,
    )  # fmt: skip
    assert json.loads(done.stdout) == [[], []]


# They cancel in the same turn what they booked, which leaves nothing of it.
CANCELLED = ("multi_turn_base_198", "multi_turn_miss_func_198", "multi_turn_miss_param_198")


def test_wrong_bookings_are_wrong() -> None:
    """Each case that books a flight, as the gold calls do but with another class in its last booking."""
    right, items = [], {}
    for case in DIALOGUES:
        turns = gold_turns(case)
        bookings = [call["book_flight"] for calls in turns for call in calls if "book_flight" in call]
        if bookings:
            bookings[-1]["travel_class"] = "business" if bookings[-1]["travel_class"] == "first" else "first"
            said = talk(*([turn(calls)] if calls else ["Done."] for calls in turns))
            items[len(right)] = bfcl.scorer_item(said, case)
            right.append(int(case.id in CANCELLED))
    scores: dict[int, Any] = {}
    with ScoringPool(scorer(10.0), cores()) as pool:
        pool.score(items, lambda number, outcome: scores.update({number: outcome.scores["accuracy"]}))
    assert [scores[number] for number in range(len(right))] == right
    assert len(right) == 164


REFUSING = r"""
import sys
from dara.evaluation import bfcl, bfcl_calls, tools
bfcl_calls.IMPORTED_LATE = ()
make_server, make_scorer = tools.make_server, bfcl.make_scorer
"""


def test_a_tool_that_our_limits_refuse_is_an_error_and_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the scoring worker does not even start: a known booking does not get its known score."""
    (tmp_path / "refused.py").write_text(REFUSING)
    case = travel_case()
    spec = ScorerSpec("refused:make_scorer", {}, 5.0, (tmp_path,))
    with Sandbox(spec) as box, pytest.raises(SandboxError, match=r"(?s)does not start.*IMPORTED_LATE"):
        box.start()
    with ToolExecutor([case]) as tools:
        monkeypatch.setattr(tools, "_spec", ScorerSpec("refused:make_server", tools._spec.settings, 5.0, (tmp_path,)))
        with pytest.raises(SandboxError, match=r"(?s)case multi_turn_base_7:.*Too many open files.*IMPORTED_LATE"):
            tools.execute(case.id, [{"book_flight": {**BOOKING, "travel_date": "2024-11-10"}}])


def test_what_a_model_writes_is_never_taken_for_a_refusal() -> None:
    case, text = travel_case(), "[Errno 24] Too many open files"
    calls: Calls = [{"cd": {"folder": text}}, {text: {}}, {"cat": {text: 1}}, {"mean": {"numbers": text}}]
    calls += [{"book_flight": {**BOOKING, "travel_date": text}}, {"compute_exchange_rate": {"a": 1, text: 1}}]
    with ToolExecutor([case]) as tools:
        said = tools.execute(case.id, calls)
    assert len(said) == len(calls)
    assert not any(answer.startswith(REFUSED) for answer in said)


SMALL = Limits(call_seconds=1.0, output_seconds=1.5, case_seconds=3.5, answer_characters=1000, output_characters=2500)
SLOW = {"power": {"base": 9, "exponent": 10**6}}  # takes a moment, and then fails: its text would be too long
ENDLESS = {"power": {"base": 9, "exponent": 10**12}}
FAST = {"add": {"a": 1, "b": 2}}


@pytest.fixture
def tools() -> Iterator[ToolExecutor]:
    with ToolExecutor([travel_case(), travel_case("multi_turn_base_8")], SMALL) as executor:
        yield executor


def test_calls_below_their_limit_are_bounded_for_an_output_and_for_a_case(tools: ToolExecutor) -> None:
    here, there = "multi_turn_base_7", "multi_turn_base_8"
    answers = [tools.execute(here, [SLOW] * 400) for _ in range(5)]
    live = tools._live[here]
    assert live.ended == 0
    made = [sum(text != NO_TIME for text in said) for said in answers]
    assert 0 < made[0] < 400
    assert made[-1] == 0
    assert SMALL.case_seconds <= live.seconds < SMALL.case_seconds + SMALL.call_seconds
    assert tools.execute(there, [FAST]) == ['{"result": 3}']
    assert (tools.forget(here), tools.forget(there)) == (400 * 5 - sum(made), 0)
    assert tools.execute(here, [FAST]) == ['{"result": 3}']


def test_a_call_that_never_ends_costs_its_own_answer_and_a_new_output_has_time_of_its_own(tools: ToolExecutor) -> None:
    case = "multi_turn_base_7"
    said = tools.execute(case, [{"touch": {"file_name": "a"}}, ENDLESS, {"ls": {}}, ENDLESS, FAST])
    late = "Error during execution: the tool did not answer within 1 seconds."
    # The state is as before.
    assert said == ["None", late, '{"current_directory_content": ["a"]}', late, NO_TIME]
    assert NO_TIME == "Error during execution: the tool was not called, because the time for tool calls is used up."
    assert tools.execute(case, [FAST]) == ['{"result": 3}']
    assert tools.execute(case, [ENDLESS, FAST])[1] == NO_TIME  # the third that ended its copy
    assert tools.forget(case) == 5
    assert tools.execute("multi_turn_base_8", [FAST]) == ['{"result": 3}']


def test_long_answers_are_cut(tools: ToolExecutor) -> None:
    case, name = "multi_turn_base_7", "x" * 3000
    said = tools.execute(case, [{"touch": {"file_name": name}}, {"ls": {}}, {"ls": {}}, {"ls": {}}, FAST])
    listing = json.dumps({"current_directory_content": [name]})
    assert said[1] == said[2] == f"{listing[:1000]} [cut after 1000 characters]"
    left = 2500 - len(said[0]) - 2 * len(said[1])
    assert said[3] == f"{listing[:left]} [cut after {left} characters]"
    assert said[4] == " [cut after 0 characters]"
    assert tools.forget(case) == 0


def test_it_is_told_what_executes_the_tools() -> None:
    identity = bfcl_v4.tools_identity()
    assert identity.pop("network") in ("isolated", "reachable")
    assert identity == {
        "bfcl-eval": "2026.3.23",
        "call_seconds": 5.0,
        "output_seconds": 7.5,
        "case_seconds": 10.0,
        "answer_characters": 100_000,
        "output_characters": 300_000,
        "memory_bytes": MEMORY_BYTES,
    }

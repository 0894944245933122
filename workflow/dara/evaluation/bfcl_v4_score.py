"""BFCL-v4 as the paper scores it: 14 categories by the real checkers, the format of each output, the words of thought.

Single-turn cases are compared with possible answers; dialogues are executed, each in a forked copy of the worker, so
that no state passes from one to the next. A case's format is the mean over its outputs. A case that ran out of context
is wrong and has no format, whatever its earlier outputs; a case that ran out of steps is judged by the turns it has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dara.evaluation.bfcl import CATEGORIES, GROUPS, NAMED_GROUPS, categories_of, grouped
from dara.evaluation.bfcl_calls import SingleTurnChecker, Tools, decode_calls, decode_output
from dara.evaluation.isolation import Fork
from dara.evaluation.records import Case, Metric, Response, plain_metric
from dara.rewards.tool_calling import assistant_turn, evaluation_format, think_length, think_words

if TYPE_CHECKING:
    import pandas as pd

    from dara.specs import Benchmark

NAME = "bfcl_v4"
SCORER = "dara.evaluation.bfcl_v4_score:make_scorer"
# Shares of outputs: format, think_length. Per case: the others; think_words is empty where no output has a think block.
COLUMNS = (
    *("case", "category", "sample", "accuracy", "format", "think_length", "think_words", "decode_error"),
    *("lost_calls", "truncated", "context_overflow", "step_limit", "n_tokens", "outcome"),
)
# Scores of a case whose scorer did not end in time.
UNSCORED = {"accuracy": 0, "format": 0.0, "think_length": 0.0, "think_words": "", "decode_error": 1}
THINK_WORDS = 16  # the paper's limit; `length_limit` of the benchmark sets another


def scorer_settings(settings: Benchmark) -> dict[str, Any]:
    """Return the keyword arguments of the scorer."""
    limit = THINK_WORDS if settings.length_limit is None else settings.length_limit
    return {"think_limit": limit, "seconds": settings.seconds_per_case}


def scorer_item(response: Response, case: Case) -> dict[str, Any]:
    """Return the scorer's input for a response and its case."""
    turns = None if response.turns is None else [list(turn) for turn in response.turns]
    overflow = response.stopped == "context_overflow"
    return {"outputs": response.outputs, "turns": turns, "overflow": overflow, **case.gold}


def make_scorer(think_limit: float, seconds: float) -> Any:
    """Return the scorer that runs in the worker process: an item of `scorer_item` -> parts of its scores.

    Raises:
        RuntimeError: another version of bfcl-eval is installed, or known answers do not get their known scores.
    """
    check_calls, tools = SingleTurnChecker(), Tools()

    def score(item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        # bfcl-eval records an error for a case that ran out of context: it has no format and no think block.
        outputs = [] if item["overflow"] else [assistant_turn(output) for output in item["outputs"]]
        yield {"format": evaluation_format(outputs), **_thought(outputs, think_limit)}
        dialogue = "entry" in item
        turns, decode = (item["turns"], decode_output) if dialogue else ([outputs], decode_calls)
        steps = [[decode(step) for step in turn] for turn in turns or []]
        said = [calls for turn in steps for calls in turn]
        yield {"decode_error": int(bool(said) and all(calls is None for calls in said))}
        if item["overflow"]:
            yield {"accuracy": 0}
        elif dialogue:
            made = [[calls for calls in turn if calls] for turn in steps]  # a step without a call ends a turn
            yield {"accuracy": int(_in_copy(lambda _: tools.check(made, item), seconds))}
        else:
            yield {"accuracy": int(steps[0][0] is not None and check_calls(steps[0][0], item))}

    _preflight(score)
    return score


def _thought(outputs: Sequence[str], limit: float) -> dict[str, Any]:
    """Return the share of outputs with a think block that is short enough, and the mean words of the blocks."""
    words = [count for count in map(think_words, outputs) if count is not None]
    short = sum(think_length(output, limit) for output in outputs)
    return {
        "think_length": short / len(outputs) if outputs else 0.0,
        "think_words": sum(words) / len(words) if words else "",
    }


def _in_copy(answer: Callable[[Any], bool], seconds: float) -> bool:
    """Return `answer(None)`, computed in a forked copy of this process."""
    copy = Fork(answer)
    try:
        return copy.ask(None, seconds)
    finally:
        copy.end()


def _preflight(score: Any) -> None:
    """Raise RuntimeError unless known answers get their known scores: a broken scorer would score 0 silently."""
    for outputs, item, expected in [*_known_calls(), *_known_dialogues()]:
        scores: dict[str, Any] = {}
        for part in score({"outputs": outputs, "overflow": False, **item}):
            scores |= part
        if (scores["accuracy"], scores["format"], scores["decode_error"]) != expected:
            raise RuntimeError(
                f"the tool scorer gives {scores} to {outputs!r}; expected (accuracy, format, decode_error) {expected}"
            )


Known = tuple[list[str], dict[str, Any], tuple[float, float, int]]
"""Outputs, the rest of the scorer's item, and the expected accuracy, format and decode error."""


def _known_calls() -> list[Known]:
    value = {"type": "string", "description": "A city."}
    function = {"name": "weather", "parameters": {"type": "dict", "properties": {"city": value}, "required": ["city"]}}
    answer = [{"weather": {"city": ["paris"]}}]
    item = {"turns": None, "category": "multiple", "functions": [function], "answer": answer, "language": "PYTHON"}
    right, wrong = (_turn("weather", {"city": city}) for city in ("paris", "rome"))
    return [([right], item, (1, 1, 0)), ([wrong], item, (0, 1, 0)), (["paris"], item, (0, 0, 1))]


def _known_dialogues() -> list[Known]:
    """Return two known dialogues: an addition, and a booking, whose tool imports a module when it checks the date."""
    state = {"access_token": "abc", "token_expires_in": 9, "credit_card_list": {"7": {"balance": 1000.0}}}
    entry = {"id": "multi_turn_base_preflight", "involved_classes": ["MathAPI", "TravelAPI"]}
    entry["initial_config"] = {"TravelAPI": state}
    booking = {"access_token": "abc", "card_id": "7", "travel_date": "2024-11-10", "travel_class": "economy"}
    booking |= {"travel_from": "SFO", "travel_to": "LAX"}
    known: list[Known] = []
    for name, right, changes in (
        ("add", {"a": 1, "b": 2}, [{"b": 3}]),
        ("book_flight", booking, [{"travel_to": "JFK"}, {"travel_date": "x"}]),
    ):
        item = {"entry": entry, "answer": [[f"{name}(**{right!r})"]], "category": "multi_turn_base"}
        outputs = [_turn(name, right), "done"]
        known.append((outputs, {"turns": [outputs], **item}, (1, 0.5, 0)))
        for change in changes:
            outputs = [_turn(name, right | change)]
            known.append((outputs, {"turns": [outputs], **item}, (0, 1, 0)))
    return known


def _turn(name: str, parameters: Mapping[str, Any]) -> str:
    call = json.dumps({"name": name, "parameters": parameters})
    return f"<think>t</think>\n<tool_call>\n{call}\n</tool_call>"


def score_row(response: Response, scores: Mapping[str, Any], length_limit: int | None) -> dict[str, Any]:
    """Return the columns of a case from the parts of its scores."""
    return {
        **UNSCORED,
        **scores,
        "lost_calls": response.lost_calls,
        "truncated": int(not response.finished),
        "context_overflow": int(response.stopped == "context_overflow"),
        "step_limit": int(response.stopped == "step_limit"),
    }


def summarise(frame: pd.DataFrame) -> dict[str, Metric]:
    """Return the metrics of a checkpoint's scores; `frame` has COLUMNS and one row per response.

    average_{accuracy,format,think_length}; {accuracy,format}/<group or category>; decode_error_rate, lost_call_rate (a
    tool call of the case got no answer), truncated_rate, context_overflow_rate and step_limit_rate over all cases;
    think_words (a number of words, not a share) over the cases that have a think block, if there are any. An average or
    a group is returned only if each of its categories has a case, which may fail for a first look at few cases.

    Raises:
        ValueError: a category is not one of the benchmark's.
    """
    metrics = {}
    present = set(frame["category"])
    unknown = sorted(present - set(CATEGORIES[NAME]))
    if unknown:
        raise ValueError(f"category {unknown[0]!r} is none of {NAME}; they are {', '.join(CATEGORIES[NAME])}")
    averages = {f"average_{column}": (column, GROUPS[NAME]) for column in ("accuracy", "format", "think_length")}
    named = NAMED_GROUPS[NAME].items()
    groups = {f"{column}/{name}": (column, group) for column in ("accuracy", "format") for name, group in named}
    for name, (column, group) in {**averages, **groups}.items():
        rows = frame[frame["category"].isin(categories_of(group))]
        if present.issuperset(categories_of(group)):
            metrics[name] = grouped(plain_metric(rows, column), group)
    for column in ("accuracy", "format"):
        for category, rows in frame.groupby("category", sort=True):
            metrics[f"{column}/{category}"] = plain_metric(rows, column)
    frame = frame.assign(lost_call=(frame["lost_calls"] > 0).astype(int))
    for column in ("decode_error", "lost_call", "truncated", "context_overflow", "step_limit"):
        metrics[f"{column}_rate"] = plain_metric(frame, column)
    thought = frame[frame["think_words"].astype(str) != ""]
    if not thought.empty:
        metrics["think_words"] = plain_metric(thought.astype({"think_words": float}), "think_words")
    return metrics

"""Tool calling, scored as on the Berkeley Function Calling Leaderboard (BFCL): the laptop's benchmark, and BFCL-v4.

The laptop's cases have one turn each. BFCL-v4 (its cases are in `bfcl_v4`) has 14 categories in three groups. Non-Live
is the mean of Simple (itself a mean over three languages), multiple, parallel and parallel_multiple; Live counts each
of its cases alike; Multi-Turn is the mean of its four. The average is the mean of the three groups: not the
leaderboard's "Overall", which has other weights and more categories.

Single-turn cases are compared with possible answers (`bfcl_calls`); dialogues are executed, each in a forked copy of
the worker, so that no state passes from one to the next. A case's format is the mean over its outputs. A case that ran
out of context is wrong and has no format, whatever its earlier outputs; a case that ran out of steps is judged by the
turns it has.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dara.evaluation.bfcl_calls import CHECKER_VERSION, Tools, decode_calls, decode_output, single_turn_checker
from dara.evaluation.isolation import Fork
from dara.evaluation.records import Case, Metric, Response, plain_metric, read_jsonl
from dara.registries import BenchmarkDefinition
from dara.rewards.tool_calling import assistant_turn, evaluation_format, think_length, think_words

if TYPE_CHECKING:
    import pandas as pd

NAME, V4 = "laptop_tools", "bfcl_v4"
# Category of BFCL-v4 -> its number of cases: 3,301 in all.
BFCL_V4_COUNTS = {
    **{"simple_python": 400, "simple_java": 100, "simple_javascript": 50},
    **{"multiple": 200, "parallel": 200, "parallel_multiple": 200},
    **{"live_simple": 258, "live_multiple": 1053, "live_parallel": 16, "live_parallel_multiple": 24},
    **{"multi_turn_base": 200, "multi_turn_miss_func": 200, "multi_turn_miss_param": 200},
    "multi_turn_long_context": 200,
}
FEW, MANY = ("multiple_one_parameter",), ("multiple_two_parameters", "multiple_three_parameters")
# Benchmark -> its categories.
CATEGORIES = {NAME: (*FEW, *MANY), V4: tuple(BFCL_V4_COUNTS)}
THINK_WORDS = 16  # the paper's limit; `length_limit` of the benchmark sets another
LANGUAGES = {"simple_java": "JAVA", "simple_javascript": "JAVASCRIPT"}  # in which calls are written, if not in Python


def is_multi_turn(category: str) -> bool:
    """Return whether cases of the category are dialogues of several turns, with tools that are executed."""
    return category.startswith("multi_turn_")


Average = tuple[tuple[int, tuple[str, ...]], ...]
"""Pools of categories in which each case has the same weight; each pool's mean is divided by its number."""


def pool(*categories: str) -> Average:
    """Return the average in which every case has the same weight, whatever its category."""
    return ((1, categories),)


def mean(*parts: Average) -> Average:
    """Return the average in which every part has the same weight, whatever its number of cases."""
    return tuple((number * len(parts), categories) for part in parts for number, categories in part)


SIMPLE = mean(*map(pool, ("simple_python", "simple_java", "simple_javascript")))
# The groups of BFCL-v4 that have a metric of their own.
V4_GROUPS = {
    "simple": SIMPLE,
    "non_live": mean(SIMPLE, pool("multiple"), pool("parallel"), pool("parallel_multiple")),
    "live": pool("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple"),
    "multi_turn": mean(*map(pool, filter(is_multi_turn, BFCL_V4_COUNTS))),
}
# Benchmark -> its average. The laptop's is the mean of Few (one parameter) and Many (two, three).
AVERAGES = {
    NAME: mean(pool(*FEW), pool(*MANY)),
    V4: mean(V4_GROUPS["non_live"], V4_GROUPS["live"], V4_GROUPS["multi_turn"]),
}


def grouped(metric: Metric, average: Average) -> Metric:
    """Return `metric`, whose strata are categories, with the weights of `average` instead of equal ones.

    ValueError: a pool has no case, or a category belongs to no pool.
    """
    import numpy as np

    counts, weights = Counter(metric.strata), {}
    for number, categories in average:
        total = sum(counts[category] for category in categories)
        if total == 0:
            names = ", ".join(categories)
            raise ValueError(f"no case of {names}: their average does not exist; hold out more cases")
        weights |= {category: counts[category] / total / number for category in categories}
    unknown = sorted(set(metric.strata) - set(weights))
    if unknown:
        raise ValueError(f"category {unknown[0]!r} belongs to no group; the groups hold {', '.join(weights)}")
    return replace(metric, weights=np.array([weights[category] / counts[category] for category in metric.strata]))


SCORER = "dara.evaluation.bfcl:make_scorer"
HEADLINE = {"average_accuracy": "Average Accuracy", "average_format": "Average Format"}


def case_files(cases_dir: Path, benchmark: str = NAME) -> list[Path]:
    """Return the files with the cases of a benchmark in BFCL's format."""
    names = [f"BFCL_v4_{category}.json" for category in CATEGORIES[benchmark]]
    return [folder / name for folder in (cases_dir, cases_dir / "possible_answer") for name in names]


def read_category(cases_dir: Path, category: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the rows of a category, each with the scorer's input, in the order of the file.

    ValueError: the category has another number of cases than the paper's, or a row is wrong or has no answer.
    """
    path, several = cases_dir / f"BFCL_v4_{category}.json", is_multi_turn(category)
    answer_path = cases_dir / "possible_answer" / path.name
    rows = read_jsonl(path, ("id", "question", "involved_classes" if several else "function"))
    expected = BFCL_V4_COUNTS.get(category, len(rows))
    if len(rows) != expected:
        raise ValueError(f"{path}: category {category} has {len(rows)} cases; BFCL-v4 has {expected}")
    answers = {row["id"]: row["ground_truth"] for row in read_jsonl(answer_path, ("id", "ground_truth"))}
    for number, row in enumerate(rows, 1):
        if row["id"] not in answers:
            raise ValueError(f"{path}, row {number}: case {row['id']!r} has no answer in {answer_path}")
        gold = {"answer": answers[row["id"]], "category": category}
        if several:
            entry = {key: value for key, value in row.items() if key not in ("question", "missed_function")}
            yield row, {"entry": entry, **gold}
        else:
            yield row, {"functions": row["function"], **gold, "language": LANGUAGES.get(category, "PYTHON")}


def load_cases(cases_dir: Path) -> list[Case]:
    """Return all cases, category by category. Raise ValueError, with file and row, if one is wrong or has no answer."""
    read = ((category, *case) for category in CATEGORIES[NAME] for case in read_category(cases_dir, category))
    return [Case(row["id"], category, row, gold) for category, row, gold in read]


def prompt(case: Case) -> str:
    """Return the complete text that a model continues."""
    from dara.data.laptop_tools import bfcl_prompt  # not at the top: scoring needs no transformers

    return bfcl_prompt(case.question)


def scorer_item(response: Response, case: Case) -> dict[str, Any]:
    """Return the scorer's input for a response and its case."""
    overflow = response.stopped == "context_overflow"
    return {"outputs": response.outputs, "turns": response.turns, "overflow": overflow, **case.gold}


def make_scorer(think_limit: float = THINK_WORDS, seconds: float = 5.0) -> Any:
    """Return the scorer that runs in the worker process: an item of `scorer_item` -> parts of its scores.

    RuntimeError: another version of bfcl-eval is installed, or known answers do not get their known scores.
    """
    check_calls, tools = single_turn_checker(), Tools()

    def score(item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        # bfcl-eval records an error for a case that ran out of context: it has no format and no think block.
        outputs = [] if item["overflow"] else [assistant_turn(output) for output in item["outputs"]]
        words = [count for count in map(think_words, outputs) if count is not None]
        short = sum(think_length(output, think_limit) for output in outputs)
        yield {
            "format": evaluation_format(outputs),
            "think_length": short / len(outputs) if outputs else 0.0,
            "think_words": sum(words) / len(words) if words else "",
        }
        dialogue = "entry" in item
        turns, decode = (item["turns"], decode_output) if dialogue else ([outputs], decode_calls)
        steps = [[decode(step) for step in turn] for turn in turns or []]
        said = [calls for turn in steps for calls in turn]
        yield {"decode_error": int(bool(said) and all(calls is None for calls in said))}
        if item["overflow"]:
            yield {"accuracy": 0}
        elif dialogue:
            made = [[calls for calls in turn if calls] for turn in steps]  # a step without a call ends a turn
            copy = Fork(lambda _: tools.check(made, item))
            try:
                right = copy.ask(None, seconds)
            finally:
                copy.end()
            yield {"accuracy": int(right)}
        else:
            yield {"accuracy": int(said[0] is not None and check_calls(said[0], item))}

    _preflight(score)
    return score


def _preflight(score: Any) -> None:
    """Raise RuntimeError unless known answers get their known scores: a broken scorer would score 0 silently."""
    for outputs, gold, expected in _known():
        item = {"outputs": outputs, "turns": [outputs], "overflow": False, **gold}
        scores = {name: value for part in score(item) for name, value in part.items()}
        if (scores["accuracy"], scores["format"], scores["decode_error"]) != expected:
            raise RuntimeError(
                f"the tool scorer gives {scores} to {outputs!r}; expected (accuracy, format, decode_error) {expected}"
            )


def _known() -> Iterator[tuple[list[str], dict[str, Any], tuple[float, float, int]]]:
    """Yield outputs, the `gold` of a case, and their accuracy, format and decode error."""

    def turn(name: str, parameters: Mapping[str, Any]) -> str:
        call = json.dumps({"name": name, "parameters": parameters})
        return f"<think>t</think>\n<tool_call>\n{call}\n</tool_call>"

    city = {"type": "string", "description": "The city."}
    function = {"name": "weather", "parameters": {"type": "dict", "properties": {"city": city}, "required": ["city"]}}
    gold: dict[str, Any] = {"functions": [function], "answer": [{"weather": {"city": ["paris"]}}]}
    gold |= {"category": "multiple", "language": "PYTHON"}
    yield [turn("weather", {"city": "paris"})], gold, (1, 1, 0)
    yield [turn("weather", {"city": "rome"})], gold, (0, 1, 0)
    yield ["paris"], gold, (0, 0, 1)
    # The tool imports a module when it checks the date.
    booking = {"access_token": "abc", "card_id": "7", "travel_date": "2024-11-10", "travel_class": "economy"}
    booking |= {"travel_from": "SFO", "travel_to": "LAX"}
    state = {"access_token": "abc", "token_expires_in": 9, "credit_card_list": {"7": {"balance": 1000.0}}}
    entry = {"id": "multi_turn_base_preflight", "involved_classes": ["TravelAPI"]}
    entry["initial_config"] = {"TravelAPI": state}
    gold = {"entry": entry, "answer": [[f"book_flight(**{booking!r})"]], "category": "multi_turn_base"}
    yield [turn("book_flight", booking), "done"], gold, (1, 0.5, 0)
    yield [turn("book_flight", booking | {"travel_date": "x"})], gold, (0, 1, 0)
    yield [turn("book_flight", booking | {"travel_to": "JFK"})], gold, (0, 1, 0)


def score_row(response: Response, scores: Mapping[str, Any], length_limit: int | None) -> dict[str, int]:
    """Return the columns of a laptop's response, 0 or 1; without scores, the scorer did not end in time."""
    columns = {"accuracy": scores.get("accuracy", 0), "format": int(scores.get("format", 0) == 1)}
    return {**columns, "decode_error": scores.get("decode_error", 1), "truncated": int(not response.finished)}


def summarise(frame: pd.DataFrame) -> dict[str, Metric]:
    """Return average_{accuracy,format}, {accuracy,format}/<category>, decode_error_rate and truncated_rate."""
    metrics = {}
    for column in ("accuracy", "format"):
        metrics[f"average_{column}"] = grouped(plain_metric(frame, column), AVERAGES[NAME])
        metrics |= _by_category(frame, column)
    return metrics | {f"{column}_rate": plain_metric(frame, column) for column in ("decode_error", "truncated")}


def _by_category(frame: pd.DataFrame, column: str) -> dict[str, Metric]:
    return {f"{column}/{name}": plain_metric(rows, column) for name, rows in frame.groupby("category", sort=True)}


LAPTOP_TOOLS = BenchmarkDefinition(
    name=NAME,
    task="tool_calling",
    kind="laptop",
    case_files=case_files,
    load_cases=load_cases,
    prompt=prompt,
    one_stream=True,
    scorer=SCORER,
    scorer_version=2,  # 2: a call with NaN is a call
    scorer_item=scorer_item,
    graders={"bfcl-eval": CHECKER_VERSION},
    columns=("case", "category", "sample", "accuracy", "format", "decode_error", "truncated", "n_tokens", "outcome"),
    score_row=score_row,
    summarise=summarise,
    headline=HEADLINE,
)


# --- BFCL-v4 ----------------------------------------------------------------------------------------------------------


# Shares of outputs: format, think_length. Per case: the others; think_words is empty where no output has a think block.
V4_COLUMNS = (
    *("case", "category", "sample", "accuracy", "format", "think_length", "think_words", "decode_error"),
    *("lost_calls", "truncated", "context_overflow", "step_limit", "n_tokens", "outcome"),
)


def v4_row(response: Response, scores: Mapping[str, Any], length_limit: int | None) -> dict[str, Any]:
    """Return the columns of a case from the parts of its scores; without scores, the scorer did not end in time."""
    return {
        **{"accuracy": 0, "format": 0.0, "think_length": 0.0, "think_words": "", "decode_error": 1},
        **scores,
        "lost_calls": response.lost_calls,
        "truncated": int(not response.finished),
        "context_overflow": int(response.stopped == "context_overflow"),
        "step_limit": int(response.stopped == "step_limit"),
    }


def summarise_v4(frame: pd.DataFrame) -> dict[str, Metric]:
    """Return the metrics of a checkpoint's scores; `frame` has V4_COLUMNS and one row per response.

    average_{accuracy,format,think_length}; {accuracy,format}/<group or category>; decode_error_rate, lost_call_rate (a
    tool call of the case got no answer), truncated_rate, context_overflow_rate and step_limit_rate over all cases;
    think_words (a number of words, not a share) over the cases that have a think block, if there are any. An average or
    a group is returned only if each of its categories has a case, which may fail for a first look at few cases.
    ValueError: a category is not one of the benchmark's.
    """
    present = set(frame["category"])
    unknown = sorted(present - set(CATEGORIES[V4]))
    if unknown:
        raise ValueError(f"category {unknown[0]!r} is none of {V4}; they are {', '.join(CATEGORIES[V4])}")
    averages = [(f"average_{column}", column, AVERAGES[V4]) for column in ("accuracy", "format", "think_length")]
    for column in ("accuracy", "format"):
        averages += [(f"{column}/{name}", column, group) for name, group in V4_GROUPS.items()]
    metrics = {}
    for name, column, average in averages:
        categories = [category for _, pooled in average for category in pooled]
        if present.issuperset(categories):
            metrics[name] = grouped(plain_metric(frame[frame["category"].isin(categories)], column), average)
    metrics |= _by_category(frame, "accuracy") | _by_category(frame, "format")
    frame = frame.assign(lost_call=(frame["lost_calls"] > 0).astype(int))
    for column in ("decode_error", "lost_call", "truncated", "context_overflow", "step_limit"):
        metrics[f"{column}_rate"] = plain_metric(frame, column)
    thought = frame[frame["think_words"].astype(str) != ""]
    if not thought.empty:
        metrics["think_words"] = plain_metric(thought.astype({"think_words": float}), "think_words")
    return metrics

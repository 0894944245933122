"""Math: held-out problems with several samples each, graded three ways; the laptop's sums or the five benchmarks.

`strict` is the string comparison of the correctness reward, `strict_or_numeric` the paper's Acc (strict, or the same
number), `math_verify` the verdict of math-verify 0.9.0. All three are reported: each accepts answers that another
refuses. The text decides, truncated or not, as in the authors' code. A response exceeds if it has more tokens than the
limit, and is `joint` if it is right within the limit.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dara.data.public import SETS, SETS_VERSION, question, read_set
from dara.evaluation.records import Case, Metric, Response, plain_metric, read_jsonl
from dara.registries import BenchmarkDefinition, PublishedCases

if TYPE_CHECKING:
    import pandas as pd

    from dara.data.hub import Fetch

GRADER_VERSION = "0.9.0"
GRADES = ("strict", "strict_or_numeric", "math_verify")
COLUMNS = ("case", "category", "sample", *GRADES, "exceed", "joint", "truncated", "n_tokens", "outcome")
# Metric -> column of the score file.
METRICS = {
    "acc": "strict_or_numeric",
    "strict": "strict",
    "math_verify": "math_verify",
    "exceed": "exceed",
    "joint": "joint",
    "truncated_rate": "truncated",
}
HEADLINE = {"acc": "Acc", "exceed": "Exceed", "joint": "Joint", "strict": "strict", "math_verify": "math-verify"}
# Metric -> which answers only this grade accepts, of strict, the number comparison, and math-verify.
LONE = {"only_strict": (1, 1, 0), "only_numeric": (0, 1, 0), "only_math_verify": (0, 0, 1)}
# Processor time of one math-verify step: it ends loops in Python, such as 9^{9^{9^9}}; the worker's time limit is the
# fallback. math-verify's own alarm is off: it uses the clock, so a busy machine would refuse correct answers, and a
# gold answer that is refused once would be refused for all its responses.
STEP_SECONDS = 3


def case_files(cases_dir: Path) -> list[Path]:
    """Return the files with the cases."""
    return [cases_dir / "problems.jsonl"]


def laptop_cases(cases_dir: Path) -> list[Case]:
    """Return the laptop's sums, all of one category. Raise ValueError, with file and row, if one is wrong."""
    rows = read_jsonl(*case_files(cases_dir), ("id", "prompt", "answer"))
    return [Case(row["id"], "laptop_math", row, {"answer": row["answer"]}) for row in rows]


def load_cases(cases_dir: Path) -> list[Case]:
    """Return the problems of the five sets, whose categories are the sets.

    Raises:
        ValueError: a row is wrong; names file and row.
    """
    (path,) = case_files(cases_dir)
    rows = read_jsonl(path, ("id", "category", "problem", "answer"))
    for number, row in enumerate(rows, 1):
        if row["category"] not in SETS:
            raise ValueError(
                f"{path}, row {number}: category {row['category']!r} is no set; they are {', '.join(SETS)}"
            )
    return [Case(row["id"], row["category"], row, {"answer": row["answer"]}) for row in rows]


def prompt(case: Case) -> str | list[dict[str, str]]:
    """Return the complete text that a laptop model continues, or the one user message of a chat model."""
    if "prompt" in case.question:
        return case.question["prompt"]
    return [{"role": "user", "content": question(case.question["problem"].strip())}]


def make_scorer() -> Any:
    """Return the scorer that runs in the worker process: item {"response", "answer"} -> parts of its grades.

    Raises:
        RuntimeError: another version of math-verify is installed, or known answers do not get their known grades.
    """
    from dara.rewards.math import math_correctness, numeric_equal

    verify = _load_math_verify()

    def score(item: Mapping[str, Any]) -> Iterator[dict[str, int]]:
        response, answer = item["response"], item["answer"]
        strict = math_correctness(response, answer) == 1
        yield {"strict": int(strict), "strict_or_numeric": int(strict)}
        yield {"strict_or_numeric": int(strict or numeric_equal(response, answer))}
        yield {"math_verify": int(verify(response, answer))}

    _preflight(score)
    return score


def _load_math_verify() -> Any:
    """Return `verify(response, answer) -> bool` of math-verify, for a worker's main thread only (it uses a signal)."""
    installed = metadata.version("math-verify")
    if installed != GRADER_VERSION:
        raise RuntimeError(f"math-verify {installed} is installed; the scores are defined by {GRADER_VERSION}")
    import math_verify

    def parse(text: str) -> list[Any]:
        return _within(STEP_SECONDS, lambda: math_verify.parse(text, parsing_timeout=None), otherwise=[])

    @lru_cache(maxsize=4096)
    def parsed_gold(answer: str) -> list[Any]:
        # In a box: math-verify misreads some answers between dollar signs.
        return parse(rf"\boxed{{{answer}}}")

    @lru_cache(maxsize=2048)  # a small model repeats answers from checkpoint to checkpoint
    def verify(response: str, answer: str) -> bool:
        gold, target = parsed_gold(answer), parse(response)
        # The gold answer goes first: the comparison is not symmetric.
        return _within(STEP_SECONDS, lambda: math_verify.verify(gold, target, timeout_seconds=None), otherwise=False)

    return verify


def _within(seconds: float, work: Callable[[], Any], otherwise: Any) -> Any:
    """Return the result of `work`, or `otherwise` if the time limit ends it.

    math-verify's own exception interrupts `work` at every `seconds` of processor time.

    math-verify treats the exception as a failure of one step and goes on, or lets it pass. The exception never leaves
    this function, whenever the signal comes.
    """
    from math_verify.errors import TimeoutException

    working = True

    def interrupt(*_: object) -> None:
        if working:
            raise TimeoutException

    before = signal.signal(signal.SIGPROF, interrupt)
    try:
        try:
            signal.setitimer(signal.ITIMER_PROF, seconds, seconds)
            return work()
        finally:
            working = False
    except TimeoutException:
        return otherwise
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _preflight(score: Any) -> None:
    """Raise RuntimeError unless known answers get their known grades: a broken grader would refuse all silently."""
    known = {r"\boxed{0.50}": (0, 1, 1), r"so \boxed{\frac12}": (1, 1, 1), r"\boxed{3}": (0, 0, 0), "": (0, 0, 0)}
    for response, expected in known.items():
        grades: dict[str, int] = {}
        for part in score({"response": response, "answer": "0.5"}):
            grades |= part
        if tuple(grades[grade] for grade in GRADES) != expected:
            raise RuntimeError(
                f"the math scorer gives {grades} to {response!r}, answer 0.5; expected {GRADES} {expected}"
            )


def score_row(response: Response, scores: Mapping[str, int], length_limit: int) -> dict[str, int]:
    """Return the columns of a response from its grades (0 if the scorer did not end in time)."""
    grades = {grade: scores.get(grade, 0) for grade in GRADES}
    exceed = int(response.n_tokens > length_limit)
    joint = int(grades["strict_or_numeric"] and not exceed)
    return {**grades, "exceed": exceed, "joint": joint, "truncated": int(not response.finished)}


def summarise(frame: pd.DataFrame) -> dict[str, Metric]:
    """Return acc, strict, math_verify, exceed, joint and truncated_rate; every question has the same weight."""
    return {metric: plain_metric(frame, column) for metric, column in METRICS.items()}


def summarise_sets(frame: pd.DataFrame) -> dict[str, Metric]:
    """Return the metrics of `summarise` and the shares of answers that only one grade accepts.

    The latter are only_strict, only_numeric and only_math_verify. Each metric is given for each set as
    `<metric>/<set>`, and as the unweighted mean over the five sets if all five are there.
    """
    frame = frame.assign(**_accepted_by_one(frame))
    complete = set(frame["category"]) == set(SETS)
    metrics = {}
    for metric, column in [*METRICS.items(), *((name, name) for name in LONE)]:
        if complete:
            metrics[metric] = _macro(plain_metric(frame, column))
        for name in SETS:
            if (frame["category"] == name).any():
                metrics[f"{metric}/{name}"] = plain_metric(frame[frame["category"] == name], column)
    return metrics


def _accepted_by_one(frame: pd.DataFrame) -> dict[str, pd.Series]:
    grades = frame[list(GRADES)].apply(tuple, axis=1)
    return {name: (grades == pattern).astype(int) for name, pattern in LONE.items()}


def _macro(metric: Metric) -> Metric:
    """Return the metric with the same weight for every set, whatever its number of questions."""
    import numpy as np

    names, counts = np.unique(metric.strata.astype(str), return_counts=True)
    each = {name: 1 / (len(names) * count) for name, count in zip(names, counts, strict=True)}
    return Metric(metric.values, metric.strata, np.array([each[name] for name in metric.strata]))


def published_cases(fetch: Fetch) -> PublishedCases:
    """Return the problems of the five sets, rows {"id", "category", "problem", "answer"}."""
    rows = [row for name in SETS for row in read_set(name, fetch.dataset(name))]
    sources = {name: fetch.describe(name) for name in SETS}
    return PublishedCases(count=len(rows), content={"sources": sources}, rows={"problems.jsonl": rows})


LIMIT_NEEDED = "length_limit is missing; the math benchmark needs it, in tokens with the end token"
LAPTOP_MATH = BenchmarkDefinition(
    name="laptop_math",
    task="math",
    kind="laptop",
    case_files=case_files,
    load_cases=laptop_cases,
    prompt=prompt,
    one_stream=True,
    scorer="dara.evaluation.math:make_scorer",
    scorer_version=2,  # 2: as math_five
    graders={"math-verify": GRADER_VERSION},
    columns=COLUMNS,
    score_row=score_row,
    summarise=summarise,
    length_limit_needed=LIMIT_NEEDED,
    headline=HEADLINE,
)
MATH_FIVE = replace(
    LAPTOP_MATH,
    name="math_five",
    kind="published",
    load_cases=load_cases,
    data_files=tuple(SETS),
    publish=published_cases,
    versions=lambda: {"math_sets": SETS_VERSION},
    one_stream=False,
    summarise=summarise_sets,
    paper={
        "samples": 16,
        "sampling": {"temperature": 0.6, "top_p": 0.95, "max_response_tokens": 32768},
        "seed": 0,
        "max_context": 34816,  # room for the longest response behind a prompt of 2,048 tokens
        "length_limit": 4000,
    },
    parts=tuple(SETS),
    # 2: the second chance reads LaTeX's spaces and powers; a truncated response can be right
    scorer_version=2,
)

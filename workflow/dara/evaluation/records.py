"""Cases, responses and the files they are kept in."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from dara.files import gunzip, gzipped, sha256, write_atomically

if TYPE_CHECKING:
    import pandas as pd

# Why a model got no further: no room for another output, or too many steps in a turn.
Stopped = Literal["context_overflow", "step_limit"]


@dataclass(frozen=True)
class Case:
    """A held-out problem: `question` is its row in the benchmark's file, `gold` is what its scorer needs."""

    id: str
    category: str
    question: dict[str, Any]
    gold: dict[str, Any]


@dataclass(frozen=True)
class Metric:
    """A score with what a bootstrap over questions needs.

    The score is the sum of `weights * values`. A stratified bootstrap draws questions with replacement within each
    stratum; weights are equal within a stratum, so they stay in place.

    Attributes:
        values: (Q,) float, the mean over samples of each question, in [0, 1].
        strata: (Q,) str, the category of each question; questions are sorted by (category, case).
        weights: (Q,) float, sum 1.
    """

    values: np.ndarray
    strata: np.ndarray
    weights: np.ndarray

    @property
    def score(self) -> float:
        """The score over all questions, in [0, 1]."""
        # An exact sum: 1/24 added 24 times is 1, in any order and on any machine.
        return math.fsum(self.weights * self.values)


@dataclass(frozen=True)
class Response:
    """What a model said: text without special tokens, tokens with the end token, and whether it ended by itself.

    In a dialogue of several turns `turns` has the outputs of each turn, one a step; then `text` is empty, `n_tokens`
    is their sum, and `finished` says that all of them ended by themselves. `stopped`: why the model got no further.
    `lost_calls`: its tool calls that got no answer, because they took too long or too much memory.
    """

    text: str
    n_tokens: int
    finished: bool
    turns: tuple[tuple[str, ...], ...] | None = None
    stopped: Stopped | None = None
    lost_calls: int = 0

    @property
    def outputs(self) -> list[str]:
        """Everything that the model said, in order."""
        return [self.text] if self.turns is None else [step for turn in self.turns for step in turn]


@dataclass(frozen=True)
class Row:
    """A line of a response file: the response to sample `sample` (from 0) of a case."""

    case: str
    sample: int
    response: Response


def read_jsonl(path: Path, fields: Sequence[str]) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file; each must have `fields`.

    Raises:
        ValueError: the file is missing or empty, or a line is not such an object; names file and row (from 1).
    """
    if not path.is_file():
        raise ValueError(f"{path}: the file does not exist")
    rows = [_parse(path, number, line, fields) for number, line in enumerate(_lines(path.read_text("utf-8")), 1)]
    if not rows:
        raise ValueError(f"{path}: has no row; each line must be an object with {', '.join(fields)}")
    return rows


def read_responses(path: Path, cases: Sequence[Case], samples: int) -> list[Row]:
    """The responses in `path`: `samples` of each of `cases`, in their order.

    Raises:
        ValueError: the file is missing, damaged or incomplete, or a row is wrong; names file and row (from 1).
    """
    try:
        content = gunzip(path).decode("utf-8")
    except FileNotFoundError:
        raise ValueError(f"{path}: the file does not exist; responses are generated before they are scored") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: not UTF-8 text ({error})") from None
    lines = _lines(content)
    expected = [(case.id, sample) for case in cases for sample in range(samples)]
    rows = [_row(path, number, line, key) for number, (line, key) in enumerate(zip(lines, expected, strict=False), 1)]
    if len(lines) != len(expected):
        raise ValueError(f"{path}: has {len(lines)} rows; {len(cases)} cases x {samples} samples need {len(expected)}")
    return rows


def write_responses(path: Path, cases: Sequence[Case], responses: Sequence[Sequence[Response]]) -> None:
    """Write `responses[case][sample]` as gzipped JSON lines, atomically; equal responses give equal bytes."""
    lines = []
    for case, answers in zip(cases, responses, strict=True):
        for sample, answer in enumerate(answers):
            lines.append(response_line(case.id, sample, answer))
    write_atomically(path, gzipped("".join(lines).encode("utf-8")))


def select_cases(cases: Sequence[Case], limit: int | None) -> list[Case]:
    """At most `limit` cases (None: all) for a first look: as many of each category as possible, in the order given."""
    if limit is None or limit >= len(cases):
        return list(cases)
    place: dict[str, int] = {}  # category -> its cases so far
    ranks = []
    for number, case in enumerate(cases):
        place[case.category] = place.get(case.category, 0) + 1
        ranks.append((place[case.category], number))
    return [cases[number] for number in sorted(number for _, number in sorted(ranks)[:limit])]


def response_line(case: str, sample: int, answer: Response) -> str:
    """The line of a response file for one response."""
    row = {"case": case, "sample": sample, "response": answer.text, "n_tokens": answer.n_tokens}
    row["finished"] = answer.finished
    if answer.turns is not None:
        row["turns"] = answer.turns
    if answer.stopped is not None:
        row["stopped"] = answer.stopped
    if answer.lost_calls:
        row["lost_calls"] = answer.lost_calls
    return json.dumps(row) + "\n"


def parse_response(path: Path, number: int, line: str) -> Row:
    """The row in line `number` (from 1) of a response file. Raises ValueError, naming file and row, for a wrong one."""
    row = _parse(path, number, line, ("case", "sample", "response", "n_tokens", "finished"))
    types = {"case": str, "sample": int, "response": str, "n_tokens": int, "finished": bool}
    for field, kind in types.items():
        if type(row[field]) is not kind:
            raise ValueError(f"{path}, row {number}: {field} must be {kind.__name__}, not {row[field]!r:.100}")
    turns, stopped = row.get("turns"), row.get("stopped")
    if turns is not None:
        steps = [step for turn in turns for step in turn] if _is_list_of(turns, list) else [None]
        if not _is_list_of(steps, str):
            raise ValueError(f"{path}, row {number}: turns must be a list of lists of texts, not {turns!r:.100}")
        turns = tuple(tuple(turn) for turn in turns)
    if stopped is not None and stopped not in get_args(Stopped):
        raise ValueError(f"{path}, row {number}: stopped must be one of {get_args(Stopped)}, not {stopped!r:.100}")
    lost = row.get("lost_calls", 0)
    if type(lost) is not int or lost < 0:
        raise ValueError(f"{path}, row {number}: lost_calls must be a number of calls, 0 or more, not {lost!r:.100}")
    answer = Response(row["response"], row["n_tokens"], row["finished"], turns, stopped, lost)
    return Row(row["case"], row["sample"], answer)


def sha256_of(paths: Iterable[Path], root: Path) -> dict[str, str]:
    """Checksums (64 hex digits) of files, keyed by their path below `root`."""
    sums = {}
    for path in sorted(paths):
        sums[path.relative_to(root).as_posix()] = sha256(path)
    return sums


def plain_metric(frame: pd.DataFrame, column: str) -> Metric:
    """Every question counts alike. `frame` has columns category, case and `column`, a row a sample."""
    means = frame.groupby(["category", "case"], sort=True)[column].mean()
    strata = means.index.get_level_values("category").to_numpy(dtype=object)
    return Metric(means.to_numpy(dtype=np.float64), strata, np.full(len(means), 1 / len(means)))


def _lines(content: str) -> list[str]:
    # Not splitlines(): model text may hold other separators, which JSON leaves as they are.
    return [line for line in content.split("\n") if line]


def _parse(path: Path, number: int, line: str, fields: Sequence[str]) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{path}, row {number}: not valid JSON ({error})") from None
    if not isinstance(row, dict) or not set(fields) <= set(row):
        raise ValueError(f"{path}, row {number}: must be an object with {', '.join(fields)}; it is {line[:100]}")
    return row


def _is_list_of(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


def _row(path: Path, number: int, line: str, expected: tuple[str, int]) -> Row:
    row = parse_response(path, number, line)
    if (row.case, row.sample) != expected:
        found = f"case {row.case!r}, sample {row.sample!r}"
        raise ValueError(f"{path}, row {number}: is {found}; expected case {expected[0]!r}, sample {expected[1]}")
    return row

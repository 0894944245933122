"""Cases, responses and metrics, and the files of an evaluation.

An evaluation has the directory `<benchmark>-<hash8>`, with the hash of the settings that determine responses:

* `step_<N>.jsonl.gz`: the responses of a checkpoint, a line each; `.step_<N>.jsonl` while they are generated;
* `responses.json`: their identity, written when all are there; `.identity.json` has it from the beginning;
* `scores.csv.gz`: a row a response, all steps; `.scores.jsonl` while they are scored;
* `scores.json`: the scorer, the steps, the checksum of that table, and `responses.json` again.

`results/cached` keeps the two files of scores, and the responses of all steps in one file, `responses.jsonl.gz`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dara.files import gunzip, gzipped, read_json, sha256, write_atomically

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

Stopped = Literal["context_overflow", "step_limit"]
"""Reason why a dialogue ended early: no room for another output, or too many steps in a turn."""
Place = tuple[str, int]
"""A case and the number of a sample."""
IDENTITY = ".identity.json"
RESPONSES = "responses.json"
SCORES = "scores.json"
SCORE_TABLE = "scores.csv.gz"
CACHED_RESPONSES = "responses.jsonl.gz"


@dataclass(frozen=True)
class Case:
    """A held-out problem: `question` is its row in the benchmark's file, `gold` is the scorer's input."""

    id: str
    category: str
    question: dict[str, Any]
    gold: dict[str, Any]


@dataclass(frozen=True)
class Metric:
    """A score, the sum of `weights * values`, for a bootstrap over questions.

    A stratified bootstrap draws questions with replacement within each stratum; weights are equal within a stratum, so
    drawing leaves them unchanged.

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
        """Return the score over all questions, in [0, 1]."""
        # An exact sum: 1/24 added 24 times is 1, in any order and on any machine.
        return math.fsum(self.weights * self.values)


@dataclass(frozen=True)
class Response:
    """A model's response: text without special tokens, tokens with the end token, and whether it ended by itself.

    In a dialogue of several turns `turns` has the outputs of each turn, one a step; then `text` is empty, `n_tokens` is
    the sum over outputs, and `finished` is true if all of them ended by themselves. `stopped`: why the dialogue ended
    early. `lost_calls`: its tool calls without an answer, because they took too long or too much memory.
    """

    text: str
    n_tokens: int
    finished: bool
    turns: tuple[tuple[str, ...], ...] | None = None
    stopped: Stopped | None = None
    lost_calls: int = 0

    @property
    def outputs(self) -> list[str]:
        """Return all outputs of the model, in order."""
        return [self.text] if self.turns is None else [step for turn in self.turns for step in turn]


class Row(BaseModel):
    """A line of a response file: the response to sample `sample` (from 0) of a case at a step.

    Error messages use the descriptions: each says what its value must be.
    """

    model_config = ConfigDict(strict=True, frozen=True)

    step: int = Field(description="int")
    case: str = Field(description="str")
    sample: int = Field(description="int")
    response: str = Field(description="str")
    n_tokens: int = Field(description="int")
    finished: bool = Field(description="bool")
    turns: tuple[tuple[str, ...], ...] | None = Field(None, description="a list of lists of texts")
    stopped: Stopped | None = Field(None, description="one of ('context_overflow', 'step_limit')")
    lost_calls: Annotated[int, Field(ge=0)] = Field(0, description="a number of calls, 0 or more")

    @property
    def answer(self) -> Response:
        """Return the response itself."""
        return Response(self.response, self.n_tokens, self.finished, self.turns, self.stopped, self.lost_calls)


def response_line(step: int, case: str, sample: int, answer: Response) -> str:
    """Return a response as a line of a response file, without the line end; default values are left out."""
    row = {"step": step, "case": case, "sample": sample, "response": answer.text, "n_tokens": answer.n_tokens}
    row |= {"finished": answer.finished}
    rest = {"turns": answer.turns, "stopped": answer.stopped, "lost_calls": answer.lost_calls or None}
    return json.dumps(row | {key: value for key, value in rest.items() if value is not None})


def parse_row(path: Path, number: int, line: str) -> Row:
    """Return the row in line `number` (from 1) of a response file.

    ValueError for a wrong line, with file, row, and what the value must be.
    """
    where, fields = f"{path}, row {number}", Row.model_fields
    try:
        return Row.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
    match first["type"]:
        case "json_invalid":
            raise ValueError(f"{where}: not valid JSON ({first['msg']})")
        case "missing" | "model_type":
            required = ", ".join(name for name, field in fields.items() if field.is_required())
            raise ValueError(f"{where}: must be an object with {required}; it is {line[:100]}")
    name = first["loc"][0]
    raise ValueError(f"{where}: {name} must be {fields[name].description}, not {json.loads(line)[name]!r:.100}")


def read_jsonl(path: Path, fields: Sequence[str]) -> list[dict[str, Any]]:
    """Return the objects of a JSON-lines file; each must have `fields`.

    ValueError, with file and row (from 1), if the file is missing or empty, or a line is not such an object.
    """
    if not path.is_file():
        raise ValueError(f"{path}: the file does not exist")
    rows = []
    for number, line in enumerate(_lines(path.read_text("utf-8")), 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}, row {number}: not valid JSON ({error})") from None
        if not isinstance(row, dict) or not set(fields) <= set(row):
            raise ValueError(f"{path}, row {number}: must be an object with {', '.join(fields)}; it is {line[:100]}")
        rows.append(row)
    if not rows:
        raise ValueError(f"{path}: has no row; each line must be an object with {', '.join(fields)}")
    return rows


def responses_path(directory: Path, step: int) -> Path:
    """Return the path of a checkpoint's responses."""
    return directory / f"step_{step}.jsonl.gz"


def journal_path(directory: Path, step: int) -> Path:
    """Return the path of the journal of a checkpoint's responses, which exists until they are complete."""
    return directory / f".step_{step}.jsonl"


def steps_made(directory: Path) -> list[int]:
    """Return the steps whose responses are complete, sorted."""
    return sorted(int(path.name[len("step_") : -len(".jsonl.gz")]) for path in directory.glob("step_*.jsonl.gz"))


def read_responses(path: Path, cases: Sequence[Case], samples: int) -> list[Row]:
    """Return the responses in `path`: `samples` of each of `cases`, in their order.

    ValueError, with file and row (from 1), if the file is missing, damaged or incomplete, or a row is wrong.
    """
    try:
        lines = _lines(gunzip(path).decode("utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path}: the file does not exist; responses are generated before they are scored") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: not UTF-8 text ({error})") from None
    expected = [(case.id, sample) for case in cases for sample in range(samples)]
    rows = []
    for number, (line, (case, sample)) in enumerate(zip(lines, expected, strict=False), 1):
        row = parse_row(path, number, line)
        if (row.case, row.sample) != (case, sample):
            found = f"case {row.case!r}, sample {row.sample!r}"
            raise ValueError(f"{path}, row {number}: is {found}; expected case {case!r}, sample {sample}")
        rows.append(row)
    if len(lines) != len(expected):
        raise ValueError(f"{path}: has {len(lines)} rows; {len(cases)} cases x {samples} samples need {len(expected)}")
    return rows


def write_responses(directory: Path, step: int, cases: Sequence[Case], responses: Sequence[Sequence[Response]]) -> None:
    """Write `responses[case][sample]` of a checkpoint, atomically; equal responses give equal bytes."""
    answers = zip(cases, responses, strict=True)
    rows = [(case.id, sample, answer) for case, given in answers for sample, answer in enumerate(given)]
    _write_lines(responses_path(directory, step), [response_line(step, *row) for row in rows])


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    write_atomically(path, gzipped("".join(f"{line}\n" for line in lines).encode("utf-8")))


def responses_manifest(directory: Path) -> dict[str, Any]:
    """Return the identity of the responses in a directory, or of the cache. ValueError if not all are there."""
    if (directory / RESPONSES).is_file():
        return read_json(directory / RESPONSES)
    if (directory / CACHED_RESPONSES).is_file():
        return read_json(directory / SCORES)["responses"]
    raise ValueError(
        f"{directory / RESPONSES}: the file does not exist; responses are generated before they are scored"
    )


def covers(directory: Path, steps: Iterable[int]) -> bool:
    """Return whether scoring is done in a directory and covers these steps."""
    path = directory / SCORES
    return path.is_file() and {*steps} <= {*read_json(path)["steps"]}


def scored_by(directory: Path) -> int | None:
    """Return the version of the scorer that made the scores in a directory; None without scores."""
    path = directory / SCORES
    return read_json(path)["scorer"].get("scorer", {}).get("scorer") if path.is_file() else None


def collected_responses(directory: Path) -> bytes:
    """Return the responses of all steps as one compressed file, as the cache keeps them."""
    return gzipped(b"".join(gunzip(responses_path(directory, step)) for step in steps_made(directory)))


def copy_responses(source: Path, directory: Path) -> None:
    """Copy responses and their identity from a directory, or from the cache, to `directory`."""
    manifest, cached = responses_manifest(source), source / CACHED_RESPONSES
    found: dict[int, list[str]] = {}
    for number, line in enumerate(_lines(gunzip(cached).decode("utf-8")) if cached.is_file() else (), 1):
        found.setdefault(parse_row(cached, number, line).step, []).append(line)
    for step, lines in found.items():
        _write_lines(responses_path(directory, step), lines)
    for step in steps_made(source):
        write_atomically(responses_path(directory, step), responses_path(source, step).read_bytes())
    for name in (IDENTITY, RESPONSES):
        write_atomically(directory / name, json_text(manifest))


def json_text(content: Any) -> str:
    """Return a manifest as text with sorted keys, so that equal contents are equal files."""
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


def select_cases(cases: Sequence[Case], limit: int | None) -> list[Case]:
    """Return at most `limit` cases (None: all), for a first look: as many of each category as possible, in order."""
    place: Counter[str] = Counter()  # category -> its cases so far
    ranks = []
    for number, case in enumerate(cases):
        place[case.category] += 1
        ranks.append((place[case.category], number))
    return [cases[number] for number in sorted(number for _, number in sorted(ranks)[:limit])]


def sha256_of(paths: Iterable[Path], root: Path) -> dict[str, str]:
    """Return the checksums (64 hex digits) of files, keyed by their path below `root`."""
    return {path.relative_to(root).as_posix(): sha256(path) for path in sorted(paths)}


def plain_metric(frame: pd.DataFrame, column: str) -> Metric:
    """Return a metric with the same weight for every question, from columns category, case and `column`."""
    import numpy as np

    means = frame.groupby(["category", "case"], sort=True)[column].mean()
    strata = means.index.get_level_values("category").to_numpy(dtype=object)
    return Metric(means.to_numpy(dtype=np.float64), strata, np.full(len(means), 1 / len(means)))


def _lines(content: str) -> list[str]:
    # Not splitlines(): model text may hold other separators, which JSON leaves as they are.
    return [line for line in content.split("\n") if line]

"""Scores of generated responses, one CSV file a checkpoint, and the metrics that they make."""

from __future__ import annotations

import csv
import io
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pandas as pd

from dara.config import Benchmark
from dara.evaluation import bfcl, math
from dara.evaluation.records import Case, Metric, Row, read_responses, sha256_of
from dara.evaluation.sandbox import Outcome, Sandbox, ScorerSpec
from dara.files import read_text, write_atomically

logger = logging.getLogger(__name__)

# Name of a benchmark -> module with FACTORY, COLUMNS, case_files, load_cases, prompt, score_row, summarise.
BENCHMARKS: dict[str, ModuleType] = {"laptop_tools": bfcl, "laptop_math": math}


def responses_path(out_dir: Path, step: int, benchmark: str) -> Path:
    """Where the responses of a checkpoint are; their scores stand beside them."""
    return out_dir / f"step_{step}" / f"{benchmark}.jsonl.gz"


def scores_path(out_dir: Path, step: int, benchmark: str) -> Path:
    """Where the scores of a checkpoint are."""
    return out_dir / f"step_{step}" / f"{benchmark}.csv"


def identity_path(out_dir: Path, benchmark: str) -> Path:
    """What made the responses below `out_dir`; written when all of them are there."""
    return out_dir / f"{benchmark}.identity.json"


def score_checkpoints(out_dir: Path, steps: Sequence[int], benchmark: Benchmark, cases_dir: Path) -> None:
    """Write `<out_dir>/step_<N>/<benchmark>.csv` for each step: a row a response, in the order of the cases.

    The columns are the benchmark module's COLUMNS: scores are 0 or 1; `outcome` is `timeout` where the scorer did not
    end in time (or ran out of memory) twice, and then what it had not scored by then counts as wrong.

    Raises:
        ValueError: responses or cases are missing, wrong, or do not belong together; names file and row.
        SandboxError: the scorer itself failed.
    """
    module = BENCHMARKS[benchmark.name]
    cases = module.load_cases(benchmark.name, cases_dir)
    _check_cases(out_dir, benchmark.name, cases_dir)
    gold = {case.id: case for case in cases}
    with Sandbox(ScorerSpec(module.FACTORY, {}, benchmark.seconds_per_case)) as sandbox:
        for position, step in enumerate(sorted(steps), 1):
            rows = read_responses(responses_path(out_dir, step, benchmark.name), cases, benchmark.samples)
            outcomes = sandbox.score([{"response": row.response.text, **gold[row.case].gold} for row in rows])
            table = _table(module, rows, outcomes, gold, benchmark.length_limit)
            write_atomically(scores_path(out_dir, step, benchmark.name), table.encode("utf-8"))
            logger.info("%s, %s: scored step %d (%d of %d)", out_dir.name, benchmark.name, step, position, len(steps))


def read_scores(path: Path, benchmark: str) -> pd.DataFrame:
    """A score file as a frame with the benchmark module's COLUMNS.

    Raises:
        ValueError: the file is missing, or its columns are others.
    """
    try:
        text = read_text(path)
    except FileNotFoundError:
        raise ValueError(f"{path}: the file does not exist; responses are scored before they are analysed") from None
    frame = pd.read_csv(io.StringIO(text), dtype={"case": str, "category": str, "outcome": str}, keep_default_na=False)
    columns = list(BENCHMARKS[benchmark].COLUMNS)
    if list(frame.columns) != columns or frame.empty:
        raise ValueError(
            f"{path}: has {len(frame)} rows of {', '.join(frame.columns)}; the columns must be {', '.join(columns)}"
        )
    return frame


def summarise(frame: pd.DataFrame, benchmark: str) -> dict[str, Metric]:
    """Metric -> its value for each question, with strata and weights, from a frame of `read_scores`.

    laptop_tools: average_accuracy, average_format, accuracy/<category>, format/<category>, decode_error_rate,
    truncated_rate. laptop_math: acc, strict, math_verify, exceed, joint, truncated_rate. All are shares in [0, 1].

    Raises:
        ValueError: a group of categories that an average needs has no case.
    """
    return BENCHMARKS[benchmark].summarise(frame, benchmark)


def _check_cases(out_dir: Path, name: str, cases_dir: Path) -> None:
    """The cases must be those that the responses answer."""
    path = identity_path(out_dir, name)
    if not path.is_file():
        raise ValueError(f"{path}: the file does not exist; responses are generated before they are scored")
    made_for = json.loads(path.read_text("utf-8"))["cases"]
    here = sha256_of(BENCHMARKS[name].case_files(name, cases_dir), cases_dir)
    if made_for != here:
        files = ", ".join(sorted(file for file in {*made_for, *here} if made_for.get(file) != here.get(file)))
        raise ValueError(f"{cases_dir}: {files} changed since {path} was written; generate the responses again")


def _table(
    module: ModuleType,
    rows: Sequence[Row],
    outcomes: Sequence[Outcome],
    cases: dict[str, Case],
    length_limit: int | None,
) -> str:
    """The CSV text: a line a response."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, fieldnames=module.COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row, outcome in zip(rows, outcomes, strict=True):
        scores = module.score_row(row.response, outcome.scores, length_limit)
        place = {"case": row.case, "category": cases[row.case].category, "sample": row.sample}
        writer.writerow({**place, **scores, "n_tokens": row.response.n_tokens, "outcome": outcome.outcome})
    return stream.getvalue()

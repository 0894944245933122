"""Scores of generated responses, one table for all checkpoints of a run, and the metrics computed from them."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from dara.evaluation.isolation import MEMORY_BYTES
from dara.evaluation.records import (
    SCORE_TABLE,
    SCORES,
    Case,
    Metric,
    Row,
    json_text,
    read_responses,
    responses_manifest,
    responses_path,
    scored_by,
    select_cases,
    sha256_of,
)
from dara.evaluation.samplers import Progress
from dara.evaluation.sandbox import Outcome, Outcomes, ScorerSpec, ScoringPool, cores
from dara.files import gunzip, gzipped, read_json, write_atomically
from dara.registries import BenchmarkDefinition, definition
from dara.specs import Benchmark
from dara.store import Journal

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)

JOURNAL = ".scores.jsonl"


class JournalLine(BaseModel):
    """A line of the journal of scores: the scores of response `response` (from 0) of a step."""

    model_config = ConfigDict(strict=True, extra="forbid")

    step: int
    response: int
    scores: dict[str, Any]
    outcome: Outcomes


def score_checkpoints(
    out_dir: Path, steps: Sequence[int], settings: Benchmark, cases_dir: Path, workers: int | None = None
) -> None:
    """Write `scores.csv.gz`, a row a response in the order of steps and cases, and `scores.json` into `out_dir`.

    The columns are `step` and the benchmark's. `outcome` is `timeout` if the scorer twice did not end in time or ran
    out of memory; parts not scored by then count as wrong. A killed process continues from the responses scored so far.

    Args:
        out_dir: directory of the evaluation, which has its responses.
        workers: processes that score at once; None: as many as there are cores.

    Raises:
        ValueError: responses or cases are missing, wrong, or do not belong together; names file and row.
        SandboxError: the scorer itself failed.
    """
    benchmark, made = definition(settings.name), responses_manifest(out_dir)
    cases = select_cases(benchmark.load_cases(cases_dir), settings.limit)
    _check_cases(benchmark, cases_dir, made, out_dir)
    spec = ScorerSpec(benchmark.scorer, benchmark.scorer_settings(settings), settings.seconds_per_case)
    with ScoringPool(spec, cores() if workers is None else workers) as pool:
        scorer = _scorer(benchmark, settings, spec, pool) if steps else {}
        table = _scored(out_dir, sorted(steps), settings, cases, pool, scorer)
    write_atomically(out_dir / SCORE_TABLE, gzipped(table))
    content = {"scorer": scorer, "steps": sorted(steps), "scores_sha256": hashlib.sha256(table).hexdigest()}
    write_atomically(out_dir / SCORES, json_text({**content, "responses": made}))
    (out_dir / JOURNAL).unlink(missing_ok=True)


def _scorer(benchmark: BenchmarkDefinition, settings: Benchmark, spec: ScorerSpec, pool: ScoringPool) -> dict[str, Any]:
    """Return the record of the scorer, as JSON values."""
    return {
        "schema": 3,  # since 2 `seconds` are of processor time; since 3 with the length limit
        "benchmark": benchmark.name,
        "scorer": {**(benchmark.graders or {}), "scorer": benchmark.scorer_version},
        "settings": spec.settings,
        "length_limit": settings.length_limit,
        "seconds": spec.seconds,
        "memory_bytes": MEMORY_BYTES,
        "network": pool.network(),
    }


def _scored(
    out_dir: Path,
    steps: Sequence[int],
    settings: Benchmark,
    cases: Sequence[Case],
    pool: ScoringPool,
    scorer: Mapping[str, Any],
) -> bytes:
    """Return the table of scores, after scoring all responses that are not in the journal."""
    benchmark, gold = definition(settings.name), {case.id: case for case in cases}
    files = [responses_path(out_dir, step) for step in steps]
    responses = sha256_of([path for path in files if path.is_file()], out_dir)
    head = json.dumps({"scorer": scorer, "responses": responses, "cases": len(cases)}, sort_keys=True)
    stream = io.StringIO()
    writer = csv.DictWriter(stream, fieldnames=("step", *benchmark.columns), lineterminator="\n")
    writer.writeheader()
    with score_journal(out_dir / JOURNAL, head) as journal:
        for position, step in enumerate(steps, 1):
            rows = read_responses(responses_path(out_dir, step), cases, settings.samples)
            left = {number: row for number, row in enumerate(rows) if (step, number) not in journal.done}
            label = f"{out_dir.parent.name}, {settings.name}: scoring step {step} ({position} of {len(steps)})"
            progress = Progress(logger, label, len(rows), len(rows) - len(left))

            # The default arguments bind the values of this iteration.
            def keep(number: int, outcome: Outcome, step: int = step, progress: Progress = progress) -> None:
                line = JournalLine(step=step, response=number, scores=outcome.scores, outcome=outcome.outcome)
                journal.add((step, number), outcome, line.model_dump_json())
                progress.advance()

            items = {number: benchmark.scorer_item(row.answer, gold[row.case]) for number, row in left.items()}
            pool.score(items, keep)
            outcomes = [journal.done[step, number] for number in range(len(rows))]
            writer.writerows(_table_rows(benchmark, rows, outcomes, gold, settings.length_limit))
    return stream.getvalue().encode("utf-8")


def score_journal(path: Path, head: str) -> Journal[tuple[int, int], Outcome]:
    """Return the journal of scores so far, by step and response number; `head` identifies responses and scorer."""

    def parse(number: int, line: str) -> tuple[tuple[int, int], Outcome]:
        try:
            row = JournalLine.model_validate_json(line)
        except ValidationError:
            raise ValueError(
                f"{path}, row {number}: must be an object with {', '.join(JournalLine.model_fields)}; it is "
                f"{line[:100]!r}; delete the file, and all responses are scored again"
            ) from None
        return (row.step, row.response), Outcome(row.scores, row.outcome)

    return Journal(path, parse, head)


def _table_rows(
    benchmark: BenchmarkDefinition,
    rows: Sequence[Row],
    outcomes: Sequence[Outcome],
    cases: Mapping[str, Case],
    length_limit: int | None,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table of one step."""
    for row, outcome in zip(rows, outcomes, strict=True):
        scores = benchmark.score_row(row.answer, outcome.scores, length_limit)
        place = {"step": row.step, "case": row.case, "category": cases[row.case].category, "sample": row.sample}
        yield {**place, **scores, "n_tokens": row.n_tokens, "outcome": outcome.outcome}


def _check_cases(benchmark: BenchmarkDefinition, cases_dir: Path, made: Mapping[str, Any], out_dir: Path) -> None:
    """Raise ValueError unless the cases are those of the responses."""
    before, here = made["cases"], sha256_of(benchmark.case_files(cases_dir), cases_dir)
    if before != here:
        files = ", ".join(sorted(file for file in {*before, *here} if before.get(file) != here.get(file)))
        raise ValueError(f"{cases_dir}: {files} changed since {out_dir} was written; generate the responses again")


# --- reading ----------------------------------------------------------------------------------------------------------


def check_version(directory: Path, benchmark: str) -> None:
    """Raise ValueError if the scores in a directory were made by another version of the scorer."""
    made, now = scored_by(directory), definition(benchmark).scorer_version
    if made != now:
        raise ValueError(
            f"{directory / SCORES}: version {made} of the scorer made these scores, now it is {now}; "
            "the workflow's rule `score` scores the responses again"
        )


def check_scorers(directories: Mapping[str, Path]) -> None:
    """Raise ValueError unless scores of one table were made by the same checkers, limits and isolation.

    Keys that only one of two records has are not compared: the oldest scores in results/cached have few of them.

    Args:
        directories: run id or base id -> the directory of its evaluation.
    """
    known: dict[str, tuple[str, Any]] = {}  # key -> the first that records it, and its value
    for name, directory in sorted(directories.items()):
        path = Path(directory) / SCORES
        if not path.is_file():
            raise ValueError(f"{path}: the file does not exist, which says what scored {name}; score it again")
        scorer = _flattened(read_json(path)["scorer"])
        unlike = sorted(key for key in scorer if key in known and known[key][1] != scorer[key])
        if unlike:
            raise ValueError(
                f"{path}: {name} was scored with another {', '.join(unlike)} than {known[unlike[0]][0]}; scores are "
                "compared only when they were made alike, so score one of them again"
            )
        known = {key: (name, value) for key, value in scorer.items()} | known


def _flattened(scorer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record of a scorer with the versions of its graders beside the rest."""
    rest = {key: value for key, value in scorer.items() if key not in ("scorer", "schema")}
    return {**rest, **scorer.get("scorer", {})}


def read_scores(directory: Path, benchmark: str, step: int) -> pd.DataFrame:
    """Return the scores of one checkpoint as a frame with the benchmark's columns.

    Raises:
        ValueError: the table is missing, was changed after it was written, has other columns, or lacks the step.
    """
    path = directory / SCORE_TABLE
    if not path.is_file() or not (directory / SCORES).is_file():
        raise ValueError(f"{path}: the file does not exist; responses are scored before they are analysed")
    written = (path.stat().st_mtime_ns, (directory / SCORES).stat().st_mtime_ns)
    frame, columns = _table(path, *written), ("step", *definition(benchmark).columns)
    if tuple(frame.columns) != columns or frame.empty:
        raise ValueError(
            f"{path}: has {len(frame)} rows of {', '.join(frame.columns)}; the columns must be {', '.join(columns)}"
        )
    rows = frame[frame["step"] == step]
    if rows.empty:
        raise ValueError(f"{path}: has no scores of step {step}; score it again")
    return rows.drop(columns="step").reset_index(drop=True)


@lru_cache(maxsize=16)
def _table(path: Path, *_changed: int) -> pd.DataFrame:
    """Return a whole table of scores, which must be the one that `scores.json` lists."""
    import pandas as pd

    content = gunzip(path)
    if hashlib.sha256(content).hexdigest() != read_json(path.with_name(SCORES))["scores_sha256"]:
        raise ValueError(f"{path}: not the file whose sha256 {SCORES} lists; it was changed, so score it again")
    text = io.StringIO(content.decode("utf-8"))
    return pd.read_csv(text, dtype={"case": str, "category": str, "outcome": str}, keep_default_na=False)


def summarise(frame: pd.DataFrame, benchmark: str) -> dict[str, Metric]:
    """Return metric -> its value for each question, with strata and weights, from a frame of `read_scores`.

    The metrics are those of the benchmark's `summarise`. All are shares in [0, 1] except `plain_numbers`.

    Raises:
        ValueError: a group of categories that an average needs has no case.
    """
    return definition(benchmark).summarise(frame)

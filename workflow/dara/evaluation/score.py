"""Scores of generated responses, one CSV file a checkpoint, and the metrics that they make.

A benchmark is a module with these names:
* case_files, load_cases and prompt: its cases, and what a model is asked first; VERSIONS, where code makes the prompts
  of those files: what makes them;
* programs and tools_identity, where a case asks for several outputs: what it asks for, and what executes its tools;
* FACTORY (of its scorer, see `sandbox`), COLUMNS, score_row and summarise; where others' graders score, SCORER (their
  versions; `scorers` has the scorer's own); and where they differ from the usual, scorer_item and scorer_settings.
"""

from __future__ import annotations

import csv
import io
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd

from dara.config import Benchmark
from dara.evaluation import bfcl, bfcl_v4, math, validation_math, validation_tools
from dara.evaluation.isolation import MEMORY_BYTES
from dara.evaluation.progress import Progress
from dara.evaluation.records import Case, Metric, Row, read_responses, select_cases, sha256_of
from dara.evaluation.sandbox import Outcome, ScorerSpec
from dara.evaluation.scorers import SCORERS, is_recorded, scored_by, scorer_path
from dara.evaluation.scoring import Journal, ScoringPool, cores
from dara.files import read_text, sha256, write_atomically

logger = logging.getLogger(__name__)

BENCHMARKS: dict[str, ModuleType] = {
    "laptop_tools": bfcl,
    "laptop_math": math,
    "bfcl_v4": bfcl_v4,
    "math_five": math,
    "toolrl_validation": validation_tools,
    "deepscaler_validation": validation_math,
}


def responses_path(out_dir: Path, step: int, benchmark: str) -> Path:
    """Where the responses of a checkpoint are; their scores stand beside them."""
    return out_dir / f"step_{step}" / f"{benchmark}.jsonl.gz"


def scores_path(out_dir: Path, step: int, benchmark: str) -> Path:
    """Where the scores of a checkpoint are."""
    return out_dir / f"step_{step}" / f"{benchmark}.csv"


def identity_path(out_dir: Path, benchmark: str) -> Path:
    """What made the responses below `out_dir`; written when all of them are there."""
    return out_dir / f"{benchmark}.identity.json"


def copy_responses(source: Path, out_dir: Path, benchmark: str) -> None:
    """Copy the responses below `source`, and their identity, to `out_dir`."""
    for path in [*source.glob(f"step_*/{benchmark}.jsonl.gz"), identity_path(source, benchmark)]:
        write_atomically(out_dir / path.relative_to(source), path.read_bytes())


def score_checkpoints(
    out_dir: Path, steps: Sequence[int], benchmark: Benchmark, cases_dir: Path, workers: int | None = None
) -> None:
    """Write `<out_dir>/step_<N>/<benchmark>.csv` for each step: a row a response, in the order of the cases.

    The columns are the benchmark module's COLUMNS. `outcome` is `timeout` where the scorer did not end in time (or ran
    out of memory) twice, and then what it had not scored by then counts as wrong. A killed process goes on with what
    is scored, response by response. Last, `<out_dir>/<benchmark>.scorer.json` says what scored them (`is_recorded`).

    Args:
        workers: processes that score at once; None: as many as there are cores.

    Raises:
        ValueError: responses or cases are missing, wrong, or do not belong together; names file and row.
        SandboxError: the scorer itself failed.
    """
    module = BENCHMARKS[benchmark.name]
    cases = select_cases(module.load_cases(benchmark.name, cases_dir), benchmark.limit)
    _check_cases(out_dir, benchmark.name, cases_dir)
    settings = module.scorer_settings(benchmark) if hasattr(module, "scorer_settings") else {}
    spec = ScorerSpec(module.FACTORY, settings, benchmark.seconds_per_case)
    with ScoringPool(spec, cores() if workers is None else workers) as pool:
        scorer = _scorer(benchmark, spec, pool) if steps else {}
        _drop_other_record(scorer_path(out_dir, benchmark.name), scorer)
        for position, step in enumerate(sorted(steps), 1):
            label = f"{out_dir.name}, {benchmark.name}: scoring step {step} ({position} of {len(steps)})"
            _score_step(out_dir, step, benchmark, cases, pool, scorer, label)
    if steps and is_recorded(benchmark.name):
        text = json.dumps(scorer, indent=2, sort_keys=True) + "\n"
        write_atomically(scorer_path(out_dir, benchmark.name), text.encode())
    for step in steps:
        _journal_path(out_dir, step, benchmark.name).unlink(missing_ok=True)


def _drop_other_record(path: Path, scorer: Mapping[str, Any]) -> None:
    """New scores replace others one by one: the record of another scorer must not stand over a mixture."""
    if path.is_file() and json.loads(path.read_text("utf-8")) != scorer:
        path.unlink()


def _scorer(benchmark: Benchmark, spec: ScorerSpec, pool: ScoringPool) -> dict[str, Any]:
    """What makes the scores, in values of JSON."""
    return {
        "schema": 2,  # since 2 `seconds` are of processor time
        "benchmark": benchmark.name,
        "scorer": {**getattr(BENCHMARKS[benchmark.name], "SCORER", {}), "scorer": SCORERS[benchmark.name]},
        "settings": spec.settings,
        "seconds": spec.seconds,
        "memory_bytes": MEMORY_BYTES,
        "network": pool.network(),
    }


def _score_step(
    out_dir: Path,
    step: int,
    benchmark: Benchmark,
    cases: Sequence[Case],
    pool: ScoringPool,
    scorer: Mapping[str, Any],
    label: str,
) -> None:
    """Score one checkpoint's responses, those that are not scored yet, and write its CSV."""
    module = BENCHMARKS[benchmark.name]
    path, gold = responses_path(out_dir, step, benchmark.name), {case.id: case for case in cases}
    rows = read_responses(path, cases, benchmark.samples)
    head = {"scorer": scorer, "responses": sha256(path), "cases": len(cases)}
    with Journal(_journal_path(out_dir, step, benchmark.name), head) as journal:
        left = {number: row for number, row in enumerate(rows) if number not in journal.done}
        progress = Progress(logger, label, len(rows), len(journal.done))

        def keep(number: int, outcome: Outcome) -> None:
            journal.add(number, outcome)
            progress.advance()

        pool.score({number: _item(module, row, gold[row.case]) for number, row in left.items()}, keep)
        outcomes = [journal.done[number] for number in range(len(rows))]
    table = _table(module, rows, outcomes, gold, benchmark.length_limit)
    write_atomically(scores_path(out_dir, step, benchmark.name), table.encode("utf-8"))


def _item(module: ModuleType, row: Row, case: Case) -> dict[str, Any]:
    """What the scorer needs of a response and its case."""
    if hasattr(module, "scorer_item"):
        return module.scorer_item(row.response, case)
    return {"response": row.response.text, **case.gold}


def _journal_path(out_dir: Path, step: int, benchmark: str) -> Path:
    return out_dir / f"step_{step}" / f".{benchmark}.scores.partial"


def check_scorers(directories: Mapping[str, Path], benchmark: str) -> None:
    """Scores that stand in one table must be made by the same checkers, limits and isolation.

    Args:
        directories: run id or base id -> the directory of its scores.

    Raises:
        ValueError: they are not, or it is not recorded what made them.
    """
    if not is_recorded(benchmark):
        return
    first: tuple[str, dict[str, Any]] | None = None
    for name, directory in sorted(directories.items()):
        path = scorer_path(Path(directory), benchmark)
        if not path.is_file():
            raise ValueError(f"{path}: the file does not exist, which says what scored {name}; score it again")
        scorer = json.loads(path.read_text("utf-8"))
        first = first or (name, scorer)
        unlike = sorted(key for key in {*first[1], *scorer} if first[1].get(key) != scorer.get(key))
        if unlike:
            raise ValueError(
                f"{path}: {name} was scored with another {', '.join(unlike)} than {first[0]}; scores are compared only "
                "when they were made alike, so score one of them again"
            )


def check_version(directory: Path, benchmark: str) -> None:
    """ValueError where an older rule made the scores below `directory`."""
    made, now = scored_by(directory, benchmark), SCORERS[benchmark]
    if made != now:
        raise ValueError(
            f"{scorer_path(directory, benchmark)}: version {made} of the scorer made these scores, now it is {now}; "
            "the workflow's rule `score` scores the responses again"
        )


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
    The other benchmarks: see `summarise` in their modules.

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

"""Scoring goes on after a kill with what is done, uses several workers, and says what made the scores."""

import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pandas as pd
import pytest

from dara import registries
from dara.config import Benchmark
from dara.data import SOURCES
from dara.data.generated import held_out
from dara.evaluation import bfcl_v4, grading
from dara.evaluation.generate import generate_checkpoints
from dara.evaluation.grading import (
    JOURNAL,
    check_scorers,
    check_version,
    read_scores,
    score_checkpoints,
    score_journal,
    summarise,
)
from dara.evaluation.records import (
    CACHED_RESPONSES,
    RESPONSES,
    SCORE_TABLE,
    SCORES,
    Response,
    collected_responses,
    copy_responses,
    scored_by,
    select_cases,
    sha256_of,
    steps_made,
    write_responses,
)
from dara.evaluation.sandbox import ScoringPool
from dara.files import gzipped
from dara.registries import definition
from dara.runs import evaluation_id
from dara.specs import RunSpec
from evaluation_fakes import FakeSampler, benchmark, write_cases, write_checkpoints
from oracle import oracle_response
from project import ROOT


def write_manifest(out: Path, name: str, cases_dir: Path, steps: Sequence[int]) -> None:
    """What made responses, as far as scoring reads it."""
    cases = sha256_of(definition(name).case_files(cases_dir), cases_dir)
    (out / RESPONSES).write_text(json.dumps({"cases": cases, "checkpoints": {str(step): {} for step in steps}}))


def write_run(out: Path, cases_dir: Path, steps: Sequence[int], rows: int = 60) -> Benchmark:
    """Responses of checkpoints to `rows` cases: right, wrong and without format, in turns."""
    answers, one = write_cases("laptop_tools", cases_dir, rows), definition("laptop_tools")
    cases = one.load_cases(cases_dir)
    for step in steps:
        said = [answers[one.prompt(case)] for case in cases]
        texts = [
            [text, text.replace("parameters", "no"), f"{step}"][(number + step) % 3] for number, text in enumerate(said)
        ]
        write_responses(out, step, cases, [[Response(text, 9, True)] for text in texts])
    write_manifest(out, "laptop_tools", cases_dir, steps)
    return benchmark("laptop_tools")


class Counting(ScoringPool):
    """Counts what is given to the workers."""

    scored: ClassVar[list[int]] = []

    def score(self, items, keep) -> None:
        Counting.scored += list(items)
        super().score(items, keep)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    monkeypatch.setattr(grading, "ScoringPool", Counting)
    monkeypatch.setattr(Counting, "scored", [])
    return Counting.scored


KILLED = """
import os, signal, sys
from pathlib import Path
from dara.config import Benchmark
from dara.evaluation import grading
from dara.store import Journal
add, count = Journal.add, 0
def killed(self, *entry):
    global count
    count += 1
    if count > {after}:
        os.kill(os.getpid(), signal.SIGKILL)
    add(self, *entry)
Journal.add = killed
spec = Benchmark.model_validate_json(sys.argv[1])
grading.score_checkpoints(Path(sys.argv[2]), [10, 20], spec, Path(sys.argv[3]), workers=2)
"""


def test_a_killed_scoring_goes_on_with_what_is_done(
    tmp_path: Path, counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cases, out, other = tmp_path / "cases", tmp_path / "run", tmp_path / "other"
    spec = write_run(out, cases, [10, 20])
    write_run(other, cases, [10, 20])
    program = [sys.executable, "-c", KILLED.format(after=85), spec.model_dump_json(), str(out), str(cases)]
    ended = subprocess.run(program, env={**os.environ, "PYTHONPATH": str(ROOT / "workflow")}, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert not (out / SCORES).exists()
    assert not (out / SCORE_TABLE).exists()
    assert len((out / JOURNAL).read_text().splitlines()) == 1 + 85

    counted.clear()
    score_checkpoints(out, [10, 20], spec, cases, workers=2)
    assert len(counted) == 120 - 85
    counted.clear()
    score_checkpoints(other, [10, 20], spec, cases, workers=1)
    assert len(counted) == 2 * 60
    assert (out / SCORE_TABLE).read_bytes() == (other / SCORE_TABLE).read_bytes()
    kept = sorted(path.name for path in out.iterdir())
    assert kept == [RESPONSES, SCORE_TABLE, SCORES, "step_10.jsonl.gz", "step_20.jsonl.gz"]
    rate = summarise(read_scores(out, "laptop_tools", 10), "laptop_tools")["decode_error_rate"]
    assert rate.score == pytest.approx(2 / 3)
    # Where the end of a scoring is lost, its journal counts, unless the responses have changed.
    for rows, scored in ((60, 60), (60, 0), (59, 59)):
        write_run(out, cases, [10], rows)
        counted.clear()
        with monkeypatch.context() as patch:
            if rows == 60:
                patch.setattr(Path, "unlink", lambda *_, **__: None)
            score_checkpoints(out, [10], spec, cases, workers=1)
        assert len(counted) == scored


def test_scores_are_a_row_a_response_in_the_order_of_steps_and_cases(tmp_path: Path) -> None:
    cases, out = tmp_path / "cases", tmp_path / "run"
    answers, one = write_cases("laptop_math", cases, rows=2), definition("laptop_math")
    rows = one.load_cases(cases)
    for step, said in ((20, lambda prompt: ""), (0, answers.get)):
        write_responses(out, step, rows, [[Response(said(one.prompt(case)), 24, True)] for case in rows])
    write_manifest(out, "laptop_math", cases, [0, 20])
    score_checkpoints(out, [20, 0], benchmark("laptop_math"), cases)
    assert gzip.decompress((out / SCORE_TABLE).read_bytes()).decode() == (
        "step,case,category,sample,strict,strict_or_numeric,math_verify,exceed,joint,truncated,n_tokens,outcome\n"
        "0,sum_0,laptop_math,0,1,1,1,1,0,0,24,ok\n"
        "0,sum_1,laptop_math,0,1,1,1,1,0,0,24,ok\n"
        "20,sum_0,laptop_math,0,0,0,0,1,0,0,24,ok\n"
        "20,sum_1,laptop_math,0,0,0,0,1,0,0,24,ok\n"
    )
    assert list(read_scores(out, "laptop_math", 20)["case"]) == ["sum_0", "sum_1"]
    with pytest.raises(ValueError, match="the columns must be step, case, category, sample, accuracy"):
        read_scores(out, "laptop_tools", 0)
    with pytest.raises(ValueError, match=r"scores.csv.gz: has no scores of step 10; score it again"):
        read_scores(out, "laptop_math", 10)
    changed = gzip.decompress((out / SCORE_TABLE).read_bytes()).replace(b",0,24,", b",1,24,", 1)
    (out / SCORE_TABLE).write_bytes(gzipped(changed))
    with pytest.raises(ValueError, match=r"scores.csv.gz: not the file whose sha256 scores.json lists; it was changed"):
        read_scores(out, "laptop_math", 0)
    (out / SCORE_TABLE).unlink()
    with pytest.raises(ValueError, match=r"scores.csv.gz: the file does not exist; responses are scored before"):
        read_scores(out, "laptop_math", 0)


@pytest.mark.parametrize(
    "line",
    [
        '{"step": 1, "response": 1, "scores": {"acc',
        "[]",
        "7",
        '{"step": 1, "response": 1, "scores": {"accuracy": 1}}',
        '{"step": 1, "response": "1", "scores": {}, "outcome": "ok"}',
        '{"step": 1, "response": 1, "scores": [], "outcome": "ok"}',
        '{"step": 1, "response": 1, "scores": {}, "outcome": "fine"}',
    ],
)
def test_a_damaged_line_names_file_and_row(line: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text(f"head\n{line}\n")
    message = r"x, row 2: must be an object with step, response, scores, outcome; it is '.*; delete the file"
    with pytest.raises(ValueError, match=message):
        score_journal(tmp_path / "x", "head")


def test_bfcl_v4_from_responses_to_metrics(tmp_path: Path) -> None:
    spec, folder, out = benchmark("bfcl_v4", seconds=20.0, limit=28), bfcl_v4.data_directory(), tmp_path / "run"
    cases = select_cases(bfcl_v4.load_cases(folder), 28)
    write_responses(out, 0, cases, [[oracle_response(case)] for case in cases])
    write_responses(out, 10, cases, [[Response("", 0, False, (), "context_overflow")]] * 28)
    write_manifest(out, "bfcl_v4", folder, [0, 10])
    score_checkpoints(out, [0, 10], spec, folder)
    right, wrong = (summarise(read_scores(out, "bfcl_v4", step), "bfcl_v4") for step in (0, 10))
    assert right["average_accuracy"].score == right["average_format"].score == pytest.approx(1)
    assert right["think_words"].score == pytest.approx((20 * 4 + 8 * (4 + 1) / 2) / 28, abs=1)
    assert (wrong["average_accuracy"].score, wrong["average_format"].score) == (0, 0)
    assert wrong["context_overflow_rate"].score == wrong["truncated_rate"].score == pytest.approx(1)
    scorer = json.loads((out / SCORES).read_text())["scorer"]
    assert scorer.pop("network") in ("isolated", "reachable")
    assert scorer == {
        "schema": 3,
        "benchmark": "bfcl_v4",
        "scorer": {"bfcl-eval": "2026.3.23", "scorer": 3},
        "settings": {"think_limit": 16, "seconds": 20.0},
        "length_limit": None,
        "seconds": 20.0,
        "memory_bytes": 2 * 1024**3,
    }


def test_scores_of_unlike_scorers_are_not_compared(tmp_path: Path) -> None:
    one, two, old = (tmp_path / name for name in ("one", "two", "a_old"))
    scorer = {"scorer": {"bfcl-eval": "2026.3.23", "scorer": 2}, "network": "isolated", "seconds": 10.0}

    def write(folder: Path, **changes: object) -> None:
        folder.mkdir(exist_ok=True)
        (folder / SCORES).write_text(json.dumps({"scorer": scorer | changes}))

    write(one)
    write(two)
    write(old)
    (old / SCORES).write_text('{"scorer": {"scorer": {"scorer": 2}}}')  # scores in git have little of it
    found = {"one": one, "two": two, "a_old": old}
    check_scorers(found)
    write(two, network="reachable", seconds=5.0)
    with pytest.raises(ValueError, match=r"two.scores.json: two was scored with another network, seconds than one"):
        check_scorers(found)
    write(two, scorer={"bfcl-eval": "2026.4", "scorer": 2})
    with pytest.raises(ValueError, match="two was scored with another bfcl-eval than one"):
        check_scorers(found)
    (two / SCORES).unlink()
    with pytest.raises(ValueError, match=r"scores.json: the file does not exist, which says what scored two"):
        check_scorers(found)


def test_scores_of_an_older_rule_are_made_again_and_not_taken(
    tmp_path: Path, counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cases, out, name = tmp_path / "cases", tmp_path / "run", "laptop_tools"
    assert scored_by(out) is None
    spec = write_run(out, cases, [10])
    score_checkpoints(out, [10], spec, cases, workers=1)
    check_version(out, name)
    newer = replace(definition(name), scorer_version=9)
    monkeypatch.setattr("dara.evaluation.bfcl.LAPTOP_TOOLS", newer)
    message = "version 2 of the scorer made these scores, now it is 9; the workflow's rule `score` scores the"
    with pytest.raises(ValueError, match=message):
        check_version(out, name)
    counted.clear()
    score_checkpoints(out, [10], spec, cases, workers=1)
    assert len(counted) == 60
    check_version(out, name)
    assert json.loads((out / SCORES).read_text())["scorer"]["scorer"] == {"bfcl-eval": "2026.3.23", "scorer": 9}


@pytest.mark.parametrize("task", ["tool_calling", "math"])
def test_cached_responses_get_the_scores_that_are_kept(task: str, tmp_path: Path) -> None:
    run = sorted((ROOT / "results" / "cached").glob(f"{task}-*"))[0]
    spec = RunSpec.model_validate_json((run / "spec.json").read_text())
    (kept,) = run.glob("laptop_*")
    for file, rows in SOURCES[spec.data.source].generator.benchmark_files(held_out(spec.data).values()).items():
        (tmp_path / "cases" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cases" / file).write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = json.loads((kept / SCORES).read_text())
    made, scorer = settings["responses"], settings["scorer"]
    fields = {key: made[key] for key in ("samples", "sampling", "seed", "batch_size")}
    evaluated = Benchmark(name=made["benchmark"], length_limit=scorer["length_limit"], **fields)
    assert evaluation_id(evaluated) == kept.name
    out = tmp_path / "run" / kept.name
    copy_responses(kept, out)
    assert steps_made(out) == settings["steps"]
    assert collected_responses(out) == (kept / CACHED_RESPONSES).read_bytes()
    step = steps_made(out)[-1]
    score_checkpoints(out, [step], evaluated, tmp_path / "cases")
    table, again = (pd.read_csv(folder / SCORE_TABLE) for folder in (kept, out))
    assert table[table["step"] == step].reset_index(drop=True).equals(again)


TOY = """
from pathlib import Path
from dara.registries import BenchmarkDefinition
from dara.evaluation.records import Case, plain_metric

def make_scorer():
    def score(item):
        yield {"right": int(item["response"] == item["answer"])}
    return score

TOY = BenchmarkDefinition(
    name="toy", task="math", kind="laptop", scorer="toy_benchmark:make_scorer", scorer_version=1,
    case_files=lambda folder: [folder / "toy.txt"],
    load_cases=lambda folder: [Case(text, "toy", {}, {"answer": text}) for text in (folder / "toy.txt").read_text().split()],
    prompt=lambda case: case.id,
    columns=("case", "category", "sample", "right", "n_tokens", "outcome"),
    score_row=lambda response, scores, limit: {"right": scores.get("right", 0)},
    summarise=lambda frame: {"right": plain_metric(frame, "right")},
)
"""


def test_a_new_benchmark_is_a_module_and_a_line_of_the_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toy_benchmark.py").write_text(TOY)
    (tmp_path / "toy.txt").write_text("a b c d")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(registries.REGISTRY, "toy", "toy_benchmark:TOY")
    spec, out = benchmark("toy", samples=2), tmp_path / "run" / "toy"
    sampler = FakeSampler(lambda text: text if text < "d" else "wrong")
    generate_checkpoints(write_checkpoints(tmp_path, [10]), spec, tmp_path, out, make_sampler=sampler)
    score_checkpoints(out, [10], spec, tmp_path)
    assert summarise(read_scores(out, "toy", 10), "toy")["right"].score == 3 / 4

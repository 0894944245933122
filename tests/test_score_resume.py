"""Scoring goes on after a kill with what is done, uses several workers, and says what made the scores."""

import gzip
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from dara.config import Benchmark, RunSpec
from dara.data import SOURCES
from dara.data.generated import held_out
from dara.evaluation import bfcl_v4, score, scorers, scoring
from dara.evaluation.oracle import oracle_response
from dara.evaluation.progress import Progress
from dara.evaluation.records import Response, select_cases, sha256_of, write_responses
from dara.evaluation.sandbox import BATCH_ITEMS, Outcome, SandboxError, ScorerSpec
from dara.evaluation.score import (
    check_scorers,
    check_version,
    copy_responses,
    identity_path,
    read_scores,
    responses_path,
    score_checkpoints,
    scorer_path,
    scores_path,
    summarise,
)
from dara.evaluation.scoring import Journal, ScoringPool
from evaluation_fakes import benchmark, write_cases
from project import ROOT

JOURNAL = ".laptop_tools.scores.partial"


def write_run(out: Path, cases_dir: Path, steps: Sequence[int], rows: int = 60) -> Benchmark:
    """Responses of checkpoints to `rows` cases: right, wrong and without format, in turns."""
    answers = write_cases("laptop_tools", cases_dir, rows)
    module, spec = score.BENCHMARKS["laptop_tools"], benchmark("laptop_tools")
    cases = module.load_cases("laptop_tools", cases_dir)
    for step in steps:
        said = [answers[module.prompt(case)] for case in cases]
        texts = [
            [text, text.replace("parameters", "no"), f"{step}"][(number + step) % 3] for number, text in enumerate(said)
        ]
        write_responses(responses_path(out, step, "laptop_tools"), cases, [[Response(text, 9, True)] for text in texts])
    identity = {"cases": sha256_of(module.case_files("laptop_tools", cases_dir), cases_dir)}
    identity_path(out, "laptop_tools").write_text(json.dumps(identity))
    return spec


class Counting(ScoringPool):
    """Counts what is given to the workers."""

    scored: ClassVar[list[int]] = []

    def score(self, items, keep) -> None:
        Counting.scored += list(items)
        super().score(items, keep)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    monkeypatch.setattr(score, "ScoringPool", Counting)
    monkeypatch.setattr(Counting, "scored", [])
    return Counting.scored


KILLED = """
import os, signal, sys
from pathlib import Path
from dara.config import Benchmark
from dara.evaluation import scoring, score
add, count = scoring.Journal.add, 0
def killed(self, number, outcome):
    global count
    count += 1
    if count > {after}:
        os.kill(os.getpid(), signal.SIGKILL)
    add(self, number, outcome)
scoring.Journal.add = killed
spec = Benchmark.model_validate_json(sys.argv[1])
score.score_checkpoints(Path(sys.argv[2]), [10, 20], spec, Path(sys.argv[3]), workers=2)
"""


def test_a_killed_scoring_goes_on_with_what_is_done(tmp_path: Path, counted: list[int]) -> None:
    cases, out, other = tmp_path / "cases", tmp_path / "run", tmp_path / "other"
    spec = write_run(out, cases, [10, 20])
    write_run(other, cases, [10, 20])
    program = [sys.executable, "-c", KILLED.format(after=85), spec.model_dump_json(), str(out), str(cases)]
    ended = subprocess.run(program, env={**os.environ, "PYTHONPATH": str(ROOT / "workflow")}, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert scores_path(out, 10, "laptop_tools").is_file()
    assert not scores_path(out, 20, "laptop_tools").is_file()
    assert len((out / "step_20" / JOURNAL).read_text().splitlines()) == 1 + 25

    score_checkpoints(out, [10, 20], spec, cases, workers=2)
    assert len(counted) == 60 - 25
    counted.clear()
    score_checkpoints(other, [10, 20], spec, cases, workers=1)
    assert len(counted) == 2 * 60
    for step in (10, 20):
        assert (
            scores_path(out, step, "laptop_tools").read_bytes() == scores_path(other, step, "laptop_tools").read_bytes()
        )
    left = sorted(path.name for path in out.rglob("*") if path.is_file())
    assert left == ["laptop_tools.csv"] * 2 + ["laptop_tools.identity.json"] + ["laptop_tools.jsonl.gz"] * 2
    assert summarise(read_scores(scores_path(out, 10, "laptop_tools"), "laptop_tools"), "laptop_tools")[
        "decode_error_rate"
    ].score == pytest.approx(2 / 3)


def test_a_torn_line_is_scored_again(tmp_path: Path) -> None:
    head = {"responses": "abc"}
    with Journal(tmp_path / "x", head) as journal:
        journal.add(3, Outcome({"accuracy": 1, "format": 0.5}, "ok"))
        journal.add(0, Outcome({}, "timeout"))
        with pytest.raises(ValueError, match="response 0 is scored a second time"):
            journal.add(0, Outcome({}, "ok"))
    with (tmp_path / "x").open("a") as stream:
        stream.write('{"response": 1, "scores": {"acc')
    with Journal(tmp_path / "x", head) as journal:
        assert journal.done == {3: Outcome({"accuracy": 1, "format": 0.5}, "ok"), 0: Outcome({}, "timeout")}
        journal.add(1, Outcome({"accuracy": 0}, "ok"))
    with Journal(tmp_path / "x", head) as journal:
        assert sorted(journal.done) == [0, 1, 3]


@pytest.mark.parametrize(
    "line",
    [
        b'{"response": 1, "scores": {"acc',
        b"\xff\x00",
        b"[]",
        b"7",
        b'{"response": 1, "scores": {"accuracy": 1}}',
        b'{"response": "1", "scores": {}, "outcome": "ok"}',
        b'{"response": 1, "scores": [], "outcome": "ok"}',
        b'{"response": 1, "scores": {}, "outcome": "fine"}',
    ],
)
def test_a_damaged_line_names_file_and_row(line: bytes, tmp_path: Path) -> None:
    head = {"responses": "abc"}
    with Journal(tmp_path / "x", head) as journal:
        journal.add(0, Outcome({}, "ok"))
    with (tmp_path / "x").open("ab") as stream:
        stream.write(line + b"\n")
    with pytest.raises(
        ValueError, match=r"x, row 3: must be an object with response, scores and outcome; it is b.*dele"
    ):
        Journal(tmp_path / "x", head)


def test_work_of_another_scorer_or_on_other_responses_is_thrown_away(tmp_path: Path) -> None:
    for head in ({"responses": "a"}, {"responses": "b"}, {"responses": "b", "network": "reachable"}):
        with Journal(tmp_path / "x", head) as journal:
            assert journal.done == {}
            journal.add(0, Outcome({"accuracy": 1}, "ok"))
    (tmp_path / "x").write_text('{"resp')  # killed in the first line
    with Journal(tmp_path / "x", {"responses": "b"}) as journal:
        assert journal.done == {}


def test_changed_responses_are_scored_anew(tmp_path: Path, counted: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    cases, out = tmp_path / "cases", tmp_path / "run"
    spec = write_run(out, cases, [10])
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)  # the end of the first scoring is lost
    score_checkpoints(out, [10], spec, cases, workers=1)
    monkeypatch.undo()
    monkeypatch.setattr(score, "ScoringPool", Counting)
    monkeypatch.setattr(Counting, "scored", counted)
    counted.clear()
    score_checkpoints(out, [10], spec, cases, workers=1)
    assert counted == []
    write_run(out, cases, [10], rows=59)
    score_checkpoints(out, [10], spec, cases, workers=1)
    assert len(counted) == 59


POOL = r"""
import os
def make():
    def score(item):
        if item["response"] == "mistake":
            raise KeyError("ours")
        yield {"pid": os.getpid(), "length": len(item["response"])}
    return score
"""


def pool(tmp_path: Path, workers: int) -> ScoringPool:
    (tmp_path / "pool_scorer.py").write_text(POOL)
    return ScoringPool(ScorerSpec("pool_scorer:make", {}, 5.0, (tmp_path,)), workers)


def test_several_workers_score_everything_once(tmp_path: Path) -> None:
    items = {number * 7: {"response": "x" * number} for number in range(20 * BATCH_ITEMS)}
    kept: dict[int, Outcome] = {}
    with pool(tmp_path, 3) as workers:
        workers.score({}, kept.__setitem__)
        assert workers.network() in ("isolated", "reachable")
        workers.score(items, kept.__setitem__)
    assert {key: outcome.scores["length"] for key, outcome in kept.items()} == {
        7 * n: n for n in range(20 * BATCH_ITEMS)
    }
    assert 1 <= len({outcome.scores["pid"] for outcome in kept.values()}) <= 3
    with pytest.raises(ValueError, match="workers must be at least 1, not 0"):
        pool(tmp_path, 0)


def test_a_mistake_ends_all_workers_and_names_the_response(tmp_path: Path) -> None:
    items = {number: {"response": "mistake" if number == 100 else "x"} for number in range(20 * BATCH_ITEMS)}
    with (
        pool(tmp_path, 2) as workers,
        pytest.raises(SandboxError, match=r"(?s)response 100 of this call.*KeyError: 'ours'"),
    ):
        workers.score(items, lambda *_: None)


def test_workers_are_as_many_as_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 5}, raising=False)
    assert scoring.cores() == 3


def test_progress_tells_the_time_left(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("progress")
    caplog.set_level("INFO", "progress")
    progress = Progress(logger, "run, bfcl_v4", 200, done=50)
    assert progress.line(3.0) == "[#####               ] 25%, 50 of 200, since 3 s"
    progress.advance(50)
    assert progress.line(10.0) == "[##########          ] 50%, 100 of 200, about 20 s left"
    progress.advance(100)
    assert caplog.messages == ["run, bfcl_v4: [####################] 100%, 200 of 200, about 0 s left"]


def test_progress_tells_now_and_then_that_work_goes_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dialogues run side by side for long before the first one ends."""
    clock = [0.0, 6.0, 59.0, 61.0, 100.0, 122.0, 128.0]  # the beginning, five times nothing, and an end
    monkeypatch.setattr(time, "monotonic", lambda: clock.pop(0))
    logger = logging.getLogger("progress")
    caplog.set_level("INFO", "progress")
    progress = Progress(logger, "run", 2)
    for ended in (0, 0, 0, 0, 0, 1):
        progress.advance(ended)
    line = "run: [                    ] 0%, 0 of 2, since"
    half = "run: [##########          ] 50%, 1 of 2, about 128 s left"
    assert caplog.messages == [f"{line} 61 s", f"{line} 122 s", half]


def test_bfcl_v4_from_responses_to_metrics(tmp_path: Path) -> None:
    spec, folder, out = benchmark("bfcl_v4", seconds=20.0, limit=28), bfcl_v4.data_directory(), tmp_path / "run"
    cases = select_cases(bfcl_v4.load_cases("bfcl_v4", folder), 28)
    write_responses(responses_path(out, 0, "bfcl_v4"), cases, [[oracle_response(case)] for case in cases])
    write_responses(responses_path(out, 10, "bfcl_v4"), cases, [[Response("", 0, False, (), "context_overflow")]] * 28)
    identity = {"cases": sha256_of(bfcl_v4.case_files("bfcl_v4", folder), folder)}
    identity_path(out, "bfcl_v4").write_text(json.dumps(identity))
    score_checkpoints(out, [0, 10], spec, folder)
    right, wrong = (summarise(read_scores(scores_path(out, step, "bfcl_v4"), "bfcl_v4"), "bfcl_v4") for step in (0, 10))
    assert right["average_accuracy"].score == right["average_format"].score == pytest.approx(1)
    assert right["think_words"].score == pytest.approx((20 * 4 + 8 * (4 + 1) / 2) / 28, abs=1)
    assert (wrong["average_accuracy"].score, wrong["average_format"].score) == (0, 0)
    assert wrong["context_overflow_rate"].score == wrong["truncated_rate"].score == pytest.approx(1)
    scorer = json.loads(scorer_path(out, "bfcl_v4").read_text())
    assert scorer["network"] in ("isolated", "reachable")
    assert {**scorer, "network": None} == {
        "schema": 2,
        "benchmark": "bfcl_v4",
        "scorer": {"bfcl-eval": "2026.3.23", "scorer": 3},
        "settings": {"think_limit": 16, "seconds": 20.0},
        "seconds": 20.0,
        "memory_bytes": 2 * 1024**3,
        "network": None,
    }


def test_the_record_of_another_scorer_does_not_stand_over_new_scores(tmp_path: Path) -> None:
    name, out = "deepscaler_validation", tmp_path / "run"
    row = {"id": "a", "category": "deepscaler", "messages": [{"role": "user", "content": "1 + 1"}], "reference": "2"}
    (tmp_path / "problems.jsonl").write_text(json.dumps(row) + "\n")
    cases = score.BENCHMARKS[name].load_cases(name, tmp_path)
    write_responses(responses_path(out, 0, name), cases, [[Response(r"\boxed{2}", 3, True)]])
    identity_path(out, name).write_text(json.dumps({"cases": sha256_of([tmp_path / "problems.jsonl"], tmp_path)}))
    spec = benchmark(name, seconds=20.0, length_limit=9)
    score_checkpoints(out, [0], spec, tmp_path, workers=1)
    for seconds, stays in ((20.0, True), (21.0, False)):
        changed = spec.model_copy(update={"seconds_per_case": seconds})
        with pytest.raises(ValueError, match="step_10"):  # ends as a kill would, after step 0
            score_checkpoints(out, [0, 10], changed, tmp_path, workers=1)
        assert scorer_path(out, name).is_file() == stays


def test_scores_of_unlike_scorers_are_not_compared(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    scorer = {"schema": 2, "scorer": {"bfcl-eval": "2026.3.23", "scorer": 2}, "network": "isolated", "seconds": 10.0}
    for folder in (one, two):
        folder.mkdir()
        scorer_path(folder, "bfcl_v4").write_text(json.dumps(scorer))
    check_scorers({"one": one, "two": two}, "bfcl_v4")
    scorer_path(two, "bfcl_v4").write_text(json.dumps({**scorer, "network": "reachable", "seconds": 5.0}))
    with pytest.raises(
        ValueError, match=r"two.bfcl_v4.scorer.json: two was scored with another network, seconds than one"
    ):
        check_scorers({"one": one, "two": two}, "bfcl_v4")
    scorer_path(two, "bfcl_v4").write_text(json.dumps({**scorer, "schema": 1, "scorer": {"bfcl-eval": "2026.3.23"}}))
    with pytest.raises(ValueError, match="two was scored with another schema, scorer than one"):
        check_scorers({"one": one, "two": two}, "bfcl_v4")
    scorer_path(two, "bfcl_v4").unlink()
    with pytest.raises(ValueError, match=r"bfcl_v4.scorer.json: the file does not exist, which says what scored two"):
        check_scorers({"one": one, "two": two}, "bfcl_v4")
    check_scorers({"one": one, "two": two}, "laptop_tools")


def test_scores_of_an_older_rule_are_made_again_and_not_taken(
    tmp_path: Path, counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cases, out, name = tmp_path / "cases", tmp_path / "run", "laptop_tools"
    spec = write_run(out, cases, [10])
    score_checkpoints(out, [10], spec, cases, workers=1)
    assert not scorer_path(out, name).is_file()  # as the scores that are kept in git
    check_version(out, name)
    monkeypatch.setitem(scorers.SCORERS, name, 9)
    message = f"version {scorers.UNRECORDED[name]} of the scorer made these scores, now it is 9; .* `score` scores the"
    with pytest.raises(ValueError, match=message):
        check_version(out, name)
    counted.clear()
    score_checkpoints(out, [10], spec, cases, workers=1)
    assert len(counted) == 60
    check_version(out, name)
    assert json.loads(scorer_path(out, name).read_text())["scorer"] == {"bfcl-eval": "2026.3.23", "scorer": 9}
    monkeypatch.undo()
    with pytest.raises(ValueError, match="version 9 of the scorer made these scores"):
        check_version(out, name)
    scorer_path(out, "math_five").write_text('{"scorer": {"math-verify": "0.9.0"}}')  # before versions
    assert (scorers.scored_by(out, "math_five"), scorers.scored_by(out, "bfcl_v4")) == (1, None)


@pytest.mark.parametrize("task", ["tool_calling", "math"])
def test_cached_responses_get_the_scores_that_are_kept(task: str, tmp_path: Path) -> None:
    run = sorted((ROOT / "results" / "cached").glob(f"{task}-*"))[0]
    spec = RunSpec.model_validate_json((run / "spec.json").read_text())
    settings = Benchmark.model_validate_json(next(run.glob("*.benchmark.json")).read_text())
    for file, rows in SOURCES[spec.data.source].generator.benchmark_files(held_out(spec.data)).items():
        (tmp_path / "cases" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cases" / file).write_text("".join(json.dumps(row) + "\n" for row in rows))
    step = sorted(int(path.name.removeprefix("step_")) for path in (run / "scores").glob("step_*"))[-1]
    out = tmp_path / "run"
    copy_responses(run / "scores", out, settings.name)
    score_checkpoints(out, [step], settings, tmp_path / "cases")
    cached = gzip.decompress(scores_path(run / "scores", step, settings.name).with_suffix(".csv.gz").read_bytes())
    assert scores_path(out, step, settings.name).read_bytes() == cached

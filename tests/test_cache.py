"""Cached results: taken when identity and evaluation are the same, ignored with a message otherwise, never mixed in."""

import gzip
import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from dara.cache import holds_run, holds_scores, store
from dara.config import Benchmark
from dara.cost import cost
from dara.evaluation.records import (
    CACHED_RESPONSES,
    IDENTITY,
    RESPONSES,
    SCORE_TABLE,
    SCORES,
    Case,
    Response,
    write_responses,
)
from dara.files import gzipped, read_text
from dara.loading import ConfigurationError, merge, read_yaml
from dara.plan import WorkflowPlan
from dara.registries import definition
from dara.runs import evaluation_id
from dara.specs import RunSpec
from dara.store import canonical_json
from project import ROOT


def workflow(root: Path, results: Path, reuse: str) -> WorkflowPlan:
    """The smoke preset of a copied configuration, with results elsewhere."""
    files = [root / "config/config.yaml", root / "config/presets/smoke.yaml"]
    values = merge(read_yaml(files[0]), read_yaml(files[1])) | {"results": str(results), "reuse": reuse}
    return WorkflowPlan.load(root, values, files[1:])


def finish(flow: WorkflowPlan, name: str, spec: RunSpec | None, benchmark: Benchmark) -> None:
    """The files that a finished run, or a base model, leaves behind."""
    if spec is not None:
        run = flow.paths.run(name)
        run.mkdir(parents=True)
        (run / "spec.json").write_text(canonical_json(spec))
        (run / "metrics.jsonl").write_text('{"step": 1}\n')
        (run / "manifest.json").write_text('{"checkpoints": {"3": {}, "6": {}}}')
    out, steps = flow.paths.evaluation(name, benchmark), flow.matrix.evaluations[name][benchmark]
    for step in steps:
        write_responses(out, step, [Case("1", "c", {}, {})], [[Response(f"said at {step}", 3, True)]])
    table = "".join(["step,case\n", *(f"{step},1\n" for step in steps)]).encode()
    (out / SCORE_TABLE).write_bytes(gzipped(table))
    made = {"checkpoints": {str(step): {} for step in steps}}
    for file in (IDENTITY, RESPONSES):
        (out / file).write_text(json.dumps(made))
    record = {
        "scorer": {"scorer": definition(benchmark.name).scorer_version},
        "length_limit": benchmark.length_limit,
        "seconds": benchmark.seconds_per_case,
    }
    content = {"scorer": record, "steps": steps, "scores_sha256": hashlib.sha256(table).hexdigest(), "responses": made}
    (out / SCORES).write_text(json.dumps(content))


def keep(flow: WorkflowPlan, name: str) -> Path:
    """Finish a run or a base model and put it into the cache."""
    (benchmark,), spec, cached = flow.benchmarks_of(name), flow.matrix.runs.get(name), flow.paths.cached_run(name)
    finish(flow, name, spec, benchmark)
    store(flow.paths.run(name) if spec else None, [flow.paths.evaluation(name, benchmark)], cached)
    return cached


@pytest.fixture
def cached(tmp_path) -> Path:
    """A results directory whose cache holds all runs and base models of the smoke preset."""
    flow = workflow(ROOT, tmp_path / "results", "none")
    for name in flow.evaluated:
        keep(flow, name)
    shutil.rmtree(flow.paths.root)
    return tmp_path / "results"


def test_only_takes_everything_from_the_cache_and_none_takes_nothing(cached):
    flow = workflow(ROOT, cached, "only")
    assert flow.cached == set(flow.matrix.runs)
    assert flow.cached_bases == set(flow.bases)
    assert all(Path(flow.manifest(run)).is_file() for run in flow.matrix.runs)
    assert all(Path(file).is_file() for file in flow.scored)
    flow = workflow(ROOT, cached, "none")
    assert (flow.cached, flow.cached_bases) == (set(), set())
    name = next(iter(flow.matrix.runs))  # it still finds scores of its own, as after a restart
    assert not flow.is_scored(name, flow.benchmarks_of(name)[0])
    finish(flow, name, flow.matrix.runs[name], flow.benchmarks_of(name)[0])
    assert workflow(ROOT, cached, "none").is_scored(name, flow.benchmarks_of(name)[0])


def test_a_run_is_a_handful_of_small_files_that_pandas_reads(cached):
    flow = workflow(ROOT, cached, "only")
    name = next(iter(flow.matrix.runs))
    directory, evaluation = flow.run_directory(name), evaluation_id(flow.benchmarks_of(name)[0])
    files = sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
    own = [f"{evaluation}/{file}" for file in (CACHED_RESPONSES, SCORE_TABLE, SCORES)]
    assert files == [*own, "manifest.json", "metrics.jsonl.gz", "spec.json"]
    assert gzip.decompress((directory / "metrics.jsonl.gz").read_bytes()) == b'{"step": 1}\n'
    assert read_text(directory / "metrics.jsonl") == '{"step": 1}\n'
    responses = pd.read_json(directory / evaluation / CACHED_RESPONSES, lines=True)
    assert list(zip(responses["step"], responses["response"], strict=True)) == [(3, "said at 3"), (6, "said at 6")]
    assert list(pd.read_csv(directory / evaluation / SCORE_TABLE)["step"]) == [3, 6]
    with pytest.raises(FileNotFoundError):
        read_text(directory / "nothing.csv")


def test_the_same_results_are_the_same_bytes(cached, tmp_path):
    again = workflow(ROOT, tmp_path / "again", "none")
    name = next(iter(again.matrix.runs))
    first, second = workflow(ROOT, cached, "only").paths.cached_run(name), keep(again, name)
    files = sorted(path.relative_to(first) for path in first.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(second) for path in second.rglob("*") if path.is_file())
    assert all((first / file).read_bytes() == (second / file).read_bytes() for file in files)


def test_another_specification_is_ignored_with_a_message(cached, caplog):
    flow = workflow(ROOT, cached, "matching")
    name, spec = next(iter(flow.matrix.runs.items()))
    directory, evaluation = flow.paths.cached_run(name), flow.matrix.evaluations[name]
    assert holds_run(directory, spec, evaluation)
    assert not holds_run(directory, spec.model_copy(update={"steps": 81}), evaluation)
    assert f"{directory} is ignored: it is incomplete, or its specification is another" in caplog.text
    text = (directory / "spec.json").read_text()
    (directory / "spec.json").write_text(json.dumps(json.loads(text) | {"old_key": 1}))
    assert not holds_run(directory, spec, evaluation)
    assert "its spec.json is not the specification of a run" in caplog.text
    (directory / "spec.json").write_text(text)
    (directory / "scores").mkdir()
    assert not holds_run(directory, spec, evaluation)
    assert f"{directory} is ignored: an older version wrote it; run the preset again" in caplog.text
    (directory / "scores").rmdir()
    (directory / "manifest.json").unlink()
    assert not holds_run(directory, spec, evaluation)


@pytest.mark.parametrize("changes", [{"samples": 16}, {"length_limit": 7}, {"seconds_per_case": 7.0}])
def test_scores_of_another_evaluation_are_not_taken(cached, caplog, changes):
    flow = workflow(ROOT, cached, "matching")
    name, spec = next(iter(flow.matrix.runs.items()))
    other = {benchmark.model_copy(update=changes): (3, 6) for benchmark in flow.benchmarks_of(name)}
    assert not holds_run(flow.paths.cached_run(name), spec, other)
    assert not holds_scores(flow.paths.cached_run(next(iter(flow.bases))), other)
    assert "other settings of laptop_tools" in caplog.text


def test_scores_of_the_steps_that_are_asked_for_are_enough(cached, caplog):
    flow = workflow(ROOT, cached, "matching")
    name, spec = next(iter(flow.matrix.runs.items()))
    directory, (benchmark,) = flow.paths.cached_run(name), flow.benchmarks_of(name)
    manifest = directory / evaluation_id(benchmark) / SCORES
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"steps": [6]}))
    assert holds_run(directory, spec, {benchmark: (6,)})
    assert not holds_run(directory, spec, {benchmark: (3, 6)})
    assert f"{directory} is ignored: it has no scores of {benchmark.name} at each of [3, 6]" in caplog.text
    (directory / "manifest.json").write_text('{"checkpoints": {"6": {}}}')  # it diverged
    assert holds_run(directory, spec, {benchmark: (3, 6)})
    manifest.unlink()
    assert holds_run(directory, spec, {})
    assert not holds_run(directory, spec, {benchmark: ()})


def test_responses_in_the_cache_are_scored_again_by_a_newer_scorer(cached, monkeypatch):
    monkeypatch.setattr("dara.evaluation.bfcl.LAPTOP_TOOLS", replace(definition("laptop_tools"), scorer_version=9))
    flow = workflow(ROOT, cached, "matching")
    assert (flow.cached, flow.cached_bases) == (
        set(flow.matrix.runs),
        set(flow.bases),
    )  # nothing is trained or generated
    assert {flow.benchmarks_of(name)[0].name for name in flow.outdated} == {"laptop_tools"}
    assert len(flow.outdated) == 3
    for name in flow.evaluated:
        (benchmark,) = flow.benchmarks_of(name)
        again, kept = flow.paths.evaluation(name, benchmark), flow.paths.cached_evaluation(name, benchmark)
        assert flow.score_directory(name, benchmark) == (again if name in flow.outdated else kept)
        made = Path(flow.scoring_inputs(SimpleNamespace(run=name, evaluation=evaluation_id(benchmark)))["responses"])
        assert made == (kept / SCORES if name in flow.outdated else again / RESPONSES)
    assert (cost(flow, list(flow.matrix.runs)).jobs, cost(flow, list(flow.matrix.runs)).evaluation_hours) == (3, 0)
    with pytest.raises(
        ConfigurationError, match=r"3 runs and base models .* have scores of an older .* `reuse: matching`"
    ):
        workflow(ROOT, cached, "only")
    run = min(flow.outdated & flow.cached)
    record = flow.paths.cached_evaluation(run, flow.benchmarks_of(run)[0]) / SCORES
    record.write_text(json.dumps(json.loads(record.read_text()) | {"scorer": {"scorer": {"scorer": 9}}}))
    assert run not in workflow(ROOT, cached, "matching").outdated


def test_a_base_model_is_scored_again_when_one_of_its_runs_is_trained(cached):
    flow = workflow(ROOT, cached, "matching")
    lost = flow.matrix.experiments["tool_main"][0]
    shutil.rmtree(flow.paths.cached_run(lost))
    again = workflow(ROOT, cached, "matching")
    assert again.cached == set(again.matrix.runs) - {lost}
    assert len(again.cached_bases) == 1


def test_only_names_what_is_missing(cached):
    flow = workflow(ROOT, cached, "only")
    lost = flow.matrix.experiments["math_main"][0]
    shutil.rmtree(flow.paths.cached_run(lost))
    with pytest.raises(
        ConfigurationError, match=rf"1 of 4 runs of preset smoke are not in .*{lost}.*make reproduce PRESET=smoke"
    ):
        workflow(ROOT, cached, "only")

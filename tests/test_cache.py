"""Cached results: taken when identity and evaluation are the same, ignored with a message otherwise, never mixed in."""

import gzip
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from dara.cache import holds_run, holds_scores, store
from dara.config import Benchmark, RunSpec
from dara.cost import cost
from dara.evaluation import scorers
from dara.files import read_text
from dara.loading import ConfigurationError, merge, read_yaml
from dara.plan import WorkflowPlan
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
    scores, listed = flow.paths.scores(name), {}
    for step in flow.matrix.evaluations[name][benchmark]:
        path = scores / f"step_{step}" / f"{benchmark.name}.csv"
        path.parent.mkdir(parents=True)
        path.write_text("case\n1\n")
        listed[f"step_{step}/{path.name}"] = "sha"
    (scores / f"{benchmark.name}.scored.json").write_text(json.dumps(listed))
    (scores / ".unfinished.json").write_text("{}")


@pytest.fixture
def cached(tmp_path) -> Path:
    """A results directory whose cache holds all runs and base models of the smoke preset."""
    flow = workflow(ROOT, tmp_path / "results", "none")
    for name in flow.evaluated:
        benchmarks = flow.benchmarks_of(name)
        spec = flow.matrix.runs.get(name)
        finish(flow, name, spec, *benchmarks)
        store(flow.paths.run(name) if spec else None, flow.paths.scores(name), benchmarks, flow.paths.cached_run(name))
    shutil.rmtree(flow.paths.root)
    return tmp_path / "results"


def test_only_takes_everything_from_the_cache(cached):
    flow = workflow(ROOT, cached, "only")
    assert flow.cached == set(flow.matrix.runs)
    assert flow.cached_bases == set(flow.bases)
    assert all(Path(flow.manifest(run)).is_file() for run in flow.matrix.runs)
    assert all(Path(file).is_file() for file in flow.scored)


def test_none_takes_nothing(cached):
    flow = workflow(ROOT, cached, "none")
    assert flow.cached == set()
    assert flow.cached_bases == set()


def test_text_is_small_and_is_read_in_both_forms(cached):
    flow = workflow(ROOT, cached, "only")
    directory = flow.run_directory(next(iter(flow.matrix.runs)))
    assert not (directory / "metrics.jsonl").exists()
    assert gzip.decompress((directory / "metrics.jsonl.gz").read_bytes()) == b'{"step": 1}\n'
    assert read_text(directory / "metrics.jsonl") == '{"step": 1}\n'
    assert not list(directory.rglob(".unfinished*"))
    with pytest.raises(FileNotFoundError):
        read_text(directory / "nothing.csv")


def test_the_same_results_are_the_same_bytes(cached, tmp_path):
    flow = workflow(ROOT, cached, "only")
    name = next(iter(flow.matrix.runs))
    again = workflow(ROOT, tmp_path / "again", "none")
    finish(again, name, again.matrix.runs[name], again.benchmarks_of(name)[0])
    store(again.paths.run(name), again.paths.scores(name), again.benchmarks_of(name), again.paths.cached_run(name))
    first, second = flow.paths.cached_run(name), again.paths.cached_run(name)
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
    (directory / "manifest.json").unlink()
    assert not holds_run(directory, spec, evaluation)


def test_keys_of_another_time_are_ignored_with_a_message(cached, caplog):
    flow = workflow(ROOT, cached, "matching")
    name, spec = next(iter(flow.matrix.runs.items()))
    path = flow.paths.cached_run(name) / "spec.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"old_key": 1}))
    assert not holds_run(flow.paths.cached_run(name), spec, flow.matrix.evaluations[name])
    assert "its spec.json is not the specification of a run" in caplog.text


def test_scores_of_another_evaluation_are_not_taken(cached, caplog):
    flow = workflow(ROOT, cached, "matching")
    name, spec = next(iter(flow.matrix.runs.items()))
    other = {benchmark.model_copy(update={"samples": 16}): (3, 6) for benchmark in flow.benchmarks_of(name)}
    assert not holds_run(flow.paths.cached_run(name), spec, other)
    assert not holds_scores(flow.paths.cached_run(next(iter(flow.bases))), other)
    assert "other settings of laptop_tools" in caplog.text


def test_scores_of_the_steps_that_are_asked_for_are_enough(cached, caplog):
    flow = workflow(ROOT, cached, "matching")
    name, spec = next(iter(flow.matrix.runs.items()))
    directory, (benchmark,) = flow.paths.cached_run(name), flow.benchmarks_of(name)
    listing = directory / "scores" / f"{benchmark.name}.scored.json"
    listing.write_text(json.dumps({f"step_6/{benchmark.name}.csv": "sha"}))
    assert holds_run(directory, spec, {benchmark: (6,)})
    assert not holds_run(directory, spec, {benchmark: (3, 6)})
    assert f"{directory} is ignored: it has no scores of {benchmark.name} at each of [3, 6]" in caplog.text
    (directory / "manifest.json").write_text('{"checkpoints": {"6": {}}}')  # it diverged
    assert holds_run(directory, spec, {benchmark: (3, 6)})
    listing.unlink()
    assert holds_run(directory, spec, {})
    assert not holds_run(directory, spec, {benchmark: ()})


def test_responses_in_the_cache_are_scored_again_by_a_newer_scorer(cached, monkeypatch):
    monkeypatch.setitem(scorers.SCORERS, "laptop_tools", 9)
    flow = workflow(ROOT, cached, "matching")
    assert (flow.cached, flow.cached_bases) == (
        set(flow.matrix.runs),
        set(flow.bases),
    )  # nothing is trained or generated
    assert {flow.benchmarks_of(name)[0].name for name in flow.outdated} == {"laptop_tools"}
    assert len(flow.outdated) == 3
    for name in flow.evaluated:
        (benchmark,) = flow.benchmarks_of(name)
        again, kept = flow.paths.scores(name), flow.paths.cached_run(name) / "scores"
        assert flow.score_directory(name) == (again if name in flow.outdated else kept)
        identity = Path(flow.scoring_inputs(SimpleNamespace(run=name, benchmark=benchmark.name))["identity"])
        assert identity.parent == (kept if name in flow.outdated else again)
    assert (cost(flow, list(flow.matrix.runs)).jobs, cost(flow, list(flow.matrix.runs)).evaluation_hours) == (3, 0)
    with pytest.raises(
        ConfigurationError, match=r"3 runs and base models .* have scores of an older .* `reuse: matching`"
    ):
        workflow(ROOT, cached, "only")
    run = min(flow.outdated & flow.cached)
    record = scorers.scorer_path(flow.paths.cached_run(run) / "scores", "laptop_tools")
    record.write_text('{"scorer": {"scorer": 9}}')
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

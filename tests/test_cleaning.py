import json
import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from dara.cleaning import (
    _finished,
    clean,
    clean_results,
    find,
    human,
    planned_evaluations,
    size_of,
)
from dara.cli import main
from dara.evaluation.records import IDENTITY, RESPONSES, SCORES
from dara.loading import ConfigurationError, merge, read_yaml
from dara.plan import WorkflowPlan
from dara.store import OWNERS, directory_lock, record_owner
from dara.training.openrlhf import launch, states
from dara.training.run_files import last_resumable
from project import ROOT

RESUME = ("optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")


@pytest.fixture(scope="module")
def smoke(tmp_path_factory) -> WorkflowPlan:
    """The smoke preset of a copied configuration."""
    root = tmp_path_factory.mktemp("repository")
    shutil.copytree(ROOT / "config", root / "config")
    files = [root / "config/config.yaml", root / "config/presets/smoke.yaml"]
    return WorkflowPlan.load(root, merge(read_yaml(files[0]), read_yaml(files[1])), files[1:])


@pytest.fixture
def flow(smoke, tmp_path, monkeypatch) -> WorkflowPlan:
    """The smoke preset in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return WorkflowPlan(smoke.configuration, smoke.root)


def begin(flow: WorkflowPlan, run: str, steps: tuple[int, ...] = (3, 6)) -> Path:
    """A run's working directory: 1,000 bytes of weights a checkpoint, and 100 for each file to resume from the last."""
    work = flow.paths.scratch / run
    work.mkdir(parents=True)
    for name in ("inputs.json", "lock"):
        (work / name).write_text("{}")
    for step in steps:
        (work / f"step_{step}").mkdir()
        (work / f"step_{step}" / "model.safetensors").write_bytes(b"w" * 1000)
    for name in RESUME if steps else ():
        (work / f"step_{max(steps)}" / name).write_bytes(b"r" * 100)
    record_owner(work, flow.paths.run(run))
    return work


def finish(flow: WorkflowPlan, run: str, outcome: str = "completed") -> None:
    manifest = flow.paths.run(run) / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"outcome": outcome, "checkpoints": {"3": {}, "6": {}}}))


def score(flow: WorkflowPlan, run: str, *steps: int, **changes) -> None:
    """Scores of these steps, whose responses were made as the preset says, or with other settings."""
    (planned,) = flow.benchmarks_of(run)
    write_evaluation(flow.paths.evaluation(run, planned.model_copy(update=changes)), steps)


def write_evaluation(directory: Path, steps: tuple[int, ...]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name in (IDENTITY, RESPONSES):
        (directory / name).write_text(json.dumps({"checkpoints": {"3": {}, "6": {}}}))
    (directory / SCORES).write_text(json.dumps({"steps": steps}))


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def frees_checkpoints(removals) -> bool:
    return any(removal.path.is_dir() for removal in removals)


def rules(flow: WorkflowPlan) -> list[tuple[str, str]]:
    return [(removal.rule, str(removal.path)) for removal in find(flow)]


def test_a_finished_run_loses_what_only_resuming_needs(flow):
    run = min(flow.matrix.runs)
    begin(flow, run)
    finish(flow, run)
    last = f".scratch/{run}/step_6"
    assert rules(flow) == [("finished", f"{last}/{name}") for name in RESUME[:3]]
    assert "trainer_state.json" not in clean(flow, dry_run=False)
    assert files(Path(last)) == {"model.safetensors", "trainer_state.json"}


def test_a_fully_scored_run_keeps_its_last_checkpoint_alone(flow):
    run = min(flow.matrix.runs)
    work = begin(flow, run)
    finish(flow, run)
    score(flow, run, 3, 6)
    assert rules(flow)[0] == ("finished", f".scratch/{run}/step_3")
    printed = clean(flow, dry_run=True)
    assert printed.splitlines()[-1] == "1.4 kB would be freed (finished 1.4 kB)"
    assert (work / "step_3").is_dir()
    assert clean(flow, dry_run=False).splitlines()[-1] == "1.4 kB freed (finished 1.4 kB)"
    assert sorted(path.name for path in work.glob("step_*")) == ["step_6"]
    assert last_resumable(work) == 0, "with checkpoints missing, the run must not be published again from the rest"
    assert find(flow) == []


@pytest.mark.parametrize("scored", [(), (3,), (6,)])
def test_a_run_that_is_not_fully_scored_keeps_every_checkpoint(flow, scored):
    run = min(flow.matrix.runs)
    work = begin(flow, run)
    finish(flow, run)
    score(flow, run, *scored)
    assert not frees_checkpoints(find(flow))
    clean(flow, dry_run=False)
    assert last_resumable(work) == 6, "its results can be published again"


@pytest.mark.parametrize(
    "changes", [{"limit": 5}, {"samples": 7}, {"seed": 1}, {"batch_size": 3}, {"sampler": "vllm"}, {"temperature": 0.5}]
)
def test_scores_of_other_settings_free_no_checkpoint(flow, changes):
    """Such as those of a first look with `limit: 5`: the preset's evaluation still needs every checkpoint."""
    run = min(flow.matrix.runs)
    begin(flow, run)
    finish(flow, run)
    if "temperature" in changes:
        changes = {"sampling": flow.benchmarks_of(run)[0].sampling.model_copy(update=changes)}
    score(flow, run, 3, 6, **changes)
    assert not frees_checkpoints(find(flow))
    clean(flow, dry_run=False)
    assert last_resumable(flow.paths.scratch / run) == 6
    score(flow, run, 3, 6)
    assert frees_checkpoints(find(flow))


def test_every_planned_benchmark_counts(flow):
    """In the results of the preset that plans it; where the run is not in those, in any."""
    run = min(flow.matrix.runs)
    work, manifests = begin(flow, run), [flow.paths.run(run) / "manifest.json"]
    finish(flow, run)
    score(flow, run, 3, 6)
    plans = planned_evaluations(flow)[run]
    ((own, steps),) = plans["smoke"].items()
    another = {own.model_copy(update={"limit": 5}): steps}

    def freed(plans) -> bool:
        return frees_checkpoints(_finished(work, manifests, plans))

    planned = plans["smoke"]
    assert steps == (3, 6)
    assert freed(plans)
    assert freed({"smoke": planned, "another": planned})
    assert not freed({"smoke": planned | another})
    assert not freed({"smoke": planned, "another": another})


def test_only_the_steps_that_a_preset_evaluates_keep_checkpoints(flow):
    run = min(flow.matrix.runs)
    work, manifests = begin(flow, run), [flow.paths.run(run) / "manifest.json"]
    finish(flow, run)
    (own,) = planned_evaluations(flow)[run]["smoke"]

    def freed(smoke: dict, other: dict | None = None) -> bool:
        plans = {"smoke": smoke} | ({} if other is None else {"other": other})
        return frees_checkpoints(_finished(work, manifests, plans))

    assert freed({})  # nothing is to be evaluated
    assert not freed({own: (6,)})
    score(flow, run, 6)
    assert freed({own: (6,)})
    assert not freed({own: (6,)}, {own: (3,)})
    assert not freed({own: (3, 6)})


def test_a_finished_run_that_no_preset_plans_any_more_goes_by_the_scores_that_it_has(flow):
    """Or a changed setting would leave all checkpoints of every run before it."""
    run = min(flow.matrix.runs)
    work = begin(flow, run)
    finish(flow, run)
    manifests = [flow.paths.run(run) / "manifest.json"]
    assert not frees_checkpoints(_finished(work, manifests, {}))
    score(flow, run, 3, 6)
    assert frees_checkpoints(_finished(work, manifests, {}))
    write_evaluation(flow.paths.scores(run) / "another-12345678", (3,))
    assert not frees_checkpoints(_finished(work, manifests, {}))


def test_an_openrlhf_run_loses_its_optimiser_states(flow):
    run = min(flow.matrix.runs)
    work = begin(flow, run)
    state = work / "openrlhf/_actor/global_step6"
    state.mkdir(parents=True)
    (state / "optimizer_states.pt").write_bytes(b"s" * 5000)
    assert rules(flow) == []
    finish(flow, run)
    assert ("finished", str(state / "optimizer_states.pt")) in rules(flow)
    clean(flow, dry_run=False)
    assert states.last_resumable(work) == 6, "its results can be published again"


def test_unfinished_work_goes_only_where_no_preset_plans_it(flow):
    planned = min(flow.matrix.runs)
    begin(flow, planned, (3,))
    begin(flow, "tool_calling-old-gdpo-g4-s1-12345678", (3,))
    assert rules(flow) == [("unplanned", ".scratch/tool_calling-old-gdpo-g4-s1-12345678")]
    clean(flow, dry_run=False)
    assert [path.name for path in Path(".scratch").iterdir()] == [planned]


def test_other_presets_and_earlier_configurations_plan_runs_too(flow):
    """Also those that came from a configuration file which is not in config/presets/."""
    laptop = next(run for run in planned_evaluations(flow) if run not in flow.matrix.runs)
    begin(flow, laptop, (3,))
    preset = flow.configuration.preset.model_dump(mode="json", exclude={"scratch"})
    for matrix in preset["experiments"].values():
        matrix["seeds"] = [4711]
    Path("results/mine").mkdir(parents=True)
    Path("results/mine/configuration.json").write_text(json.dumps(preset | {"preset": "mine"}))
    mine = next(run for run in planned_evaluations(flow) if "-s4711-" in run)
    begin(flow, mine, (3,))
    assert rules(flow) == []


@pytest.mark.parametrize("other", ["../other clone/results", "results2"])
def test_work_that_others_own_or_share_is_kept_and_named(flow, other):
    """Two clones whose .scratch is one directory, or two directories of results: the others may plan it."""
    theirs, shared, nobodys = (f"tool_calling-old-gdpo-g4-s{seed}-12345678" for seed in (1, 2, 3))
    for run in (theirs, shared, nobodys):
        (begin(flow, run, (3,)) / OWNERS).unlink()
    out = Path(other).resolve() / "smoke/runs"
    record_owner(flow.paths.scratch / theirs, out / theirs)
    record_owner(flow.paths.scratch / shared, flow.paths.run(shared))
    record_owner(flow.paths.scratch / shared, out / shared)
    assert find(flow) == []
    assert clean(flow, dry_run=False).splitlines() == [
        f"     kept  .scratch/{theirs}: it belongs to {out / theirs}",
        f"     kept  .scratch/{shared}: it belongs to {out / shared}",
        f"     kept  .scratch/{nobodys}: it has no owners.json, which says whose it is",
        "0 B freed",
    ]


def test_a_finished_run_that_others_finished_too_is_kept(flow):
    run = min(flow.matrix.runs)
    work = begin(flow, run)
    finish(flow, run)
    score(flow, run, 3, 6)
    record_owner(work, Path("results2/smoke/runs") / run)
    assert find(flow) == []


def test_unfinished_work_stays_while_a_workflow_runs(flow):
    """It may be of a configuration file that has not written its configuration.json yet."""
    begin(flow, "tool_calling-old-gdpo-g4-s1-12345678", (3,))
    with directory_lock(Path(".snakemake/workflow"), seconds=0):
        assert find(flow) == []
    assert len(find(flow)) == 1


def test_nothing_is_deleted_while_an_earlier_configuration_cannot_be_read(flow):
    begin(flow, "tool_calling-old-gdpo-g4-s1-12345678", (3,))
    Path("results/mine").mkdir(parents=True)
    Path("results/mine/configuration.json").write_text('{"preset": "mine", "no_such_key": 1}')
    with pytest.raises(ConfigurationError, match=r"configuration\.json"):
        clean(flow, dry_run=False)
    assert len(list(Path(".scratch").iterdir())) == 1


def test_a_running_training_is_left_alone(flow):
    work = begin(flow, "tool_calling-old-gdpo-g4-s1-12345678", (3,))
    with directory_lock(work, seconds=0):
        assert find(flow) == []
    assert len(find(flow)) == 1


def test_a_diverged_run_and_what_is_no_run_stay(flow):
    run = min(flow.matrix.runs)
    begin(flow, run)
    finish(flow, run, outcome="diverged")
    (flow.paths.scratch / "hub/models").mkdir(parents=True)
    (flow.paths.scratch / "models/tiny").mkdir(parents=True)
    assert find(flow) == []


def test_the_engines_log_keeps_its_end_when_a_run_goes_on(tmp_path):
    log = tmp_path / "openrlhf.log"
    launch.keep_end(log, 8)
    log.write_bytes(b"one\ntwo\n")
    launch.keep_end(log, 8)
    assert log.read_bytes() == b"one\ntwo\n"
    log.write_bytes(b"one\ntwo\nthree\n")
    launch.keep_end(log, 10)  # the line that it would begin with may be cut
    assert log.read_bytes() == b"three\n"
    log.write_bytes(b"one\ntwo\nthree\n")
    launch.keep_end(log, 11)
    assert log.read_bytes() == b"two\nthree\n"


# --- the results of a preset ------------------------------------------------------------------------------------------


def base_of(flow: WorkflowPlan, run: str) -> Path:
    """The base model of a run, made here: its manifest in the results, its weights in scratch."""
    manifest = Path(flow.training_inputs(SimpleNamespace(run=run))["model"])
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text("{}")
    weights = flow.paths.scratch / "models" / manifest.parent.name
    weights.mkdir(parents=True, exist_ok=True)
    (weights / "model.safetensors").write_bytes(b"w" * 500)
    return weights


@pytest.fixture
def told(flow) -> WorkflowPlan:
    """The same, with results of a workflow."""
    flow.paths.root.mkdir(parents=True)
    (flow.paths.root / "configuration.json").write_text(flow.configuration_json())
    return flow


def test_results_of_a_preset_go_with_their_work(told):
    flow = told
    run, begun = sorted(flow.matrix.runs)[:2]
    begin(flow, run)
    finish(flow, run)
    base_of(flow, run)
    begin(flow, begun, (3,))
    flow.paths.run(begun).mkdir()
    begin(flow, "tool_calling-old-gdpo-g4-s1-12345678", (3,))  # not in these results
    kept = ["results/cached/x/manifest.json", "results/published/data/x.csv", "results/other/data/runs.csv"]
    for name in kept:
        Path(name).parent.mkdir(parents=True)
        Path(name).write_text("{}")
    gone = [flow.paths.root, *(flow.paths.scratch / name for name in (run, begun, "models"))]
    size = human(sum(map(size_of, gone)))
    before = files(Path())
    printed = clean_results(flow, dry_run=True)
    assert files(Path()) == before | {".snakemake/workflow/lock"}
    assert printed.splitlines()[-1].strip() == f"{size} would be freed (results {size})"
    assert clean_results(flow, dry_run=False).endswith(f" freed (results {size})")
    assert sorted(path.name for path in Path("results").iterdir()) == ["cached", "other", "published"]
    assert all(Path(name).is_file() for name in kept)
    assert sorted(path.name for path in Path(".scratch").iterdir()) == [
        "models",
        "tool_calling-old-gdpo-g4-s1-12345678",
    ]
    assert list(Path(".scratch/models").iterdir()) == []


def test_what_another_preset_with_results_has_or_plans_stays(told):
    flow = told
    first, second, third = sorted(flow.matrix.runs)[:3]
    models = set()
    for run in (first, second, third):
        begin(flow, run)
        finish(flow, run)
        models.add(base_of(flow, run).name)
    Path("results/laptop/runs", first).mkdir(parents=True)
    assert (
        clean_results(flow, dry_run=True).splitlines()[0] == f"     kept  .scratch/{first}: results/laptop has it too"
    )
    preset = flow.configuration.preset.model_dump(mode="json", exclude={"scratch"})
    Path("results/mine").mkdir()
    Path("results/mine/configuration.json").write_text(json.dumps(preset | {"preset": "mine"}))
    lines = clean_results(flow, dry_run=False).splitlines()
    assert [line for line in lines if line.startswith("     kept")] == [
        *(f"     kept  .scratch/{run}: preset mine plans it too" for run in (first, second, third)),
        *(f"     kept  .scratch/models/{model}: preset mine plans it too" for model in sorted(models)),
    ]
    assert not flow.paths.root.exists()
    assert len(list(Path(".scratch").glob("*/step_6"))) == 3


def test_work_that_others_share_stays_when_results_go(told):
    flow = told
    run, other = sorted(flow.matrix.runs)[:2]
    begin(flow, run)
    finish(flow, run)
    weights = base_of(flow, run)
    record_owner(begin(flow, other), Path("results2/smoke/runs") / other)
    flow.paths.run(other).mkdir()
    lines = clean_results(flow, dry_run=False).splitlines()
    assert lines[0].startswith(f"     kept  .scratch/{other}: it belongs to ")
    assert lines[1] == f"     kept  {weights}: other work in scratch may start from it"
    assert not flow.paths.root.exists()
    assert sorted(path.name for path in Path(".scratch").iterdir()) == sorted(["models", other])


def test_results_stay_while_a_workflow_or_a_training_runs(told):
    flow = told
    run = min(flow.matrix.runs)
    work = begin(flow, run)
    finish(flow, run)
    with directory_lock(Path(".snakemake/workflow"), seconds=0):
        with pytest.raises(ValueError, match=r"no workflow runs here: .* is in use by process \d+ on "):
            clean_results(flow, dry_run=False)
        assert flow.paths.root.is_dir()
    with directory_lock(work, seconds=0), pytest.raises(ValueError, match=f"{run} is training; results are deleted"):
        clean_results(flow, dry_run=False)
    assert work.is_dir()
    assert flow.paths.root.is_dir()


def test_what_no_workflow_made_is_not_deleted(flow):
    """`results` and a preset's name may point anywhere: at results/cached, or at docs/."""
    clean_results(flow, dry_run=False)  # nothing is there
    (flow.paths.root / "data").mkdir(parents=True)
    with pytest.raises(ValueError, match="results/smoke is not what a workflow of preset smoke made"):
        clean_results(flow, dry_run=False)
    (flow.paths.root / "configuration.json").write_text('{"preset": "other"}')
    with pytest.raises(ValueError, match="results/smoke is not what a workflow of preset smoke made"):
        clean_results(flow, dry_run=True)
    assert (flow.paths.root / "data").is_dir()


def test_results_with_files_of_git_are_not_deleted(told, git):
    (told.paths.root / "kept.csv").write_text("a")
    git(".", "init", "-q")
    git(".", "add", "-f", "results/smoke/kept.csv")
    with pytest.raises(ValueError, match=r"holds 1 files that are kept in git \(the first: kept\.csv\)"):
        clean_results(told, dry_run=False)
    assert (told.paths.root / "kept.csv").is_file()


@pytest.mark.parametrize("script", ["echo fatal: detected dubious ownership >&2; exit 128", None])
def test_results_stay_where_git_does_not_say_what_it_keeps(told, tmp_path, monkeypatch, script):
    """Another user's clone, or a machine without git: that nothing is kept in git is not known."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "bin").mkdir()
    if script:
        (tmp_path / "bin/git").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin/git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    why = "fatal: detected dubious ownership" if script else "it is not installed"
    for dry_run in (True, False):
        with pytest.raises(ValueError, match=rf"{why}\. Files of results/smoke may be kept in it: nothing is deleted"):
            clean_results(told, dry_run=dry_run)
    assert told.paths.root.is_dir()


def test_results_on_another_disk_go_with_their_link(told, tmp_path):
    told.paths.root.rename(tmp_path / "disk")
    told.paths.root.symlink_to(tmp_path / "disk")
    clean_results(told, dry_run=False)
    assert not told.paths.root.is_symlink()
    assert not (tmp_path / "disk").exists()


def test_base_models_in_a_scratch_that_clones_may_share_stay(told, tmp_path):
    (tmp_path.parent / "shared").mkdir()
    told.paths.scratch.symlink_to(tmp_path.parent / "shared")
    run = min(told.matrix.runs)
    begin(told, run)
    finish(told, run)
    weights = base_of(told, run)
    lines = clean_results(told, dry_run=False).splitlines()
    assert lines[0] == f"     kept  {weights}: other work in scratch may start from it"
    assert weights.is_dir()


@pytest.mark.parametrize("name", ["", "cached", "published", "..", "smok"])
def test_only_a_preset_has_results_to_delete(smoke, tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["--root", str(smoke.root), "clean", "--results", "--preset", name])
    assert f"dara: --preset: {name!r} is not a preset" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", "cached", "published", "laptop"])
def test_make_clean_deletes_nothing_by_itself(name):
    """An empty name once made it `rm -rf results/`."""
    command = ["make", "--no-print-directory", "-n", "clean", f"PRESET={name}"]
    alone = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}  # the tests run in a make
    done = subprocess.run(command, cwd=ROOT, env=alone, check=True, capture_output=True, text=True)
    shown = done.stdout.splitlines()
    assert shown[-1] == f".venv/bin/dara clean --results --preset '{name}'"
    assert not any("rm -" in line for line in shown)


def test_sizes(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/one").write_bytes(b"x" * 10)
    (tmp_path / "two").write_bytes(b"x" * 5)
    assert (size_of(tmp_path), size_of(tmp_path / "two")) == (15, 5)
    assert [human(size) for size in (0, 999, 1500, 2_345_678, 10**12)] == ["0 B", "999 B", "1.5 kB", "2.3 MB", "1.0 TB"]

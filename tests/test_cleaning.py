"""`dara clean`: what goes, what stays and why; links are deleted and never what they point to."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dara.cleaning import _finished, clean, clean_results, find, human, planned_evaluations, size_of
from dara.cli import main
from dara.evaluation.records import IDENTITY, RESPONSES, SCORES
from dara.files import remove
from dara.loading import ConfigurationError, load_preset
from dara.plan import WorkflowPlan
from dara.store import OWNERS, directory_lock, record_owner
from dara.training.openrlhf import command, launch
from dara.training.run import last_resumable
from project import ROOT

RESUME = ("optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")
OLD = "tool_calling-old-gdpo-g4-s1-12345678"  # a run that no preset plans


@pytest.fixture(scope="module")
def planned(tmp_path_factory) -> WorkflowPlan:
    """The smoke preset of a copied configuration, which has no other presets: they take a second to read each time."""
    root = tmp_path_factory.mktemp("repository")
    shutil.copytree(ROOT / "config", root / "config")
    smoke = root / "config/presets/smoke.yaml"
    for path in set(smoke.parent.iterdir()) - {smoke}:
        path.unlink()
    return WorkflowPlan(load_preset(root, smoke), root)


@pytest.fixture
def flow(planned, tmp_path, monkeypatch) -> WorkflowPlan:
    """The smoke preset in an empty clone, beside which an archive may be; a workflow has begun with it."""
    (tmp_path / "clone").mkdir()
    monkeypatch.chdir(tmp_path / "clone")
    return told(WorkflowPlan(planned.configuration, planned.root))


def told(flow: WorkflowPlan) -> WorkflowPlan:
    flow.paths.root.mkdir(parents=True)
    (flow.paths.root / "configuration.json").write_text(flow.configuration_json())
    return flow


@pytest.fixture
def run(flow) -> str:
    """A planned run."""
    return min(flow.matrix.runs)


@pytest.fixture
def work(flow, run) -> Path:
    """The working directory of this run, which is finished."""
    finish(flow, run)
    return begin(flow, run)


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


def base_of(flow: WorkflowPlan, run: str) -> Path:
    """The base model of a run, made here: its manifest in the results, its weights in scratch."""
    manifest = Path(flow.training_inputs(SimpleNamespace(run=run))["model"])
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text("{}")
    weights = flow.paths.scratch / "models" / manifest.parent.name
    weights.mkdir(parents=True, exist_ok=True)
    (weights / "model.safetensors").write_bytes(b"w" * 500)
    return weights


def moved(path: Path, to: Path) -> Path:
    """Move a directory to another disk, and link it to where it was."""
    to.parent.mkdir(parents=True, exist_ok=True)
    path.rename(to)
    path.symlink_to(to.absolute())
    return to


def test_a_finished_run_loses_what_only_resuming_needs(flow, run, work):
    last = f".scratch/{run}/step_6"
    assert rules(flow) == [("finished", f"{last}/{name}") for name in RESUME[:3]]
    assert "trainer_state.json" not in clean(flow, dry_run=False)
    assert files(Path(last)) == {"model.safetensors", "trainer_state.json"}


def test_a_fully_scored_run_keeps_its_last_checkpoint_alone(flow, run, work):
    score(flow, run, 3, 6)
    assert rules(flow)[0] == ("finished", f".scratch/{run}/step_3")
    assert clean(flow, dry_run=True).splitlines()[-1] == "1.4 kB would be freed (finished 1.4 kB)"
    assert (work / "step_3").is_dir()
    assert clean(flow, dry_run=False).splitlines()[-1] == "1.4 kB freed (finished 1.4 kB)"
    assert [path.name for path in work.glob("step_*")] == ["step_6"]
    assert last_resumable(work) == 0, "with checkpoints missing, the run must not be published again from the rest"
    assert find(flow) == []


@pytest.mark.parametrize(
    ("scored", "changes"),
    [
        *((steps, {}) for steps in [(), (3,), (6,)]),
        *(((3, 6), one) for one in [{"limit": 5}, {"samples": 7}, {"seed": 1}, {"batch_size": 3}, {"sampler": "vllm"}]),
        ((3, 6), {"temperature": 0.5}),
    ],
)
def test_a_run_without_all_scores_of_the_presets_settings_keeps_every_checkpoint(flow, run, work, scored, changes):
    """Such as scores of a first look with `limit: 5`: the preset's evaluation still needs every checkpoint."""
    if "temperature" in changes:
        changes = {"sampling": flow.benchmarks_of(run)[0].sampling.model_copy(update=changes)}
    score(flow, run, *scored, **changes)
    assert not frees_checkpoints(find(flow))
    clean(flow, dry_run=False)
    assert last_resumable(work) == 6, "its results can be published again"
    score(flow, run, 3, 6)
    assert frees_checkpoints(find(flow))


def test_every_planned_benchmark_and_step_counts(flow, run, work):
    """In the results of the preset that plans it; where the run is not in those, in any."""

    def freed(**plans) -> bool:
        return frees_checkpoints(_finished(work, [flow.paths.run(run) / "manifest.json"], plans))

    planned = planned_evaluations(flow)[run]["smoke"]
    ((own, steps),) = planned.items()
    another = {own.model_copy(update={"limit": 5}): steps}
    assert steps == (3, 6)
    assert freed(smoke={})  # nothing is to be evaluated
    assert not freed(smoke={own: (6,)})
    score(flow, run, 6)
    assert freed(smoke={own: (6,)})
    assert not freed(smoke={own: (6,)}, another={own: (3,)})
    assert not freed(smoke=planned)
    score(flow, run, 3, 6)
    assert freed(smoke=planned)
    assert freed(smoke=planned, another=planned)
    assert not freed(smoke=planned | another)
    assert not freed(smoke=planned, another=another)


def test_a_finished_run_that_no_preset_plans_any_more_goes_by_the_scores_that_it_has(flow, run, work):
    """Or a changed setting would leave all checkpoints of every run before it."""
    manifests = [flow.paths.run(run) / "manifest.json"]
    assert not frees_checkpoints(_finished(work, manifests, {}))
    score(flow, run, 3, 6)
    assert frees_checkpoints(_finished(work, manifests, {}))
    write_evaluation(flow.paths.scores(run) / "another-12345678", (3,))
    assert not frees_checkpoints(_finished(work, manifests, {}))


def test_an_openrlhf_run_loses_its_optimiser_states(flow, run):
    work = begin(flow, run)
    state = work / "openrlhf/_actor/global_step6"
    state.mkdir(parents=True)
    (state / "optimizer_states.pt").write_bytes(b"s" * 5000)
    assert rules(flow) == []
    finish(flow, run)
    assert ("finished", str(state / "optimizer_states.pt")) in rules(flow)
    clean(flow, dry_run=False)
    assert command.last_resumable(work) == 6, "its results can be published again"


def test_unfinished_work_goes_only_where_no_preset_plans_it(flow, run):
    begin(flow, run, (3,))
    begin(flow, OLD, (3,))
    with directory_lock(Path(".snakemake/workflow"), seconds=0):
        assert find(flow) == [], "it may be of a workflow that has not written its configuration.json yet"
    assert rules(flow) == [("unplanned", f".scratch/{OLD}")]
    clean(flow, dry_run=False)
    assert [path.name for path in Path(".scratch").iterdir()] == [run]


def test_other_presets_and_earlier_configurations_plan_runs_too(flow):
    """Also those that came from a configuration file which is not in config/presets/."""
    laptop = flow.root / "config/presets/laptop.yaml"
    shutil.copy(ROOT / "config/presets/laptop.yaml", laptop)
    preset = flow.configuration.preset.model_dump(mode="json", exclude={"scratch"})
    for matrix in preset["experiments"].values():
        matrix["seeds"] = [4711]
    Path("results/mine").mkdir(parents=True)
    Path("results/mine/configuration.json").write_text(json.dumps(preset | {"preset": "mine"}))
    planned = planned_evaluations(flow)
    begin(flow, next(run for run in planned if "-s4711-" in run), (3,))
    begin(flow, next(run for run, presets in planned.items() if "laptop" in presets), (3,))
    assert rules(flow) == []
    laptop.unlink()
    assert len(rules(flow)) == 1


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


def test_a_finished_run_that_others_finished_too_is_kept(flow, run, work):
    score(flow, run, 3, 6)
    record_owner(work, Path("results2/smoke/runs") / run)
    assert find(flow) == []


def test_nothing_is_deleted_while_an_earlier_configuration_cannot_be_read(flow):
    begin(flow, OLD, (3,))
    Path("results/mine").mkdir(parents=True)
    Path("results/mine/configuration.json").write_text('{"preset": "mine", "no_such_key": 1}')
    with pytest.raises(ConfigurationError, match=r"configuration\.json"):
        clean(flow, dry_run=False)
    assert len(list(Path(".scratch").iterdir())) == 1


def test_a_running_training_a_diverged_run_and_what_is_no_run_stay(flow, run):
    begin(flow, run)
    finish(flow, run, outcome="diverged")
    (flow.paths.scratch / "hub/models").mkdir(parents=True)
    (flow.paths.scratch / "models/tiny").mkdir(parents=True)
    with directory_lock(begin(flow, OLD, (3,)), seconds=0):
        assert find(flow) == []
    assert len(find(flow)) == 1


@pytest.mark.parametrize(
    ("content", "most", "left"),
    [
        (None, 8, None),
        (b"one\ntwo\n", 8, b"one\ntwo\n"),
        (b"one\ntwo\nthree\n", 10, b"three\n"),  # the line that it would begin with may be cut
        (b"one\ntwo\nthree\n", 11, b"two\nthree\n"),
    ],
)
def test_the_engines_log_keeps_its_end_when_a_run_goes_on(tmp_path, content, most, left):
    log = tmp_path / "openrlhf.log"
    if content:
        log.write_bytes(content)
    launch.keep_end(log, most)
    assert (log.read_bytes() if log.is_file() else None) == left


# --- the results of a preset ------------------------------------------------------------------------------------------


def test_results_of_a_preset_go_with_their_work(flow, run, work):
    begun = sorted(flow.matrix.runs)[1]
    base_of(flow, run)
    begin(flow, begun, (3,))
    flow.paths.run(begun).mkdir()
    begin(flow, OLD, (3,))  # not in these results
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
    assert files(Path("results")) == {name.removeprefix("results/") for name in kept}
    assert sorted(path.name for path in Path(".scratch").iterdir()) == ["models", OLD]
    assert list(Path(".scratch/models").iterdir()) == []


def test_what_another_preset_with_results_has_or_plans_stays(flow):
    runs = sorted(flow.matrix.runs)[:3]
    for run in runs:
        begin(flow, run)
        finish(flow, run)
    models = sorted({base_of(flow, run).name for run in runs})
    Path("results/laptop/runs", runs[0]).mkdir(parents=True)
    first = clean_results(flow, dry_run=True).splitlines()[0]
    assert first == f"     kept  .scratch/{runs[0]}: results/laptop has it too"
    preset = flow.configuration.preset.model_dump(mode="json", exclude={"scratch"})
    Path("results/mine").mkdir()
    Path("results/mine/configuration.json").write_text(json.dumps(preset | {"preset": "mine"}))
    lines = clean_results(flow, dry_run=False).splitlines()
    assert [line for line in lines if line.startswith("     kept")] == [
        f"     kept  .scratch/{name}: preset mine plans it too"
        for name in (*runs, *(f"models/{name}" for name in models))
    ]
    assert not flow.paths.root.exists()
    assert len(list(Path(".scratch").glob("*/step_6"))) == 3


def test_work_that_others_share_stays_when_results_go(flow, run, work):
    other, weights = sorted(flow.matrix.runs)[1], base_of(flow, run)
    record_owner(begin(flow, other), Path("results2/smoke/runs") / other)
    flow.paths.run(other).mkdir()
    lines = clean_results(flow, dry_run=False).splitlines()
    assert lines[0].startswith(f"     kept  .scratch/{other}: it belongs to ")
    assert lines[1] == f"     kept  {weights}: other work in scratch may start from it"
    assert not flow.paths.root.exists()
    assert sorted(path.name for path in Path(".scratch").iterdir()) == sorted(["models", other])


def test_base_models_in_a_scratch_that_clones_may_share_stay(flow, run, tmp_path):
    (tmp_path / "shared").mkdir()
    flow.paths.scratch.symlink_to(tmp_path / "shared")
    begin(flow, run)
    finish(flow, run)
    weights = base_of(flow, run)
    first = clean_results(flow, dry_run=False).splitlines()[0]
    assert first == f"     kept  {weights}: other work in scratch may start from it"
    assert weights.is_dir()


def test_results_stay_while_a_workflow_or_a_training_runs(flow, run, work):
    with (
        directory_lock(Path(".snakemake/workflow"), seconds=0),
        pytest.raises(ValueError, match=r"no workflow runs here: .* is in use by process \d+ on "),
    ):
        clean_results(flow, dry_run=False)
    with directory_lock(work, seconds=0), pytest.raises(ValueError, match=f"{run} is training; results are deleted"):
        clean_results(flow, dry_run=False)
    assert work.is_dir()
    assert flow.paths.root.is_dir()


def test_what_no_workflow_made_is_not_deleted(flow):
    """`results` and a preset's name may point anywhere: at results/cached, or at docs/."""
    told, message = flow.paths.root / "configuration.json", "results/smoke is not what a workflow of preset smoke made"
    (flow.paths.root / "notes.txt").write_text("mine")
    (flow.paths.root / "data").mkdir()
    told.rename("told.json")
    with pytest.raises(ValueError, match=message):
        clean_results(flow, dry_run=False)
    told.write_text('{"preset": "other"}')
    with pytest.raises(ValueError, match=message):
        clean_results(flow, dry_run=True)
    assert (flow.paths.root / "data").is_dir()
    Path("told.json").rename(told)
    first = clean_results(flow, dry_run=False).splitlines()[0]
    assert first == "     kept  results/smoke/notes.txt: no workflow made it"
    assert [path.name for path in flow.paths.root.iterdir()] == ["notes.txt"]
    shutil.rmtree(flow.paths.root)
    assert clean_results(flow, dry_run=False) == "0 B freed"


def test_results_with_files_of_git_are_not_deleted(flow, git):
    (flow.paths.root / "kept.csv").write_text("a")
    git(".", "init", "-q")
    git(".", "add", "-f", "results/smoke/kept.csv")
    with pytest.raises(ValueError, match=r"holds 1 files that are kept in git \(the first: kept\.csv\)"):
        clean_results(flow, dry_run=False)
    assert (flow.paths.root / "kept.csv").is_file()


@pytest.mark.parametrize("script", ["echo fatal: detected dubious ownership >&2; exit 128", None])
def test_results_stay_where_git_does_not_say_what_it_keeps(flow, tmp_path, monkeypatch, script):
    """Another user's clone, or a machine without git: that nothing is kept in git is not known."""
    Path(".git").mkdir()
    (tmp_path / "bin").mkdir()
    if script:
        (tmp_path / "bin/git").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin/git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    why = "fatal: detected dubious ownership" if script else "it is not installed"
    for dry_run in (True, False):
        with pytest.raises(ValueError, match=rf"{why}\. Files of results/smoke may be kept in it: nothing is deleted"):
            clean_results(flow, dry_run=dry_run)
    assert flow.paths.root.is_dir()


@pytest.mark.parametrize("name", ["", "cached", "published", "..", "smok"])
def test_only_a_preset_has_results_to_delete(planned, tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["--root", str(planned.root), "clean", "--results", "--preset", name])
    assert f"dara: --preset: {name!r} is not a preset" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", "cached", "laptop"])
def test_make_clean_deletes_nothing_by_itself(name):
    """An empty name once made it `rm -rf results/`."""
    command = ["make", "--no-print-directory", "-n", "clean", f"PRESET={name}"]
    alone = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}  # the tests run in a make
    done = subprocess.run(command, cwd=ROOT, env=alone, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == f".venv/bin/dara clean --results --preset '{name}'"
    assert "rm -" not in done.stdout


def test_sizes(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/one").write_bytes(b"x" * 10)
    (tmp_path / "two").write_bytes(b"x" * 5)
    assert (size_of(tmp_path), size_of(tmp_path / "two")) == (15, 5)
    assert [human(size) for size in (0, 999, 1500, 2_345_678, 10**12)] == ["0 B", "999 B", "1.5 kB", "2.3 MB", "1.0 TB"]


# --- links ------------------------------------------------------------------------------------------------------------


def test_an_archived_checkpoint_is_unlinked_and_the_archive_stays(flow, run, work):
    archive = [moved(work / f"step_{step}", Path(f"../archive/{step}")) for step in (3, 6)]
    score(flow, run, 3, 6)
    assert [str(removal.path) for removal in find(flow)] == [f".scratch/{run}/step_3"]
    clean(flow, dry_run=False)
    assert not os.path.lexists(work / "step_3")
    assert (work / "step_6").is_symlink()
    assert [len(list(path.iterdir())) for path in archive] == [1, 5], "nothing of the archive is gone"


def test_work_that_is_a_link_is_unlinked_without_touching_its_lock(flow):
    work = begin(flow, OLD, (3,))
    elsewhere = moved(work, Path("../archive/run"))
    (elsewhere / "lock").write_text("as it was")
    clean(flow, dry_run=False)
    assert not os.path.lexists(work)
    assert (elsewhere / "lock").read_text() == "as it was"
    assert (elsewhere / "step_3").is_dir()


def test_a_run_whose_lock_is_a_link_is_left_alone(flow):
    lock = begin(flow, OLD, (3,)) / "lock"
    Path("../theirs").write_text("as it was")
    lock.unlink()
    lock.symlink_to("../../../theirs")
    assert clean(flow, dry_run=False) == "0 B freed"
    assert Path("../theirs").read_text() == "as it was"


@pytest.mark.parametrize("place", ["results", "results/smoke", ".scratch"])
def test_linked_results_and_scratch_are_cleaned_as_others_are(flow, run, place):
    """A workflow that publishes through a link to another disk still knows its own work."""
    Path(".scratch").mkdir()
    disk = moved(Path(place), Path("../disk"))
    work = begin(flow, run)
    finish(flow, run)
    score(flow, run, 3, 6)
    assert "kept" not in clean(flow, dry_run=False)
    assert [path.name for path in work.glob("step_*")] == ["step_6"]
    clean_results(flow, dry_run=False)
    assert not work.exists()
    assert not flow.paths.root.exists()
    assert Path(place).is_symlink() == disk.exists() == (place != "results/smoke"), "the results' own link goes too"


def test_results_of_two_presets_in_one_directory_are_not_deleted(flow):
    Path("results/other").symlink_to("smoke")
    with pytest.raises(ValueError, match="results/smoke and results/other are one directory; nothing is deleted"):
        clean_results(flow, dry_run=False)


# --- any tree ---------------------------------------------------------------------------------------------------------

SOMEWHERE = ("archive", "archive/file", "nowhere", "itself", "clone", "clone/results/mine", "clone/.scratch")
"""What links point to: a directory and a file of others, nothing, the link itself, and what is around it."""
LINKED = (
    "step_3",
    "step_6",
    "step_6/optimizer.pt",
    "step_3/more",
    "openrlhf",
    "openrlhf/_actor",
    "openrlhf.log",
    "lock",
)
"""What is a link instead, in a run's directory."""
LINKED_RESULTS = ("logs", "logs/train", "logs/x.log", "runs", "models", "scores", "data")
run_trees = st.fixed_dictionaries(
    {
        "planned": st.booleans(),
        "owner": st.sampled_from(["ours", "ours", "theirs", "both", "nobody"]),
        "finished": st.booleans(),
        "scored": st.booleans(),
        "is_link": st.booleans(),
        "links": st.dictionaries(st.sampled_from(LINKED), st.sampled_from(SOMEWHERE), max_size=3),
    }
)
trees = st.fixed_dictionaries(
    {
        "runs": st.lists(run_trees, min_size=1, max_size=3),
        "disks": st.sets(st.sampled_from(["results", "results/smoke", ".scratch"])),
        "links": st.dictionaries(st.sampled_from(LINKED_RESULTS), st.sampled_from(SOMEWHERE), max_size=2),
        "foreign": st.booleans(),
        "models": st.booleans(),
    }
)


def link(path: Path, world: Path, target: str) -> None:
    """Put a link in the place of whatever is there."""
    if path.parent.is_dir() and not path.parent.is_symlink():
        remove(path)
        path.symlink_to(path.name if target == "itself" else world / target)


def grow(flow: WorkflowPlan, world: Path, tree: dict) -> set[Path]:
    """Build a tree in the working directory; what belongs to others in it."""
    others = {world / "archive", world / "clone/results/mine", world / "clone/results/cached"}
    (world / "archive/logs/train").mkdir(parents=True)
    for name in ("file", "model.safetensors", "optimizer.pt", "x.log", "logs/train/y.log", "lock", "inputs.json"):
        (world / "archive" / name).write_text("theirs")
    for directory in ("results/mine/logs", "results/cached/run/logs", ".scratch"):
        Path(directory).mkdir(parents=True)
        (Path(directory) / "old.log").write_text("theirs")
    for disk in sorted(tree["disks"], reverse=True):
        moved(Path(disk), world / "disk" / disk.replace("/", "-"))
    for number, run in enumerate(tree["runs"]):
        name = sorted(flow.matrix.runs)[number] if run["planned"] else OLD.replace("s1", f"s{number}")
        grow_run(flow, world, name, run)
        if run["owner"] != "ours":
            others.add(Path(os.path.realpath(flow.paths.scratch)) / name)
    if tree["models"]:
        base_of(flow, min(flow.matrix.runs))
    (flow.paths.root / "logs").mkdir(exist_ok=True)
    for name, target in sorted(tree["links"].items()):
        link(flow.paths.root / name, world, target)
    if tree["foreign"]:
        (flow.paths.root / "notes.txt").write_text("mine")
        others.add(Path(os.path.realpath(flow.paths.root)) / "notes.txt")
    for path in world.rglob("*.log"):
        os.utime(path, (0.0, 0.0), follow_symlinks=False)
    return others


def grow_run(flow: WorkflowPlan, world: Path, name: str, run: dict) -> None:
    """One run with its files in scratch and in the results."""
    work = begin(flow, name)
    (work / "owners.json").unlink()
    if run["owner"] in ("ours", "both"):
        record_owner(work, flow.paths.run(name))
    if run["owner"] in ("theirs", "both"):
        record_owner(work, world / "another clone/results/smoke/runs" / name)
    (work / "openrlhf/_actor/global_step6").mkdir(parents=True)
    (work / "openrlhf/_actor/global_step6/state.pt").write_text("state")
    (work / "openrlhf.log").write_text("words")
    for place, target in sorted(run["links"].items()):
        link(work / place, world, target)
    if run["finished"]:
        finish(flow, name)
    if run["scored"] and run["planned"]:
        score(flow, name, 3, 6)
    if run["is_link"]:
        moved(work, world / "disk" / name)


def snapshot(world: Path) -> dict[Path, str]:
    """Everything below a directory, no link followed: what it is, and what is in it. Locks say who holds them."""
    found = {}
    for directory, folders, names in os.walk(world):
        for path in (Path(directory, name) for name in (*folders, *names)):
            if path.is_symlink():
                found[path] = f"link to {os.readlink(path)}"
            elif path.is_dir():
                found[path] = "directory"
            elif ".snakemake" not in path.parts:
                ours = path.name == "lock" and path.parents[1].name == ".scratch"
                found[path] = "lock" if ours else path.read_text()
    return {path: what for path, what in found.items() if ".snakemake" not in path.parts}


def named(printed: str) -> set[Path]:
    """The paths that a table of removals names, as they are on disk; of linked results, the directory too."""
    shown = re.findall(r"^ *[\d.]+ k?B  \w+ +(\S.*)$", printed, re.MULTILINE)
    paths = {Path(os.path.realpath(Path(name).parent), Path(name).name) for name in shown}
    linked = {Path(os.path.realpath(name)) for name in shown if name == "results/smoke"}
    return paths | linked


def test_any_tree_loses_what_the_dry_run_names_and_nothing_of_others(planned):
    @settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(tree=trees, delete=st.sampled_from([clean, clean_results]))
    def check(tree, delete):
        flow = WorkflowPlan(planned.configuration, planned.root)
        with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
            world = Path(os.path.realpath(name))
            (world / "clone").mkdir()
            stack.enter_context(contextlib.chdir(world / "clone"))
            told(flow)
            others = grow(flow, world, tree)
            before = snapshot(world)
            said = delete(flow, dry_run=True)
            assert snapshot(world) == before, "a dry run changes nothing"
            roots = named(said)
            gone = {path for path in before if path in roots or roots & set(path.parents)}
            assert delete(flow, dry_run=False) == said.replace("would be freed", "freed")
            assert snapshot(world) == {path: what for path, what in before.items() if path not in gone}
            assert {path for path in gone if path in others or others & set(path.parents)} == set()

    check()

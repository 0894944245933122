import json
import os
import shutil
from pathlib import Path

import pytest

from dara.cleaning import RULES, _finished, clean, find, human, planned_benchmarks, size_of
from dara.dag import Workflow
from dara.loading import ConfigurationError, merge, read_yaml
from dara.locking import directory_lock
from dara.training.openrlhf import checkpoints as openrlhf_checkpoints
from dara.training.run_files import last_resumable

ROOT = Path(__file__).parents[1]
RESUME = ("optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")
DAY = 86400.0


@pytest.fixture(scope="module")
def smoke(tmp_path_factory) -> Workflow:
    """The smoke preset of a copied configuration."""
    root = tmp_path_factory.mktemp("repository")
    shutil.copytree(ROOT / "config", root / "config")
    files = [root / "config/config.yaml", root / "config/presets/smoke.yaml"]
    return Workflow.load(root, merge(read_yaml(files[0]), read_yaml(files[1])), files[1:])


@pytest.fixture
def flow(smoke, tmp_path, monkeypatch) -> Workflow:
    """The smoke preset in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return Workflow(smoke.configuration, smoke.root)


def begin(flow: Workflow, run: str, steps: tuple[int, ...] = (3, 6)) -> Path:
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
    return work


def finish(flow: Workflow, run: str, outcome: str = "completed") -> None:
    manifest = flow.paths.run(run) / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"outcome": outcome, "checkpoints": {"3": {}, "6": {}}}))


def score(flow: Workflow, run: str, *steps: int) -> None:
    (benchmark,) = flow.benchmarks_of(run)
    scores = flow.paths.scores(run)
    scores.mkdir(parents=True)
    listing = {f"step_{step}/{benchmark.name}.csv": "sha" for step in steps}
    (scores / f"{benchmark.name}.scored.json").write_text(json.dumps(listing))


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def rules(flow: Workflow, **options) -> list[tuple[str, str]]:
    return [(removal.rule, str(removal.path)) for removal in find(flow, **options)]


def test_a_finished_run_loses_what_only_resuming_needs(flow):
    run = min(flow.plan.runs)
    begin(flow, run)
    finish(flow, run)
    last = f".scratch/{run}/step_6"
    assert rules(flow) == [("resume", f"{last}/{name}") for name in RESUME[:3]]
    assert "trainer_state.json" not in clean(flow, dry_run=False)
    assert files(Path(last)) == {"model.safetensors", "trainer_state.json"}


def test_a_fully_scored_run_keeps_its_last_checkpoint_alone(flow):
    run = min(flow.plan.runs)
    work = begin(flow, run)
    finish(flow, run)
    score(flow, run, 3, 6)
    assert rules(flow)[0] == ("checkpoints", f".scratch/{run}/step_3")
    printed = clean(flow, dry_run=True)
    assert printed.splitlines()[-1] == "1.4 kB would be freed (resume 400 B, checkpoints 1.0 kB)"
    assert (work / "step_3").is_dir()
    assert clean(flow, dry_run=False).splitlines()[-1] == "1.4 kB freed (resume 400 B, checkpoints 1.0 kB)"
    assert sorted(path.name for path in work.glob("step_*")) == ["step_6"]
    assert last_resumable(work) == 0, "with checkpoints missing, the run must not be published again from the rest"
    assert find(flow) == []


@pytest.mark.parametrize("scored", [(), (3,), (6,)])
def test_a_run_that_is_not_fully_scored_keeps_every_checkpoint(flow, scored):
    run = min(flow.plan.runs)
    work = begin(flow, run)
    finish(flow, run)
    score(flow, run, *scored)
    assert {rule for rule, _ in rules(flow)} == {"resume"}
    clean(flow, dry_run=False)
    assert last_resumable(work) == 6, "its results can be published again"


def test_every_planned_benchmark_counts(flow):
    run = min(flow.plan.runs)
    begin(flow, run)
    finish(flow, run)
    score(flow, run, 3, 6)
    manifests = [flow.paths.run(run) / "manifest.json"]
    work = flow.paths.scratch / run
    benchmarks = planned_benchmarks(flow)[run]
    assert "checkpoints" in {removal.rule for removal in _finished(work, manifests, benchmarks)}
    assert {removal.rule for removal in _finished(work, manifests, benchmarks | {"another"})} == {"resume"}


def test_a_finished_run_that_no_preset_plans_any_more_goes_by_the_scores_that_it_has(flow):
    """Or a changed setting would leave all checkpoints of every run before it."""
    run = min(flow.plan.runs)
    work = begin(flow, run)
    finish(flow, run)
    manifests = [flow.paths.run(run) / "manifest.json"]
    assert {removal.rule for removal in _finished(work, manifests, None)} == {"resume"}
    score(flow, run, 3, 6)
    assert {removal.rule for removal in _finished(work, manifests, None)} == {"resume", "checkpoints"}
    (flow.paths.scores(run) / "another.scored.json").write_text("{}")
    assert {removal.rule for removal in _finished(work, manifests, None)} == {"resume"}


def test_an_openrlhf_run_loses_its_optimiser_states(flow):
    run = min(flow.plan.runs)
    work = begin(flow, run)
    state = work / "openrlhf/_actor/global_step6"
    state.mkdir(parents=True)
    (state / "optimizer_states.pt").write_bytes(b"s" * 5000)
    assert rules(flow) == []
    finish(flow, run)
    assert ("resume", str(state / "optimizer_states.pt")) in rules(flow)
    clean(flow, dry_run=False)
    assert openrlhf_checkpoints.last_resumable(work) == 6, "its results can be published again"


def test_unfinished_work_goes_only_where_no_preset_plans_it(flow):
    planned = min(flow.plan.runs)
    begin(flow, planned, (3,))
    begin(flow, "tool_calling-old-gdpo-g4-s1-12345678", (3,))
    assert rules(flow) == [("unplanned", ".scratch/tool_calling-old-gdpo-g4-s1-12345678")]
    clean(flow, dry_run=False)
    assert [path.name for path in Path(".scratch").iterdir()] == [planned]


def test_other_presets_and_earlier_configurations_plan_runs_too(flow):
    """Also those that came from a configuration file which is not in config/presets/."""
    laptop = next(run for run in planned_benchmarks(flow) if run not in flow.plan.runs)
    begin(flow, laptop, (3,))
    preset = flow.configuration.preset.model_dump(mode="json", exclude={"scratch"})
    for matrix in preset["experiments"].values():
        matrix["seeds"] = [4711]
    Path("results/mine").mkdir(parents=True)
    Path("results/mine/configuration.json").write_text(json.dumps(preset | {"preset": "mine"}))
    mine = next(run for run in planned_benchmarks(flow) if "-s4711-" in run)
    begin(flow, mine, (3,))
    assert rules(flow) == []


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
    run = min(flow.plan.runs)
    begin(flow, run)
    finish(flow, run, outcome="diverged")
    (flow.paths.scratch / "hub/models").mkdir(parents=True)
    (flow.paths.scratch / "models/tiny").mkdir(parents=True)
    assert find(flow) == []


def test_old_logs_go_and_results_never(flow):
    logs = ["logs/slurm/rule_train/x/1.log", ".snakemake/log/a.snakemake.log", "results/smoke/logs/train/x.log"]
    kept = ["results/published/logs/table/x.log", "results/cached/run/metrics.jsonl.gz", "results/smoke/data/runs.csv"]
    for name in logs + kept:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("words")
        os.utime(name, (0.0, 0.0))
    assert rules(flow, now=30 * DAY) == []
    assert sorted(path for _, path in rules(flow, now=30 * DAY + 1)) == sorted(logs)
    clean(flow, dry_run=False)
    assert [name for name in logs if Path(name).exists()] == []
    assert all(Path(name).exists() for name in kept)


def test_sizes(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/one").write_bytes(b"x" * 10)
    (tmp_path / "two").write_bytes(b"x" * 5)
    assert (size_of(tmp_path), size_of(tmp_path / "two")) == (15, 5)
    assert [human(size) for size in (0, 999, 1500, 2_345_678, 10**12)] == ["0 B", "999 B", "1.5 kB", "2.3 MB", "1.0 TB"]
    assert RULES == ("resume", "checkpoints", "unplanned", "logs")

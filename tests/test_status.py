"""What `dara status` and `dara plan` say of a preset: how far its runs are, and what is left to do."""

import json
import os
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from dara.cli import main
from dara.commands.jobs import _error_kept
from dara.config import Resources
from dara.loading import ConfigurationError
from dara.plan import WorkflowPlan
from dara.profiles import set_resources
from dara.status import (
    ERROR,
    LAST_BYTES,
    Cost,
    RunStatus,
    cost,
    failed_preparations,
    last_lines,
    plan_text,
    run_status,
    status_text,
)
from dara.store import directory_lock
from dara.training.stopping import OutOfTime
from project import ROOT, planned

WORKFLOW = Path(".snakemake/workflow")


@pytest.fixture(scope="module")
def smoke() -> WorkflowPlan:
    return planned("smoke")


@pytest.fixture
def flow(smoke, tmp_path, monkeypatch) -> WorkflowPlan:
    """The smoke preset in an empty directory: four runs of six steps."""
    monkeypatch.chdir(tmp_path)
    return WorkflowPlan(smoke.configuration, ROOT)


@pytest.fixture
def run(flow) -> str:
    return min(flow.matrix.runs)


def begin(flow: WorkflowPlan, run: str, steps: int, log: str = "") -> Path:
    """The working directory of a run after so many steps, and its log."""
    work = flow.paths.scratch / run
    work.mkdir(parents=True)
    (work / "metrics.jsonl").write_text('{"step": 1}\n' * steps)
    (work / "starts.json").write_text("[]")
    path = flow.paths.root / "logs/train" / f"{run}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(log)
    return work


def inputs(flow: WorkflowPlan, run: str) -> dict[str, str]:
    return flow.training_inputs(SimpleNamespace(run=run))


def finish(flow: WorkflowPlan, run: str, **manifest) -> None:
    path = Path(flow.manifest(run))
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"outcome": "completed", "steps": 6} | manifest))


def test_the_table_has_every_run_once_and_counts(flow):
    with directory_lock(WORKFLOW, seconds=0):
        assert status_text(flow, "told").endswith("\na workflow runs in this clone\nreuse: matching, told")
    done, diverged, failed, waiting = sorted(flow.matrix.runs)
    finish(flow, done)
    finish(flow, diverged, outcome="diverged", steps=3, diverged_at=4, reason="grad_norm is nan")
    work = begin(flow, failed, 5, "zero\nstep one\n\nTraceback\ndara: the reward format is nan for prompt 7\n\n")
    (work / ERROR).write_text("ValueError")
    width = max(map(len, flow.matrix.runs))
    log = f"results/smoke/logs/train/{failed}.log"
    assert status_text(flow, "told").splitlines() == [
        f"failed    {failed:<{width}}        5/6  log: {log}",
        "          | step one",
        "          | Traceback",
        "          | dara: the reward format is nan for prompt 7",
        f"waiting   {waiting:<{width}}        0/6",
        f"diverged  {diverged:<{width}}        3/6  in step 4: grad_norm is nan; not evaluated yet",
        f"done      {done:<{width}}        6/6  not evaluated yet",
        "",
        "4 runs: 1 done, 1 diverged, 1 waiting, 1 failed",
        "0 of 6 runs and base models are evaluated",
        "no workflow runs in this clone",
        "reuse: matching, told",
    ]


def test_a_run_whose_lock_is_held_is_running_and_is_not_disturbed(flow, run):
    work = begin(flow, run, 2, "dara: an old error")
    (work / ERROR).write_text("ValueError: an old error")
    with directory_lock(work, seconds=0):
        assert run_status(flow, run) == RunStatus(run, "running", 2, 6, f"log: results/smoke/logs/train/{run}.log")
    assert run_status(flow, run).state == "failed"
    with directory_lock(work, seconds=0):  # looking took nothing away
        pass


@pytest.mark.parametrize("state", ["stopped", "failed"])
def test_a_training_that_kept_its_error_failed_and_any_other_was_stopped(flow, run, state):
    """A time limit, a preemption, Ctrl-C and a killed process leave no error; the log is quoted in either case."""
    work = begin(flow, run, 5, "more\nthe last line\n")
    if state == "failed":
        (work / ERROR).write_text("RuntimeError: out of memory")
    note = f"log: results/smoke/logs/train/{run}.log"
    assert run_status(flow, run) == RunStatus(run, state, 5, 6, note, ("more", "the last line"))


def test_the_newest_log_is_quoted_slurms_among_them(flow, run):
    begin(flow, run, 5, "run | step 5/6 |\n")
    logs = Path("logs/slurm/rule_train") / run
    logs.mkdir(parents=True)
    (logs / "8.log").write_text("of an earlier job\n")
    (logs / "10.log").write_text("slurmstepd: error: *** JOB 10 ON vm CANCELLED AT 18:00:00 DUE TO TIME LIMIT ***\n")
    os.utime(flow.paths.root / "logs/train" / f"{run}.log", (0, 0))
    found = run_status(flow, run)
    assert (found.state, found.note) == ("stopped", f"log: {logs}/10.log")
    assert "DUE TO TIME LIMIT" in found.said[0]


def test_the_training_keeps_its_error_until_the_next_start(tmp_path):
    file = tmp_path / "run" / ERROR
    with pytest.raises(RuntimeError), _error_kept(file.parent):
        raise RuntimeError("before there is any work")
    file.parent.mkdir()
    with pytest.raises(RuntimeError), _error_kept(file.parent):
        raise RuntimeError("out of memory")
    assert file.read_text() == "RuntimeError: out of memory\n"
    for stop in (OutOfTime("stopped at step 3"), KeyboardInterrupt()):
        with pytest.raises(type(stop)), _error_kept(file.parent):
            raise stop
        assert not file.exists()


@pytest.mark.parametrize(("workflow_runs", "state"), [(True, "waiting"), (False, "failed")])
def test_a_job_that_ended_before_its_training_began_is_seen(flow, run, workflow_runs, state):
    """Such as on a node that does not see the clone. While a workflow runs, the job may just be starting."""
    logs = Path("logs/slurm/rule_train") / run
    logs.mkdir(parents=True)
    said = "/var/spool/slurmd/job7/slurm_script: line 3: /home/me/dara/.venv/bin/python: No such file or directory"
    (logs / "7.log").write_text(f"{said}\n")
    with directory_lock(WORKFLOW, seconds=0) if workflow_runs else nullcontext():
        found = run_status(flow, run)
    log = f"log: {logs}/7.log"
    note = (f"{said} ({log})",) if workflow_runs else (log, (said,))
    assert found == RunStatus(run, state, 0, 6, *note)


def test_an_evaluation_that_failed_stands_behind_its_trained_run(flow, run):
    finish(flow, run)
    assert run_status(flow, run).note == "not evaluated yet"
    (benchmark,) = flow.benchmarks_of(run)
    logs = flow.paths.root / "logs/evaluate"
    logs.mkdir(parents=True)
    where = logs / f"{run}.{benchmark.name}.part2of2.log"
    for log, text, age in ((logs / f"{run}.x.log", "fine\n", 0.0), (where, "x\ntorch.OutOfMemoryError: 9 GiB\n", 9.0)):
        log.write_text(text)
        os.utime(log, (age, age))
    assert run_status(flow, run).note == f"not evaluated yet: torch.OutOfMemoryError: 9 GiB (log: {where})"
    with directory_lock(flow.paths.evaluation(run, benchmark) / ".part2", seconds=0):
        assert run_status(flow, run).note == f"is being evaluated (log: {where})"
    (scored,) = map(Path, flow.score_files(run))
    scored.write_text(json.dumps({"steps": [3, 6]}))
    assert run_status(flow, run).note == ""
    base = min(flow.bases)
    log = flow.paths.root / "logs/score" / f"{base}.laptop_math.log"
    log.parent.mkdir(parents=True)
    log.write_text("dara: no\n")
    assert f"\n{base}: not evaluated yet: dara: no (log: {log})\n" in status_text(flow, "told")


def prepare(flow: WorkflowPlan, rule: str, name: str, log: str) -> Path:
    """The log of a job that made no manifest."""
    path = flow.paths.root / "logs" / rule / f"{name}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(log)
    return path


@pytest.mark.parametrize("rule", ["base_model", "data"])
def test_runs_whose_base_model_or_data_failed_name_that_job(flow, run, rule):
    """Each run in a line, and how the log of the job ends once."""
    manifest = Path(inputs(flow, run)["model" if rule == "base_model" else "data"])
    name = manifest.parent.name
    log = prepare(flow, rule, name, "one\ntwo\n\nthree\ndara: the warm start diverged\n")
    note = f"{rule} of {name} did not finish (log: {log})"
    assert run_status(flow, run) == RunStatus(run, "blocked", 0, 6, note)
    lines = status_text(flow, "told").splitlines()
    start = lines.index(note) + 1
    said = [line.strip("| ") for line in lines[start : start + 4]]
    assert said == ["two", "three", "dara: the warm start diverged", ""]
    assert "4 runs: 2 waiting, 2 blocked" in lines
    manifest.parent.mkdir(parents=True)
    manifest.write_text("{}")
    assert run_status(flow, run).state == "waiting"


def test_a_job_may_be_at_work_while_a_workflow_runs_and_one_without_output_has_not_begun(flow, run):
    log = prepare(flow, "base_model", Path(inputs(flow, run)["model"]).parent.name, "fetching\n")
    assert run_status(flow, run).state == "blocked"
    with directory_lock(WORKFLOW, seconds=0):
        assert run_status(flow, run).state == "waiting"
    log.write_text("\n")
    assert run_status(flow, run).state == "waiting"


def test_a_published_benchmark_that_could_not_be_fetched_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flow = planned("paper")
    log = prepare(flow, "benchmark_data", "bfcl_v4", "dara: no network\n")
    assert failed_preparations(flow) == {f"benchmark_data of bfcl_v4 did not finish (log: {log})": log}


def test_a_begun_run_without_a_log_says_so(flow, run):
    begin(flow, run, 0)
    assert run_status(flow, run).note == "no log is left"


def test_cached_runs_are_done(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    flow = planned("laptop-openrlhf")
    run = min(flow.cached)
    assert run_status(flow, run) == RunStatus(run, "done", 80, 80, "from results/cached/")


@pytest.fixture
def clone(tmp_path, monkeypatch) -> Path:
    """A copied configuration, and another directory to be in."""
    shutil.copytree(ROOT / "config", tmp_path / "clone/config")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "clone"


def last_said(capsys, clone: Path, *arguments: str) -> list[str]:
    main(["--root", str(clone), "status", *arguments])
    return capsys.readouterr().out.splitlines()


def test_status_looks_where_the_workflow_runs(clone, capsys):
    """Not where it is called: there everything would be waiting, with nothing in the cache."""
    os.symlink(ROOT / "results", clone / "results")
    assert "24 runs: 24 done" in last_said(capsys, clone, "--preset", "laptop", "--reuse", "matching")
    with directory_lock(clone / ".snakemake/workflow", seconds=0):
        shown = last_said(capsys, clone, "--preset", "smoke", "--reuse", "none")
    assert shown[-2:] == ["a workflow runs in this clone", "reuse: none, as asked"]


def test_status_shows_what_the_last_workflow_was_told(clone, capsys):
    """`make reproduce` takes nothing from the cache, so its runs are those of results/<preset>/."""
    source = "as config/ says: no workflow has run in results/smoke yet"
    assert last_said(capsys, clone, "--preset", "smoke")[-1] == f"reuse: matching, {source}"
    told = planned("smoke", clone, reuse="none").configuration.preset.model_dump(mode="json", exclude={"scratch"})
    told["experiments"]["tool_main"]["seeds"] = [4711]
    (clone / "results/smoke").mkdir(parents=True)
    (clone / "results/smoke/configuration.json").write_text(json.dumps(told))
    shown = last_said(capsys, clone, "--preset", "smoke")
    assert shown[-1] == "reuse: none, as the last workflow was told (results/smoke/configuration.json)"
    assert sum("-s4711-" in line for line in shown) == 2
    assert last_said(capsys, clone, "--preset", "smoke", "--reuse", "matching")[-1] == "reuse: matching, as asked"


def test_the_scratch_of_a_preset_is_where_its_runs_are_looked_for(clone, capsys):
    """It stands in no configuration.json."""
    preset = clone / "config/presets/smoke.yaml"
    preset.write_text(f"{preset.read_text()}\nscratch: fast/disk\n")
    flow = planned("smoke", clone)
    (clone / "results/smoke").mkdir(parents=True)
    (clone / "results/smoke/configuration.json").write_text(flow.configuration_json())
    work = clone / "fast/disk" / min(flow.matrix.runs)
    work.mkdir(parents=True)
    (work / "metrics.jsonl").write_text('{"step": 1}\n')
    with directory_lock(work, seconds=0):
        assert "4 runs: 3 waiting, 1 running" in last_said(capsys, clone, "--preset", "smoke")


def test_reuse_is_one_of_three(clone, capsys):
    with pytest.raises(SystemExit):
        last_said(capsys, clone, "--preset", "smoke", "--reuse", "sometimes")
    assert "'sometimes' is not one of" in capsys.readouterr().err


def test_as_json(clone, capsys):
    rows = json.loads("\n".join(last_said(capsys, clone, "--preset", "smoke", "--json")))
    assert [(row["state"], row["step"], row["steps"]) for row in rows] == [("waiting", 0, 6)] * 4


def test_the_last_lines_of_a_log(tmp_path):
    log = tmp_path / "log"
    assert last_lines(log) == ()
    for content, expected in (
        (b" \n", ()),
        (
            b"x" * LAST_BYTES + b"\nfour\n\nthree\ntwo  \rone\n\n" + b"y" * 200 + b"\n",
            ("two", "one", "y" * 137 + "..."),
        ),
        (b"a" * 140, ("a" * 140,)),
    ):
        log.write_bytes(content)
        assert last_lines(log) == expected


# --- cost -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def workflow(tmp_path, monkeypatch):
    """A preset's workflow in an empty directory, with other settings of the preset on request."""
    monkeypatch.chdir(tmp_path)
    return lambda preset, **changes: altered(planned(preset), **changes)


def altered(flow: WorkflowPlan, **changes) -> WorkflowPlan:
    preset = flow.configuration.preset.model_copy(update=changes)
    return WorkflowPlan(replace(flow.configuration, preset=preset), ROOT)


def test_the_paper_preset_has_the_runs_of_every_experiment(workflow):
    flow = workflow("paper")
    counts = {name: cost(flow, runs).runs for name, runs in flow.matrix.experiments.items()}
    assert counts == {
        "tool_main": 6 * 5 * 2,
        "group_size": 4 * 4 * 3,
        "three_rewards": 4 * 3,
        "math_main": 6 * 3,
        "fixed_weight": 4,
        "extended": 4,
    }
    total = cost(flow, [*flow.matrix.runs])
    assert total.runs == total.train == 60 + 36 + 12 + 18 + 2 + 2  # shared: 12 of group_size, 2 of the last two
    assert (total.cached, total.done) == (0, 0)
    assert total.evaluate == total.runs - 36 + 6  # without those of group_size alone; with base models


HARDWARE = Resources(gpus=4, hours=2.5, disk_gb=80, evaluation_gpus=2, evaluation_hours=3)


def test_hours_and_disk_come_from_the_resources_of_the_models(workflow):
    flow = workflow("paper", resources=HARDWARE)
    found = cost(flow, flow.matrix.experiments["three_rewards"])
    assert found.training_hours == 12 * 4 * 2.5
    assert found.disk == 12 * 80
    assert found.evaluation_hours == 12 * 2 * 3 + 2 * 3  # a job evaluates the one checkpoint, another the base model
    small = [run for run in flow.matrix.experiments["tool_main"] if "1.5b" in run]
    assert cost(flow, small).evaluation_hours == 30 * 2 * 3 * 5 + 2 * 3  # five jobs share the ten checkpoints of a run


def test_what_no_experiment_asks_for_is_not_evaluated_and_costs_nothing(workflow):
    flow = workflow("paper")
    sizes = flow.matrix.experiments["group_size"]
    alone = [run for run in sizes if run not in flow.matrix.experiments["tool_main"]]
    assert len(alone) == 36
    found = cost(flow, alone)
    assert (found.train, found.evaluate, found.evaluation_hours) == (36, 1, 3)  # the base model, which tool_main needs
    assert found.jobs == 36 + 2 * 2
    before = 723  # GPU hours when every checkpoint of every run was evaluated
    assert cost(flow, sizes).evaluation_hours == before - 36 * 5 * 3
    matrices = flow.configuration.preset.experiments
    changes = {"evaluate_at": None, "benchmarks": None}
    every = {name: matrix.model_copy(update=changes) for name, matrix in matrices.items()}
    both = [flow, workflow("paper", experiments=every)]
    asked, whole = (cost(one, [*one.matrix.runs]).evaluation_hours for one in both)
    # Group sizes, three rewards, fixed weights, thinking.
    assert whole - asked == 36 * 5 * 3 + 12 * 4 * 3 + 2 * 4 * 2 * 6 + 2 * 4 * 2 * 8


def test_hours_of_each_model(workflow):
    flow = workflow("paper")
    for size, low, high in (("1.5b", 10, 12), ("3b", 18, 24)):  # the authors: 2.5 h on 4 GPUs, and 4 to 5 h
        runs = [run for run in flow.matrix.experiments["tool_main"] if f"qwen2.5-{size}-instruct" in run]
        assert low <= cost(flow, runs).training_hours / len(runs) <= high
    assert {flow.resources(run).gpus for run in flow.matrix.experiments["math_main"]} == {8}


def test_what_is_trained_or_scored_is_not_counted_again(workflow):
    flow = workflow("laptop")
    runs = flow.matrix.experiments["tool_main"]
    assert cost(flow, runs) == Cost(12, 0, 0, 12, 13, 12 + 2 * 13, 0.0, 0.0, 12.0)
    write(flow.manifest(runs[0]))
    write(flow.score_files(runs[0])[0], [*range(10, 81, 10)])
    write(flow.manifest(runs[1]))
    assert cost(flow, runs) == Cost(12, 0, 2, 10, 12, 10 + 2 * 12, 0.0, 0.0, 10.0)


def test_cached_runs_are_neither_trained_nor_evaluated(workflow, monkeypatch):
    monkeypatch.chdir(ROOT)
    flow = workflow("laptop")
    assert cost(flow, [*flow.matrix.runs]) == Cost(24, 24, 0, 0, 0, 0, 0.0, 0.0, 0.0)
    assert "cached: taken from results/cached (reuse: matching)" in plan_text(flow, "all")
    flow = altered(flow, reuse="none")
    assert cost(flow, [*flow.matrix.runs]).cached == 0
    assert "cached: none is taken (reuse: none)" in plan_text(flow, "all")


def profile(tmp_path, text, name="site.yaml"):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_a_profile_changes_the_hours_of_its_rules(workflow, tmp_path):
    """12 runs of 4 GPUs x 2.5 h; five shares each of 2 GPUs x 3 h, and a job that gathers them; one base model."""
    flow = workflow("paper", resources=HARDWARE)
    runs = flow.matrix.experiments["tool_main"][:12]

    def hours(text):
        found = cost(flow, runs, set_resources([profile(tmp_path, text)], ROOT))
        return found.training_hours, found.evaluation_hours

    before = (12 * 4 * 2.5, 12 * 5 * 2 * 3 + 2 * 3)
    assert hours("jobs: 64") == before
    assert hours("set-resources: {train: {slurm_partition: gpu}, score: {runtime: 9}}") == before
    assert hours("set-resources: {train: {runtime: 600}}") == (12 * 4 * 10, before[1])
    assert hours("set-resources: {train: {gpu: 8, runtime: 10h}}") == (12 * 8 * 10, before[1])
    assert hours("set-resources: {evaluate_part: {runtime: 30}}") == (before[0], 12 * 5 * 2 * 0.5 + 2 * 3)
    # gpu of `evaluate` is asked for by the jobs that gather too: an hour each.
    assert hours("set-resources: {evaluate: {gpu: 1}}") == (before[0], 12 * (5 * 2 * 3 + 1) + 1 * 3)


def test_a_later_profile_takes_the_place_of_the_whole_key(tmp_path):
    first = profile(tmp_path, "set-resources: {train: {runtime: 600}, evaluate: {gpu: '1'}}", "cluster/config.yaml")
    second = profile(tmp_path, "set-resources: {train: {gpu: 8}}")
    third = profile(tmp_path, "jobs: 3", "third.yaml")
    assert set_resources([first.parent], ROOT) == {"train": {"runtime": 600}, "evaluate": {"gpu": 1}}
    assert set_resources([first.parent, second, third], ROOT) == {"train": {"gpu": 8}}
    assert set_resources([], ROOT) == {}


def test_the_profile_of_the_repository_and_its_site_file_can_be_counted(workflow):
    site = ROOT / "profiles/slurm/site.example.yaml"
    text = plan_text(workflow("paper"), "three_rewards", [ROOT / "slurm", site])
    assert text.split("\n\n")[1] == plan_text(workflow("paper"), "three_rewards").split("\n\n")[1]
    assert f"set-resources of {site}" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "set-resources: {train: {runtime: attempt * 60}}",
            r"train\.runtime: must be a number of minutes.*'attempt \* 60'",
        ),
        ("set-resources: [train:runtime=60]", r"site\.yaml: set-resources: must map rules to resources"),
        ("set-resorces: {train: {gpu: 4}}", r"site\.yaml: 'set-resorces' .*did you mean 'set-resources'"),
        ("set-resources: {train: {gpu: [4]}}", r"train\.gpu: must be a number,.*\[4\]"),
    ],
)
def test_what_cannot_be_counted_is_an_error(tmp_path, text, message):
    with pytest.raises(ConfigurationError, match=message):
        set_resources([profile(tmp_path, text)], ROOT)


def test_a_name_that_is_not_there_is_an_error_with_the_nearest(workflow, tmp_path):
    with pytest.raises(ConfigurationError, match="nowhere: the file does not exist"):
        set_resources([tmp_path / "nowhere"], ROOT)
    with pytest.raises(ConfigurationError, match=r"set-resources: 'trian' is not a rule .*did you mean 'train'"):
        plan_text(workflow("paper"), "all", [profile(tmp_path, "set-resources: {trian: {runtime: 60}}")])
    with pytest.raises(ConfigurationError, match=r"'math_mian' is not an experiment of preset laptop .*'math_main'"):
        plan_text(workflow("laptop"), "math_mian")


def test_the_command_takes_profiles_and_reuse_from_anywhere(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    site = profile(tmp_path, "set-resources: {train: {runtime: 600}}")

    def planned(*words):
        main(["--root", str(ROOT), "plan", *words])
        return capsys.readouterr().out.splitlines()

    shown = planned("three_rewards", "--preset", "paper", "--profile", "slurm", "--workflow-profile", site.name)
    assert shown[3].split()[7] == str(12 * 4 * 10)
    assert f"those of config/, set-resources of slurm, set-resources of {site}." in "\n".join(shown)
    assert planned("--preset", "laptop")[-7].split()[-8:-5] == ["24", "0", "0"]
    assert planned("--preset", "laptop", "--reuse", "none")[-7].split()[-8:-4] == ["0", "0", "24", "26"]


def test_validation_alone_costs_no_gpu_hours(workflow):
    flow = workflow("paper")
    run = flow.matrix.experiments["tool_main"][0]
    before = cost(flow, [run])
    write(flow.score_files(run)[0], [*range(10, 101, 10)])
    after = cost(flow, [run])
    assert after.evaluate == before.evaluate == 2
    assert before.jobs - after.jobs == 5 + 1 + 1  # shares, the job that gathers them, scoring
    assert after.evaluation_hours == before.evaluation_hours - 1 * 3 * 5


def test_the_table_of_all_experiments_ends_with_a_total_and_that_of_one_has_none(workflow):
    lines = plan_text(workflow("paper"), "all").split("\n\n")[1].splitlines()
    names = ["tool_main", "group_size", "three_rewards", "math_main", "fixed_weight", "extended"]
    assert [line.split("  ")[0] for line in lines] == ["experiment", *names, "total, each run once"]
    assert len({len(line) for line in lines}) == 1  # aligned
    assert lines[-1].split()[4] == "130"
    assert lines[1].split()[7] == "1,080"  # GPU hours
    text = plan_text(workflow("laptop"), "math_main")
    assert text.startswith("Preset laptop, math_main:")
    assert len(text.split("\n\n")[1].splitlines()) == 2


def write(path, steps=()):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"steps": list(steps)}), encoding="utf-8")

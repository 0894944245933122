import json
import os
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from dara.cli import main
from dara.commands.jobs import _error_kept
from dara.loading import load_preset, merge, read_yaml
from dara.plan import WorkflowPlan
from dara.runs import run_id
from dara.status import ERROR, LAST_BYTES, failed_preparations, last_lines, run_status, status_text
from dara.store import directory_lock, is_held
from dara.training.stopping import OutOfTime
from project import ROOT


@pytest.fixture(scope="module")
def smoke() -> WorkflowPlan:
    files = [ROOT / "config/config.yaml", ROOT / "config/presets/smoke.yaml"]
    return WorkflowPlan.load(ROOT, merge(read_yaml(files[0]), read_yaml(files[1])), files[1:])


@pytest.fixture
def flow(smoke, tmp_path, monkeypatch) -> WorkflowPlan:
    """The smoke preset in an empty directory: four runs of six steps."""
    monkeypatch.chdir(tmp_path)
    return WorkflowPlan(smoke.configuration, ROOT)


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


def test_a_run_whose_lock_is_held_is_running_and_is_not_disturbed(flow):
    run = min(flow.matrix.runs)
    work = begin(flow, run, 2, "dara: an old error")
    (work / ERROR).write_text("ValueError: an old error")
    with directory_lock(work, seconds=0):
        found = run_status(flow, run)
        assert (found.state, found.step) == ("running", 2)
    assert run_status(flow, run).state == "failed"
    with directory_lock(work, seconds=0):  # looking took nothing away
        pass


def test_a_workflow_in_this_clone_is_seen(flow):
    with directory_lock(Path(".snakemake/workflow"), seconds=0):
        assert status_text(flow, "told").endswith("\na workflow runs in this clone\nreuse: matching, told")


@pytest.mark.parametrize("state", ["stopped", "failed"])
def test_a_training_that_kept_its_error_failed_and_any_other_was_stopped(flow, state):
    """A time limit, a preemption, Ctrl-C and a killed process leave no error; the log is quoted in either case."""
    run = min(flow.matrix.runs)
    work = begin(flow, run, 5, "more\nthe last line\n")
    if state == "failed":
        (work / ERROR).write_text("RuntimeError: out of memory")
    found = run_status(flow, run)
    assert (found.state, found.step, found.steps) == (state, 5, 6)
    assert (found.note, found.said) == (f"log: results/smoke/logs/train/{run}.log", ("more", "the last line"))


def test_the_newest_log_is_quoted_slurms_among_them(flow):
    run = min(flow.matrix.runs)
    begin(flow, run, 5, "run | step 5/6 |\n")
    logs = Path("logs/slurm/rule_train") / run
    logs.mkdir(parents=True)
    (logs / "8.log").write_text("of an earlier job\n")
    (logs / "10.log").write_text("slurmstepd: error: *** JOB 10 ON vm CANCELLED AT 18:00:00 DUE TO TIME LIMIT ***\n")
    os.utime(flow.paths.root / "logs/train" / f"{run}.log", (0, 0))
    found = run_status(flow, run)
    assert (found.state, found.note) == ("stopped", f"log: {logs}/10.log")
    assert "DUE TO TIME LIMIT" in found.said[0]


def test_the_training_keeps_its_error_until_the_next_start(flow, tmp_path):
    spec = next(iter(flow.matrix.runs.values()))
    file = tmp_path / run_id(spec) / ERROR
    with pytest.raises(RuntimeError), _error_kept(tmp_path / run_id(spec)):
        raise RuntimeError("before there is any work")
    file.parent.mkdir()
    with pytest.raises(RuntimeError), _error_kept(tmp_path / run_id(spec)):
        raise RuntimeError("out of memory")
    assert file.read_text() == "RuntimeError: out of memory\n"
    for stop in (OutOfTime("stopped at step 3"), KeyboardInterrupt()):
        with pytest.raises(type(stop)), _error_kept(tmp_path / run_id(spec)):
            raise stop
        assert not file.exists()


@pytest.mark.parametrize(("workflow_runs", "state"), [(True, "waiting"), (False, "failed")])
def test_a_job_that_ended_before_its_training_began_is_seen(flow, workflow_runs, state):
    """Such as on a node that does not see the clone. While a workflow runs, the job may just be starting."""
    run = min(flow.matrix.runs)
    logs = Path("logs/slurm/rule_train") / run
    logs.mkdir(parents=True)
    said = "/var/spool/slurmd/job7/slurm_script: line 3: /home/me/dara/.venv/bin/python: No such file or directory"
    (logs / "7.log").write_text(f"{said}\n")
    with directory_lock(Path(".snakemake/workflow"), seconds=0) if workflow_runs else nullcontext():
        found = run_status(flow, run)
    assert (found.state, found.step) == (state, 0)
    log = f"log: {logs}/7.log"
    assert (found.note, found.said) == ((f"{said} ({log})", ()) if workflow_runs else (log, (said,)))


def test_an_evaluation_that_failed_stands_behind_its_trained_run(flow):
    run = min(flow.matrix.runs)
    finish(flow, run)
    assert run_status(flow, run).note == "not evaluated yet"
    (benchmark,) = flow.benchmarks_of(run)
    logs = flow.paths.root / "logs/evaluate"
    logs.mkdir(parents=True)
    for name, text, age in (
        ("part1of2.log", "fine\n", 0.0),
        ("part2of2.log", "x\ntorch.OutOfMemoryError: 9 GiB\n", 9.0),
    ):
        (logs / f"{run}.{benchmark.name}.{name}").write_text(text)
        os.utime(logs / f"{run}.{benchmark.name}.{name}", (age, age))
    where = f"{logs}/{run}.{benchmark.name}.part2of2.log"
    assert run_status(flow, run).note == f"not evaluated yet: torch.OutOfMemoryError: 9 GiB (log: {where})"
    with directory_lock(flow.paths.evaluation(run, benchmark) / ".part2", seconds=0):
        assert run_status(flow, run).note == f"is being evaluated (log: {where})"
    (scored,) = map(Path, flow.score_files(run))
    scored.write_text(json.dumps({"steps": [3, 6]}))
    assert run_status(flow, run).note == ""


def test_a_base_model_whose_evaluation_failed_is_named(flow):
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
def test_runs_whose_base_model_or_data_failed_name_that_job(flow, rule):
    """Each run in a line, and how the log of the job ends once."""
    run = min(flow.matrix.runs)
    manifest = Path(inputs(flow, run)["model" if rule == "base_model" else "data"])
    name = manifest.parent.name
    log = prepare(flow, rule, name, "one\ntwo\n\nthree\ndara: the warm start diverged\n")
    found = run_status(flow, run)
    assert (found.state, found.step, found.steps) == ("blocked", 0, 6)
    assert found.note == f"{rule} of {name} did not finish (log: {log})"
    lines = status_text(flow, "told").splitlines()
    start = lines.index(f"{rule} of {name} did not finish (log: {log})")
    assert [line.strip("| ") for line in lines[start + 1 : start + 5]] == [
        "two",
        "three",
        "dara: the warm start diverged",
        "",
    ]
    assert "4 runs: 2 waiting, 2 blocked" in lines
    manifest.parent.mkdir(parents=True)
    manifest.write_text("{}")
    assert run_status(flow, run).state == "waiting"


def test_a_job_may_be_at_work_while_a_workflow_runs_and_one_without_output_has_not_begun(flow):
    run = min(flow.matrix.runs)
    log = prepare(flow, "base_model", Path(inputs(flow, run)["model"]).parent.name, "fetching\n")
    assert run_status(flow, run).state == "blocked"
    with directory_lock(Path(".snakemake/workflow"), seconds=0):
        assert run_status(flow, run).state == "waiting"
    log.write_text("\n")
    assert run_status(flow, run).state == "waiting"


def test_a_published_benchmark_that_could_not_be_fetched_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flow = WorkflowPlan(load_preset(ROOT, ROOT / "config/presets/paper.yaml"), ROOT)
    log = prepare(flow, "benchmark_data", "bfcl_v4", "dara: no network\n")
    assert failed_preparations(flow) == {f"benchmark_data of bfcl_v4 did not finish (log: {log})": log}


def test_a_begun_run_without_a_log_says_so(flow):
    run = min(flow.matrix.runs)
    begin(flow, run, 0)
    assert run_status(flow, run).note == "no log is left"


def test_cached_runs_are_done(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    files = [ROOT / "config/config.yaml", ROOT / "config/presets/laptop-study.yaml"]
    flow = WorkflowPlan.load(ROOT, merge(read_yaml(files[0]), read_yaml(files[1])), files[1:])
    run = min(flow.cached)
    found = run_status(flow, run)
    assert (found.state, found.step, found.note) == ("done", found.steps, "from results/cached/")


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
    preset = load_preset(clone, clone / "config/presets/smoke.yaml").preset.model_copy(update={"reuse": "none"})
    told = preset.model_dump(mode="json", exclude={"scratch"})
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
    flow = WorkflowPlan(load_preset(clone, preset), clone)
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


def test_small_parts(tmp_path):
    assert not is_held(tmp_path / "lock")
    assert last_lines(tmp_path / "log") == ()
    (tmp_path / "log").write_text(" \n")
    assert last_lines(tmp_path / "log") == ()
    (tmp_path / "log").write_bytes(b"x" * LAST_BYTES + b"\nfour\n\nthree\ntwo  \rone\n\n" + b"y" * 200 + b"\n")
    assert last_lines(tmp_path / "log") == ("two", "one", "y" * 137 + "...")
    (tmp_path / "log").write_text("a" * 140)
    assert last_lines(tmp_path / "log") == ("a" * 140,)

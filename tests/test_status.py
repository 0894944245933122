import json
import os
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

from dara.cli import main
from dara.dag import Workflow
from dara.loading import load_preset, merge, read_yaml
from dara.status import (
    LAST_BYTES,
    failed_preparations,
    is_held,
    last_line,
    last_lines,
    run_status,
    shortened,
    slurm_said,
    status,
)
from dara.store import directory_lock
from project import ROOT


@pytest.fixture(scope="module")
def smoke() -> Workflow:
    files = [ROOT / "config/config.yaml", ROOT / "config/presets/smoke.yaml"]
    return Workflow.load(ROOT, merge(read_yaml(files[0]), read_yaml(files[1])), files[1:])


@pytest.fixture
def flow(smoke, tmp_path, monkeypatch) -> Workflow:
    """The smoke preset in an empty directory: four runs of six steps."""
    monkeypatch.chdir(tmp_path)
    return Workflow(smoke.configuration, ROOT)


def begin(flow: Workflow, run: str, steps: int, log: str = "") -> Path:
    """The working directory of a run after so many steps, and its log."""
    work = flow.paths.scratch / run
    work.mkdir(parents=True)
    (work / "metrics.jsonl").write_text('{"step": 1}\n' * steps)
    (work / "starts.json").write_text("[]")
    path = flow.paths.root / "logs/train" / f"{run}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(log)
    return work


def finish(flow: Workflow, run: str, **manifest) -> None:
    path = Path(flow.run_file(run, "manifest.json"))
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"outcome": "completed", "steps": 6} | manifest))


def test_the_table_has_every_run_once_and_counts(flow):
    done, diverged, failed, waiting = sorted(flow.plan.runs)
    finish(flow, done)
    finish(flow, diverged, outcome="diverged", steps=3, diverged_at=4, reason="grad_norm is nan")
    begin(flow, failed, 5, "zero\nstep one\n\nTraceback\ndara: the reward format is nan for prompt 7\n\n")
    width = max(map(len, flow.plan.runs))
    log = f"results/smoke/logs/train/{failed}.log"
    assert status(flow).splitlines() == [
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
    ]


def test_a_run_whose_lock_is_held_is_running_and_is_not_disturbed(flow):
    run = min(flow.plan.runs)
    work = begin(flow, run, 2, "dara: an old error")
    with directory_lock(work, seconds=0):
        found = run_status(flow, run)
        assert (found.state, found.step) == ("running", 2)
    assert run_status(flow, run).state == "failed"
    with directory_lock(work, seconds=0):  # looking took nothing away
        pass


def test_a_workflow_in_this_clone_is_seen(flow):
    with directory_lock(Path(".snakemake/workflow"), seconds=0):
        assert status(flow).endswith("\na workflow runs in this clone")


@pytest.mark.parametrize(
    ("last", "state"),
    [
        ("dara: stopped at step 3 before the time limit of 60 minutes; the next attempt continues", "stopped"),
        ("process 17, which started this job, is gone: stopping; the next start resumes", "stopped"),
        ("KeyboardInterrupt", "stopped"),
        ("tool_calling gdpo G=4 seed 100 | step 5/6 | format 0.1 | 2.00 s/step, 0:02 left", "stopped"),
        ("RuntimeError: out of memory", "failed"),
        ("dara: x is in use by process 3 on node7; wait until it ends, or stop it, and start again", "failed"),
    ],
)
def test_the_last_line_of_the_log_tells_stopped_from_failed(flow, last, state):
    run = min(flow.plan.runs)
    begin(flow, run, 5, f"more\n{last}\n")
    found = run_status(flow, run)
    assert (found.state, found.step, found.steps) == (state, 5, 6)
    if state == "failed":
        assert found.said == ("more", last)
        assert found.note == f"log: results/smoke/logs/train/{run}.log"
    else:
        assert found.note == f"{last} (log: results/smoke/logs/train/{run}.log)"
        assert found.said == ()


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("*** JOB 9 ON vm CANCELLED AT 2026-11-29T18:00:00 DUE TO TIME LIMIT ***", "failed"),
        ("*** STEP 9.0 ON vm CANCELLED AT 2026-11-29T18:00:00 DUE TO PREEMPTION ***", "stopped"),
        ("Detected 1 oom-kill event(s) in StepId=9.batch", "failed"),
    ],
)
def test_slurm_says_why_it_ended_a_job(flow, said, state):
    run = min(flow.plan.runs)
    begin(flow, run, 5, "run | step 5/6 |\n")
    logs = Path("logs/slurm/rule_train") / run
    logs.mkdir(parents=True)
    (logs / "8.log").write_text("slurmstepd: error: of an earlier job\n")
    (logs / "10.log").write_text(f"run | step 5/6 |\nslurmstepd: error: {said}\nError in rule train\n")
    found = run_status(flow, run)
    assert found.state == state
    line = f"slurmstepd: error: {said}"
    assert (found.note, *found.said) == {
        "failed": (f"log: {logs}/10.log", line),
        "stopped": (f"{line} (log: {logs}/10.log)",),
    }[state]


def test_what_slurm_says_by_the_way_does_not_hide_the_error_of_the_training(flow):
    run = min(flow.plan.runs)
    begin(flow, run, 5, "RuntimeError: NCCL error\n")
    logs = Path("logs/slurm/rule_train") / run
    logs.mkdir(parents=True)
    (logs / "8.log").write_text("slurmstepd: error: Unable to create TMPDIR [/local/8]: Permission denied\n")
    found = run_status(flow, run)
    assert (found.state, found.said) == ("failed", ("RuntimeError: NCCL error",))


@pytest.mark.parametrize(("workflow_runs", "state"), [(True, "waiting"), (False, "failed")])
def test_a_job_that_ended_before_its_training_began_is_seen(flow, workflow_runs, state):
    """Such as on a node that does not see the clone. While a workflow runs, the job may just be starting."""
    run = min(flow.plan.runs)
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
    run = min(flow.plan.runs)
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
    assert f"\n{base}: not evaluated yet: dara: no (log: {log})\n" in status(flow)


def prepare(flow: Workflow, rule: str, name: str, log: str) -> Path:
    """The log of a job that made no manifest."""
    path = flow.paths.root / "logs" / rule / f"{name}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(log)
    return path


@pytest.mark.parametrize("rule", ["base_model", "data"])
def test_runs_whose_base_model_or_data_failed_name_that_job(flow, rule):
    """Each run in a line, and how the log of the job ends once."""
    run = min(flow.plan.runs)
    manifest = Path(flow.run_model(run) if rule == "base_model" else flow.run_data(run))
    name = manifest.parent.name
    log = prepare(flow, rule, name, "one\ntwo\n\nthree\ndara: the warm start diverged\n")
    found = run_status(flow, run)
    assert (found.state, found.step, found.steps) == ("blocked", 0, 6)
    assert found.note == f"{rule} of {name} failed (log: {log})"
    lines = status(flow).splitlines()
    start = lines.index(f"{rule} of {name} failed (log: {log})")
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


@pytest.mark.parametrize(
    ("last", "alone", "beside_a_workflow"),
    [
        ("dara: no such file", "blocked", "blocked"),
        ("torch.OutOfMemoryError: 9 GiB", "blocked", "blocked"),
        ("ValueError", "blocked", "blocked"),
        ("fetching Qwen/Qwen2.5-1.5B-Instruct at revision 989aa7980e4c", "blocked", "waiting"),
        ("warm start of smoke-tool | step 50/100 | loss 0.1 | 3 s left", "waiting", "waiting"),
        ("", "waiting", "waiting"),
    ],
)
def test_a_job_at_work_or_killed_has_not_failed(flow, last, alone, beside_a_workflow):
    run = min(flow.plan.runs)
    prepare(flow, "base_model", Path(flow.run_model(run)).parent.name, f"{last}\n")
    assert run_status(flow, run).state == alone
    with directory_lock(Path(".snakemake/workflow"), seconds=0):
        assert run_status(flow, run).state == beside_a_workflow


def test_a_published_benchmark_that_could_not_be_fetched_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flow = Workflow(load_preset(ROOT, ROOT / "config/presets/paper.yaml"), ROOT)
    log = prepare(flow, "benchmark_data", "bfcl_v4", "dara: no network\n")
    assert [str(job) for job in failed_preparations(flow)] == [f"benchmark_data of bfcl_v4 failed (log: {log})"]


def test_a_begun_run_without_a_log_says_so(flow):
    run = min(flow.plan.runs)
    begin(flow, run, 0)
    assert run_status(flow, run).note == "no log is left"


def test_cached_runs_are_done(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    files = [ROOT / "config/config.yaml", ROOT / "config/presets/laptop-study.yaml"]
    flow = Workflow.load(ROOT, merge(read_yaml(files[0]), read_yaml(files[1])), files[1:])
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
    flow = Workflow(load_preset(clone, preset), clone)
    (clone / "results/smoke").mkdir(parents=True)
    (clone / "results/smoke/configuration.json").write_text(flow.configuration_json())
    work = clone / "fast/disk" / min(flow.plan.runs)
    work.mkdir(parents=True)
    (work / "metrics.jsonl").write_text('{"step": 1}\n')
    with directory_lock(work, seconds=0):
        assert "4 runs: 3 waiting, 1 running" in last_said(capsys, clone, "--preset", "smoke")


def test_reuse_is_one_of_three(clone, capsys):
    with pytest.raises(SystemExit):
        last_said(capsys, clone, "--preset", "smoke", "--reuse", "sometimes")
    assert "argument --reuse: is 'sometimes'; it must be matching, only or none" in capsys.readouterr().err


def test_small_parts(tmp_path):
    assert not is_held(tmp_path / "lock")
    assert last_line(tmp_path / "log") is None
    (tmp_path / "log").write_text(" \n")
    assert last_line(tmp_path / "log") is None
    assert slurm_said(tmp_path / "log") is None
    (tmp_path / "log").write_bytes(b"x" * LAST_BYTES + b"\nfour\n\nthree\ntwo  \rone\n\n" + b"y" * 200 + b"\n")
    assert last_lines(tmp_path / "log") == ("two", "one", "y" * 137 + "...")
    assert last_line(tmp_path / "log") == "y" * 200
    assert shortened("a" * 140) == "a" * 140
    assert shortened("a" * 141) == "a" * 137 + "..."

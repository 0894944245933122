"""Trainings through a real Slurm, and all that happens on a cluster: killed, requeued, preempted, stopped by Ctrl-C.

The fixture `history` lives through it once; each test says what must be true of a part of it.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import pytest
import yaml

from project import environment
from slurm_cluster import SlurmCluster, slurm_cluster, why_not
from test_workflow import copy_repository, is_alive, wait_for

pytestmark = pytest.mark.slurm

STEPS, EVERY = 250, 25  # long enough that no run ends while another one starts again
METHODS = ("dara_sym", "gdpo")  # of the committed preset
SHARES = 2  # jobs that evaluate a run
COMMAND = ["--profile", "slurm", "--profile", "profiles/slurm/site.yaml", "--configfile", "config/presets/smoke.yaml"]
TARGETS = ["--", "evaluated", "results/smoke/tables/final_scores.md", "results/smoke/figures/learning.png"]
SITE = """\
default-resources: {mem_mb: 4000, disk_mb: 1000, runtime: 60, slurm_partition: cpu}
set-resources:
  train: {slurm_partition: preemptible}
  evaluate_part: {slurm_partition: preemptible}
  evaluate: {slurm_partition: preemptible}
slurm-init-seconds-before-status-checks: 2
latency-wait: 5
max-status-checks-per-second: 1
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, request) -> Iterator[SlurmCluster]:
    reason = why_not()
    if reason:
        (pytest.fail if request.config.getoption("--require-slurm") else pytest.skip)(reason)
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as started:
        yield started


def ready_clone(directory: Path) -> Path:
    """A copy of the repository for this cluster: as a user's clone, with the site file."""
    clone = copy_repository(directory)
    (clone / "profiles/slurm/site.yaml").write_text(SITE)
    return clone


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    """A clone with a smoke preset of one task, long enough to be in the middle of, a GPU for each run."""
    clone = ready_clone(tmp_path_factory.mktemp("clone"))
    preset = yaml.safe_load((clone / "config/presets/smoke.yaml").read_text())
    del preset["tasks"]["math"], preset["experiments"]["math_main"]
    preset["tasks"]["tool_calling"] |= {"steps": STEPS, "checkpoint_every": EVERY}
    preset["evaluation_jobs"] = SHARES
    (clone / "config/presets/smoke.yaml").write_text(yaml.safe_dump(preset))
    models = yaml.safe_load((clone / "config/models.yaml").read_text())
    models["smoke-tool"] |= {"resources": {"gpus": 1, "evaluation_gpus": 1, "cpus": 2, "memory_gb": 3}}
    models["smoke-tool"]["warm_start"]["steps"] = 40
    (clone / "config/models.yaml").write_text(yaml.safe_dump(models))
    return clone


@dataclass
class History:
    """What happened, in the order in which it did."""

    clone: Path
    cluster: SlurmCluster
    outputs: list[str] = field(default_factory=list)  # of each `snakemake`
    returncodes: list[int] = field(default_factory=list)
    killed: str = ""
    requeued: str = ""
    # Runs that Ctrl-C stopped, or a preemption, and how often they had started.
    interrupted: dict[str, int] = field(default_factory=dict)
    preempted: dict[str, int] = field(default_factory=dict)
    left_alive: list[str] = field(default_factory=list)  # trainings that lived on

    @property
    def runs(self) -> list[str]:
        """The trainings."""
        return sorted(path.name for path in (self.clone / "results/smoke/runs").glob("*"))

    def step(self, run: str) -> int:
        """Steps that a run has made so far."""
        path = self.clone / ".scratch" / run / "metrics.jsonl"
        return len(path.read_text().splitlines()) if path.is_file() else 0

    def starts(self, run: str) -> list[dict]:
        """Every start of a run, from its record."""
        path = self.clone / ".scratch" / run / "starts.json"
        return json.loads(path.read_text()) if path.is_file() else []

    def unfinished(self) -> dict[str, int]:
        """The runs without a manifest, and how often they have started."""
        ended = self.clone / "results/smoke/runs"
        return {run: len(self.starts(run)) for run in self.runs if not (ended / run / "manifest.json").is_file()}

    def trainer(self, run: str) -> int:
        """Process id of the run's training, the last that there was."""
        return json.loads((self.clone / ".scratch" / run / "lock").read_text())["pid"]

    def jobs(self, run: str, rule: str = "train") -> list[dict[str, str]]:
        """The Slurm jobs of a rule for a run, in the order of their submission."""
        rows = self.cluster.jobs().values()
        mine = [row for row in rows if row.get("Comment", "").startswith(f"rule_{rule}_wildcards_{run}")]
        return sorted(mine, key=lambda row: int(row["JobId"]))

    def manifest(self, run: str) -> dict:
        """The manifest that a run published."""
        return json.loads((self.clone / f"results/smoke/runs/{run}/manifest.json").read_text())


@contextmanager
def snakemake(history: History, *arguments: str) -> Iterator[subprocess.Popen]:
    """A running `snakemake --profile slurm`; what it printed is kept when it ends."""
    log = history.clone / f"snakemake_{len(history.outputs)}.txt"
    command = [*history.cluster.inside, sys.executable, "-m", "snakemake", *COMMAND, *arguments]
    with log.open("w") as out, start(command, history.clone, out) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            history.outputs.append(log.read_text())
            history.returncodes.append(process.returncode)


def start(command: list[str], directory: Path, out) -> subprocess.Popen:
    """Start a process that Ctrl-C reaches, also where the tests run in the background and ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(command, cwd=directory, env=environment(), stdout=out, stderr=subprocess.STDOUT)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def history(cluster, clone) -> History:
    past = History(clone, cluster)
    with snakemake(past, *TARGETS) as process:
        wait_for(lambda: len(past.runs) == 2 and min(map(past.step, past.runs)) > EVERY, process, 400)
        past.killed, past.requeued = past.runs
        os.kill(past.trainer(past.killed), signal.SIGKILL)
        requeue(cluster, past.jobs(past.requeued)[-1]["JobId"])
        wait_for(lambda: min(len(past.starts(run)) for run in past.runs) == 2, process, 400)
        past.interrupted = past.unfinished()
        process.send_signal(signal.SIGINT)
        process.wait(timeout=120)
    wait_for(lambda: not cluster.unfinished())
    past.left_alive = [run for run in past.runs if is_alive(past.trainer(run))]
    with snakemake(past, *TARGETS) as process:
        # One that was published while the jobs were being cancelled is not started again.
        past.interrupted = {run: count for run, count in past.interrupted.items() if run in past.unfinished()}
        wait_for(lambda: all(len(past.starts(run)) > count for run, count in past.interrupted.items()), process, 400)
        past.preempted = past.unfinished()
        everything = cluster.run("sbatch", "--parsable", "-p", "gpu", "--gres=gpu:8", "--mem=100", "--wrap", "sleep 1")
        wait_for(lambda: cluster.jobs()[everything.strip()]["JobState"] == "COMPLETED", process)
        process.wait(timeout=1200)
    return past


def requeue(cluster: SlurmCluster, job: str) -> None:
    """Put a running job back into the queue, and let it start without the delay of two minutes that Slurm adds."""
    cluster.run("scontrol", "requeue", job)
    wait_for(lambda: cluster.jobs()[job]["JobState"] == "PENDING")
    cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")


def test_it_ends_with_scores_a_table_and_a_figure(history):
    assert history.returncodes == [1, 0], history.outputs[-1][-6000:]
    results = history.clone / "results/smoke"
    for run in history.runs:
        assert history.manifest(run)["outcome"] == "completed"
        [scores] = (results / f"scores/{run}").glob("*/scores.csv.gz")
        assert pd.read_csv(scores)["step"].nunique() == STEPS // EVERY
    assert "DARA-Sym" in (results / "tables/final_scores.md").read_text()
    assert (results / "figures/learning.png").stat().st_size > 5000


def test_no_step_is_lost_or_repeated(history, tmp_path):
    """In spite of what happened: the metrics are those of a training that nothing interrupted."""
    for run in history.runs:
        lines = (history.clone / f"results/smoke/runs/{run}/metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == list(range(1, STEPS + 1))
    published = history.clone / "results/smoke/runs" / history.killed
    (tmp_path / "run").mkdir()
    shutil.copy(published / "spec.json", tmp_path / "run")
    data, model = (
        next((history.clone / "results/smoke" / name).glob("*/manifest.json")) for name in ("inputs", "models")
    )
    options = ["--data", data, "--model", model, "--scratch", tmp_path / "scratch"]
    done = subprocess.run(
        [sys.executable, "-m", "dara", "train", tmp_path / "run/spec.json", *options],
        cwd=history.clone,
        env=environment() | {"PYTHONPATH": str(history.clone / "workflow")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run/metrics.jsonl").read_text() == (published / "metrics.jsonl").read_text()


def test_each_training_asked_for_its_gpu_and_saw_it_alone(history):
    for run in history.runs:
        for job in history.jobs(run):
            assert job["TresPerJob"] == "gres:gpu:1"
            assert (job["MinMemoryNode"], job["CPUs/Task"], job["TimeLimit"]) == ("3000M", "2", "01:00:00")
    starts = [history.manifest(run)["starts"] for run in history.runs]
    first, second = ([start["machine"]["visible_gpus"] for start in one] for one in starts)
    assert all(seen.isdecimal() for seen in [*first, *second])
    assert first[0] != second[0], "they ran at the same time"


def test_cheap_rules_ran_on_the_login_node(history):
    comments = [row["Comment"] for row in history.cluster.jobs().values() if "Comment" in row]
    rules = {comment.removeprefix("rule_").split("_wildcards_")[0] for comment in comments}
    assert rules == {"train", "evaluate_part", "evaluate", "score"}


def test_jobs_with_a_gpu_share_the_checkpoints_of_a_run_and_one_without_gathers_them(history):
    for run in history.runs:
        shares = history.jobs(run, "evaluate_part")
        [evaluation] = (path.name for path in (history.clone / "results/smoke/scores" / run).glob("laptop_tools-*"))
        parts = {share["Comment"].split(f"{run}_")[1] for share in shares}
        assert parts == {f"{evaluation}_1_2", f"{evaluation}_2_2"}
        assert {share["TresPerJob"] for share in shares} == {"gres:gpu:1"}
        assert all("TresPerJob" not in job for job in history.jobs(run, "evaluate"))


def test_a_killed_training_is_submitted_again_and_a_requeued_one_goes_on_under_its_own_job(history):
    failed, second, *_ = history.jobs(history.killed)
    assert failed["JobState"] == "FAILED"
    assert second["JobId"] != failed["JobId"]
    assert history.jobs(history.requeued)[0]["Restarts"] == "1"
    for run in (history.killed, history.requeued):
        assert history.manifest(run)["starts"][1]["from_step"] >= EVERY


@pytest.mark.parametrize("ended", ["interrupted", "preempted"])
def test_a_training_that_was_stopped_goes_on_without_unlocking(history, ended):
    """By Ctrl-C, which cancels the jobs, or by a preemption."""
    stopped = getattr(history, ended)
    assert stopped
    for run, starts in stopped.items():
        assert len(history.manifest(run)["starts"]) > starts
    assert history.left_alive == []
    assert "LockException" not in history.outputs[1]


def test_a_training_stops_at_a_checkpoint_before_its_time_limit_and_a_new_job_continues(history, tmp_path):
    """A run of very many steps, in jobs of two minutes: watched until its second job, then stopped."""
    clone = shutil.copytree(history.clone, tmp_path / "clone", symlinks=True)
    preset = clone / "config/presets/smoke.yaml"
    content = yaml.safe_load(preset.read_text())
    content["tasks"]["tool_calling"]["steps"] = 10_000
    content["experiments"]["tool_main"]["methods"] = ["gdpo"]
    preset.write_text(yaml.safe_dump(content))
    later = History(clone, history.cluster)
    with snakemake(later, "--set-resources", "train:runtime=2", "--", "trained") as process:
        run = wait_for(lambda: set(later.runs) - set(history.runs), process).pop()
        wait_for(lambda: len(later.starts(run)) == 2, process, 600)
        process.send_signal(signal.SIGINT)
        process.wait(timeout=120)
    said = re.search(r"stopped at step (\d+) before the time limit of 2 minutes", later.outputs[0])
    assert later.starts(run)[1]["from_step"] == int(said[1])
    first, second = later.jobs(run)[:2]
    assert (first["JobState"], first["TimeLimit"]) == ("FAILED", "00:02:00")
    assert first["JobId"] != second["JobId"]


def test_the_logs_say_where_to_look(history):
    for run in history.runs:
        for job in history.jobs(run):
            log = history.clone / "logs/slurm/rule_train" / run / f"{job['JobId']}.log"
            assert log.is_file() == (job["JobState"] != "COMPLETED"), "only those of jobs that succeeded are deleted"
            assert str(log) in "".join(history.outputs)
    assert f"SLURM-job '{history.jobs(history.killed)[0]['JobId']}' failed" in history.outputs[0]


def test_jobs_need_no_network(history):
    if not history.cluster.inside:
        pytest.skip("this machine can make no network namespace")
    devices = history.cluster.run("srun", "--mem=10", "cat", "/proc/net/dev").splitlines()
    assert [line.split(":")[0].strip() for line in devices if ":" in line] == ["lo"]


def test_the_smoke_matrix_as_it_stands_ends_with_its_report(cluster, tmp_path):
    """Both tasks and both methods of the committed preset, undisturbed, and everything that follows from them."""
    whole = History(ready_clone(tmp_path), cluster)
    with snakemake(whole, "--", "all", "html") as process:
        process.wait(timeout=1200)
    assert whole.returncodes == [0], whole.outputs[0][-6000:]
    results = whole.clone / "results/smoke"
    names = [f"{task}-{method}-g4" for task in ("math-smoke-math", "tool_calling-smoke-tool") for method in METHODS]
    assert sorted(run.split("-s100-")[0] for run in whole.runs) == names
    for run in whole.runs:
        assert whole.manifest(run)["outcome"] == "completed"
        assert [job["JobState"] for job in whole.jobs(run)] == ["COMPLETED"]
        [scores] = (results / f"scores/{run}").glob("*/scores.csv.gz")
        assert pd.read_csv(scores)["step"].nunique() == 2
    for table in ("final_scores", "math_final_scores"):
        assert "DARA-Sym" in (results / f"tables/{table}.md").read_text()
    assert (results / "report.html").stat().st_size > 100_000

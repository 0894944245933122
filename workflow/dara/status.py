"""Progress of the runs of a preset, read from manifests, locks and metrics; logs are quoted, never parsed."""

from __future__ import annotations

import fcntl
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dara.files import read_json
from dara.plan import WorkflowPlan
from dara.preflight import WORKFLOW_LOCK
from dara.registries import names_of
from dara.runs import data_id, model_id
from dara.specs import ModelSpec

STATES = ("running", "failed", "blocked", "stopped", "waiting", "diverged", "done")
"""States in the order of the table. failed: ended with an error. blocked: a job that makes its data or its base model
did not finish. stopped: ended early without an error (a time limit, a preemption, Ctrl-C, a killed process). All three
continue at the next start."""
ERROR = "error.txt"
"""File in a run's directory in scratch with the error that ended its training; the next start removes it."""
SLURM_LOGS = Path("logs/slurm/rule_train")  # slurm-logdir of profiles/slurm/config.yaml
NOTE_LENGTH = 140
LAST_LINES = 3  # of the log of a run that ended early
LAST_BYTES = 100_000  # of a log are read to find them


@dataclass(frozen=True)
class RunStatus:
    """The status of one run: its state, completed steps, a note, and the last log lines of one that ended early."""

    run: str
    state: str
    step: int
    steps: int
    note: str
    said: tuple[str, ...] = ()


@dataclass(frozen=True)
class Preparation:
    """A job that makes an input of others: the data of a run, the cases of a benchmark, a base model."""

    rule: str
    manifest: Path
    log: Path

    @property
    def failed(self) -> bool:
        """Return whether it ended without its manifest; while a workflow runs, it may still be running."""
        return not self.manifest.is_file() and bool(last_lines(self.log)) and not is_held(WORKFLOW_LOCK)

    def __str__(self) -> str:
        return f"{self.rule} of {self.manifest.parent.name} did not finish (log: {self.log})"


def status_rows(plan: WorkflowPlan) -> list[RunStatus]:
    """Return the status of each run of a preset, in the order of the states."""
    rows = (run_status(plan, run) for run in plan.matrix.runs)
    return sorted(rows, key=lambda row: (STATES.index(row.state), row.run))


def status_text(plan: WorkflowPlan, source: str = "") -> str:
    """Return the runs of a preset as a table, running ones first, with counts at the end.

    source: origin of the settings, named at the end.
    """
    rows = status_rows(plan)
    width = max(len(row.run) for row in rows)
    lines = []
    for row in rows:
        steps = f"{row.step}/{row.steps}"
        lines.append(f"{row.state:<8}  {row.run:<{width}}  {steps:>9}  {row.note}".rstrip())
        lines += _indented(row.said)
    lines += [f"{base}: {note}" for base in plan.bases if "(log: " in (note := evaluation_note(plan, base))]
    for job in failed_preparations(plan):
        lines += [str(job), *_indented(last_lines(job.log))]
    counts = Counter(row.state for row in rows)
    scored = sum(not plan.unscored(name) for name in plan.evaluated)
    lines += [
        "",
        f"{len(rows)} runs: " + ", ".join(f"{counts[state]} {state}" for state in reversed(STATES) if counts[state]),
        f"{scored} of {len(plan.evaluated)} runs and base models are evaluated",
        "a workflow runs in this clone" if is_held(WORKFLOW_LOCK) else "no workflow runs in this clone",
        *([f"reuse: {plan.reuse}, {source}"] if source else []),
    ]
    return "\n".join(lines)


def _indented(said: Iterable[str]) -> list[str]:
    return [f"{'':<10}| {line}" for line in said]


def preparations(plan: WorkflowPlan, run: str) -> list[Preparation]:
    """Return the jobs that a training waits for."""
    spec = plan.matrix.runs[run]
    data = [spec.data, *([spec.model.data] if isinstance(spec.model, ModelSpec) else [])]
    jobs = [("data", plan.paths.inputs(data_id(one))) for one in data]
    return _preparations(plan, [*jobs, ("base_model", plan.paths.model(model_id(spec.model)))])


def failed_preparations(plan: WorkflowPlan) -> list[Preparation]:
    """Return every failed job that a training or an evaluation waits for, once."""
    left = [run for run in plan.matrix.runs if run not in plan.cached]
    names = {benchmark.name for run in left for benchmark in plan.benchmarks_of(run)} & {*names_of("published")}
    jobs = [job for run in left for job in preparations(plan, run)]
    jobs += _preparations(plan, [("benchmark_data", plan.paths.inputs(name)) for name in sorted(names)])
    return [job for job in dict.fromkeys(jobs) if job.failed]


def _preparations(plan: WorkflowPlan, jobs: Iterable[tuple[str, Path]]) -> list[Preparation]:
    logs = plan.paths.root / "logs"
    return [Preparation(rule, folder / "manifest.json", logs / rule / f"{folder.name}.log") for rule, folder in jobs]


def run_status(plan: WorkflowPlan, run: str) -> RunStatus:
    """Return the state of one run."""
    steps, manifest = plan.matrix.runs[run].steps, Path(plan.manifest(run))
    if manifest.is_file():
        return _finished(plan, run, read_json(manifest))
    work, log = plan.paths.scratch / run, plan.paths.root / "logs" / "train" / f"{run}.log"
    metrics = work / "metrics.jsonl"
    step = metrics.read_bytes().count(b"\n") if metrics.is_file() else 0
    if is_held(work / "lock"):
        return RunStatus(run, "running", step, steps, f"log: {log}")
    slurm = newest_log(SLURM_LOGS / run)
    begun = step or log.is_file() or (work / "starts.json").is_file()
    where = max(
        filter(last_lines, (log, work / "train.log", slurm)), key=lambda path: path.stat().st_mtime, default=None
    )
    blocking = next((job for job in preparations(plan, run) if job.failed), None)
    if not begun and blocking:
        return RunStatus(run, "blocked", 0, steps, str(blocking))
    if not begun and (where is None or is_held(WORKFLOW_LOCK)):  # a Slurm job may just be starting
        return RunStatus(run, "waiting", 0, steps, f"{last_lines(where)[-1]} (log: {where})" if where else "")
    if where is None:
        return RunStatus(run, "stopped", step, steps, "no log is left")
    failed = not begun or (work / ERROR).is_file()
    return RunStatus(run, "failed" if failed else "stopped", step, steps, f"log: {where}", last_lines(where))


def _finished(plan: WorkflowPlan, run: str, manifest: dict) -> RunStatus:
    """Return the status of a trained run: its outcome, and the progress of its evaluation."""
    diverged = manifest["outcome"] == "diverged"
    notes = ["from results/cached/"] if run in plan.cached else []
    if diverged:
        notes.append(f"in step {manifest['diverged_at']}: {manifest.get('reason', 'a number was not finite')}")
    notes.append(evaluation_note(plan, run))
    steps, state = plan.matrix.runs[run].steps, "diverged" if diverged else "done"
    return RunStatus(run, state, manifest["steps"], steps, "; ".join(filter(None, notes)))


def evaluation_note(plan: WorkflowPlan, run: str) -> str:
    """Return what is left of the evaluation of a trained run or base model, with the end of its newest log."""
    if not plan.unscored(run):
        return ""
    logs = [path for rule in ("evaluate", "score") for path in (plan.paths.root / "logs" / rule).glob(f"{run}.*.log")]
    log = max(logs, key=lambda path: path.stat().st_mtime, default=None)
    if log and any(is_held(lock) for lock in plan.paths.scores(run).glob("*/.*/lock")):
        return f"is being evaluated (log: {log})"
    said = last_lines(log)
    return f"not evaluated yet: {said[-1]} (log: {log})" if said else "not evaluated yet"


def is_held(lock: Path) -> bool:
    """Return whether a live process holds a lock of `dara.store`, without waiting and without acquiring it."""
    if not lock.is_file():
        return False
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def last_lines(log: Path | None) -> tuple[str, ...]:
    """Return the last lines of a log that are not empty, each shortened to fit the table."""
    if log is None or not log.is_file():
        return ()
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LAST_BYTES))
        text = file.read().decode("utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return tuple(line if len(line) <= NOTE_LENGTH else f"{line[: NOTE_LENGTH - 3]}..." for line in lines[-LAST_LINES:])


def newest_log(directory: Path) -> Path | None:
    """Return the log of the newest Slurm job of a training, named by its number; None if there is none."""
    logs = [path for path in directory.glob("*.log") if path.stem.isdecimal()]
    return max(logs, key=lambda path: int(path.stem), default=None)

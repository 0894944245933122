"""How far the runs of a preset are, read from manifests, locks, metrics and logs; nothing is started or changed."""

from __future__ import annotations

import fcntl
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from dara.benchmarks import definition
from dara.dag import Workflow
from dara.files import read_json
from dara.runs import evaluation_id

STATES = ("running", "failed", "blocked", "stopped", "waiting", "diverged", "done")
"""In the order of the table. failed: its log ends with an error. blocked: a job failed that makes its data or its base
model. stopped: it ended before it was done, and nothing was wrong: a time limit, a preemption, Ctrl-C, a killed
process. All three continue at the next start."""
STOPPED = ("stopped at step ", ", which started this job, is gone", "KeyboardInterrupt", "| step ")
"""What the last line of a training holds that has not failed; the last is of a progress line: it was killed."""
SLURM_LOGS = Path("logs/slurm/rule_train")  # slurm-logdir of profiles/slurm/config.yaml
WORKFLOW_LOCK = Path(".snakemake/workflow/lock")
SLURM_ENDED = re.compile(r"slurmstepd: error: .*(CANCELLED AT|oom.kill|exceeded .*memory)", re.IGNORECASE)
"""How Slurm says that it ended a job. It reports other things in the same form that ended nothing."""
SLURM_FAILED = ("TIME LIMIT", "oom", "memory", "NODE FAILURE")
ERROR = re.compile(r"dara: |([\w.]+\.)?\w*(Error|Exception)\b")
"""How the last line of a job begins that ended with an error, where it may also be still at work."""
NOTE_LENGTH = 140
LAST_LINES = 3  # of the log of what failed
LAST_BYTES = 100_000  # of a log are read to find them


@dataclass(frozen=True)
class RunStatus:
    """One run: its state, the steps it has made, what there is to say, and how the log of a failed one ends."""

    run: str
    state: str
    step: int
    steps: int
    note: str
    said: tuple[str, ...] = ()


@dataclass(frozen=True)
class Preparation:
    """A job that makes what others start from: the data of a run, the cases of a benchmark, a base model."""

    rule: str
    manifest: Path
    log: Path

    @classmethod
    def of(cls, flow: Workflow, rule: str, manifest: str) -> Preparation:
        """The job of a rule that writes this manifest."""
        path = Path(manifest)
        return cls(rule, path, flow.paths.root / "logs" / rule / f"{path.parent.name}.log")

    @property
    def failed(self) -> bool:
        """Whether it ended without what it was to make. Whoever killed it did not let it fail."""
        last = last_line(self.log)
        if self.manifest.is_file() or last is None:
            return False
        if is_held(WORKFLOW_LOCK):  # it may be at work
            return ERROR.match(last) is not None
        return not any(words in last for words in STOPPED)

    def __str__(self) -> str:
        return f"{self.rule} of {self.manifest.parent.name} failed (log: {self.log})"


def status(flow: Workflow, source: str = "") -> str:
    """The runs of a preset as a table, those that run first, with counts at the end.

    source: where the settings are from, said at the end.
    """
    rows = sorted((run_status(flow, run) for run in flow.plan.runs), key=lambda row: (STATES.index(row.state), row.run))
    width = max(len(row.run) for row in rows)
    lines = []
    for row in rows:
        steps = f"{row.step}/{row.steps}"
        lines.append(f"{row.state:<8}  {row.run:<{width}}  {steps:>9}  {row.note}".rstrip())
        lines += _indented(row.said)
    lines += [f"{base}: {note}" for base in flow.bases if "(log: " in (note := evaluation_note(flow, base))]
    for job in failed_preparations(flow):
        lines += [str(job), *_indented(last_lines(job.log))]
    return "\n".join([*lines, "", *_summary(flow, rows, source)])


def _indented(said: tuple[str, ...]) -> list[str]:
    return [f"{'':<10}| {line}" for line in said]


def _summary(flow: Workflow, rows: list[RunStatus], source: str) -> list[str]:
    counts = Counter(row.state for row in rows)
    scored = sum(_is_evaluated(flow, run) for run in flow.evaluated)
    return [
        f"{len(rows)} runs: " + ", ".join(f"{counts[state]} {state}" for state in reversed(STATES) if counts[state]),
        f"{scored} of {len(flow.evaluated)} runs and base models are evaluated",
        "a workflow runs in this clone" if is_held(WORKFLOW_LOCK) else "no workflow runs in this clone",
        *([f"reuse: {flow.reuse}, {source}"] if source else []),
    ]


def preparations(flow: Workflow, run: str) -> list[Preparation]:
    """The jobs that a training waits for."""
    model = flow.run_model(run)
    data = [flow.run_data(run), *flow.model_data(Path(model).parent.name)]
    jobs = [Preparation.of(flow, "data", manifest) for manifest in data]
    return [*jobs, Preparation.of(flow, "base_model", model)]


def failed_preparations(flow: Workflow) -> list[Preparation]:
    """Every job that failed which a training or an evaluation waits for, once."""
    left = [run for run in flow.plan.runs if run not in flow.cached]
    jobs = [job for run in left for job in preparations(flow, run)]
    for run in left:
        published = [one for one in flow.benchmarks_of(run) if definition(one.name).kind == "published"]
        data = [flow.evaluated_data(run, evaluation_id(one)) for one in published]
        jobs += [Preparation.of(flow, "benchmark_data", manifest) for manifest in data]
    return [job for job in dict.fromkeys(jobs) if job.failed]


def run_status(flow: Workflow, run: str) -> RunStatus:
    """The state of one run."""
    steps, manifest = flow.plan.runs[run].steps, Path(flow.run_file(run, "manifest.json"))
    if manifest.is_file():
        return _finished(flow, run, read_json(manifest))
    work, log = flow.paths.scratch / run, flow.paths.root / "logs" / "train" / f"{run}.log"
    step = steps_in(work / "metrics.jsonl")
    if is_held(work / "lock"):
        return RunStatus(run, "running", step, steps, f"log: {log}")
    if step == 0 and not log.is_file() and not (work / "starts.json").is_file():
        return _not_begun(flow, run, steps)
    return _interrupted(run, step, steps, log, work / "train.log")


def _finished(flow: Workflow, run: str, manifest: dict) -> RunStatus:
    """A run that is trained: what came of it, and how far its evaluation is."""
    diverged = manifest["outcome"] == "diverged"
    notes = ["from results/cached/"] if run in flow.cached else []
    if diverged:
        notes.append(f"in step {manifest['diverged_at']}: {manifest.get('reason', 'a number was not finite')}")
    notes.append(evaluation_note(flow, run))
    steps, state = flow.plan.runs[run].steps, "diverged" if diverged else "done"
    return RunStatus(run, state, manifest["steps"], steps, "; ".join(filter(None, notes)))


def evaluation_note(flow: Workflow, run: str) -> str:
    """What is left of the evaluation of a trained run or a base model, with what its newest log says; "" if nothing."""
    if _is_evaluated(flow, run):
        return ""
    logs = [path for rule in ("evaluate", "score") for path in (flow.paths.root / "logs" / rule).glob(f"{run}.*.log")]
    log = max(logs, key=lambda path: path.stat().st_mtime, default=None)
    if log and any(is_held(lock) for lock in flow.paths.scores(run).glob("*/.*/lock")):
        return f"is being evaluated (log: {log})"
    said = last_line(log) if log else None
    return f"not evaluated yet: {shortened(said)} (log: {log})" if said else "not evaluated yet"


def _is_evaluated(flow: Workflow, run: str) -> bool:
    return all(flow.is_scored(run, benchmark) for benchmark in flow.benchmarks_of(run))


def _not_begun(flow: Workflow, run: str, steps: int) -> RunStatus:
    """A run that has left no trace of its own; its Slurm job may have ended before the training began."""
    blocking = next((job for job in preparations(flow, run) if job.failed), None)
    if blocking:
        return RunStatus(run, "blocked", 0, steps, str(blocking))
    slurm = newest_log(SLURM_LOGS / run)
    said = last_lines(slurm) if slurm else ()
    if not said:
        return RunStatus(run, "waiting", 0, steps, "")
    if is_held(WORKFLOW_LOCK):  # the job may just be starting
        return RunStatus(run, "waiting", 0, steps, f"{said[-1]} (log: {slurm})")
    return RunStatus(run, "failed", 0, steps, f"log: {slurm}", said)


def _interrupted(run: str, step: int, steps: int, log: Path, own_log: Path) -> RunStatus:
    """A run that was begun, has no manifest and is not running: what its log or Slurm said last tells why."""
    slurm = newest_log(SLURM_LOGS / run)
    ended = slurm_said(slurm) if slurm else None
    where = slurm if ended else next((path for path in (log, own_log) if last_line(path)), None)
    if where is None:
        return RunStatus(run, "stopped", step, steps, "no log is left")
    said = ended or last_line(where)
    failed = any(word in said for word in SLURM_FAILED) if ended else not any(words in said for words in STOPPED)
    if not failed:
        return RunStatus(run, "stopped", step, steps, f"{shortened(said)} (log: {where})")
    return RunStatus(run, "failed", step, steps, f"log: {where}", (shortened(ended),) if ended else last_lines(where))


def steps_in(metrics: Path) -> int:
    """Complete lines of a metrics.jsonl; 0 where there is none."""
    return metrics.read_bytes().count(b"\n") if metrics.is_file() else 0


def is_held(lock: Path) -> bool:
    """Whether a live process holds a lock of `dara.store`; looked at without waiting and without keeping it."""
    if not lock.is_file():
        return False
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def last_line(log: Path) -> str | None:
    """The last line of a log that says something; None for an absent or empty one."""
    return next(reversed(_lines(log)), None)


def last_lines(log: Path) -> tuple[str, ...]:
    """The last lines of a log that say something, each so short that it fits the table."""
    return tuple(shortened(line) for line in _lines(log)[-LAST_LINES:])


def _lines(log: Path) -> list[str]:
    """The lines of a log that say something; of a long log, those of its end."""
    if not log.is_file():
        return []
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LAST_BYTES))
        text = file.read().decode("utf-8", errors="replace")
    return [line.strip() for line in text.splitlines() if line.strip()]


def newest_log(directory: Path) -> Path | None:
    """The log of the last Slurm job of a training, named by its number; None without one."""
    logs = [path for path in directory.glob("*.log") if path.stem.isdecimal()]
    return max(logs, key=lambda path: int(path.stem), default=None)


def slurm_said(log: Path) -> str | None:
    """Why Slurm ended a job (its limit, its memory, a preemption), if it did."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if SLURM_ENDED.match(line)), None)


def shortened(text: str) -> str:
    """A line that fits the table."""
    return text if len(text) <= NOTE_LENGTH else f"{text[: NOTE_LENGTH - 3]}..."

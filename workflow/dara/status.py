"""How far the runs of a preset are, read from manifests, locks, metrics and logs; nothing is started or changed."""

from __future__ import annotations

import fcntl
import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from dara.dag import Workflow

STATES = ("running", "failed", "stopped", "waiting", "diverged", "done")
"""In the order of the table. failed: its log ends with an error. stopped: it ended before it was done, and nothing was
wrong: a time limit, a preemption, Ctrl-C, a killed process. Both continue at the next start."""
STOPPED = ("stopped at step ", ", which started this job, is gone", "KeyboardInterrupt", "| step ")
"""What the last line of a training holds that has not failed; the last is of a progress line: it was killed."""
SLURM_LOGS = Path("logs/slurm/rule_train")  # slurm-logdir of profiles/slurm/config.yaml
WORKFLOW_LOCK = Path(".snakemake/workflow/lock")
SLURM_ENDED = re.compile(r"slurmstepd: error: .*(CANCELLED AT|oom.kill|exceeded .*memory)", re.IGNORECASE)
"""How Slurm says that it ended a job. It reports other things in the same form that ended nothing."""
SLURM_FAILED = ("TIME LIMIT", "oom", "memory", "NODE FAILURE")
NOTE_LENGTH = 140


@dataclass(frozen=True)
class RunStatus:
    """One run: its state, the steps it has made, and what there is to say."""

    run: str
    state: str
    step: int
    steps: int
    note: str


def status(flow: Workflow) -> str:
    """The runs of a preset as a table, those that run first, with counts at the end."""
    rows = sorted((run_status(flow, run) for run in flow.plan.runs), key=lambda row: (STATES.index(row.state), row.run))
    width = max(len(row.run) for row in rows)
    lines = [f"{row.state:<8}  {row.run:<{width}}  {f'{row.step}/{row.steps}':>9}  {row.note}".rstrip() for row in rows]
    counts = Counter(row.state for row in rows)
    scored = sum(all(Path(file).is_file() for file in flow.score_files(run)) for run in flow.evaluated)
    lines += [f"{base}: {note}" for base in flow.bases if "(log: " in (note := evaluation_note(flow, base))]
    lines += [
        "",
        f"{len(rows)} runs: " + ", ".join(f"{counts[state]} {state}" for state in reversed(STATES) if counts[state]),
        f"{scored} of {len(flow.evaluated)} runs and base models are evaluated",
        "a workflow runs in this clone" if is_held(WORKFLOW_LOCK) else "no workflow runs in this clone",
    ]
    return "\n".join(lines)


def run_status(flow: Workflow, run: str) -> RunStatus:
    """The state of one run."""
    steps, manifest = flow.plan.runs[run].steps, Path(flow.run_file(run, "manifest.json"))
    if manifest.is_file():
        return _finished(flow, run, json.loads(manifest.read_text(encoding="utf-8")))
    work, log = flow.paths.scratch / run, flow.paths.root / "logs" / "train" / f"{run}.log"
    step = steps_in(work / "metrics.jsonl")
    if is_held(work / "lock"):
        return RunStatus(run, "running", step, steps, f"log: {log}")
    if step == 0 and not log.is_file() and not (work / "starts.json").is_file():
        return _not_begun(run, steps)
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
    if all(Path(file).is_file() for file in flow.score_files(run)):
        return ""
    logs = [path for rule in ("evaluate", "score") for path in (flow.paths.root / "logs" / rule).glob(f"{run}.*.log")]
    log = max(logs, key=lambda path: path.stat().st_mtime, default=None)
    if log and any(is_held(lock) for lock in flow.paths.scores(run).glob(".*/lock")):
        return f"is being evaluated (log: {log})"
    said = last_line(log) if log else None
    return f"not evaluated yet: {shortened(said)} (log: {log})" if said else "not evaluated yet"


def _not_begun(run: str, steps: int) -> RunStatus:
    """A run that has left no trace of its own; its Slurm job may have ended before the training began."""
    slurm = newest_log(SLURM_LOGS / run)
    said = last_line(slurm) if slurm else None
    if said is None:
        return RunStatus(run, "waiting", 0, steps, "")
    state = "waiting" if is_held(WORKFLOW_LOCK) else "failed"  # while a workflow runs, the job may just be starting
    return RunStatus(run, state, 0, steps, f"{shortened(said)} (log: {slurm})")


def _interrupted(run: str, step: int, steps: int, log: Path, own_log: Path) -> RunStatus:
    """A run that was begun, has no manifest and is not running: what its log or Slurm said last tells why."""
    slurm = newest_log(SLURM_LOGS / run)
    ended = slurm_said(slurm) if slurm else None
    where = slurm if ended else next((path for path in (log, own_log) if last_line(path)), None)
    if where is None:
        return RunStatus(run, "stopped", step, steps, "no log is left")
    said = ended or last_line(where)
    failed = any(word in said for word in SLURM_FAILED) if ended else not any(words in said for words in STOPPED)
    note = f"{shortened(said)} (log: {where})"
    return RunStatus(run, "failed" if failed else "stopped", step, steps, note)


def steps_in(metrics: Path) -> int:
    """Complete lines of a metrics.jsonl; 0 where there is none."""
    return metrics.read_bytes().count(b"\n") if metrics.is_file() else 0


def is_held(lock: Path) -> bool:
    """Whether a live process holds a lock of `dara.locking`; looked at without waiting and without keeping it."""
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
    if not log.is_file():
        return None
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), None)


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

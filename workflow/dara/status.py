"""Progress and cost of a preset: its runs, from manifests, locks and metrics, and the work left for them.

Logs are quoted, never parsed. Costs are known before anything is submitted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from dara.config import Resources
from dara.files import read_json
from dara.loading import check_known
from dara.plan import WorkflowPlan
from dara.preflight import WORKFLOW_LOCK
from dara.profiles import Asked, set_resources
from dara.registries import definition, names_of
from dara.runs import base_id, data_id, model_id
from dara.specs import ModelSpec
from dara.store import is_held

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


def status_rows(plan: WorkflowPlan) -> list[RunStatus]:
    """Return the status of each run of a preset, in the order of the states."""
    rows = (run_status(plan, run) for run in plan.matrix.runs)
    return sorted(rows, key=lambda row: (STATES.index(row.state), row.run))


def status_text(plan: WorkflowPlan, source: str) -> str:
    """Return the runs of a preset as a table, running ones first, with counts and the `source` of the settings."""
    rows = status_rows(plan)
    width = max(len(row.run) for row in rows)
    lines = []
    for row in rows:
        steps = f"{row.step}/{row.steps}"
        lines += [f"{row.state:<8}  {row.run:<{width}}  {steps:>9}  {row.note}".rstrip(), *_indented(row.said)]
    lines += [f"{base}: {note}" for base in plan.bases if "(log: " in (note := _evaluation_note(plan, base))]
    for job, log in failed_preparations(plan).items():
        lines += [job, *_indented(last_lines(log))]
    counts = Counter(row.state for row in rows)
    scored = sum(not plan.unscored(name) for name in plan.evaluated)
    lines += [
        "",
        f"{len(rows)} runs: " + ", ".join(f"{counts[state]} {state}" for state in reversed(STATES) if counts[state]),
        f"{scored} of {len(plan.evaluated)} runs and base models are evaluated",
        "a workflow runs in this clone" if is_held(WORKFLOW_LOCK) else "no workflow runs in this clone",
        f"reuse: {plan.reuse}, {source}",
    ]
    return "\n".join(lines)


def _indented(said: Iterable[str]) -> list[str]:
    return [f"{'':<10}| {line}" for line in said]


def failed_preparations(plan: WorkflowPlan) -> dict[str, Path]:
    """Return every failed job that a training or an evaluation waits for, as a sentence, with its log."""
    left = [run for run in plan.matrix.runs if run not in plan.cached]
    names = {benchmark.name for run in left for benchmark in plan.benchmarks_of(run)} & {*names_of("published")}
    jobs = [job for run in left for job in _preparations(plan, run)]
    return _failed(plan, [*jobs, *(("benchmark_data", plan.paths.inputs(name)) for name in sorted(names))])


def _preparations(plan: WorkflowPlan, run: str) -> list[tuple[str, Path]]:
    """Return the jobs that a training waits for: rule, and directory of the manifest."""
    spec = plan.matrix.runs[run]
    data = [spec.data, *([spec.model.data] if isinstance(spec.model, ModelSpec) else [])]
    jobs = [("data", plan.paths.inputs(data_id(one))) for one in data]
    return [*jobs, ("base_model", plan.paths.model(model_id(spec.model)))]


def _failed(plan: WorkflowPlan, jobs: Iterable[tuple[str, Path]]) -> dict[str, Path]:
    """Return the jobs that ended without their manifest; while a workflow runs, they may still be running."""
    found = {}
    for rule, directory in dict.fromkeys(jobs) if not is_held(WORKFLOW_LOCK) else ():
        log = plan.paths.root / "logs" / rule / f"{directory.name}.log"
        if not (directory / "manifest.json").is_file() and last_lines(log):
            found[f"{rule} of {directory.name} did not finish (log: {log})"] = log
    return found


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
    begun = step or log.is_file() or (work / "starts.json").is_file()
    jobs = [path for path in (SLURM_LOGS / run).glob("*.log") if path.stem.isdecimal()]
    logs = [log, work / "train.log", *sorted(jobs, key=lambda path: int(path.stem))[-1:]]
    where = max(filter(last_lines, logs), key=lambda path: path.stat().st_mtime, default=None)
    blocking = [] if begun else [*_failed(plan, _preparations(plan, run))]
    if blocking:
        return RunStatus(run, "blocked", 0, steps, blocking[0])
    if not begun and (where is None or is_held(WORKFLOW_LOCK)):  # a Slurm job may just be starting
        return RunStatus(run, "waiting", 0, steps, f"{last_lines(where)[-1]} (log: {where})" if where else "")
    if where is None:
        return RunStatus(run, "stopped", step, steps, "no log is left")
    failed = not begun or (work / ERROR).is_file()
    return RunStatus(run, "failed" if failed else "stopped", step, steps, f"log: {where}", last_lines(where))


def _finished(plan: WorkflowPlan, run: str, manifest: dict) -> RunStatus:
    """Return the status of a trained run: its outcome, and the progress of its evaluation."""
    state, notes = "done", ["from results/cached/"] if run in plan.cached else []
    if manifest["outcome"] == "diverged":
        state = "diverged"
        notes.append(f"in step {manifest['diverged_at']}: {manifest.get('reason', 'a number was not finite')}")
    notes.append(_evaluation_note(plan, run))
    return RunStatus(run, state, manifest["steps"], plan.matrix.runs[run].steps, "; ".join(filter(None, notes)))


def _evaluation_note(plan: WorkflowPlan, run: str) -> str:
    """Return what is left of the evaluation of a trained run or base model, with the end of its newest log."""
    if not plan.unscored(run):
        return ""
    logs = [path for rule in ("evaluate", "score") for path in (plan.paths.root / "logs" / rule).glob(f"{run}.*.log")]
    log = max(logs, key=lambda path: path.stat().st_mtime, default=None)
    if log and any(is_held(lock) for lock in plan.paths.scores(run).glob("*/.*/lock")):
        return f"is being evaluated (log: {log})"
    said = last_lines(log) if log else ()
    return f"not evaluated yet: {said[-1]} (log: {log})" if said else "not evaluated yet"


def last_lines(log: Path) -> tuple[str, ...]:
    """Return the last lines of a log that are not empty, each shortened to fit the table; none without the file."""
    if not log.is_file():
        return ()
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LAST_BYTES))
        text = file.read().decode("utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return tuple(line if len(line) <= NOTE_LENGTH else f"{line[: NOTE_LENGTH - 3]}..." for line in lines[-LAST_LINES:])


# --- cost -------------------------------------------------------------------------------------------------------------

HEADERS = (
    *("experiment", "runs", "cached", "done", "train", "evaluate", "jobs"),
    *("GPU h train", "GPU h evaluate", "disk GB"),
)
TOTAL = "total, each run once"
NOTES = """\
cached: {cached}. done: trained, in {results}.
evaluate: runs and base models without all their scores. jobs: of the batch system; all else runs where you start it.
GPU hours: at the time limits of the jobs, so most runs take less; GPUs and limits are those of {hardware}.
Validation rewards take minutes and are not counted.
disk: scratch of the runs to train, if none of it is cleaned up."""


@dataclass(frozen=True)
class Cost:
    """Runs and the work left for them. Hours are GPU hours, disk is in GB."""

    runs: int
    cached: int
    done: int
    train: int
    evaluate: int
    jobs: int
    training_hours: float
    evaluation_hours: float
    disk: float


def costs(plan: WorkflowPlan, target: str, profiles: Sequence[Path] = ()) -> list[tuple[str, Cost]]:
    """Return the cost of all experiments of a preset, with a total, or of one.

    In the total, a run that several experiments share counts once. profiles: the profiles of the workflow, in order;
    their `set-resources` override config/models.yaml.

    Raises:
        ConfigurationError: the target is not an experiment of the preset, or a profile cannot be read.
    """
    experiments, asked = plan.matrix.experiments, set_resources(profiles, plan.root)
    if target != "all":
        check_known("target", target, experiments, f"an experiment of preset {plan.name} (or `all`)")
        experiments = {target: experiments[target]}
    rows = [(name, cost(plan, runs, asked)) for name, runs in experiments.items()]
    return rows + ([(TOTAL, cost(plan, list(plan.matrix.runs), asked))] if len(rows) > 1 else [])


def plan_text(plan: WorkflowPlan, target: str, profiles: Sequence[Path] = ()) -> str:
    """Return `costs` as a text table with notes."""
    rows = costs(plan, target, profiles)
    taken = "none is taken" if plan.reuse == "none" else f"taken from {plan.paths.results / 'cached'}"
    hardware = ", ".join(["config/", *(f"set-resources of {profile}" for profile in profiles)])
    notes = NOTES.format(cached=f"{taken} (reuse: {plan.reuse})", results=plan.paths.root, hardware=hardware)
    cells = [HEADERS, *((name, *(f"{value:,.0f}" for value in astuple(counts))) for name, counts in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in cells]
    return "\n".join([f"Preset {plan.name}, {target}:", "", *lines, "", notes])


def cost(plan: WorkflowPlan, runs: Sequence[str], asked: Asked | None = None) -> Cost:
    """Return the cost of some runs of a preset and of the base models that they start from; each counts once."""
    asked = asked or {}
    runs = list(dict.fromkeys(runs))
    left = [run for run in runs if run not in plan.cached]
    train = [run for run in left if not Path(plan.manifest(run)).is_file()]
    bases = dict.fromkeys(base_id(plan.matrix.runs[run].model) for run in runs)
    unscored = {name: benchmarks for name in (*bases, *runs) if (benchmarks := plan.unscored(name))}
    evaluations = [_evaluation_cost(plan, name, one, asked) for name, each in unscored.items() for one in each]
    hardware = [plan.resources(run) for run in train]
    return Cost(
        runs=len(runs),
        cached=len(runs) - len(left),
        done=len(left) - len(train),
        train=len(train),
        evaluate=len(unscored),
        jobs=len(train) + sum(jobs for jobs, _ in evaluations),
        training_hours=sum(_gpu_hours(asked, "train", own) for own in hardware),
        evaluation_hours=sum(hours for _, hours in evaluations),
        disk=sum(own.disk_gb for own in hardware),
    )


def _evaluation_cost(plan: WorkflowPlan, name: str, evaluation: str, asked: Asked) -> tuple[int, float]:
    """Return jobs and GPU hours of an evaluation of a run or a base model; validation counts no hours."""
    if name in plan.outdated:
        return 1, 0.0  # only scoring
    parts, hours = len(plan.parts(name, evaluation)), 0.0
    if definition(plan.settings(name, evaluation).name).kind != "validation":
        for rule, count in (("evaluate_part", parts), ("evaluate", 1)):
            hours += count * _gpu_hours(asked, rule, plan.hardware(rule, name, evaluation))
    return parts + 2, hours  # the parts, the job that gathers them (or generates all responses), and scoring


def _gpu_hours(asked: Asked, rule: str, own: Resources) -> float:
    """Return GPUs times hours of a job of a rule, with the GPUs and runtime of a profile where it sets them."""
    given = asked.get(rule, {})
    return given.get("gpu", own.gpus) * given.get("runtime", own.hours * 60) / 60

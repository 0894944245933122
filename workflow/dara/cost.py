"""Cost of a preset: runs to train and to evaluate, GPU hours and disk, before anything is submitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from dara.loading import check_known
from dara.plan import WorkflowPlan
from dara.profiles import set_resources
from dara.registries import definition
from dara.runs import base_id

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
Asked = Mapping[str, Mapping[str, int]]
"""Rule -> resources that a profile sets for it: gpu (a number), runtime (minutes)."""


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
    return f"Preset {plan.name}, {target}:\n\n{text_table(rows)}\n\n{notes}"


def cost(plan: WorkflowPlan, runs: Sequence[str], asked: Asked | None = None) -> Cost:
    """Return the cost of some runs of a preset and of the base models that they start from; each counts once."""
    asked = asked or {}
    runs = list(dict.fromkeys(runs))
    left = [run for run in runs if run not in plan.cached]
    train = [run for run in left if not Path(plan.manifest(run)).is_file()]
    bases = dict.fromkeys(base_id(plan.matrix.runs[run].model) for run in runs)
    unscored = {name: benchmarks for name in (*bases, *runs) if (benchmarks := plan.unscored(name))}
    hardware = [plan.resources(run) for run in train]
    return Cost(
        runs=len(runs),
        cached=len(runs) - len(left),
        done=len(left) - len(train),
        train=len(train),
        evaluate=len(unscored),
        jobs=len(train) + sum(_jobs(plan, name, benchmarks) for name, benchmarks in unscored.items()),
        training_hours=sum(_gpu_hours(asked, "train", own.gpus, own.hours) for own in hardware),
        evaluation_hours=sum(_evaluation_hours(plan, name, own, asked) for name, own in unscored.items()),
        disk=sum(own.disk_gb for own in hardware),
    )


def _jobs(plan: WorkflowPlan, name: str, benchmarks: list[str]) -> int:
    """Return the number of jobs that evaluate and score a run or a base model on benchmarks."""
    if name in plan.outdated:
        return len(benchmarks)  # only scoring
    # The parts, the job that gathers them (or generates all responses), and scoring.
    return sum(len(plan.parts(name, benchmark)) + 2 for benchmark in benchmarks)


def _evaluation_hours(plan: WorkflowPlan, name: str, benchmarks: list[str], asked: Asked) -> float:
    """Return the GPU hours of the jobs that evaluate a run or a base model; validation is not counted."""
    hours = 0.0
    for benchmark in benchmarks if name not in plan.outdated else ():
        if definition(plan.settings(name, benchmark).name).kind != "validation":
            for rule, count in (("evaluate_part", len(plan.parts(name, benchmark))), ("evaluate", 1)):
                own = plan.hardware(rule, name, benchmark)
                hours += count * _gpu_hours(asked, rule, own.gpus, own.hours)
    return hours


def _gpu_hours(asked: Asked, rule: str, gpus: int, hours: float) -> float:
    """Return GPUs times hours of a job of a rule, with the GPUs and runtime of a profile where it sets them."""
    own = asked.get(rule, {})
    return own.get("gpu", gpus) * own.get("runtime", hours * 60) / 60


def text_table(rows: Sequence[tuple[str, Cost]]) -> str:
    """Return one row per name, columns aligned; numbers are whole, with a comma at thousands."""
    cells = [HEADERS, *((name, *(f"{value:,.0f}" for value in astuple(counts))) for name, counts in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEADERS))]
    lines = []
    for first, *rest in cells:
        numbers = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
        lines.append("  ".join([first.ljust(widths[0]), *numbers]))
    return "\n".join(lines)

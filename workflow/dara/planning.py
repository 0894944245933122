"""What a preset would cost: runs to train and to evaluate, GPU hours and disk, before anything is submitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from dara.dag import Workflow
from dara.loading import check_known
from dara.runs import base_id

HEADERS = (
    *("experiment", "runs", "cached", "done", "train", "evaluate", "jobs"),
    *("GPU h train", "GPU h evaluate", "disk GB"),
)
NOTES = """\
cached: taken from {cached}. done: trained, in {results}.
evaluate: runs and base models without all their scores. jobs: of the batch system; all else runs where you start it.
GPU hours: at the time limits of the jobs (config/models.yaml), so most runs take less. Validation rewards take minutes
and are not counted.
disk: scratch of the runs to train, if none of it is cleaned up."""


@dataclass(frozen=True)
class Cost:
    """Runs and what is left to do for them. Hours are GPUs times hours, disk is GB."""

    runs: int
    cached: int
    done: int
    train: int
    evaluate: int
    jobs: int
    training_hours: float
    evaluation_hours: float
    disk: float


def plan(flow: Workflow, target: str) -> str:
    """The cost of all experiments of a preset, or of one, as a text table.

    In the total, a run that several experiments share counts once.

    Raises:
        ConfigurationError: the target is no experiment of the preset.
    """
    experiments = flow.plan.experiments
    preset = flow.configuration.preset.preset
    if target != "all":
        check_known("target", target, experiments, f"an experiment of preset {preset} (or `all`)")
        experiments = {target: experiments[target]}
    rows = [(name, cost(flow, runs)) for name, runs in experiments.items()]
    if len(rows) > 1:
        rows.append(("total, each run once", cost(flow, list(flow.plan.runs))))
    notes = NOTES.format(cached=flow.paths.results / "cached", results=flow.paths.root)
    return f"Preset {preset}, {target}:\n\n{text_table(rows)}\n\n{notes}"


def cost(flow: Workflow, runs: Sequence[str]) -> Cost:
    """The cost of some runs of a preset and of the base models that they start from; each counts once."""
    runs = list(dict.fromkeys(runs))
    done = [run for run in runs if run not in flow.cached and Path(flow.run_file(run, "manifest.json")).is_file()]
    train = [run for run in runs if run not in flow.cached and run not in done]
    bases = dict.fromkeys(base_id(flow.plan.runs[run].model) for run in runs)
    evaluate = [name for name in (*bases, *runs) if not all(Path(file).is_file() for file in flow.score_files(name))]
    hardware = {name: flow.resources(name) for name in (*bases, *runs)}
    return Cost(
        runs=len(runs),
        cached=sum(run in flow.cached for run in runs),
        done=len(done),
        train=len(train),
        evaluate=len(evaluate),
        jobs=len(train) + sum(jobs(flow, name) for name in evaluate),
        training_hours=sum(hardware[run].gpus * hardware[run].hours for run in train),
        evaluation_hours=sum(
            hardware[name].evaluation_gpus * hardware[name].evaluation_hours * evaluation_jobs(flow, name)
            for name in evaluate
            if not Path(flow.score_files(name)[0]).is_file()  # the task's benchmark; the others are validation rewards
        ),
        disk=sum(hardware[run].disk_gb for run in train),
    )


def jobs(flow: Workflow, name: str) -> int:
    """Jobs that evaluate and score a run or a base model on what it has no scores of yet."""
    left = [Path(file).name.removesuffix(".scored.json") for file in flow.score_files(name) if not Path(file).is_file()]
    parts = [len(flow.evaluation_parts(name, benchmark)) for benchmark in left]
    return sum(count + 2 for count in parts)  # the shares, the job that gathers them (or makes all), and scoring


def evaluation_jobs(flow: Workflow, name: str) -> int:
    """Jobs that share the checkpoints of a run; a base model is one checkpoint."""
    if name in flow.bases:
        return 1
    return min(flow.configuration.preset.evaluation_jobs, len(flow.plan.runs[name].checkpoint_steps))


def text_table(rows: Sequence[tuple[str, Cost]]) -> str:
    """A row for each name, columns aligned; numbers are whole, with a comma at thousands."""
    cells = [HEADERS, *((name, *(f"{value:,.0f}" for value in astuple(counts))) for name, counts in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEADERS))]
    lines = []
    for first, *rest in cells:
        numbers = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
        lines.append("  ".join([first.ljust(widths[0]), *numbers]))
    return "\n".join(lines)

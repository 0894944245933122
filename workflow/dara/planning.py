"""What a preset would cost: runs to train and to evaluate, GPU hours and disk, before anything is submitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from dara.benchmarks import definition
from dara.dag import Workflow
from dara.loading import ConfigurationError, check_known
from dara.profiles import read_profile, rules_of
from dara.runs import base_id, evaluation_id

HEADERS = (
    *("experiment", "runs", "cached", "done", "train", "evaluate", "jobs"),
    *("GPU h train", "GPU h evaluate", "disk GB"),
)
NOTES = """\
cached: {cached}. done: trained, in {results}.
evaluate: runs and base models without all their scores. jobs: of the batch system; all else runs where you start it.
GPU hours: at the time limits of the jobs, so most runs take less; GPUs and limits are those of {hardware}.
Validation rewards take minutes and are not counted.
disk: scratch of the runs to train, if none of it is cleaned up."""
COUNTED = ("gpu", "runtime")
Asked = Mapping[str, Mapping[str, int]]
"""Rule -> what a profile makes it ask for: gpu (a number), runtime (minutes)."""


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


def plan(flow: Workflow, target: str, profiles: Sequence[Path] = ()) -> str:
    """The cost of all experiments of a preset, or of one, as a text table.

    In the total, a run that several experiments share counts once. profiles: those that the workflow will be given,
    in that order; their `set-resources` take the place of config/models.yaml.

    Raises:
        ConfigurationError: the target is no experiment of the preset, or a profile cannot be read.
    """
    experiments, asked = flow.plan.experiments, set_resources(profiles)
    for rule in asked:
        check_known("set-resources", rule, rules_of(flow.root), "a rule of this workflow")
    preset = flow.configuration.preset.preset
    if target != "all":
        check_known("target", target, experiments, f"an experiment of preset {preset} (or `all`)")
        experiments = {target: experiments[target]}
    rows = [(name, cost(flow, runs, asked)) for name, runs in experiments.items()]
    if len(rows) > 1:
        rows.append(("total, each run once", cost(flow, list(flow.plan.runs), asked)))
    taken = "none is taken" if flow.reuse == "none" else f"taken from {flow.paths.results / 'cached'}"
    hardware = ", ".join(["config/", *(f"set-resources of {profile}" for profile in profiles)])
    notes = NOTES.format(cached=f"{taken} (reuse: {flow.reuse})", results=flow.paths.root, hardware=hardware)
    return f"Preset {preset}, {target}:\n\n{text_table(rows)}\n\n{notes}"


def set_resources(profiles: Sequence[Path]) -> dict[str, dict[str, int]]:
    """What profiles make rules ask for. A later profile's `set-resources` take the place of an earlier one's, whole.

    Args:
        profiles: directories with a config.yaml, or YAML files.

    Raises:
        ConfigurationError: a profile is not there, or asks for something that is no number.
    """
    asked: dict[str, dict[str, int]] = {}
    for profile in profiles:
        path = profile / "config.yaml" if profile.is_dir() else profile
        rules = read_profile(path).get("set-resources")
        if rules is None:
            continue
        if not isinstance(rules, dict) or not all(isinstance(own, dict) for own in rules.values()):
            raise ConfigurationError(f"{path}: set-resources: must map rules to resources, such as train: {{gpu: 4}}")
        asked = {
            rule: {
                name: _number(f"{path}: set-resources: {rule}.{name}", name, own[name])
                for name in COUNTED
                if name in own
            }
            for rule, own in rules.items()
        }
    return asked


def _number(where: str, name: str, value: Any) -> int:
    """A resource as Snakemake understands it: 600, "600", and for a runtime "10h"."""
    from snakemake.exceptions import WorkflowError
    from snakemake.resources import Resource

    try:
        number = Resource.parse_human_friendly(name, value)
        return int(number)
    except (ValueError, TypeError, WorkflowError):
        raise ConfigurationError(
            f"{where}: must be a number{' of minutes' if name == 'runtime' else ''}, because what is decided when a "
            f"job is submitted cannot be counted before (given: {value!r})"
        ) from None


def cost(flow: Workflow, runs: Sequence[str], asked: Asked | None = None) -> Cost:
    """The cost of some runs of a preset and of the base models that they start from; each counts once."""
    asked = asked or {}
    runs = list(dict.fromkeys(runs))
    done = [run for run in runs if run not in flow.cached and Path(flow.run_file(run, "manifest.json")).is_file()]
    train = [run for run in runs if run not in flow.cached and run not in done]
    bases = dict.fromkeys(base_id(flow.plan.runs[run].model) for run in runs)
    evaluate = [name for name in (*bases, *runs) if unscored(flow, name)]
    hardware = {run: flow.resources(run) for run in train}
    return Cost(
        runs=len(runs),
        cached=sum(run in flow.cached for run in runs),
        done=len(done),
        train=len(train),
        evaluate=len(evaluate),
        jobs=len(train) + sum(jobs(flow, name) for name in evaluate),
        training_hours=sum(gpu_hours(asked, "train", hardware[run].gpus, hardware[run].hours) for run in train),
        evaluation_hours=sum(evaluation_hours(flow, name, asked) for name in evaluate),
        disk=sum(hardware[run].disk_gb for run in train),
    )


def unscored(flow: Workflow, name: str) -> list[str]:
    """The evaluations that a run or a base model has not all scores of yet."""
    return [evaluation_id(benchmark) for benchmark in flow.benchmarks_of(name) if not flow.is_scored(name, benchmark)]


def jobs(flow: Workflow, name: str) -> int:
    """Jobs that evaluate and score a run or a base model on what it has no scores of yet."""
    left = unscored(flow, name)
    if name in flow.outdated:
        return len(left)  # only scoring
    parts = [len(flow.evaluation_parts(name, benchmark)) for benchmark in left]
    return sum(count + 2 for count in parts)  # the shares, the job that gathers them (or makes all), and scoring


def evaluation_hours(flow: Workflow, name: str, asked: Asked) -> float:
    """GPU hours of the benchmarks that a run or a base model has not all scores of yet; validation is not counted."""
    left = [] if name in flow.outdated else unscored(flow, name)
    return sum(
        benchmark_hours(flow, name, one, asked)
        for one in left
        if definition(flow.settings(name, one).name).kind != "validation"
    )


def benchmark_hours(flow: Workflow, name: str, benchmark: str, asked: Asked) -> float:
    """GPU hours of the jobs that evaluate a run or a base model on a benchmark."""
    own = flow.resources(name)
    shares = len(flow.evaluation_parts(name, benchmark))
    last = flow.evaluation_job(name, benchmark)  # gathers the shares, or makes all responses
    return shares * gpu_hours(asked, "evaluate_part", own.evaluation_gpus, own.evaluation_hours) + gpu_hours(
        asked, "evaluate", last.gpus, last.hours
    )


def gpu_hours(asked: Asked, rule: str, gpus: int, hours: float) -> float:
    """GPUs times hours of a job of a rule, with what a profile makes it ask for instead of its own."""
    own = asked.get(rule, {})
    return own.get("gpu", gpus) * own.get("runtime", hours * 60) / 60


def text_table(rows: Sequence[tuple[str, Cost]]) -> str:
    """A row for each name, columns aligned; numbers are whole, with a comma at thousands."""
    cells = [HEADERS, *((name, *(f"{value:,.0f}" for value in astuple(counts))) for name, counts in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEADERS))]
    lines = []
    for first, *rest in cells:
        numbers = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
        lines.append("  ".join([first.ljust(widths[0]), *numbers]))
    return "\n".join(lines)

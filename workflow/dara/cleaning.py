"""What can be deleted from scratch and logs, by four rules. Results, cached and published ones too, are never touched.

1. What only resuming needs (optimiser states), of a run that is finished: `resume`.
2. Checkpoints of a run that is scored as every preset that plans it asks (on which benchmarks, at which steps, with
   the settings that the preset has now), except the last: `checkpoints`. Results of a preset that plans it no longer
   count with what they were scored on. The scores stay; another benchmark or more steps need the run trained anew.
3. All work of a run that is not finished and that no preset plans any more, unless a workflow runs here: `unplanned`.
   Presets are the files in config/presets/ and every results/*/configuration.json.
4. Logs that nobody has written to for 30 days; openrlhf.log of a run that is finished among them: `logs`.

A run that trains right now is left alone, and so is work that others share or that nobody is known to own (`owners`).
`scratch`, `results` and `results/<preset>` may be links to other disks. Any other link is somebody's own: it is deleted
where the directory in its place would be, and nothing is deleted through it.

Only `clean_results` deletes results: those of one preset, when somebody asks for it.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from dara import git
from dara.config import Configuration
from dara.dag import Workflow
from dara.evaluation.records import IDENTITY, RESPONSES, SCORES, covers, responses_manifest
from dara.files import read_json, remove
from dara.loading import load_all_presets, load_configuration, merge, read_yaml
from dara.runs import Evaluation, evaluation_id, joined, plan_runs
from dara.status import WORKFLOW_LOCK, is_held
from dara.store import LockedError, directory_lock, reason_to_keep
from dara.training.openrlhf.command import STATES, output_of
from dara.training.run_files import RESUME_ONLY, checkpoints

log = logging.getLogger(__name__)

KEPT_DAYS = 30
LOG_DIRECTORIES = ("logs/slurm", ".snakemake/log")
KEPT_TO_PUBLISH = "trainer_state.json"
"""Says that a finished run can be published again from its checkpoints; so it goes with the first of them."""
ENGINE_LOG = "openrlhf.log"
MADE = re.compile(
    r"configuration\.json|(snakemake_)?report\.html|\..*\.\d+|"
    "benchmarks|data|figures|inputs|logs|models|runs|scores|tables"
)
"""What a workflow makes in `results/<preset>/`, with what a killed process left half-written."""
RULES = ("resume", "checkpoints", "unplanned", "logs", "results")

Plans = Mapping[str, Evaluation]
"""Preset -> the evaluation that it plans for a run."""


@dataclass(frozen=True)
class Removal:
    """Something to delete: a file or a directory, by which rule, and its size in bytes."""

    rule: str
    path: Path
    size: int


def clean(flow: Workflow, *, dry_run: bool) -> str:
    """Delete what the rules allow, for all presets that share the scratch of this one; with `dry_run` only say so.

    Returns a table of what is (or would be) deleted, with sizes, and what is kept for the sake of others.
    """
    removals = find(flow)
    if not dry_run:
        for removal in removals:
            _remove(removal, flow)
    kept = [kept_line(work, why) for work in _works(flow) if (why := reason_to_keep(work, flow.paths.results))]
    return "\n".join([*kept, table(removals, dry_run=dry_run)])


def find(flow: Workflow, now: float | None = None) -> list[Removal]:
    """What the rules allow to delete, sorted by path. now: seconds since the epoch, for the age of logs."""
    presets, now = configurations(flow), time.time() if now is None else now
    planned = _planned(presets)
    found: list[Removal] = []
    for work in _works(flow):
        if is_held(work / "lock") or reason_to_keep(work, flow.paths.results):
            continue
        manifests = sorted(flow.paths.results.glob(f"*/runs/{work.name}/manifest.json"))
        if manifests:
            found += [*_finished(work, manifests, planned.get(work.name, {})), *_old([work / ENGINE_LOG], now)]
        elif work.name not in planned and not is_held(WORKFLOW_LOCK):
            found.append(Removal("unplanned", work, size_of(work)))
    named = {configuration.preset.preset for configuration in presets}
    found = [removal for removal in found if not _through_link(removal.path, flow.paths.scratch)]
    return [*found, *_old_logs(sorted(flow.paths.results / name for name in named), now)]


def clean_results(flow: Workflow, *, dry_run: bool) -> str:
    """Delete the results of one preset, with the work in scratch that is theirs alone; with `dry_run` only say so.

    What the results of another preset have or plan too is kept. Returns a table as `clean` does.

    Raises:
        ValueError: a workflow or a training runs here, or the directory is no workflow's, or holds files of git.
    """
    _check_deletable(flow)
    try:
        with directory_lock(WORKFLOW_LOCK.parent, seconds=0):
            found = list(_of_preset(flow))
            removals = [entry for entry in found if isinstance(entry, Removal)]
            for removal in () if dry_run else removals:
                _remove(removal, flow)
    except LockedError as error:
        raise ValueError(f"results are deleted when no workflow runs here: {error}") from None
    kept = [entry for entry in found if isinstance(entry, str)]
    return "\n".join([*kept, table(removals, dry_run=dry_run)])


def _check_deletable(flow: Workflow) -> None:
    """ValueError unless the results of the preset are what a workflow made, and nothing is being added to them."""
    root, told = flow.paths.root, flow.paths.root / "configuration.json"
    if not root.is_dir():
        return
    if not told.is_file() or read_json(told).get("preset") != flow.configuration.preset.preset:
        raise ValueError(
            f"{root} is not what a workflow of preset {flow.configuration.preset.preset} made: it has no "
            "configuration.json of it; nothing is deleted"
        )
    same = [path for path in flow.paths.results.iterdir() if path != root and path.is_dir() and path.samefile(root)]
    if same:
        raise ValueError(f"{root} and {same[0]} are one directory; nothing is deleted, remove one of the links first")
    try:
        kept = git.tracked(root) + (git.tracked(root.parent, root.name) if root.is_symlink() else [])
    except git.GitError as error:
        raise ValueError(f"{error}. Files of {root} may be kept in it: nothing is deleted before git answers") from None
    if kept:
        raise ValueError(
            f"{root} holds {len(kept)} files that are kept in git (the first: {kept[0]}); nothing is deleted"
        )
    running = [path.name for path in root.glob("runs/*") if is_held(flow.paths.scratch / path.name / "lock")]
    if running:
        raise ValueError(f"{running[0]} is training; results are deleted when none of their runs is")


def _of_preset(flow: Workflow) -> Iterator[Removal | str]:
    """What `clean_results` deletes, the results last, and lines of what it keeps."""
    root, scratch = flow.paths.root, flow.paths.scratch
    needed = _needed_elsewhere(flow)
    # Base models have no record of who starts from them.
    outside = not scratch.resolve().is_relative_to(Path.cwd())
    shared = outside or any(reason_to_keep(work, flow.paths.results) for work in _works(flow))
    for path in sorted(root.glob("runs/*")):
        work = scratch / path.name
        if not work.is_dir():
            continue
        why = reason_to_keep(work, flow.paths.results) or needed.get(path.name)
        yield kept_line(work, why) if why else Removal("results", work, size_of(work))
    for path in sorted(root.glob("models/*")):
        model = scratch / "models" / path.name
        if not model.is_dir() or _through_link(model, scratch):
            continue
        why = "other work in scratch may start from it" if shared else needed.get(path.name)
        yield kept_line(model, why) if why else Removal("results", model, size_of(model))
    found = sorted(root.iterdir()) if root.is_dir() else []
    foreign = [path for path in found if not MADE.fullmatch(path.name)]
    yield from (kept_line(path, "no workflow made it") for path in foreign)
    removed = [path for path in found if path not in foreign] if foreign else [root] if found else []
    yield from (Removal("results", path, size_of(path)) for path in removed)


def _needed_elsewhere(flow: Workflow) -> dict[str, str]:
    """Runs and base models that other presets with results here have or plan, and whose they are."""
    own, needed = flow.paths.root, {}
    for path in sorted(flow.paths.results.glob("*/*/*")):
        if path.parent.name in ("runs", "models") and path.parents[1] != own:
            needed[path.name] = f"{path.parents[1]} has it too"
    for configuration in configurations(flow):
        results = flow.paths.results / configuration.preset.preset
        if results != own and results.is_dir():
            plan = plan_runs(configuration)
            needed |= dict.fromkeys([*plan.runs, *plan.models], f"preset {results.name} plans it too")
    return needed


def configurations(flow: Workflow) -> list[Configuration]:
    """Presets: those of config/presets/, of this workflow, and of earlier workflows here.

    Raises ConfigurationError where a results/<preset>/configuration.json is no longer readable: nothing is deleted
    before it is known what it plans.
    """
    found: list[Configuration] = [flow.configuration, *load_all_presets(flow.root).values()]
    default = flow.root / "config" / "config.yaml"
    for path in sorted(flow.paths.results.glob("*/configuration.json")):
        values = merge(read_yaml(default), read_json(path))
        found.append(load_configuration(flow.root, values, [default, path]))
    return found


def planned_evaluations(flow: Workflow) -> dict[str, dict[str, Evaluation]]:
    """The runs that any preset plans, and how it plans to evaluate them. See `configurations` for errors."""
    return _planned(configurations(flow))


def _planned(presets: Iterable[Configuration]) -> dict[str, dict[str, Evaluation]]:
    planned: dict[str, dict[str, Evaluation]] = {}
    for configuration in presets:
        plan, name = plan_runs(configuration), configuration.preset.preset
        for run in plan.runs:
            plans = planned.setdefault(run, {})
            plans[name] = joined(plans.get(name, {}), plan.evaluations[run])
    return planned


def _works(flow: Workflow) -> list[Path]:
    """The directories of runs in scratch, sorted."""
    return sorted(path for path in flow.paths.scratch.glob("*") if _is_run(path))


def _is_run(path: Path) -> bool:
    """Whether a directory of the scratch is the work of a run: only those have these files."""
    return (path / "inputs.json").is_file() and (path / "lock").is_file() and not (path / "lock").is_symlink()


def _through_link(path: Path, base: Path) -> bool:
    """Whether the way from `base` to a path below it leads through a link."""
    return any(above.is_symlink() for above in path.parents if above != base and above.is_relative_to(base))


def _finished(work: Path, manifests: list[Path], plans: Plans) -> list[Removal]:
    """Rules 1 and 2 for a run whose results are published; plans: what is planned for it, nothing if it is not."""
    content = read_json(manifests[0])
    if content["outcome"] != "completed":  # a diverged run is rare, and worth a look
        return []
    saved = checkpoints(work)
    scored = _scored(manifests, content["checkpoints"], plans)
    removed = [step for step in saved if step != max(saved)] if scored else []
    found = [Removal("checkpoints", saved[step], size_of(saved[step])) for step in removed]
    for step, checkpoint in saved.items():
        names = [name for name in RESUME_ONLY if name != KEPT_TO_PUBLISH or removed]
        files = [checkpoint / name for name in names if step not in removed and (checkpoint / name).is_file()]
        found += [Removal("resume", path, size_of(path)) for path in files]
    # The empty directory of a state stays: with it the finished run can be published again.
    states = sorted((output_of(work) / STATES).glob("global_step*/*"))
    return found + [Removal("resume", path, size_of(path)) for path in states]


def _scored(manifests: list[Path], saved: Iterable[str], plans: Plans) -> bool:
    """Whether no checkpoint of a finished run is left to evaluate; saved: the steps of its manifest.

    A benchmark that a preset plans must have scored its steps with the preset's settings: in the results of the preset,
    or, where the run is not in those, in any. Results of other presets must have scored all that they have begun.
    """
    run, existing = manifests[0].parent.name, {*map(int, saved)}
    scores = {manifest.parents[2].name: manifest.parents[2] / "scores" / run for manifest in manifests}
    for preset, evaluation in plans.items():
        places = [scores[preset]] if preset in scores else list(scores.values())
        for benchmark, steps in evaluation.items():
            if not any(covers(place / evaluation_id(benchmark), existing & {*steps}) for place in places):
                return False
    others = [place for preset, place in scores.items() if preset not in plans]
    return all(any(place.glob(f"*/{SCORES}")) and _scored_whole(place) for place in others)


def _scored_whole(scores: Path) -> bool:
    """Whether all responses of a run that were begun are scored, in every evaluation that is there."""
    begun = {path.parent for name in (IDENTITY, SCORES) for path in scores.glob(f"*/{name}")}
    return all(
        (directory / RESPONSES).is_file() and covers(directory, map(int, responses_manifest(directory)["checkpoints"]))
        for directory in begun
    )


def _old_logs(results: Iterable[Path], now: float) -> list[Removal]:
    """Old logs of workflows, and of the presets with these results."""
    places = [(Path(), Path(name)) for name in LOG_DIRECTORIES] + [(root, root / "logs") for root in results]
    files = [(base, path) for base, directory in places for path in sorted(directory.rglob("*.log"))]
    return _old([path for base, path in files if not _through_link(path, base)], now)


def _old(files: Iterable[Path], now: float) -> list[Removal]:
    old = [path for path in files if path.is_file() and path.lstat().st_mtime < now - KEPT_DAYS * 86400]
    return [Removal("logs", path, size_of(path)) for path in old]


def _remove(removal: Removal, flow: Workflow) -> None:
    """Delete one thing. A run's files are deleted under its lock, so that no training begins meanwhile."""
    path, scratch = removal.path, flow.paths.scratch
    work = scratch / path.relative_to(scratch).parts[0] if path.is_relative_to(scratch) else None
    locked = work is not None and _is_run(work) and not work.is_symlink()
    try:
        with directory_lock(work, seconds=0) if locked else nullcontext():
            if (
                path == flow.paths.root
            ):  # it may be a link to another disk, on which nothing is but what a workflow made
                remove(path.resolve())
            remove(path)
    except LockedError:
        log.warning("%s is left: its training has just begun", path)


def kept_line(path: Path, why: str) -> str:
    """A line that names what is kept, and why."""
    return f"{'kept':>9}  {path}: {why}"


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files below a directory; of a link, not of what it points to."""
    files = path.rglob("*") if path.is_dir() and not path.is_symlink() else [path]
    return sum(file.lstat().st_size for file in files if file.is_symlink() or not file.is_dir())


def table(removals: list[Removal], *, dry_run: bool) -> str:
    """The removals as lines, and the sum of each rule."""
    lines = [f"{human(removal.size):>9}  {removal.rule:<11}  {removal.path}" for removal in removals]
    sums = {rule: sum(removal.size for removal in removals if removal.rule == rule) for rule in RULES}
    parts = [f"{rule} {human(size)}" for rule, size in sums.items() if size]
    verb = "would be freed" if dry_run else "freed"
    return "\n".join([*lines, f"{human(sum(sums.values()))} {verb}" + (f" ({', '.join(parts)})" if parts else "")])


def human(size: int) -> str:
    """Bytes with a unit: 1.5 GB."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"

"""Deletion of unneeded work in scratch, by two rules; results, also cached and published ones, are never touched.

1. Of a finished run (`finished`): files needed only to resume (optimiser states). Once the run has all scores that the
presets planning it ask for (benchmarks, steps, and the preset's current settings), also all checkpoints but the last.
Results of a preset that no longer plans the run count with the evaluations they have. The scores stay; another
benchmark or more steps need the run trained again.

2. All work of a run that is not finished and that no preset plans any more, unless a workflow runs here (`unplanned`).
Presets are the files in config/presets/ and every results/*/configuration.json.

A run that is being trained is left alone, and so is work that belongs to other results too or has no recorded owner
(`owners`). `scratch`, `results` and `results/<preset>` may be links to other disks. Any other link belongs to somebody:
the link itself is deleted where a directory in its place would be, and nothing is deleted through it.

Only `clean_results` deletes results: those of one preset, on request.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from dara import git
from dara.config import Configuration
from dara.evaluation.records import IDENTITY, RESPONSES, SCORES, covers, responses_manifest
from dara.files import read_json, remove
from dara.loading import load_all_presets, load_configuration, merge, read_yaml
from dara.plan import WorkflowPlan
from dara.preflight import WORKFLOW_LOCK
from dara.runs import Evaluation, evaluation_id, joined, plan_runs
from dara.status import is_held
from dara.store import LockedError, directory_lock, reason_to_keep
from dara.training.openrlhf.command import STATES, output_of
from dara.training.run import RESUME_ONLY, checkpoints

log = logging.getLogger(__name__)

KEPT_TO_PUBLISH = "trainer_state.json"
"""Marks a finished run that can be published again from its checkpoints; deleted with the first of them."""
MADE = re.compile(
    r"configuration\.json|(snakemake_)?report\.html|\..*\.\d+|"
    "benchmarks|data|figures|inputs|logs|models|runs|scores|tables"
)
"""Files that a workflow writes in `results/<preset>/`, and files left half-written by a killed process."""
RULES = ("finished", "unplanned", "results")

Plans = Mapping[str, Evaluation]
"""Preset -> the evaluation that it plans for a run."""


@dataclass(frozen=True)
class Removal:
    """A file or directory to delete, with the rule and its size in bytes."""

    rule: str
    path: Path
    size: int


def clean(plan: WorkflowPlan, *, dry_run: bool) -> str:
    """Delete what the rules allow, for all presets that share the scratch of this one.

    With `dry_run`, delete nothing. Returns a table of what is (or would be) deleted, with sizes, and of what is kept
    because it belongs to other results.
    """
    removals = find(plan)
    if not dry_run:
        for removal in removals:
            _remove(removal, plan)
    kept = [kept_line(work, why) for work in _works(plan) if (why := reason_to_keep(work, plan.paths.results))]
    return "\n".join([*kept, table(removals, dry_run=dry_run)])


def find(plan: WorkflowPlan) -> list[Removal]:
    """Return what the rules allow to delete, sorted by path."""
    planned = planned_evaluations(plan)
    found: list[Removal] = []
    for work in _works(plan):
        if is_held(work / "lock") or reason_to_keep(work, plan.paths.results):
            continue
        manifests = sorted(plan.paths.results.glob(f"*/runs/{work.name}/manifest.json"))
        if manifests:
            found += _finished(work, manifests, planned.get(work.name, {}))
        elif work.name not in planned and not is_held(WORKFLOW_LOCK):
            found.append(Removal("unplanned", work, size_of(work)))
    return [removal for removal in found if not _through_link(removal.path, plan.paths.scratch)]


def clean_results(plan: WorkflowPlan, *, dry_run: bool) -> str:
    """Delete the results of one preset and the work in scratch that belongs only to them.

    With `dry_run`, delete nothing. Work that the results of another preset have or plan is kept. Returns a table as
    `clean` does.

    Raises:
        ValueError: a workflow or a training runs here, or the directory was not made by a workflow or holds files
            tracked by git.
    """
    _check_deletable(plan)
    try:
        with directory_lock(WORKFLOW_LOCK.parent, seconds=0):
            found = list(_of_preset(plan))
            removals = [entry for entry in found if isinstance(entry, Removal)]
            for removal in () if dry_run else removals:
                _remove(removal, plan)
    except LockedError as error:
        raise ValueError(f"results are deleted when no workflow runs here: {error}") from None
    kept = [entry for entry in found if isinstance(entry, str)]
    return "\n".join([*kept, table(removals, dry_run=dry_run)])


def _check_deletable(plan: WorkflowPlan) -> None:
    """Raise ValueError unless a workflow made the results of the preset and nothing is being added to them."""
    root, told = plan.paths.root, plan.paths.root / "configuration.json"
    if not root.is_dir():
        return
    if not told.is_file() or read_json(told).get("preset") != plan.name:
        raise ValueError(
            f"{root} is not what a workflow of preset {plan.name} made: it has no "
            "configuration.json of it; nothing is deleted"
        )
    same = [path for path in plan.paths.results.iterdir() if path != root and path.is_dir() and path.samefile(root)]
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
    running = [path.name for path in root.glob("runs/*") if is_held(plan.paths.scratch / path.name / "lock")]
    if running:
        raise ValueError(f"{running[0]} is training; results are deleted when none of their runs is")


def _of_preset(plan: WorkflowPlan) -> Iterator[Removal | str]:
    """Yield what `clean_results` deletes, the results last, and a line for each path that it keeps."""
    root, scratch = plan.paths.root, plan.paths.scratch
    needed = _needed_elsewhere(plan)
    # Base models have no record of who starts from them.
    outside = not scratch.resolve().is_relative_to(Path.cwd())
    shared = outside or any(reason_to_keep(work, plan.paths.results) for work in _works(plan))
    for path in sorted(root.glob("runs/*")):
        work = scratch / path.name
        if not work.is_dir():
            continue
        why = reason_to_keep(work, plan.paths.results) or needed.get(path.name)
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


def _needed_elsewhere(plan: WorkflowPlan) -> dict[str, str]:
    """Return run or base model -> owner, for those that other presets with results here have or plan."""
    own, needed = plan.paths.root, {}
    for path in sorted(plan.paths.results.glob("*/*/*")):
        if path.parent.name in ("runs", "models") and path.parents[1] != own:
            needed[path.name] = f"{path.parents[1]} has it too"
    for configuration in configurations(plan):
        results = plan.paths.results / configuration.preset.preset
        if results != own and results.is_dir():
            matrix = plan_runs(configuration)
            needed |= dict.fromkeys([*matrix.runs, *matrix.models], f"preset {results.name} plans it too")
    return needed


def configurations(plan: WorkflowPlan) -> list[Configuration]:
    """Return the presets: those of config/presets/, of this workflow, and of earlier workflows here.

    Raises ConfigurationError if a results/<preset>/configuration.json is no longer readable: its plan must be known
    before anything is deleted.
    """
    found: list[Configuration] = [plan.configuration, *load_all_presets(plan.root).values()]
    default = plan.root / "config" / "config.yaml"
    for path in sorted(plan.paths.results.glob("*/configuration.json")):
        values = merge(read_yaml(default), read_json(path))
        found.append(load_configuration(plan.root, values, [default, path]))
    return found


def planned_evaluations(plan: WorkflowPlan) -> dict[str, dict[str, Evaluation]]:
    """Return run -> preset -> planned evaluation, for all presets. See `configurations` for errors."""
    planned: dict[str, dict[str, Evaluation]] = {}
    for configuration in configurations(plan):
        matrix, name = plan_runs(configuration), configuration.preset.preset
        for run in matrix.runs:
            plans = planned.setdefault(run, {})
            plans[name] = joined(plans.get(name, {}), matrix.evaluations[run])
    return planned


def _works(plan: WorkflowPlan) -> list[Path]:
    """Return the directories of runs in scratch, sorted."""
    return sorted(path for path in plan.paths.scratch.glob("*") if _is_run(path))


def _is_run(path: Path) -> bool:
    """Return whether a directory of the scratch is the work of a run: only those have these files."""
    return (path / "inputs.json").is_file() and (path / "lock").is_file() and not (path / "lock").is_symlink()


def _through_link(path: Path, base: Path) -> bool:
    """Return whether the path from `base` to a path below it leads through a link."""
    return any(above.is_symlink() for above in path.parents if above != base and above.is_relative_to(base))


def _finished(work: Path, manifests: list[Path], plans: Plans) -> list[Removal]:
    """Return what rule 1 deletes of a run. plans: its planned evaluations, empty if no preset plans it."""
    content = read_json(manifests[0])
    if content["outcome"] != "completed":  # a diverged run is rare, and kept for inspection
        return []
    saved = checkpoints(work)
    scored = _scored(manifests, content["checkpoints"], plans)
    removed = [step for step in saved if step != max(saved)] if scored else []
    names = [name for name in RESUME_ONLY if name != KEPT_TO_PUBLISH or removed]
    left = [saved[step] / name for step in saved if step not in removed for name in names]
    # The empty directory of a state stays, so that the finished run can be published again.
    states = sorted((output_of(work) / STATES).glob("global_step*/*"))
    paths = [*(saved[step] for step in removed), *(path for path in left if path.is_file()), *states]
    return [Removal("finished", path, size_of(path)) for path in paths]


def _scored(manifests: list[Path], saved: Iterable[str], plans: Plans) -> bool:
    """Return whether no checkpoint of a finished run is left to evaluate.

    saved: the steps of its manifest. A benchmark that a preset plans must have scored its steps with the preset's
    settings: in the results of the preset or, if the run is not in those, in any results. Results of other presets must
    have scored all evaluations that they have begun.
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
    """Return whether every evaluation of a run has scores for all responses that were begun."""
    begun = {path.parent for name in (IDENTITY, SCORES) for path in scores.glob(f"*/{name}")}
    return all(
        (directory / RESPONSES).is_file() and covers(directory, map(int, responses_manifest(directory)["checkpoints"]))
        for directory in begun
    )


def _remove(removal: Removal, plan: WorkflowPlan) -> None:
    """Delete one removal. A run's files are deleted under its lock, so that no training begins meanwhile."""
    path, scratch = removal.path, plan.paths.scratch
    work = scratch / path.relative_to(scratch).parts[0] if path.is_relative_to(scratch) else None
    locked = work is not None and _is_run(work) and not work.is_symlink()
    try:
        with directory_lock(work, seconds=0) if locked else nullcontext():
            if path == plan.paths.root:  # may be a link to another disk; holds only files made by a workflow
                remove(path.resolve())
            remove(path)
    except LockedError:
        log.warning("%s is left: its training has just begun", path)


def kept_line(path: Path, why: str) -> str:
    """Return a line that names a kept path, and why it is kept."""
    return f"{'kept':>9}  {path}: {why}"


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files below a directory; for a link, of the link itself."""
    files = path.rglob("*") if path.is_dir() and not path.is_symlink() else [path]
    return sum(file.lstat().st_size for file in files if file.is_symlink() or not file.is_dir())


def table(removals: list[Removal], *, dry_run: bool) -> str:
    """Return the removals as lines, with the sum of each rule."""
    lines = [f"{human(removal.size):>9}  {removal.rule:<11}  {removal.path}" for removal in removals]
    sums = {rule: sum(removal.size for removal in removals if removal.rule == rule) for rule in RULES}
    parts = [f"{rule} {human(size)}" for rule, size in sums.items() if size]
    verb = "would be freed" if dry_run else "freed"
    return "\n".join([*lines, f"{human(sum(sums.values()))} {verb}" + (f" ({', '.join(parts)})" if parts else "")])


def human(size: int) -> str:
    """Return bytes with a unit: 1.5 GB."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"

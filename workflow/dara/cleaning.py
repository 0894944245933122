"""Deletion of unneeded work in scratch, by two rules; results, also cached and published ones, are never touched.

1. Of a finished run (`finished`): files needed only to resume (optimiser states). Once it has all scores that the
presets planning it ask for (benchmarks, steps, current settings), also all checkpoints but the last; results of one
that no longer plans it count with the evaluations they have. Another benchmark or more steps need it trained again.
2. All work of a run that is not finished and that no preset plans any more, unless a workflow runs here (`unplanned`).
Presets are the files in config/presets/ and every results/*/configuration.json.

A run that is being trained is left alone, and so is work that belongs to other results too or has no recorded owner.
`scratch`, `results` and `results/<preset>` may be links to other disks. Any other link belongs to somebody: the link
itself is deleted where a directory in its place would be, and nothing is deleted through it. Only `clean_results`
deletes results: those of one preset, on request.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from dara import files
from dara.config import Configuration
from dara.evaluation.records import IDENTITY, RESPONSES, SCORES, covers
from dara.files import read_json
from dara.loading import load_all_presets, load_preset
from dara.plan import WorkflowPlan
from dara.preflight import WORKFLOW_LOCK
from dara.runs import Evaluation, evaluation_id, joined, plan_runs
from dara.store import LockedError, directory_lock, is_held, reason_to_keep
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
KEPT = "kept"


class Entry(NamedTuple):
    """A file or directory to delete, with the rule: finished, unplanned or results; or KEPT, with the reason."""

    rule: str
    path: Path
    why: str = ""


def clean(plan: WorkflowPlan, *, dry_run: bool) -> str:
    """Delete what the rules allow, for all presets that share the scratch of this one.

    With `dry_run`, delete nothing. Returns a table of what is (or would be) deleted, with sizes, and of what is kept
    because it belongs to other results.
    """
    reasons = {work: reason_to_keep(work, plan.paths.results) for work in _works(plan)}
    kept = [Entry(KEPT, work, why) for work, why in reasons.items() if why]
    return _carry_out(plan, [*kept, *find(plan)], dry_run)


def find(plan: WorkflowPlan) -> list[Entry]:
    """Return what the rules allow to delete, sorted by path."""
    planned = planned_evaluations(plan)
    found: list[Entry] = []
    for work in _works(plan):
        if is_held(work / "lock") or reason_to_keep(work, plan.paths.results):
            continue
        manifests = sorted(plan.paths.results.glob(f"*/runs/{work.name}/manifest.json"))
        if manifests:
            found += _finished(work, manifests, planned.get(work.name, {}))
        elif work.name not in planned and not is_held(WORKFLOW_LOCK):
            found.append(Entry("unplanned", work))
    return [entry for entry in found if not _through_link(entry.path, plan.paths.scratch)]


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
            return _carry_out(plan, [*_of_preset(plan)], dry_run)
    except LockedError as error:
        raise ValueError(f"results are deleted when no workflow runs here: {error}") from None


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
        kept = files.tracked(root) + (files.tracked(root.parent, root.name) if root.is_symlink() else [])
    except files.GitError as error:
        raise ValueError(f"{error}. Files of {root} may be kept in it: nothing is deleted before git answers") from None
    if kept:
        first = f"(the first: {kept[0]})"
        raise ValueError(f"{root} holds {len(kept)} files that are kept in git {first}; nothing is deleted")
    running = [path.name for path in root.glob("runs/*") if is_held(plan.paths.scratch / path.name / "lock")]
    if running:
        raise ValueError(f"{running[0]} is training; results are deleted when none of their runs is")


def _of_preset(plan: WorkflowPlan) -> Iterator[Entry]:
    """Yield what `clean_results` deletes, the results last, and what it keeps."""
    root, scratch, results = plan.paths.root, plan.paths.scratch, plan.paths.results
    needed = _needed_elsewhere(plan)
    # Base models have no record of who starts from them.
    outside = not scratch.resolve().is_relative_to(Path.cwd())
    shared = outside or any(reason_to_keep(work, results) for work in _works(plan))
    runs = [scratch / path.name for path in sorted(root.glob("runs/*"))]
    models = [scratch / "models" / path.name for path in sorted(root.glob("models/*"))]
    reasons = {work: reason_to_keep(work, results) for work in runs}
    reasons |= dict.fromkeys(models, "other work in scratch may start from it" if shared else None)
    for work, reason in reasons.items():
        if work.is_dir() and not _through_link(work, scratch):
            why = reason or needed.get(work.name)
            yield Entry(KEPT, work, why) if why else Entry("results", work)
    found = sorted(root.iterdir()) if root.is_dir() else []
    foreign = [path for path in found if not MADE.fullmatch(path.name)]
    yield from (Entry(KEPT, path, "no workflow made it") for path in foreign)
    removed = [path for path in found if path not in foreign] if foreign else [root] if found else []
    yield from (Entry("results", path) for path in removed)


def _needed_elsewhere(plan: WorkflowPlan) -> dict[str, str]:
    """Return run or base model -> owner, for those that other presets with results here have or plan."""
    own, needed = plan.paths.root, {}
    others = [path for kind in ("models", "runs") for path in plan.paths.results.glob(f"*/{kind}/*")]
    needed |= {path.name: f"{path.parents[1]} has it too" for path in sorted(others) if path.parents[1] != own}
    for configuration in _configurations(plan):
        results = plan.paths.results / configuration.preset.preset
        if results != own and results.is_dir():
            matrix = plan_runs(configuration)
            needed |= dict.fromkeys([*matrix.runs, *matrix.models], f"preset {results.name} plans it too")
    return needed


def _configurations(plan: WorkflowPlan) -> list[Configuration]:
    """Return the presets: those of config/presets/, of this workflow, and of earlier workflows here.

    Raises ConfigurationError if a results/<preset>/configuration.json is no longer readable: its plan must be known
    before anything is deleted.
    """
    earlier = [load_preset(plan.root, path) for path in sorted(plan.paths.results.glob("*/configuration.json"))]
    return [plan.configuration, *load_all_presets(plan.root).values(), *earlier]


def planned_evaluations(plan: WorkflowPlan) -> dict[str, dict[str, Evaluation]]:
    """Return run -> preset -> planned evaluation, for all presets. See `_configurations` for errors."""
    planned: dict[str, dict[str, Evaluation]] = {}
    for configuration in _configurations(plan):
        matrix, name = plan_runs(configuration), configuration.preset.preset
        for run in matrix.runs:
            plans = planned.setdefault(run, {})
            plans[name] = joined(plans.get(name, {}), matrix.evaluations[run])
    return planned


def _works(plan: WorkflowPlan) -> list[Path]:
    """Return the directories of runs in scratch, sorted: only those have these files."""
    found = sorted(path.parent for path in plan.paths.scratch.glob("*/inputs.json") if path.is_file())
    return [path for path in found if (path / "lock").is_file() and not (path / "lock").is_symlink()]


def _through_link(path: Path, base: Path) -> bool:
    """Return whether the path from `base` to a path below it leads through a link."""
    return any(above.is_symlink() for above in path.parents if above != base and above.is_relative_to(base))


def _finished(work: Path, manifests: list[Path], plans: Mapping[str, Evaluation]) -> list[Entry]:
    """Return what rule 1 deletes of a run. plans: preset -> planned evaluation, empty if no preset plans the run."""
    content = read_json(manifests[0])
    if content["outcome"] != "completed":  # a diverged run is rare, and kept for inspection
        return []
    saved = checkpoints(work)
    removed = [*saved][:-1] if _scored(manifests, content["checkpoints"], plans) else []
    names = [name for name in RESUME_ONLY if name != KEPT_TO_PUBLISH or removed]
    left = [path / name for step, path in saved.items() if step not in removed for name in names]
    # The empty directory of a state stays, so that the finished run can be published again.
    states = sorted((output_of(work) / STATES).glob("global_step*/*"))
    paths = [*(saved[step] for step in removed), *(path for path in left if path.is_file()), *states]
    return [Entry("finished", path) for path in paths]


def _scored(manifests: list[Path], saved: Iterable[str], plans: Mapping[str, Evaluation]) -> bool:
    """Return whether no checkpoint of a finished run is left to evaluate.

    saved: the steps of its manifest. A benchmark that a preset plans must have scored its steps with the preset's
    settings: in the results of the preset or, if the run is not in those, in any results. Results of other presets must
    have scores, and scores of all responses that were begun.
    """
    run, existing = manifests[0].parent.name, {*map(int, saved)}
    scores = {manifest.parents[2].name: manifest.parents[2] / "scores" / run for manifest in manifests}
    for preset, evaluation in plans.items():
        places = [scores[preset]] if preset in scores else list(scores.values())
        for benchmark, steps in evaluation.items():
            if not any(covers(place / evaluation_id(benchmark), existing & {*steps}) for place in places):
                return False
    for place in (place for preset, place in scores.items() if preset not in plans):
        made = {path.parent / RESPONSES for name in (IDENTITY, SCORES) for path in place.glob(f"*/{name}")}
        begun = {file: read_json(file)["checkpoints"] if file.is_file() else None for file in made}
        whole = (steps is not None and covers(file.parent, map(int, steps)) for file, steps in begun.items())
        if not any(place.glob(f"*/{SCORES}")) or not all(whole):
            return False
    return True


def _carry_out(plan: WorkflowPlan, entries: list[Entry], dry_run: bool) -> str:
    """Delete the entries, unless `dry_run`; return them as lines, the kept ones first, with the sum of each rule."""
    kept = [f"{KEPT:>9}  {entry.path}: {entry.why}" for entry in entries if entry.rule == KEPT]
    removals = {entry: size_of(entry.path) for entry in entries if entry.rule != KEPT}
    lines = [f"{human(size):>9}  {entry.rule:<11}  {entry.path}" for entry, size in removals.items()]
    sums: Counter[str] = Counter()
    for entry, size in removals.items():
        sums[entry.rule] += size
        if not dry_run:
            works = (work for work in _works(plan) if not work.is_symlink())  # by now a training may have begun
            _remove(entry.path, plan.paths.root, next(filter(entry.path.is_relative_to, works), None))
    parts = [f"{rule} {human(sums[rule])}" for rule in ("finished", "unplanned", "results") if sums[rule]]
    total = f"{human(sums.total())} {'would be freed' if dry_run else 'freed'}"
    return "\n".join([*kept, *lines, total + (f" ({', '.join(parts)})" if parts else "")])


def _remove(path: Path, root: Path, work: Path | None) -> None:
    """Delete a path. A run's files are deleted under its lock, so that no training begins meanwhile."""
    try:
        with directory_lock(work, seconds=0) if work else nullcontext():
            if path == root:  # may be a link to another disk; holds only files made by a workflow
                files.remove(path.resolve())
            files.remove(path)
    except LockedError:
        log.warning("%s is left: its training has just begun", path)


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files below a directory; for a link, of the link itself."""
    below = path.rglob("*") if path.is_dir() and not path.is_symlink() else [path]
    return sum(file.lstat().st_size for file in below if file.is_symlink() or not file.is_dir())


def human(size: int) -> str:
    """Return bytes with a unit: 1.5 GB."""
    power = min((len(str(size)) - 1) // 3, 4)
    return f"{size / 1000**power:.1f} {' kMGT'[power]}B" if power else f"{size} B"

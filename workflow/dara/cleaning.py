"""What can be deleted from scratch and logs, by four rules. Results, cached and published ones too, are never touched.

1. What only resuming needs (optimiser states), of a run that is finished: `resume`.
2. Checkpoints of a run that is scored on every benchmark of every preset that plans it, except the last: `checkpoints`.
   Where none plans it any more, those count that it has been scored on.
   The scores stay; another benchmark on those steps, or deleted results, need the run trained anew.
3. All work of a run that is not finished and that no preset plans any more: `unplanned`. Presets are the files in
   config/presets/ and every results/*/configuration.json.
4. Logs that nobody has written to for 30 days: `logs`.

A run that trains right now is left alone.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dara.config import Configuration
from dara.dag import Workflow
from dara.loading import load_all_presets, load_configuration, merge, read_yaml
from dara.locking import LockedError, directory_lock
from dara.runs import plan_runs
from dara.status import is_held
from dara.training.openrlhf.checkpoints import STATES, output_of
from dara.training.run_files import RESUME_ONLY, checkpoints

log = logging.getLogger(__name__)

KEPT_DAYS = 30
LOG_DIRECTORIES = ("logs/slurm", ".snakemake/log")
KEPT_TO_PUBLISH = "trainer_state.json"
"""Says that a finished run can be published again from its checkpoints; so it goes with the first of them."""
RULES = ("resume", "checkpoints", "unplanned", "logs")


@dataclass(frozen=True)
class Removal:
    """Something to delete: a file or a directory, by which rule, and its size in bytes."""

    rule: str
    path: Path
    size: int


def clean(flow: Workflow, *, dry_run: bool) -> str:
    """Delete what the rules allow, for all presets that share the scratch of this one; with `dry_run` only say so.

    Returns a table of what is (or would be) deleted, with sizes.
    """
    removals = find(flow)
    if not dry_run:
        for removal in removals:
            _remove(removal, flow)
    return table(removals, dry_run=dry_run)


def find(flow: Workflow, now: float | None = None) -> list[Removal]:
    """What the rules allow to delete, sorted by path. now: seconds since the epoch, for the age of logs."""
    planned = planned_benchmarks(flow)
    found: list[Removal] = []
    for work in sorted(path for path in flow.paths.scratch.glob("*") if _is_run(path)):
        if is_held(work / "lock"):
            continue
        manifests = sorted(flow.paths.results.glob(f"*/runs/{work.name}/manifest.json"))
        if manifests:
            found += _finished(work, manifests, planned.get(work.name))
        elif work.name not in planned:
            found.append(Removal("unplanned", work, size_of(work)))
    return [*found, *_old_logs(flow, time.time() if now is None else now)]


def planned_benchmarks(flow: Workflow) -> dict[str, set[str]]:
    """The runs that any preset plans, and the benchmarks that it plans for them.

    Presets are those of config/presets/, of this workflow, and of earlier workflows here.

    Raises ConfigurationError where a results/<preset>/configuration.json is no longer readable: nothing is deleted
    before it is known what it plans.
    """
    configurations: list[Configuration] = [flow.configuration, *load_all_presets(flow.root).values()]
    default = flow.root / "config" / "config.yaml"
    for path in sorted(flow.paths.results.glob("*/configuration.json")):
        values = merge(read_yaml(default), json.loads(path.read_text(encoding="utf-8")))
        configurations.append(load_configuration(flow.root, values, [default, path]))
    planned: dict[str, set[str]] = {}
    for configuration in configurations:
        for run, spec in plan_runs(configuration).runs.items():
            benchmarks = configuration.preset.tasks[spec.task].benchmarks
            planned.setdefault(run, set()).update(benchmark.name for benchmark in benchmarks)
    return planned


def _is_run(path: Path) -> bool:
    """Whether a directory of the scratch is the work of a run: only those have these files."""
    return path.is_dir() and (path / "inputs.json").is_file() and (path / "lock").is_file()


def _finished(work: Path, manifests: list[Path], benchmarks: set[str] | None) -> list[Removal]:
    """Rules 1 and 2 for a run whose results are published; benchmarks: those planned for it, None if it is not."""
    content = json.loads(manifests[0].read_text(encoding="utf-8"))
    if content["outcome"] != "completed":  # a diverged run is rare, and worth a look
        return []
    saved = checkpoints(work)
    scored = all(_scored(path, content["checkpoints"], benchmarks) for path in manifests)
    removed = [step for step in saved if step != max(saved)] if scored else []
    found = [Removal("checkpoints", saved[step], size_of(saved[step])) for step in removed]
    for step, checkpoint in saved.items():
        names = [name for name in RESUME_ONLY if name != KEPT_TO_PUBLISH or removed]
        files = [checkpoint / name for name in names if step not in removed and (checkpoint / name).is_file()]
        found += [Removal("resume", path, size_of(path)) for path in files]
    # The empty directory of a state stays: with it the finished run can be published again.
    states = sorted((output_of(work) / STATES).glob("global_step*/*"))
    return found + [Removal("resume", path, size_of(path)) for path in states]


def _scored(manifest: Path, steps: Iterable[str], benchmarks: set[str] | None) -> bool:
    """Whether every benchmark has scored every checkpoint in the results that this manifest is part of.

    benchmarks: None for those that have scored any.
    """
    scores = manifest.parents[2] / "scores" / manifest.parent.name
    planned = [scores / f"{name}.scored.json" for name in benchmarks or ()]
    files = planned if benchmarks is not None else sorted(scores.glob("*.scored.json"))
    return bool(files) and all(_covers(path, steps) for path in files)


def _covers(scored: Path, steps: Iterable[str]) -> bool:
    if not scored.is_file():
        return False
    files = json.loads(scored.read_text(encoding="utf-8"))
    return {f"step_{step}" for step in steps} <= {name.split("/")[0] for name in files}


def _old_logs(flow: Workflow, now: float) -> list[Removal]:
    directories = [Path(name) for name in LOG_DIRECTORIES] + sorted(flow.paths.results.glob("*/logs"))
    published = flow.paths.published
    files = [path for directory in directories for path in sorted(directory.rglob("*.log"))]
    old = [path for path in files if path.is_file() and path.stat().st_mtime < now - KEPT_DAYS * 86400]
    return [Removal("logs", path, size_of(path)) for path in old if not path.is_relative_to(published)]


def _remove(removal: Removal, flow: Workflow) -> None:
    """Delete one thing. A run's files are deleted under its lock, so that no training begins meanwhile."""
    if removal.rule == "logs":
        removal.path.unlink(missing_ok=True)
        return
    work = flow.paths.scratch / removal.path.relative_to(flow.paths.scratch).parts[0]
    try:
        with directory_lock(work, seconds=0):
            shutil.rmtree(removal.path) if removal.path.is_dir() else removal.path.unlink()
    except LockedError:
        log.warning("%s is left: its training has just begun", removal.path)


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files below a directory."""
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.lstat().st_size for file in files if file.is_file())


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

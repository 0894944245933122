"""Lists of presets, experiments, outputs, methods, rewards and benchmarks, with a command for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dara.loading import load_preset, read_methods, read_yaml

KINDS = ("presets", "experiments", "tables", "figures", "methods", "rewards", "benchmarks")
Row = tuple[str, str, str]
"""Name, one line about it, the command that uses it ("" for an entry that presets name)."""


def rows(kind: str, root: Path, preset: str) -> list[Row]:
    """Return the entries of a kind; tables and figures are those of a preset."""
    if kind in ("tables", "figures"):
        return list(_outputs(kind, root, preset))
    return list(
        {"presets": _presets, "experiments": _experiments, "methods": _methods}.get(kind, _registered)(kind, root)
    )


def _presets(kind: str, root: Path) -> Iterator[Row]:
    for path in sorted((root / "config" / "presets").glob("*.yaml")):
        first = path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ").partition(". ")[0].rstrip(".,:")
        yield path.stem, first, f"snakemake --profile profiles/local --configfile config/presets/{path.name}"


def _experiments(kind: str, root: Path) -> Iterator[Row]:
    for path in sorted((root / "config" / "experiments").glob("*.yaml")):
        presets = [each for each in sorted((root / "config" / "presets").glob("*.yaml")) if _has(each, path.stem)]
        command = f"dara plan {path.stem} --preset {presets[0].stem}" if presets else ""
        yield path.stem, read_yaml(path).get("question", ""), command


def _has(preset: Path, experiment: str) -> bool:
    return experiment in (read_yaml(preset).get("experiments") or {})


def _methods(kind: str, root: Path) -> Iterator[Row]:
    for name, entry in read_methods(root).items():
        yield name, entry.label, f"dara check-method {name}"


def _outputs(kind: str, root: Path, preset: str) -> Iterator[Row]:
    from dara.analysis import figures, tables
    from dara.plan import WorkflowPlan

    describe = tables.describe if kind == "tables" else figures.describe
    plan = WorkflowPlan(load_preset(root, root / "config" / "presets" / f"{preset}.yaml"), root)
    form = "md" if kind == "tables" else "png"
    for name in plan.outputs.ids(kind):
        _, entry = plan.outputs.owner(kind, name)
        command = f"--configfile config/presets/{preset}.yaml -- {plan.outputs.stem(kind, name)}.{form}"
        yield name, describe(entry).removeprefix("Figure: "), f"snakemake --profile profiles/local {command}"


def _registered(kind: str, root: Path) -> Iterator[Row]:
    from dara.registries import REGISTRY, definition
    from dara.rewards import REWARDS

    if kind == "rewards":
        for task, rewards in REWARDS.items():
            yield from ((name, f"of task {task}", "") for name in rewards)
        return
    for name in REGISTRY:
        one = definition(name)
        command = f"dara evaluate --model MODEL --benchmark {name}" if one.kind == "published" else ""
        yield name, f"of task {one.task}, {one.kind}", command

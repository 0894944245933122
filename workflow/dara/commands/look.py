"""Commands that inspect: what exists, what a preset plans, how far it is, what can be deleted."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Context, Option

from dara.files import read_json

if TYPE_CHECKING:
    from dara.plan import WorkflowPlan

KINDS = ("presets", "experiments", "tables", "figures", "methods", "rewards", "benchmarks")
Row = tuple[str, str, str]
"""Name, one line about it, the command that uses it ("" for an entry that presets name)."""


Reuse = Literal["matching", "only", "none"]
PresetOption = Annotated[str, Option("--preset", help="name of a preset in config/presets/")]
ReuseOption = Annotated[Reuse | None, Option("--reuse", help="whether cached runs are taken (default: as set)")]
JsonOption = Annotated[bool, Option("--json", help="as JSON")]


def list_names(
    context: Context,
    what: Annotated[str, Argument(help="presets, experiments, tables, figures, methods, rewards or benchmarks")],
    preset: PresetOption = "laptop",
    as_json: JsonOption = False,
) -> None:
    """List what there is of a kind: name, one line about it, and the command that uses it."""
    from dara.loading import check_known

    check_known("list", what, KINDS, "something to list")
    if what in ("tables", "figures"):
        found = [*_outputs(what, context.obj, preset)]
    else:
        found = [*(_registered if what in ("rewards", "benchmarks") else _configured)(what, context.obj)]
    if as_json:
        print(json.dumps([dict(zip(("name", "about", "command"), row, strict=True)) for row in found], indent=2))
        return
    widths = [max(len(row[column]) for row in found) for column in range(2)]
    for name, about, command in found:
        print(f"{name:<{widths[0]}}  {about:<{widths[1]}}  {command}".rstrip())


def _configured(kind: str, root: Path) -> Iterator[Row]:
    """Yield the presets, experiments or methods of config/."""
    from dara.loading import read_methods, read_yaml

    presets = sorted((root / "config" / "presets").glob("*.yaml"))
    if kind == "methods":
        yield from ((name, entry.label, f"dara check-method {name}") for name, entry in read_methods(root).items())
    elif kind == "presets":
        for path in presets:
            first = path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ").partition(". ")[0].rstrip(".,:")
            yield path.stem, first, f"snakemake --profile profiles/local --configfile config/presets/{path.name}"
    else:
        of_preset = {path.stem: read_yaml(path).get("experiments") or {} for path in presets}
        for path in sorted((root / "config" / "experiments").glob("*.yaml")):
            preset = next((name for name, experiments in of_preset.items() if path.stem in experiments), None)
            command = f"dara plan {path.stem} --preset {preset}" if preset else ""
            yield path.stem, read_yaml(path).get("question", ""), command


def _outputs(kind: str, root: Path, preset: str) -> Iterator[Row]:
    """Yield the tables or figures of a preset."""
    from dara.analysis import figures, tables
    from dara.loading import load_preset
    from dara.plan import WorkflowPlan

    outputs = WorkflowPlan(load_preset(root, root / "config" / "presets" / f"{preset}.yaml"), root).outputs
    describe, form = (tables.describe, "md") if kind == "tables" else (figures.describe, "png")
    for name in outputs.ids(kind):
        _, entry = outputs.owner(kind, name)
        command = f"--configfile config/presets/{preset}.yaml -- {outputs.stem(kind, name)}.{form}"
        yield name, describe(entry).removeprefix("Figure: "), f"snakemake --profile profiles/local {command}"


def _registered(kind: str, root: Path) -> Iterator[Row]:
    """Yield the rewards or benchmarks of the package."""
    from dara.registries import REGISTRY, definition
    from dara.rewards import REWARDS

    if kind == "rewards":
        yield from ((name, f"of task {task}", "") for task, rewards in REWARDS.items() for name in rewards)
        return
    for name in REGISTRY:
        one = definition(name)
        command = f"dara evaluate --model MODEL --benchmark {name}" if one.kind == "published" else ""
        yield name, f"of task {one.task}, {one.kind}", command


def plan(
    context: Context,
    target: Annotated[str, Argument(help="all, or the name of an experiment")] = "all",
    preset: PresetOption = "laptop",
    reuse: ReuseOption = None,
    profile: Annotated[list[Path] | None, Option(help="take GPUs and limits of this profile; several in turn")] = None,
    workflow_profile: Annotated[list[Path] | None, Option(help="the same, on top of --profile")] = None,
    as_json: JsonOption = False,
) -> None:
    """Count the runs to train and to evaluate, with GPU hours and disk, before anything is submitted."""
    from dara.status import costs, plan_text

    given = [*(profile or ()), *(workflow_profile or ())]
    profiles = [path if (context.obj / path).exists() else path.absolute() for path in given]
    with contextlib.chdir(context.obj):  # paths in the configuration count from where the workflow runs: the clone
        found = _preset_plan(context.obj, preset, reuse)
        if as_json:
            print(json.dumps({name: vars(cost) for name, cost in costs(found, target, profiles)}, indent=2))
        else:
            print(plan_text(found, target, profiles))


def status(
    context: Context, preset: PresetOption = "laptop", reuse: ReuseOption = None, as_json: JsonOption = False
) -> None:
    """List the runs of a preset: done, running, failed, waiting, with the last step and the reason of a failure."""
    from dara.loading import load_configuration
    from dara.places import as_written
    from dara.plan import WorkflowPlan
    from dara.status import status_rows, status_text

    with contextlib.chdir(context.obj):
        found = _preset_plan(context.obj, preset, reuse)
        told = found.paths.root / "configuration.json"
        source = f"as config/ says: no workflow has run in {found.paths.root} yet"
        if told.is_file():  # it has no scratch directory
            changes = {"scratch": as_written(str(found.paths.scratch))} | ({"reuse": reuse} if reuse else {})
            found = WorkflowPlan(load_configuration(context.obj, read_json(told) | changes, [told]), context.obj)
            source = f"as the last workflow was told ({told})"
        if as_json:
            print(json.dumps([vars(row) for row in status_rows(found)], indent=2))
        else:
            print(status_text(found, "as asked" if reuse else source))


def check_config(context: Context) -> None:
    """Check every file in config/ and profiles/, and print what the presets plan."""
    from dara.loading import check_experiments, load_all_presets
    from dara.preflight import check_method_parameters
    from dara.profiles import check_profile_files
    from dara.runs import plan_runs

    check_experiments(context.obj)
    for name, configuration in load_all_presets(context.obj).items():
        check_method_parameters(configuration, unused=True)
        matrix = plan_runs(configuration)
        counts = ", ".join(f"{experiment} {len(runs)}" for experiment, runs in matrix.experiments.items())
        print(f"{name}: {len(matrix.runs)} runs ({counts})")
    check_profile_files(context.obj)


def check_method(context: Context, method: Annotated[str, Argument(help="name in config/methods.yaml")]) -> None:
    """Run the contract tests on a method of config/methods.yaml before any training is started."""
    from dara.loading import check_known, read_methods
    from dara.methods import load_method
    from dara.methods.contract import check_method as violations_of

    methods = read_methods(context.obj)
    check_known("config/methods.yaml", method, methods, "a method of config/methods.yaml")
    entry = methods[method]
    loaded = load_method(method, function=entry.function, base_dir=context.obj / "config", **entry.params)
    violations = violations_of(loaded)
    for said in violations or ["keeps the contract"]:
        print(f"{method}: {said}")
    if violations:
        raise SystemExit(1)


def config_docs(out: Annotated[Path, Option(help="the page to write (docs/configuration.md)")]) -> None:
    """Write the page of all configuration keys, generated from the models."""
    from dara.config import keys_page

    out.write_text(keys_page(), encoding="utf-8")


def clean(
    context: Context,
    preset: PresetOption = "laptop",
    dry_run: Annotated[bool, Option("--dry-run", help="only print what would be deleted")] = False,
    results: Annotated[
        bool,
        Option("--results", help="delete results/<preset> instead, with its work in scratch that is its alone"),
    ] = False,
) -> None:
    """Delete checkpoints and work in progress that nothing needs any more (the rules: docs/cluster.md)."""
    from dara import cleaning

    with contextlib.chdir(context.obj):
        delete = cleaning.clean_results if results else cleaning.clean
        print(delete(_preset_plan(context.obj, preset, None), dry_run=dry_run))


def _preset_plan(root: Path, preset: str, reuse: Reuse | None) -> WorkflowPlan:
    """Return the plan of a preset from its files, with `--reuse` on top."""
    from dara.loading import check_known, merge, read_yaml
    from dara.plan import WorkflowPlan

    presets = root / "config" / "presets"
    check_known("--preset", preset, [path.stem for path in presets.glob("*.yaml")], "a preset")
    files = [root / "config" / "config.yaml", presets / f"{preset}.yaml"]
    values = merge(read_yaml(files[0]), read_yaml(files[1]))
    return WorkflowPlan.load(root, values | ({"reuse": reuse} if reuse else {}), files[1:])

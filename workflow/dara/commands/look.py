"""Commands that inspect: what exists, what a preset plans, how far it is, what can be deleted."""

from __future__ import annotations

import contextlib
import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dara.files import read_json

if TYPE_CHECKING:
    from dara.plan import WorkflowPlan


class Reuse(StrEnum):
    """Use of cached runs, as in config/config.yaml."""

    matching = "matching"
    only = "only"
    none = "none"


PresetOption = Annotated[str, typer.Option("--preset", help="name of a preset in config/presets/")]
ReuseOption = Annotated[Reuse | None, typer.Option("--reuse", help="whether cached runs are taken (default: as set)")]
JsonOption = Annotated[bool, typer.Option("--json", help="as JSON")]


def list_names(
    context: typer.Context,
    what: Annotated[str, typer.Argument(help="presets, experiments, tables, figures, methods, rewards or benchmarks")],
    preset: PresetOption = "laptop",
    as_json: JsonOption = False,
) -> None:
    """List what there is of a kind: name, one line about it, and the command that uses it."""
    from dara.listing import KINDS, rows
    from dara.loading import check_known

    check_known("list", what, KINDS, "something to list")
    found = rows(what, context.obj, preset)
    if as_json:
        print(
            json.dumps([{"name": name, "about": about, "command": command} for name, about, command in found], indent=2)
        )
        return
    widths = [max(len(row[column]) for row in found) for column in range(2)]
    for name, about, command in found:
        print(f"{name:<{widths[0]}}  {about:<{widths[1]}}  {command}".rstrip())


def plan(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help="all, or the name of an experiment")] = "all",
    preset: PresetOption = "laptop",
    reuse: ReuseOption = None,
    profile: Annotated[
        list[Path] | None, typer.Option(help="count GPUs and time limits as this profile sets them; several in turn")
    ] = None,
    workflow_profile: Annotated[list[Path] | None, typer.Option(help="the same, on top of --profile")] = None,
    as_json: JsonOption = False,
) -> None:
    """Count the runs to train and to evaluate, with GPU hours and disk, before anything is submitted."""
    from dara.cost import costs, plan_text

    given = [*(profile or ()), *(workflow_profile or ())]
    profiles = [path if (context.obj / path).exists() else path.absolute() for path in given]
    with contextlib.chdir(context.obj):  # paths in the configuration count from where the workflow runs: the clone
        found = _preset_plan(context.obj, preset, reuse)
        if as_json:
            print(json.dumps({name: vars(cost) for name, cost in costs(found, target, profiles)}, indent=2))
        else:
            print(plan_text(found, target, profiles))


def status(
    context: typer.Context, preset: PresetOption = "laptop", reuse: ReuseOption = None, as_json: JsonOption = False
) -> None:
    """List the runs of a preset: done, running, failed, waiting, with the last step and the reason of a failure."""
    from dara.status import status_rows, status_text

    with contextlib.chdir(context.obj):
        found = _preset_plan(context.obj, preset, reuse)
        told = found.paths.root / "configuration.json"
        if not told.is_file():
            source = f"as config/ says: no workflow has run in {found.paths.root} yet"
        else:
            found = _last_plan(context.obj, told, found, reuse)
            source = f"as the last workflow was told ({told})"
        if as_json:
            print(json.dumps([vars(row) for row in status_rows(found)], indent=2))
        else:
            print(status_text(found, "as asked" if reuse else source))


def check_config(context: typer.Context) -> None:
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


def check_method(
    context: typer.Context, method: Annotated[str, typer.Argument(help="name in config/methods.yaml")]
) -> None:
    """Run the contract tests on a method of config/methods.yaml before any training is started."""
    from dara.loading import check_known, read_methods
    from dara.methods import load_method
    from dara.methods.contract import check_method as violations_of

    methods = read_methods(context.obj)
    check_known("config/methods.yaml", method, methods, "a method of config/methods.yaml")
    entry = methods[method]
    loaded = load_method(method, function=entry.function, base_dir=context.obj / "config", **entry.params)
    violations = violations_of(loaded)
    for violation in violations:
        print(f"{method}: {violation}")
    if violations:
        raise SystemExit(1)
    print(f"{method}: keeps the contract")


def config_docs(out: Annotated[Path, typer.Option(help="the page to write (docs/configuration.md)")]) -> None:
    """Write the page of all configuration keys, generated from the models."""
    from dara.config import keys_page

    out.write_text(keys_page(), encoding="utf-8")


def clean(
    context: typer.Context,
    preset: PresetOption = "laptop",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only print what would be deleted")] = False,
    results: Annotated[
        bool,
        typer.Option("--results", help="delete results/<preset> instead, with its work in scratch that is its alone"),
    ] = False,
) -> None:
    """Delete checkpoints and work in progress that nothing needs any more (the rules: docs/cluster.md)."""
    from dara.cleaning import clean as clean_scratch
    from dara.cleaning import clean_results

    with contextlib.chdir(context.obj):
        print((clean_results if results else clean_scratch)(_preset_plan(context.obj, preset, None), dry_run=dry_run))


def _preset_plan(root: Path, preset: str, reuse: Reuse | None) -> WorkflowPlan:
    """Return the plan of a preset from its files, with `--reuse` on top."""
    from dara.loading import check_known, merge, read_yaml
    from dara.plan import WorkflowPlan

    presets = root / "config" / "presets"
    check_known("--preset", preset, [path.stem for path in presets.glob("*.yaml")], "a preset")
    files = [root / "config" / "config.yaml", presets / f"{preset}.yaml"]
    values = merge(read_yaml(files[0]), read_yaml(files[1]))
    return WorkflowPlan.load(root, values | _reused(reuse), files[1:])


def _last_plan(root: Path, told: Path, preset: WorkflowPlan, reuse: Reuse | None) -> WorkflowPlan:
    """Return the plan of a configuration.json, with `--reuse` on top and the preset's scratch directory."""
    from dara.loading import load_configuration
    from dara.places import as_written
    from dara.plan import WorkflowPlan

    values = read_json(told) | {"scratch": as_written(str(preset.paths.scratch))} | _reused(reuse)
    return WorkflowPlan(load_configuration(root, values, [told]), root)


def _reused(reuse: Reuse | None) -> dict[str, Any]:
    return {"reuse": reuse.value} if reuse else {}

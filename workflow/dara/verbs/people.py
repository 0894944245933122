"""What people ask before, during and after a workflow."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from dara.files import read_json
from dara.places import as_written

if TYPE_CHECKING:
    from dara.dag import Workflow


def check_config(arguments: argparse.Namespace) -> None:
    """Check every file in config/ and say what the presets plan."""
    from dara.loading import check_experiments, check_method_parameters, load_all_presets
    from dara.runs import plan_runs

    check_experiments(arguments.root)
    for name, configuration in load_all_presets(arguments.root).items():
        check_method_parameters(configuration, unused=True)
        plan = plan_runs(configuration)
        counts = ", ".join(f"{experiment} {len(runs)}" for experiment, runs in plan.experiments.items())
        print(f"{name}: {len(plan.runs)} runs ({counts})")


def keys(arguments: argparse.Namespace) -> None:
    """Write the page of all configuration keys, generated from the models."""
    from dara.keys import keys_page

    arguments.out.write_text(keys_page(), encoding="utf-8")


def check_method(arguments: argparse.Namespace) -> None:
    """Run the contract tests on a method of config/methods.yaml before any training is started."""
    from dara.loading import check_known, read_methods
    from dara.methods import load_method
    from dara.methods.contract import check_method as violations_of

    methods = read_methods(arguments.root)
    check_known("config/methods.yaml", arguments.method, methods, "a method of config/methods.yaml")
    entry = methods[arguments.method]
    method = load_method(arguments.method, function=entry.function, base_dir=arguments.root / "config", **entry.params)
    violations = violations_of(method)
    for violation in violations:
        print(f"{arguments.method}: {violation}")
    if violations:
        raise SystemExit(1)
    print(f"{arguments.method}: keeps the contract")


def plan(arguments: argparse.Namespace) -> None:
    """Say how many runs are cached, to train and to evaluate, with GPU hours and disk, before anything is submitted."""
    from dara.planning import plan as planned

    given = [*arguments.profile, *arguments.workflow_profile]
    profiles = [path if (arguments.root / path).exists() else path.absolute() for path in given]
    with _in_clone(arguments):
        print(planned(_preset_workflow(arguments), arguments.target, profiles))


def status(arguments: argparse.Namespace) -> None:
    """List the runs of a preset: done, running, failed, waiting, with the last step and the reason of a failure."""
    from dara.status import status as status_of

    with _in_clone(arguments):
        flow = _preset_workflow(arguments)
        told = flow.paths.root / "configuration.json"
        if not told.is_file():
            source = f"as config/ says: no workflow has run in {flow.paths.root} yet"
        else:
            flow = _told_workflow(arguments, told, flow)
            source = f"as the last workflow was told ({told})"
        print(status_of(flow, "as asked" if arguments.reuse else source))


def clean(arguments: argparse.Namespace) -> None:
    """Delete checkpoints and work in progress that nothing needs any more (the rule: docs/cluster.md)."""
    from dara.cleaning import clean as clean_up
    from dara.cleaning import clean_results

    with _in_clone(arguments):
        delete = clean_results if arguments.results else clean_up
        print(delete(_preset_workflow(arguments), dry_run=arguments.dry_run))


def _preset_workflow(arguments: argparse.Namespace) -> Workflow:
    """The workflow of a preset as its files say, with `--reuse` on top."""
    from dara.dag import Workflow
    from dara.loading import check_known, merge, read_yaml

    presets = arguments.root / "config" / "presets"
    check_known("--preset", arguments.preset, [path.stem for path in presets.glob("*.yaml")], "a preset")
    files = [arguments.root / "config" / "config.yaml", presets / f"{arguments.preset}.yaml"]
    values = merge(read_yaml(files[0]), read_yaml(files[1])) | _reuse(arguments)
    return Workflow.load(arguments.root, values, files[1:])


def _told_workflow(arguments: argparse.Namespace, told: Path, preset: Workflow) -> Workflow:
    """The workflow of a configuration.json, with `--reuse` on top; checkpoints are where those of its preset are."""
    from dara.dag import Workflow
    from dara.loading import load_configuration

    values = read_json(told) | {"scratch": as_written(str(preset.paths.scratch))}
    return Workflow(load_configuration(arguments.root, values | _reuse(arguments), [told]), arguments.root)


def _reuse(arguments: argparse.Namespace) -> dict[str, str]:
    reuse = getattr(arguments, "reuse", None)
    return {"reuse": reuse} if reuse else {}


def _in_clone(arguments: argparse.Namespace) -> contextlib.AbstractContextManager[None]:
    """Paths in the configuration count from where the workflow runs: the clone."""
    arguments.root = arguments.root.resolve()
    return contextlib.chdir(arguments.root)

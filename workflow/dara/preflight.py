"""What must be there before a job runs: environments, what is fetched, and cached runs where nothing may be trained."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dara.config import Configuration
from dara.loading import ConfigurationError, read_yaml
from dara.specs import PUBLISHED_BENCHMARKS, HubData, HubModel
from dara.system import sentence

if TYPE_CHECKING:
    from dara.dag import Workflow


def check_available(flow: Workflow) -> None:
    """ConfigurationError that lists published data and models which are neither here nor within reach."""
    models = [spec for spec in flow.plan.models.values() if isinstance(spec, HubModel)]
    data = [spec for spec in flow.plan.data.values() if isinstance(spec, HubData)]
    if flow.reuse == "only" or not (models or data):
        return
    from dara.data import hub
    from dara.data.published import sources_of, sources_of_benchmark

    benchmarks = {item.name for run in flow.plan.runs for item in flow.benchmarks_of(run)} & {*PUBLISHED_BENCHMARKS}
    sources = [name for spec in data for name in sources_of(spec)]
    sources += [name for benchmark in benchmarks for name in sources_of_benchmark(benchmark)]
    fetch = hub.fetch_as_configured(flow.root, json.loads(flow.fetching))
    try:
        hub.check_available(sources, [(spec.hub, spec.revision) for spec in models], fetch)
    except ValueError as error:
        raise ConfigurationError(f"preset {flow.configuration.preset.preset}: {error}") from None


def check_environments(flow: Workflow) -> None:
    """ConfigurationError if an environment that trains or generates is not there."""
    preset = flow.configuration.preset
    engines = {spec.engine for run, spec in flow.plan.runs.items() if run not in flow.cached}
    needed = {"training": preset.training_environment} if "openrlhf" in engines else {}
    needed["evaluation"] = preset.evaluation_environment
    for stage, environment in needed.items():
        if flow.reuse != "only" and environment and not python_of(flow.root / environment).is_file():
            raise ConfigurationError(
                f"{stage}_environment of preset {preset.preset}: {environment} is not there; "
                "make it with `make openrlhf-cpu` (no GPU) or `make openrlhf-cuda`"
            )


def check_hardware(flow: Workflow) -> None:
    """ConfigurationError for hardware on which a run that is to be made cannot be trained or evaluated."""
    from dara.training.openrlhf.command import check_resources

    for run in set(flow.plan.runs) - flow.cached if flow.reuse != "only" else ():
        spec, resources = flow.plan.runs[run], flow.resources(run)
        try:
            if spec.engine == "openrlhf":
                check_resources(spec, resources)
        except ValueError as error:
            raise ConfigurationError(f"preset {flow.configuration.preset.preset}: {error}") from None
        for benchmark in flow.benchmarks_of(run):
            if benchmark.tensor_parallel > max(resources.evaluation_gpus, 1):
                raise ConfigurationError(
                    f"preset {flow.configuration.preset.preset}: benchmark {benchmark.name} has tensor_parallel "
                    f"{benchmark.tensor_parallel}, and an evaluation of {spec.model.name} {resources.evaluation_gpus} "
                    "GPUs; raise evaluation_gpus in its resources, or lower tensor_parallel"
                )


def check_trackers(flow: Workflow) -> None:
    """ConfigurationError if a tracker's package is missing here, where runs of the small engine are made.

    Those of OpenRLHF are made in another environment, whose file has both packages.
    """
    from dara.training.trackers import check_installed

    here = any(spec.engine == "trl" for run, spec in flow.plan.runs.items() if run not in flow.cached)
    try:
        check_installed(flow.configuration.preset.trackers if here and flow.reuse != "only" else ())
    except ValueError as error:
        raise ConfigurationError(f"trackers of preset {flow.configuration.preset.preset}: {error}") from None


def check_preset_of_files(values: Mapping[str, Any], files: Sequence[Path]) -> None:
    """ConfigurationError where `--config preset=NAME` would put one preset's matrix into the results of another."""
    named = [(read_yaml(path).get("preset"), path) for path in files if path.is_file()]
    preset, path = next(((name, path) for name, path in reversed(named) if name is not None), (None, None))
    if preset is not None and values.get("preset") != preset:
        raise ConfigurationError(
            f"--config preset={values.get('preset')} only renames the results of {path}; choose a preset by its file: "
            f"--configfile config/presets/{values.get('preset')}.yaml"
        )


def check_cached_only(flow: Workflow, presets: Mapping[str, Configuration]) -> None:
    """ConfigurationError that names a run which is not cached, where the preset says `reuse: only`."""
    missing = [run for run in flow.plan.runs if run not in flow.cached]
    if flow.reuse != "only" or not missing:
        return
    preset = flow.configuration.preset.preset
    with_that = f"`make reproduce PRESET={preset}`" if preset in presets else "the workflow with `reuse: matching`"
    raise ConfigurationError(
        f"{len(missing)} of {len(flow.plan.runs)} runs of preset {preset} are not in {flow.paths.results}/cached/ "
        f"(the first: {missing[0]}), and `reuse: only` forbids training. Train them with {with_that}."
    )


def python_of(environment: Path) -> Path:
    """The Python of a virtual environment."""
    return environment / "bin" / "python"


@contextlib.contextmanager
def user_errors() -> Iterator[None]:
    """Turn a mistake in the configuration, or a file that cannot be used, into its sentence and exit code 1."""
    try:
        yield
    except (ConfigurationError, OSError) as error:
        sys.stderr.write(f"{sentence(error) if isinstance(error, OSError) else error}\n")
        raise SystemExit(1) from None

"""Reading and checking of configuration files; every error names the file, the key and the correct form."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dara.analysis.figures import FIGURES
from dara.config import Configuration, Experiment, Matrix, MethodEntry, ModelEntry, Preset, TaskSettings
from dara.files import read_json
from dara.places import check_name, why_no_directory
from dara.plugins import DATA, METHOD, REWARD, source_file
from dara.rewards import check_names
from dara.specs import Model, OwnData, checkpoint_steps
from dara.table_options import SCORES, SIDE_BY_SIDE, TABLES, table_name
from dara.yaml_models import ABSENT, ConfigurationError, origin, read_yaml, validate


def merge(base: dict[str, Any], overlay: dict[str, Any]) -> dict[str, Any]:
    """Return `overlay` on top of `base`: mappings are merged key by key, other values replaced (as Snakemake does)."""
    merged = dict(base)
    for key, value in overlay.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def load_configuration(root: Path, values: dict[str, Any], files: list[Path]) -> Configuration:
    """Return the checked configuration of a workflow.

    Args:
        root: the repository; its config/ directory holds methods, models and experiments.
        values: the merged configuration (config.yaml, a preset, the command line).
        files: the files that `values` came from, in merge order (for error messages).

    Raises:
        ConfigurationError: a file, a key or a reference is wrong.
    """
    directory = root / "config"
    values, files = extended(directory, values, files)
    methods = read_methods(root)
    models = read_models(root)
    preset = validate(Preset, values, files)
    for name in preset.experiments:
        where = f"{origin(('experiments', name), files)}: experiments.{name}"
        check_known(where, name, _names(directory / "experiments"), "an experiment of config/experiments/")
    experiments = {name: _experiment(directory / "experiments" / f"{name}.yaml") for name in preset.experiments}
    configuration = Configuration(preset, methods, models, experiments, directory)
    _check_references(configuration, files)
    return configuration


def read_methods(root: Path) -> dict[str, MethodEntry]:
    """Return the rows of config/methods.yaml. Labels and colours are unique, because they identify methods."""
    path = root / "config" / "methods.yaml"
    methods = _entries(path, MethodEntry)
    for key in ("label", "color"):
        owners: dict[str, str] = {}
        for name, entry in methods.items():
            other = owners.setdefault(getattr(entry, key).lower(), name)
            if other != name:
                raise ConfigurationError(f"{path}: {name}.{key}: {getattr(entry, key)!r} is that of {other} already")
    return methods


def read_models(root: Path) -> dict[str, ModelEntry]:
    """Return the models of config/models.yaml."""
    return _entries(root / "config" / "models.yaml", ModelEntry)


def load_published(root: Path) -> dict[str, Experiment]:
    """Return the experiments of config/published.yaml by name; no preset has them, and none of their runs is made.

    Raises:
        ConfigurationError: a key or a reference is wrong.
    """
    path = root / "config" / "published.yaml"
    methods, experiments = read_methods(root), {}
    for name, value in read_yaml(path).items():
        if isinstance(value, dict) and value.get("experiment", name) != name:
            raise ConfigurationError(f"{path}: {name}.experiment is {value['experiment']!r}; it must be {name!r}")
        named = {"experiment": name, **value} if isinstance(value, dict) else value
        experiments[name] = _entry(path, name, named, Experiment)
        for method in methods if experiments[name].methods == "all" else experiments[name].methods:
            check_known(f"{path}: {name}.methods", method, methods, "a method of config/methods.yaml")
    _check_outputs(experiments, lambda name: f"{path}: {name}.")
    return experiments


def check_method_parameters(configuration: Configuration, *, unused: bool = False) -> None:
    """Load each method of the preset with its parameters, and run it on a batch of each of its experiments.

    unused: load the other methods of config/methods.yaml too.

    Raises ConfigurationError for the first that does not work.
    """
    import torch  # takes seconds, so only the start of a workflow imports it

    from dara.methods import load_method
    from dara.methods.contract import FAILURES
    from dara.rewards import check_params, load_rewards, reward_ranges

    for name in configuration.preset.experiments:
        experiment = configuration.experiments[name]
        try:
            load_rewards(experiment.task, experiment.reward_functions, configuration.directory)
            params = configuration.preset.tasks[experiment.task].reward_params
            check_params(experiment.task, {key: params[key] for key in experiment.reward_functions if key in params})
        except ValueError as error:
            raise ConfigurationError(f"config/experiments/{name}.yaml: reward_functions: {error}") from None
    for name, entry in configuration.methods.items():
        asking = [
            configuration.experiments[experiment]
            for experiment, matrix in configuration.preset.experiments.items()
            if name in configuration.methods_of(configuration.experiments[experiment], matrix)
        ]
        if not (asking or unused):
            continue
        try:
            method = load_method(name, function=entry.function, base_dir=configuration.directory, **entry.params)
            for experiment in asking:
                ranges = reward_ranges(experiment.task, experiment.rewards)
                lengths = torch.ones(2, 2, dtype=torch.int64)
                method(torch.tensor(ranges).T.expand(2, 2, len(ranges)), lengths=lengths, ranges=ranges)
        except FAILURES as error:
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            raise ConfigurationError(f"{configuration.directory / 'methods.yaml'}: {name}: {kind}{error}") from None


def check_experiments(root: Path) -> None:
    """Raise ConfigurationError for the first experiment file with a mistake, also if no preset uses it."""
    for name in _names(root / "config" / "experiments"):
        _experiment(root / "config" / "experiments" / f"{name}.yaml")


def load_preset(root: Path, path: Path) -> Configuration:
    """Return the configuration of a preset file or a configuration.json on top of config/config.yaml."""
    files, read = [root / "config" / "config.yaml", path], read_json if path.suffix == ".json" else read_yaml
    return load_configuration(root, merge(read_yaml(files[0]), read(path)), files)


def load_all_presets(root: Path) -> dict[str, Configuration]:
    """Return the configuration of every preset, checked."""
    loaded = {}
    paths = (root / "config" / "presets").glob("*.yaml")
    for path in sorted(paths, key=lambda path: ("extends" in read_yaml(path), path)):  # extended presets first
        loaded[path.stem] = load_preset(root, path)
        check_preset_name(root, path)
    return loaded


def check_preset_name(root: Path, path: Path) -> None:
    """Raise ConfigurationError if a file of config/presets/ is named unlike its preset, as a copy would be."""
    directory = root / "config"
    if path.absolute().parent != (directory / "presets").absolute():
        return
    name = extended(directory, read_yaml(path), [path])[0].get("preset")
    if name != path.stem:
        raise ConfigurationError(f"{path}: preset is {name!r}; it must be {path.stem!r}, as the file")


def extended(directory: Path, values: dict[str, Any], files: list[Path]) -> tuple[dict[str, Any], list[Path]]:
    """Return `values` on top of the preset that they extend, and the files of both. One level deep."""
    name = values.get("extends")
    if name is None:
        return values, files
    where = f"{origin(('extends',), files)}: extends"
    check_known(where, str(name), _names(directory / "presets"), "a preset of config/presets/")
    path = directory / "presets" / f"{name}.yaml"
    base = read_yaml(path)
    if "extends" in base:
        raise ConfigurationError(f"{path}: extends: a preset that others extend must not extend one itself")
    return merge(base, values), [path, *files]


def _entries(path: Path, model: type[Model]) -> dict[str, Any]:
    return {name: _entry(path, name, value, model) for name, value in read_yaml(path).items()}


def _entry(path: Path, name: str, value: Any, model: type[Model]) -> Any:
    try:
        check_name(name)
    except ValueError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    return validate(model, value, [path], prefix=(name,))


def _names(directory: Path) -> list[str]:
    return sorted(path.stem for path in directory.glob("*.yaml"))


def _experiment(path: Path) -> Experiment:
    experiment = validate(Experiment, read_yaml(path), [path])
    if experiment.experiment != path.stem:
        raise ConfigurationError(
            f"{path}: experiment is {experiment.experiment!r}; it must be {path.stem!r}, as the file"
        )
    return experiment


def _check_references(configuration: Configuration, files: list[Path]) -> None:
    """Check the names by which one file refers to another."""
    preset = configuration.preset
    for name, matrix in preset.experiments.items():
        where = f"{origin(('experiments', name), files)}: experiments.{name}"
        experiment = configuration.experiments[name]
        check_known(f"{where}: task", experiment.task, preset.tasks, "a task of this preset")
        for model in matrix.models:
            check_known(f"{where}.models", model, configuration.models, "a model of config/models.yaml")
            if configuration.models[model].task != experiment.task:
                raise ConfigurationError(
                    f"{where}.models: {model!r} is a model for another task than {experiment.task}"
                )
        for reward, function in experiment.reward_functions.items():
            _check_source(f"config/experiments/{name}.yaml: reward_functions.{reward}", function, configuration, REWARD)
        listed = f"{where}.methods" if matrix.methods else f"config/experiments/{name}.yaml: methods"
        for method in configuration.methods_of(experiment, matrix):
            check_known(listed, method, configuration.methods, "a method of config/methods.yaml")
            entry = configuration.methods[method]
            _check_source(f"{configuration.directory / 'methods.yaml'}: {method}", entry.function, configuration)
        _check_evaluation(name, matrix, preset.tasks[experiment.task], files)
    _check_own(configuration, files)
    chosen = {name: configuration.experiments[name] for name in preset.experiments}
    _check_outputs(chosen, lambda name: f"config/experiments/{name}.yaml: ")


def _check_evaluation(name: str, matrix: Matrix, task: TaskSettings, files: list[Path]) -> None:
    """Raise ConfigurationError for a benchmark that the task lacks, or a step without a checkpoint."""

    def where(key: str) -> str:
        return f"{origin(('experiments', name, key), files)}: experiments.{name}.{key}"

    for benchmark in matrix.benchmarks or ():
        own = [one.name for one in task.benchmarks]
        check_known(where("benchmarks"), benchmark, own, "a benchmark of its task in this preset")
    steps = checkpoint_steps(matrix.steps or task.steps, task.checkpoint_every)
    for step in matrix.evaluate_at or ():
        if step not in steps:
            raise ConfigurationError(
                f"{where('evaluate_at')}: step {step} has no checkpoint; checkpoints are at every "
                f"{task.checkpoint_every} steps and at the last, {steps[-1]}"
            )


def check_directories(preset: Preset, values: dict[str, Any], files: list[Path]) -> None:
    """Raise ConfigurationError if something is in the way of results or scratch.

    values: the configuration as written.
    """
    for key, path in (("results", Path(preset.results, preset.preset)), ("scratch", Path(preset.scratch))):
        problem = why_no_directory(path)
        if problem:
            raise ConfigurationError(f"{origin((key,), files, values.get(key, ABSENT))}: {key}: {problem}")
    if path.resolve().is_relative_to(Path(preset.results, preset.preset).resolve()):
        raise ConfigurationError(
            f"{origin((key,), files, values.get(key, ABSENT))}: {key}: {path} is in the results of this preset, with "
            "which it would be deleted; put it beside them"
        )


def _check_source(where: str, function: str | None, configuration: Configuration, example: str = METHOD) -> None:
    """Raise ConfigurationError if the file of a user's own function does not exist."""
    if function is None:
        return
    try:
        source_file(function, configuration.directory, example=example)
    except ValueError as error:
        raise ConfigurationError(f"{where}: {error}") from None


def _check_own(configuration: Configuration, files: list[Path]) -> None:
    """Raise ConfigurationError if an own data source is missing, or parameters belong to no reward."""
    preset = configuration.preset
    for task, settings in preset.tasks.items():
        if isinstance(settings.data, OwnData):
            where = f"{origin(('tasks', task, 'data', 'source'), files)}: tasks.{task}.data.source"
            _check_source(where, settings.data.source, configuration, DATA)
        own = [
            name
            for experiment in map(configuration.experiments.get, preset.experiments)
            if experiment.task == task
            for name in experiment.reward_functions
        ]
        for name in settings.reward_params:
            try:
                check_names(task, [name], own)
            except ValueError as error:
                key = ("tasks", task, "reward_params", name)
                raise ConfigurationError(f"{origin(key, files)}: {'.'.join(key[:3])}: {error}") from None


def check_known(where: str, name: str, known: Any, what: str) -> None:
    """Raise ConfigurationError, with the nearest known name, unless `name` is in `known`."""
    if name in known:
        return
    near = difflib.get_close_matches(name, list(known), 1, 0.5)
    hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known) or 'none'}"
    raise ConfigurationError(f"{where}: {name!r} is not {what}{hint}")


def _check_outputs(experiments: dict[str, Experiment], place: Callable[[str], str]) -> None:
    """Check that ids of tables and figures are unique over all experiments of a source: they are file names.

    `place` returns the beginning of a message about the experiment of a name: its file, and its key in it.
    """
    owners: dict[tuple[str, str], str] = {}
    for name, experiment in experiments.items():
        for kind, known in (("tables", TABLES), ("figures", FIGURES), ("side_by_side", SIDE_BY_SIDE)):
            folder = "figures" if kind == "figures" else "tables"
            for output, entry in getattr(experiment, kind).items():
                where = f"{place(name)}{kind}.{output}"
                check_known(where, table_name(entry), sorted(known), f"a module of workflow/dara/analysis/{folder}/")
                if entry == SCORES:
                    raise ConfigurationError(
                        f"{where}: a table of scores is a mapping: `table: scores`, title, metrics"
                    )
                other = owners.setdefault((kind, output), name)
                if other != name:
                    raise ConfigurationError(f"{where} stands in {other} too; a file name belongs to one experiment")

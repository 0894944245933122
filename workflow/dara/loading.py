"""Reading and checking of configuration files; every error names the file, the key and the correct form."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from dara.analysis.figures import FIGURES
from dara.config import Configuration, Experiment, Matrix, MethodEntry, ModelEntry, Preset, TaskSettings
from dara.data import SOURCES
from dara.places import DATA, REWARD, check_name, source_file, why_no_directory
from dara.rewards import check_names
from dara.specs import Model, OwnData, checkpoint_steps
from dara.table_options import SCORES, SIDE_BY_SIDE, TABLES, table_name

COMMAND_LINE = "--config on the command line"
ABSENT = object()
UNION_TAGS = {"str", "tuple", "made_model", "hub_model", "known_data", "own_data"}


class ConfigurationError(ValueError):
    """A mistake in a configuration file; the message names the file, the key and the correct form."""


@contextmanager
def errors_at(where: str) -> Iterator[None]:
    """Raise a ValueError of the body as a ConfigurationError that begins with its place."""
    try:
        yield
    except ValueError as error:
        raise ConfigurationError(f"{where}: {error}") from None


def check_known(where: str, name: str, known: Iterable[str], what: str) -> None:
    """Raise ConfigurationError, with the nearest known name, unless `name` is in `known`."""
    known = list(known)
    if name not in known:
        hint = _nearest(name, known) or f"; there are {', '.join(known) or 'none'}"
        raise ConfigurationError(f"{where}: {name!r} is not {what}{hint}")


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, 1, 0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


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
    methods, models = read_methods(root), read_models(root)
    preset = validate(Preset, values, files)
    for name in preset.experiments:
        known = _names(directory / "experiments")
        check_known(_place(files, "experiments", name), name, known, "an experiment of config/experiments/")
    experiments = {name: _experiment(directory / "experiments" / f"{name}.yaml") for name in preset.experiments}
    configuration = Configuration(preset, methods, models, experiments, directory)
    for name, matrix in preset.experiments.items():
        _check_matrix(configuration, name, matrix, files)
    for task, settings in preset.tasks.items():
        _check_own(configuration, task, settings, files)
    _check_outputs(experiments, lambda name: f"config/experiments/{name}.yaml: ")
    return configuration


def read_methods(root: Path) -> dict[str, MethodEntry]:
    """Return the rows of config/methods.yaml. Labels and colours are unique, because they identify methods."""
    path = root / "config" / "methods.yaml"
    methods = _entries(path, read_yaml(path), MethodEntry)
    for key in ("label", "color"):
        owners: dict[str, str] = {}
        for name, entry in methods.items():
            other = owners.setdefault(getattr(entry, key).lower(), name)
            if other != name:
                raise ConfigurationError(f"{path}: {name}.{key}: {getattr(entry, key)!r} is that of {other} already")
    return methods


def read_models(root: Path) -> dict[str, ModelEntry]:
    """Return the models of config/models.yaml."""
    path = root / "config" / "models.yaml"
    return _entries(path, read_yaml(path), ModelEntry)


def load_published(root: Path) -> dict[str, Experiment]:
    """Return the experiments of config/published.yaml by name; no preset has them, and none of their runs is made.

    Raises:
        ConfigurationError: a key or a reference is wrong.
    """
    path = root / "config" / "published.yaml"
    methods, values = read_methods(root), read_yaml(path)
    for name, value in values.items():
        if isinstance(value, dict) and value.setdefault("experiment", name) != name:
            raise ConfigurationError(f"{path}: {name}.experiment is {value['experiment']!r}; it must be {name!r}")
    experiments = _entries(path, values, Experiment)
    for name, experiment in experiments.items():
        for method in methods if experiment.methods == "all" else experiment.methods:
            check_known(f"{path}: {name}.methods", method, methods, "a method of config/methods.yaml")
    _check_outputs(experiments, lambda name: f"{path}: {name}.")
    return experiments


def check_experiments(root: Path) -> None:
    """Raise ConfigurationError for the first experiment file with a mistake, also if no preset uses it."""
    for path in sorted((root / "config" / "experiments").glob("*.yaml")):
        _experiment(path)


def load_preset(root: Path, path: Path) -> Configuration:
    """Return the configuration of one preset file on top of config/config.yaml, without a command line."""
    files = [root / "config" / "config.yaml", path]
    return load_configuration(root, merge(read_yaml(files[0]), read_yaml(path)), files)


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
    check_known(_place(files, "extends"), str(name), _names(directory / "presets"), "a preset of config/presets/")
    path = directory / "presets" / f"{name}.yaml"
    base = read_yaml(path)
    if "extends" in base:
        raise ConfigurationError(f"{path}: extends: a preset that others extend must not extend one itself")
    return merge(base, values), [path, *files]


def check_directories(preset: Preset, values: dict[str, Any], files: list[Path]) -> None:
    """Raise ConfigurationError if something is in the way of results or scratch.

    values: the configuration as written.
    """
    results, scratch = Path(preset.results, preset.preset), Path(preset.scratch)
    key, problem = "results", why_no_directory(results)
    if not problem:
        key, problem = "scratch", why_no_directory(scratch)
    if not problem and scratch.resolve().is_relative_to(results.resolve()):
        problem = f"{scratch} is in the results of this preset, with which it would be deleted; put it beside them"
    if problem:
        raise ConfigurationError(f"{origin((key,), files, values.get(key, ABSENT))}: {key}: {problem}")


def _entries(path: Path, values: dict[str, Any], model: type[Model]) -> dict[str, Any]:
    """Return the entries of a file by their names, as `model`."""
    for name in values:
        with errors_at(str(path)):
            check_name(name)
    return {name: validate(model, value, [path], prefix=(name,)) for name, value in values.items()}


def _names(directory: Path) -> list[str]:
    return sorted(path.stem for path in directory.glob("*.yaml"))


def _experiment(path: Path) -> Experiment:
    experiment = validate(Experiment, read_yaml(path), [path])
    if experiment.experiment != path.stem:
        raise ConfigurationError(
            f"{path}: experiment is {experiment.experiment!r}; it must be {path.stem!r}, as the file"
        )
    return experiment


def _check_matrix(configuration: Configuration, name: str, matrix: Matrix, files: list[Path]) -> None:
    """Check the names by which a preset's experiment refers to other files, and the steps that it evaluates."""
    where, own_file = _place(files, "experiments", name), f"config/experiments/{name}.yaml"
    experiment, tasks, directory = configuration.experiments[name], configuration.preset.tasks, configuration.directory
    check_known(f"{where}: task", experiment.task, tasks, "a task of this preset")
    for model in matrix.models:
        check_known(f"{where}.models", model, configuration.models, "a model of config/models.yaml")
        if configuration.models[model].task != experiment.task:
            raise ConfigurationError(f"{where}.models: {model!r} is a model for another task than {experiment.task}")
    for reward, function in experiment.reward_functions.items():
        with errors_at(f"{own_file}: reward_functions.{reward}"):
            source_file(function, directory, example=REWARD)
    for method in configuration.methods_of(experiment, matrix):
        listed = f"{where}.methods" if matrix.methods else f"{own_file}: methods"
        check_known(listed, method, configuration.methods, "a method of config/methods.yaml")
        function = configuration.methods[method].function
        with errors_at(f"{directory / 'methods.yaml'}: {method}"):
            if function is not None:
                source_file(function, directory)
    _check_evaluation(name, matrix, tasks[experiment.task], files)


def _check_evaluation(name: str, matrix: Matrix, task: TaskSettings, files: list[Path]) -> None:
    """Raise ConfigurationError for a benchmark that the task lacks, or a step without a checkpoint."""
    for benchmark in matrix.benchmarks or ():
        place, own = _place(files, "experiments", name, "benchmarks"), [one.name for one in task.benchmarks]
        check_known(place, benchmark, own, "a benchmark of its task in this preset")
    steps = checkpoint_steps(matrix.steps or task.steps, task.checkpoint_every)
    for step in matrix.evaluate_at or ():
        if step not in steps:
            raise ConfigurationError(
                f"{_place(files, 'experiments', name, 'evaluate_at')}: step {step} has no checkpoint; checkpoints are "
                f"at every {task.checkpoint_every} steps and at the last, {steps[-1]}"
            )


def _check_own(configuration: Configuration, task: str, settings: TaskSettings, files: list[Path]) -> None:
    """Raise ConfigurationError if a task's own data source is missing, or parameters belong to no reward."""
    if isinstance(settings.data, OwnData):
        with errors_at(_place(files, "tasks", task, "data", "source")):
            source_file(settings.data.source, configuration.directory, example=DATA)
    experiments = [experiment for experiment in configuration.experiments.values() if experiment.task == task]
    own = [name for experiment in experiments for name in experiment.reward_functions]
    for name in settings.reward_params:
        file = origin(("tasks", task, "reward_params", name), files)
        with errors_at(f"{file}: tasks.{task}.reward_params"):
            check_names(task, [name], own)


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


# --- YAML files as pydantic models ------------------------------------------------------------------------------------


class _UniqueKeyLoader(yaml.CSafeLoader):
    """A YAML loader that raises an error for a repeated key, instead of silently using the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key_node in [key_node for key_node, _ in node.value if key_node.tag != "tag:yaml.org,2002:merge"]:
            key = self.construct_object(key_node, deep=True)
            scalar = isinstance(key, str | int | float | bool)
            if not scalar or key in seen:
                problem = f"key {key!r} stands twice" if scalar else "a key is a list or a mapping"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file. ConfigurationError, with file and line, if it is not one."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _UniqueKeyLoader)
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: not UTF-8 text") from None
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: the file does not exist") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else "?"
        raise ConfigurationError(f"{path}, line {line}: not valid YAML: {error.problem}") from None
    except yaml.YAMLError as error:  # a character that no YAML has
        raise ConfigurationError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigurationError(f"{path}: must be a mapping of keys to values, such as `preset: laptop`")
    return content


def validate(model: type[Model], values: Any, files: list[Path], prefix: tuple[str, ...] = ()) -> Any:
    """Return `values` as `model`; a ConfigurationError lists every mistake with file, key and the nearest known key.

    prefix: the keys in the file above `values`.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        lines = [_explain(model, item, files, prefix) for item in error.errors()]
        raise ConfigurationError("\n".join(dict.fromkeys(lines))) from None


def _explain(model: type[Model], item: Any, files: list[Path], prefix: tuple) -> str:
    """Return one mistake that pydantic found, as a sentence."""
    parts, given = item["loc"], item.get("input")
    location = tuple(part for above, part in zip((None, *parts), parts, strict=False) if not _is_union_tag(above, part))
    key = ".".join(map(str, (*prefix, *location))) or "the file"
    unset = item["type"] == "missing" or parts[-1:] == ("[key]",)
    where = f"{origin((*prefix, *location), files, ABSENT if unset else given)}: {key}"
    if item["type"] == "extra_forbidden":
        allowed = _fields_at(model, location[:-1])
        return f"{where}: unknown key{_nearest(str(location[-1]), allowed)} (allowed here: {', '.join(allowed)})"
    if item["type"] == "missing":
        return f"{where}: missing; this key is required"
    message = item["msg"].removeprefix("Value error, ")
    shown = f" (given: {given!r})" if not isinstance(given, dict | list | BaseModel) else ""
    return f"{where}: {message[0].lower()}{message[1:]}{shown}"


def _is_union_tag(above: Any, part: Any) -> bool:
    """Return whether a part of a location is pydantic's tag of a union (the kind of a value), not a key."""
    source = above in ("data", "known_data") and part in SOURCES
    return isinstance(part, str) and ("[" in part or part in UNION_TAGS or source)


def origin(location: tuple, files: list[Path], given: Any = ABSENT) -> str:
    """Return the file that set this key: the last one with the key, or with the longest part of its path.

    given: the current value; if no file has it, the command line set it.
    """
    best, depth, value = (files[-1] if files else None), 0, ABSENT
    for path in files:
        reached, found = _reach(read_yaml(path), location)
        if reached >= max(depth, 1):
            best, depth, value = path, reached, found
    scalars = not isinstance(value, dict | list) and not isinstance(given, dict | list)
    differs = depth < len(location) or (scalars and str(value) != str(given))
    return COMMAND_LINE if best is None or (given is not ABSENT and differs) else str(best)


def _place(files: list[Path], *location: str) -> str:
    """Return the beginning of a message about a key: the file that set it, and the key."""
    return f"{origin(location, files)}: {'.'.join(location)}"


def _reach(values: Any, location: tuple) -> tuple[int, Any]:
    """Return how many keys of the path exist, and the value at its end."""
    for count, part in enumerate(location):
        try:
            values = values[part]
        except (TypeError, LookupError):
            return count, ABSENT
    return len(location), values


def _fields_at(model: type[Model], location: tuple) -> list[str]:
    """Return the names of the keys that are allowed at a place inside `model`."""
    schema = model.model_json_schema()
    definitions, node = schema.get("$defs", {}), schema
    for part in location:
        node = _resolve(node, definitions)
        inside = node.get("properties", {}).get(part) if isinstance(part, str) else node.get("items")
        patterns = [node.get("additionalProperties"), *node.get("patternProperties", {}).values()]
        node = inside if inside is not None else next((schema for schema in patterns if schema), {})
    return list(_resolve(node, definitions).get("properties", {}))


def _resolve(node: dict, definitions: dict) -> dict:
    for option in node.get("anyOf", node.get("oneOf", node.get("allOf", []))):
        if "$ref" in option:
            node = option
    return definitions[node["$ref"].rsplit("/", 1)[1]] if "$ref" in node else node

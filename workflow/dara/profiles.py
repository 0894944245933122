"""Mistakes in profiles that Snakemake accepts silently: an ignored key, an unknown rule or resource.

A profile is a folder of profiles/ with a `config.yaml` and site files. Settings from elsewhere are known only as
Snakemake's `ResourceSettings`, which do not say where a value is from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dara.loading import ConfigurationError, check_known, read_yaml

MAPPINGS = (
    *("set-threads", "set-resources", "default-resources", "resources", "set-scatter", "set-resource-scopes"),
    *("batch", "config", "groups", "group-components", "consider-ancient"),
)
"""The keys under which Snakemake reads a mapping; it drops a mapping under any other key."""
SLURM = (
    *("slurm_account", "slurm_partition", "slurm_extra", "slurm_cluster", "cluster", "clusters", "constraint", "qos"),
    *("runtime", "mem_mb", "mem_mb_per_cpu", "cpus_per_task", "cpus_per_gpu", "gpu", "gpu_model", "gres"),
    *("nodes", "mpi", "tasks", "tasks_per_gpu", "tasks_per_node"),
)
"""The job resources that the Slurm executor reads; it ignores all others."""
SNAKEMAKES = ("mem", "mem_mb", "mem_mib", "disk", "disk_mb", "disk_mib", "tmpdir")
ELSEWHERE = "command line or profile"

Settings = Mapping[str, list[str]]
"""Key of a profile -> its entries, as they would be on the command line: train=4, train:gpu=4, mem_mb=4000."""
Asked = Mapping[str, Mapping[str, Any]]
"""Rule -> resource -> value that a profile or the command line sets for jobs of the rule."""


def check_profile_files(root: Path, folders: Iterable[Path] | None = None) -> None:
    """Raise ConfigurationError, with file and key, for the first mistake in profiles/ (or in `folders`)."""
    rules = rules_of(root)
    for folder in sorted((root / "profiles").glob("*/")) if folders is None else folders:
        executor, given, limits = None, [], []
        for path in sorted(folder.glob("*.yaml")):
            own, where = profile_settings(path), _shown(path, root)
            for key in ("set-threads", "groups", "consider-ancient", "set-resources"):
                _check_rules(f"{where}: {key}", _names(own, key), rules)
            executor = executor or next(iter(own.get("executor", ())), None)
            given += [(f"{where}: {key}", name) for key, name in _resources_of(own)]
            limits += [(f"{where}: resources", name) for name in _names(own, "resources")]
        _check_resources(executor or "local", given, limits)


def check_rule_names(root: Path, settings: Any) -> None:
    """Raise ConfigurationError for an unknown rule in Snakemake's ResourceSettings."""
    for key, names in (("set-resources", settings.overwrite_resources), ("set-threads", settings.overwrite_threads)):
        _check_rules(f"{ELSEWHERE}: {key}", names, rules_of(root))


def check_resources(executor: str, settings: Any) -> None:
    """Raise ConfigurationError for a resource in Snakemake's ResourceSettings that this executor does not read."""
    given = [(f"set-resources.{rule}", name) for rule, own in settings.overwrite_resources.items() for name in own]
    given += [("default-resources", name) for name in settings.default_resources or ()]
    limits = [name for name in sorted(settings.resources) if not name.startswith("_")]  # _cores, _nodes: Snakemake's
    _check_resources(
        executor,
        [(f"{ELSEWHERE}: {key}", name) for key, name in given],
        [(f"{ELSEWHERE}: resources", name) for name in limits],
    )


def _check_rules(where: str, names: Iterable[str], rules: list[str]) -> None:
    for rule in names:
        check_known(where, rule, rules, "a rule of this workflow")


def _check_resources(executor: str, given: list[tuple[str, str]], limits: list[tuple[str, str]]) -> None:
    """Check the resources of jobs, and the limits, each with its place, for the executors whose resources are known."""
    if executor not in ("local", "slurm"):
        return
    known = {*SLURM, *SNAKEMAKES}
    for where, name in given:
        check_known(where, name, known.union(limit for _, limit in limits), "a resource that anything reads")
    for where, name in limits:
        check_known(where, name, known.union(name for _, name in given), "a resource that a job asks for")


def read_profile(path: Path) -> dict[str, Any]:
    """Return the content of a profile's file. ConfigurationError for a mapping that Snakemake would drop."""
    content = read_yaml(path)
    for key, value in content.items():
        if isinstance(value, Mapping) and "__use_yte__" not in content:  # in a template, a condition holds a mapping
            check_known(str(path), key, MAPPINGS, "a key under which Snakemake reads a mapping")
    return content


def profile_settings(path: Path) -> Settings:
    """Return the settings that Snakemake reads from a profile. See `read_profile` for errors."""
    from snakemake.profiles import ProfileConfigFileParser

    read_profile(path)
    with path.open(encoding="utf-8") as file:
        parsed = ProfileConfigFileParser().parse(file)
    return {key: [value] if isinstance(value, str) else value for key, value in parsed.items()}


def set_resources(profiles: Iterable[Path], root: Path) -> dict[str, dict[str, int]]:
    """Return the gpu and runtime that profiles set for rules. A later profile's `set-resources` replace all.

    Args:
        profiles: directories with a config.yaml, or YAML files.
        root: the repository.

    Raises:
        ConfigurationError: a profile does not exist, or a resource is not a number.
    """
    asked: dict[str, dict[str, int]] = {}
    for profile in profiles:
        path = profile / "config.yaml" if profile.is_dir() else profile
        rules = read_profile(path).get("set-resources")
        if rules is None:
            continue
        if not isinstance(rules, dict) or not all(isinstance(own, dict) for own in rules.values()):
            raise ConfigurationError(f"{path}: set-resources: must map rules to resources, such as train: {{gpu: 4}}")
        _check_rules(f"{path}: set-resources", rules, rules_of(root))
        asked = {
            rule: {
                name: _number(f"{path}: set-resources: {rule}.{name}", name, own[name])
                for name in ("gpu", "runtime")
                if name in own
            }
            for rule, own in rules.items()
        }
    return asked


def _number(where: str, name: str, value: Any) -> int:
    """Return a resource as Snakemake reads it: 600, "600", and for a runtime "10h"."""
    from snakemake.exceptions import WorkflowError
    from snakemake.resources import Resource

    try:
        return int(Resource.parse_human_friendly(name, value))
    except (ValueError, TypeError, WorkflowError):
        raise ConfigurationError(
            f"{where}: must be a number{' of minutes' if name == 'runtime' else ''}, because what is decided when a "
            f"job is submitted cannot be counted before (given: {value!r})"
        ) from None


def _names(settings: Settings, key: str) -> list[str]:
    """Return the names at the beginning of the entries of a key."""
    return [re.split("[:=]", entry)[0] for entry in settings.get(key, ())]


def _resources_of(settings: Settings) -> list[tuple[str, str]]:
    """Return the resources of jobs, each with its key."""
    own = [entry.partition(":") for entry in settings.get("set-resources", ())]
    of_rules = [(f"set-resources.{rule}", assigned.partition("=")[0]) for rule, _, assigned in own]
    return of_rules + [("default-resources", name) for name in _names(settings, "default-resources")]


def rules_of(root: Path) -> list[str]:
    """Return the names of all rules, including those that `reuse: only` leaves out."""
    files = [*root.glob("Snakefile"), *sorted((root / "workflow" / "rules").glob("*.smk"))]
    return [name for file in files for name in re.findall(r"^ *rule (\w+):", file.read_text(encoding="utf-8"), re.M)]


def gpus_asked(asked: Asked, rule: str, own: int) -> int:
    """Return the GPUs of the jobs of a rule: `own`, unless `set-resources` gives another number."""
    said = {name: str(resource.raw).strip("'\"") for name, resource in asked.get(rule, {}).items()}
    gres = re.fullmatch(r"gpu(?::[\w.]+)??(?::(\d+))?", said.get("gres", ""))
    gpu = said.get("gpu", "")
    return (int(gpu) if gpu.isdecimal() else own) + (int(gres[1] or 1) if gres else 0)


def setting_of(root: Path, rule: str) -> str:
    """Return the possible origin of a rule's `set-resources`: files of profiles/ with it, else the command line."""
    paths = [path for path in sorted((root / "profiles").glob("*/*.yaml")) if path.stem != "site.example"]
    files = [_shown(path, root) for path in paths if rule in _names(profile_settings(path), "set-resources")]
    return f"{', '.join(files) or ELSEWHERE}: set-resources.{rule}"


def _shown(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)

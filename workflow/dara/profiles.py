"""Mistakes in profiles that Snakemake takes without a word: a key that it ignores, an unknown rule or resource."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dara.loading import check_known, read_yaml
from dara.snakemake_command import Command

MAPPINGS = (
    *("set-threads", "set-resources", "default-resources", "resources", "set-scatter", "set-resource-scopes"),
    *("batch", "config", "groups", "group-components", "consider-ancient"),
)
"""The keys under which Snakemake reads a mapping; under any other it drops one."""
OF_RULES = ("set-threads", "groups", "consider-ancient", "set-resources")
SLURM = (
    *("slurm_account", "slurm_partition", "slurm_extra", "slurm_cluster", "cluster", "clusters", "constraint", "qos"),
    *("runtime", "mem_mb", "mem_mb_per_cpu", "cpus_per_task", "cpus_per_gpu", "gpu", "gpu_model", "gres"),
    *("nodes", "mpi", "tasks", "tasks_per_gpu", "tasks_per_node"),
)
"""What the Slurm executor reads of a job; everything else it passes over."""
SNAKEMAKES = ("mem", "mem_mib", "disk", "disk_mb", "disk_mib", "tmpdir")
EXECUTORS = (None, "local", "slurm")
"""Those of which it is known what they read."""


Settings = Mapping[str, list[str]]
"""Key of a profile -> its entries, as they would be on the command line: train=4, train:gpu=4, mem_mb=4000."""


def check_profiles(command: Command, root: Path) -> None:
    """ConfigurationError, naming file and key, for the first mistake of the profiles, then of the command line."""
    sources = {str(path): profile_settings(path) for path in command.profiles}
    sources["command line"] = command_settings(command)
    asked = {name for settings in sources.values() for _, name in resources_of(settings)}
    limited = {name for settings in sources.values() for name in names(settings, "resources")}
    rules, known = rules_of(root), {*SLURM, *SNAKEMAKES}
    for where, settings in sources.items():
        for key in OF_RULES:
            for rule in names(settings, key):
                check_known(f"{where}: {key}", rule, rules, "a rule of this workflow")
        if command.options.executor in EXECUTORS:
            for key, name in resources_of(settings):
                check_known(f"{where}: {key}", name, known | limited, "a resource that anything reads")
            for name in names(settings, "resources"):
                check_known(f"{where}: resources", name, known | asked, "a resource that a job asks for")


def read_profile(path: Path) -> dict[str, Any]:
    """The content of a profile's file. ConfigurationError for a mapping that Snakemake drops."""
    content = read_yaml(path)
    for key, value in content.items():
        if isinstance(value, Mapping) and "__use_yte__" not in content:  # in a template, a condition holds a mapping
            check_known(str(path), key, MAPPINGS, "a key under which Snakemake reads a mapping")
    return content


def profile_settings(path: Path) -> Settings:
    """What Snakemake takes from a profile. See `read_profile` for errors."""
    from snakemake.profiles import ProfileConfigFileParser

    read_profile(path)
    with path.open(encoding="utf-8") as file:
        parsed = ProfileConfigFileParser().parse(file)
    return {key: [value] if isinstance(value, str) else value for key, value in parsed.items()}


def command_settings(command: Command) -> Settings:
    """What a command comes to with all its profiles."""
    options = vars(command.options)
    settings = {key: [*(options[key.replace("-", "_")] or ())] for key in (*OF_RULES, "default-resources", "resources")}
    settings["set-resources"] = [f"{rule}:{name}" for rule, own in options["set_resources"].items() for name in own]
    return settings


def names(settings: Settings, key: str) -> list[str]:
    """The names that the entries of a key begin with."""
    return [re.split("[:=]", entry)[0] for entry in settings.get(key, ())]


def resources_of(settings: Settings) -> list[tuple[str, str]]:
    """The resources that jobs ask for, each with its place."""
    own = [entry.partition(":") for entry in settings.get("set-resources", ())]
    of_rules = [(f"set-resources.{rule}", assigned.partition("=")[0]) for rule, _, assigned in own]
    return of_rules + [("default-resources", name) for name in names(settings, "default-resources")]


def rules_of(root: Path) -> list[str]:
    """The names of all rules, those too that `reuse: only` leaves out."""
    files = [root / "Snakefile", *sorted((root / "workflow" / "rules").glob("*.smk"))]
    return [name for file in files for name in re.findall(r"^ *rule (\w+):", file.read_text(encoding="utf-8"), re.M)]


def gpus_asked(command: Command, rule: str, own: int) -> int:
    """GPUs that the jobs of a rule ask for: `own`, unless `set-resources` names another number."""
    asked = command.options.set_resources.get(rule, {})
    said = {name: str(resource.raw).strip("'\"") for name, resource in asked.items()}
    gres = re.fullmatch(r"gpu(?::[\w.]+)??(?::(\d+))?", said.get("gres", ""))
    gpu = said.get("gpu", "")
    return (int(gpu) if gpu.isdecimal() else own) + (int(gres[1] or 1) if gres else 0)

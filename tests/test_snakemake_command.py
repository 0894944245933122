"""What a Snakemake command will do is what Snakemake reads from it, wherever that is said."""

import inspect
import re
from pathlib import Path

import pytest
from snakemake.cli import args_to_api

from dara.snakemake_command import BRANCHES, Command

READING = """
-n | -nq | -np | -j2 -n | --dry-run | --dryrun | --dryr | --summary | -S | -D | --detailed-summary | --dag | --dag dot | --rulegraph
--filegraph | --d3dag | --report | --report x.html | --report=x.zip | --reporter html | --lint | --lint json | --list | -l
--list-rules | --list-target-rules | --lt | --list-changes code | --list-untracked | --list-input-changes | --print-compilation
--touch -n | --delete-all-output -n | --summary --delete-all-output | --report x.html --unlock
"""
RUNNING = """
--profile prof | -j2 -- figures | --config reuse=none -- all | --config x=-n | --config x=--dry-run | --rerun-incomplete | -Rconfiguration
-Rlint -- -n | --until train | --omit-from dag | -- --dry-run | --report x.html --report-after-run | --keep-going --printshellcmds
-pk | --notemp | --nolock | -Usummary | --configfile unlock.yaml | --directory n
"""
CHANGING = """
--unlock | --touch | -t | --unlock -n | --cleanup-metadata results/a | --cleanup-metadata results/a -n | --delete-all-output
--delete-temp-output | --archive x.tar.gz | --generate-unit-tests | --cleanup-shadow | --conda-cleanup-envs | --unl
"""


def commands(text: str) -> list[list[str]]:
    return [command.split() for line in text.strip().splitlines() for command in line.split(" | ")]


@pytest.fixture
def here(tmp_path):
    (tmp_path / "prof").mkdir()
    (tmp_path / "prof/config.yaml").write_text("keep-going: true\n")
    return tmp_path


def purpose(here: Path, arguments: list[str]) -> str:
    return Command.read(arguments, here).purpose


@pytest.mark.parametrize("arguments", commands(READING), ids=" ".join)
def test_commands_that_only_read(here, arguments):
    assert purpose(here, arguments) == "read"


@pytest.mark.parametrize("arguments", [[], *commands(RUNNING)], ids=" ".join)
def test_commands_that_run_jobs(here, arguments):
    assert purpose(here, arguments) == "run"


@pytest.mark.parametrize("arguments", commands(CHANGING), ids=" ".join)
def test_commands_that_run_no_job_and_change_what_is_there(here, arguments):
    assert purpose(here, arguments) == "change"


def test_a_profile_and_the_variable_that_names_one_count(here, monkeypatch, capfd):
    (here / "look.yaml").write_text("dry-run: true\n")
    assert purpose(here, ["--profile", "look.yaml"]) == "read"
    assert purpose(here, ["--profile", "look.yaml", "--profile", "prof"]) == "read"
    assert purpose(here, ["--workflow-profile", "look.yaml"]) == "read"
    monkeypatch.setenv("SNAKEMAKE_PROFILE", "look.yaml")
    assert purpose(here, []) == "read"
    assert purpose(here, ["--profile", "prof"]) == "run"
    (here / "look.yaml").write_text("dry-run: false\n")
    assert purpose(here, []) == "run"
    assert capfd.readouterr().err == ""  # Snakemake has named its profiles once


def test_the_files_of_all_profiles_in_their_order(here, monkeypatch):
    monkeypatch.chdir(here)
    (here / "site.yaml").write_text("set-resorces: {}\n")
    (here / "Snakefile").write_text("")
    (here / "profiles/default").mkdir(parents=True)
    (here / "profiles/default/config.yaml").write_text("set-thread: {}\n")
    command = Command.read(["--profile", "prof", "--profile", "site.yaml"], here)
    assert command.profiles == tuple(map(Path, ["prof/config.yaml", "site.yaml", "profiles/default/config.yaml"]))
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")  # --directory
    assert all(path.is_file() for path in Command.read(["--profile", "prof"], here).profiles)


def test_where_an_option_was_set(here, monkeypatch):
    monkeypatch.chdir(here)
    (here / "site.yaml").write_text("default-resources: {mem_mb: 1}\nset-threads: {train: 4}\nretries: 4\n")
    (here / "more.yaml").write_text("default-resources: [mem_mb=2]\n")
    given = ["--profile", "site.yaml", "--profile", "more.yaml", "--set-threads", "train=8"]
    assert Command.read(given, here).origins == {"default-resources": "more.yaml", "retries": "site.yaml"}


def test_every_branch_of_snakemakes_own_command_is_known():
    """In its order: of several options, the first that it asks for is what happens."""
    source = inspect.getsource(args_to_api).split("if args.deploy_sources:")[1]
    asked = re.findall(r"^ +(?:el)?if (?:not )?(?:args\.(\w+)|(report)_plugin .* and not)\b", source, re.M)
    asked = ["deploy_sources", *(option or plugin for option, plugin in asked)]
    asked = [option for number, option in enumerate(asked) if option not in asked[number + 1 :]]
    within = {"preemptible_rules", "runtime_profile"}  # options of what it does, and what follows it
    assert [option for option in asked if option not in within] == list(BRANCHES)

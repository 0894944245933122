"""What a Snakemake command will do, and the files of its profiles, as Snakemake itself reads its command line.

While the rules are read, Snakemake has not told the workflow yet what it will do with it. So its own parser parses its
command line again: abbreviations, values that look like options, profiles and variables mean here what they mean there.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

READ, CHANGE, RUN = "read", "change", "run"
BRANCHES = {
    "deploy_sources": CHANGE,
    **dict.fromkeys(("lint", "list_target_rules", "list_rules", "print_compilation", "containerize", "report"), READ),
    "generate_unit_tests": CHANGE,
    **dict.fromkeys(("dag", "rulegraph", "filegraph", "d3dag"), READ),
    **dict.fromkeys(("unlock", "cleanup_metadata", "conda_cleanup_envs", "conda_create_envs_only"), CHANGE),
    "list_conda_envs": READ,
    **dict.fromkeys(("cleanup_shadow", "container_cleanup_images"), CHANGE),
    **dict.fromkeys(("list_changes", "list_input_changes", "list_params_changes", "list_untracked"), READ),
    **dict.fromkeys(("summary", "detailed_summary"), READ),
    **dict.fromkeys(("archive", "delete_all_output", "delete_temp_output"), CHANGE),
    "dryrun": READ,
    "touch": CHANGE,
}
"""Option -> what a command with it does, in the order in which snakemake.cli.args_to_api asks: the first counts."""


@dataclass(frozen=True)
class Command:
    """A command line of Snakemake.

    Attributes:
        options: those of the command line and of all profiles.
        profiles: the files of the profiles, of which a later one wins.
        origins: the profile's file of each option that a profile has set.
    """

    options: argparse.Namespace
    profiles: tuple[Path, ...]
    origins: Mapping[str, str]

    @classmethod
    def read(cls, arguments: Sequence[str], directory: Path) -> Command:
        """Parse what came after `snakemake`. directory: where it was started, which `--directory` leaves."""
        from snakemake.cli import parse_args

        with contextlib.chdir(directory), contextlib.redirect_stderr(io.StringIO()):  # it has named its profiles before
            parser, options = parse_args(list(arguments))
        files = parser._default_config_files  # those below leave out a file of which Snakemake takes nothing
        sources = [(source.partition("|")[2], own) for source, own in parser.get_source_to_settings_dict().items()]
        origins = {option: path for path, own in sources if path for option in own}
        return cls(options, tuple(Path(os.path.relpath(directory / path)) for path in files), origins)

    @property
    def purpose(self) -> str:
        """`run`: jobs; `change`: it deletes, marks or unlocks what is there; `read`: neither."""
        given = vars(self.options)
        reports = (given["report"] or given["reporter"]) and not given["report_after_run"]
        deletes = {name: given[name] and not given["dryrun"] for name in ("delete_all_output", "delete_temp_output")}
        given = {**given, **deletes, "report": reports}
        return next((purpose for option, purpose in BRANCHES.items() if given[option]), RUN)

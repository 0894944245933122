"""Rules for names that become file names, and for paths in the configuration."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

NAME_LENGTH = 64
"""Maximal length of a name in characters. The longest file names contain a model and a method (logs of evaluations) and
stay below the limit of 255 bytes of file systems."""
RESERVED = ("all", "base", "cached", "published", "standalone")
"""Names with a meaning of their own: every method or experiment, the base model's row in tables, and other folders of
`results/`."""
_NAME = re.compile(r"[a-z0-9]+([._-][a-z0-9]+)*")
_OUTPUT = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*")
_VARIABLE = re.compile(r"\$(?:(?P<dollar>\$)|(?P<name>[A-Za-z_]\w*)|\{(?P<braced>[A-Za-z_]\w*)\})", re.ASCII)


def check_name(name: str) -> str:
    """Return the name of a preset, experiment, model or method; raise ValueError for an invalid one."""
    return _checked(name, _NAME, ". _ or -", RESERVED, "my_method")


def check_output(name: str) -> str:
    """Return the name of a table or figure; raise ValueError for an invalid one."""
    if name.endswith("_side_by_side"):
        raise ValueError(f"{name!r} cannot be a name: `side_by_side` gives its tables this end; leave it out here")
    return _checked(name, _OUTPUT, "_", (), "my_table")


def _checked(name: str, form: re.Pattern[str], between: str, reserved: tuple[str, ...], example: str) -> str:
    if form.fullmatch(name) and len(name) <= NAME_LENGTH and name not in reserved:
        return name
    none_of = f", and is none of {', '.join(reserved)}" if reserved else ""
    raise ValueError(
        f"{name!r} cannot be a name: it stands in file names, so it has at most {NAME_LENGTH} small letters and "
        f"digits, with single {between} between them{none_of}; for example {example}"
    )


def expanded(text: str) -> str:
    """Return a path of the configuration with `~`, `~user`, `$NAME` and `${NAME}` replaced; `$$` is a dollar sign.

    Raises ValueError for an unknown user, an unset variable, and a path that a workflow cannot use.
    """
    head, slash, rest = text.partition("/") if text.startswith("~") else ("", "", text)
    home = os.path.expanduser(head)
    if head and home == head:
        raise ValueError(
            f"{head} has no home directory here; write the whole path, or ./{head} for a directory of that name"
        )
    path = home + slash + _VARIABLE.sub(_value, rest)
    if not path or path != path.strip():
        raise ValueError("must be a path that neither is empty nor begins or ends with a space")
    if str(Path(path)).startswith("-"):
        raise ValueError("must be a path that does not begin with -, as options of commands do")
    if not path.isprintable():
        raise ValueError("must be a path on one line, of characters that can be printed")
    if "{" in path or "}" in path:
        raise ValueError("must be a path without { and }, between which Snakemake expects the name of a wildcard")
    return path


def _value(variable: re.Match[str]) -> str:
    if variable["dollar"]:
        return "$"
    name = variable["name"] or variable["braced"]
    if not os.environ.get(name):
        raise ValueError(f"the variable {name} is not set; set it, or write $$ for a dollar sign")
    return os.environ[name]


def as_written(path: str) -> str:
    """Return the text from which `expanded` makes this path."""
    escaped = path.replace("$", "$$")
    return f"./{escaped}" if path.startswith("~") else escaped


def why_no_directory(path: Path) -> str | None:
    """Return why a directory cannot exist at this path (it need not exist yet); None if nothing prevents it."""
    place = next(place for place in (path, *path.parents, Path()) if os.path.lexists(place))
    if place.is_dir():
        return None
    if place.is_symlink():
        return f"{place} is a link to {os.readlink(place)}, which is no directory; make that, or remove the link"
    return f"{place} is a file, and a directory is wanted"


def make_writable(directory: Path) -> None:
    """Make a directory if it is absent. OSError, with its name, if no file can be made in it."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(prefix=".dara-", dir=directory):
        pass

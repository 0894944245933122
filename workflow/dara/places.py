"""Names that become file names, and paths that the configuration gives: one rule for each."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

NAME_LENGTH = 64
"""Of a name, in characters. The longest file names hold a model and a method: logs of evaluations. So they keep below
the 255 bytes that file systems allow."""
RESERVED = ("all", "base", "cached", "published", "standalone")
"""The word for every method or experiment, the base model's row in tables, and what else `results/` has."""
_NAME = re.compile(r"[a-z0-9]+([._-][a-z0-9]+)*")
_OUTPUT = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*")
_VARIABLE = re.compile(r"\$(?:(?P<dollar>\$)|(?P<name>[A-Za-z_]\w*)|\{(?P<braced>[A-Za-z_]\w*)\})", re.ASCII)


def check_name(name: str) -> str:
    """The name of a preset, an experiment, a model or a method. ValueError for what is none."""
    return _checked(name, _NAME, ". _ or -", RESERVED, "my_method")


def check_output(name: str) -> str:
    """The name of a table or a figure. ValueError for what is none."""
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
    """A path as the configuration gives it, with `~`, `~user`, `$NAME` and `${NAME}` replaced; `$$` is a dollar sign.

    ValueError for an unknown user, for a variable that is not set, and for what cannot be a path in a workflow.
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
    """What `expanded` makes this path of."""
    escaped = path.replace("$", "$$")
    return f"./{escaped}" if path.startswith("~") else escaped


def why_no_directory(path: Path) -> str | None:
    """What is in the way of a directory, which need not be there yet; None: nothing."""
    place = next(place for place in (path, *path.parents, Path()) if os.path.lexists(place))
    if place.is_dir():
        return None
    if place.is_symlink():
        return f"{place} is a link to {os.readlink(place)}, which is no directory; make that, or remove the link"
    return f"{place} is a file, and a directory is wanted"


def make_writable(directory: Path) -> None:
    """Make a directory where it is absent. OSError, with its name, where no file can be made in it."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(prefix=".dara-", dir=directory):
        pass

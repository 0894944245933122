"""Names, paths and functions that a configuration gives: the rules for them, and the loading of a user's function.

A function is written as 'my_file.py:function' or 'package.module:function'.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

NAME_LENGTH = 64
"""Maximal length of a name in characters. The longest file names contain a model and a method (logs of evaluations) and
stay below the limit of 255 bytes of file systems."""
RESERVED = ("all", "base", "cached", "published", "standalone")
"""Names with a meaning of their own: every method or experiment, the base model's row in tables, and other folders of
`results/`."""
_VARIABLE = re.compile(r"\$(?:(?P<dollar>\$)|(?P<name>[A-Za-z_]\w*)|\{(?P<braced>[A-Za-z_]\w*)\})", re.ASCII)

METHOD, REWARD, DATA = "my_methods.py:contributions", "my_rewards.py:brevity", "my_data.py:problems"
"""An example of each kind of function, for messages that show the form."""


def check_name(name: str) -> str:
    """Return the name of a preset, experiment, model or method; raise ValueError for an invalid one."""
    return _checked(name, "[._-]", ". _ or -", RESERVED, "my_method")


def check_output(name: str) -> str:
    """Return the name of a table or figure; raise ValueError for an invalid one."""
    if name.endswith("_side_by_side"):
        raise ValueError(f"{name!r} cannot be a name: `side_by_side` gives its tables this end; leave it out here")
    return _checked(name, "_", "_", (), "my_table")


def _checked(name: str, separator: str, between: str, reserved: tuple[str, ...], example: str) -> str:
    form = rf"[a-z0-9]+({separator}[a-z0-9]+)*"
    if re.fullmatch(form, name) and len(name) <= NAME_LENGTH and name not in reserved:
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
    for wrong, form in (
        (not path or path != path.strip(), "that neither is empty nor begins or ends with a space"),
        (str(Path(path)).startswith("-"), "that does not begin with -, as options of commands do"),
        (not path.isprintable(), "on one line, of characters that can be printed"),
        ("{" in path or "}" in path, "without { and }, between which Snakemake expects the name of a wildcard"),
    ):
        if wrong:
            raise ValueError(f"must be a path {form}")
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


def load_function(
    function: str, base_dir: str | Path | None = None, *, example: str = METHOD
) -> tuple[Callable[..., Any], ModuleType]:
    """Return the function or class that the string names, and its module. ValueError if there is none.

    A file is relative to base_dir (default: the working directory) and is executed again at each call. example: one of
    METHOD, REWARD and DATA.
    """
    path = source_file(function, base_dir, example=example)
    source, _, name = function.rpartition(":")
    try:
        module = _run_file(path) if source.endswith(".py") else importlib.import_module(source)
    except ImportError as error:
        raise ValueError(f"{function!r} cannot be imported: {error}") from error
    found = getattr(module, name, None)
    if not callable(found):
        names = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise ValueError(f"{function!r}: {source} has no function or class {name!r}.{suggestion(name, names)}")
    return found, module


def source_file(function: str, base_dir: str | Path | None = None, *, example: str = METHOD) -> Path:
    """Return the file that contains the string's function; its bytes belong to a run's identity.

    Only the packages above the module are executed. ValueError if there is no such file.
    """
    form = f"{example!r} (a file) or 'package.module:function'"
    source, colon, name = str(function).rpartition(":")
    is_file = source.endswith(".py")
    dotted = [] if is_file else source.split(".")
    if not colon or not all(part.isidentifier() for part in (name, *dotted)):
        raise ValueError(f"{function!r} names no function: write {form}.")
    if is_file:
        path = Path(base_dir or ".") / expanded(source)
        if not path.is_file():
            raise ValueError(f"{function!r}: there is no file {path}; a file is relative to the one that names it.")
        return path
    try:
        spec = importlib.util.find_spec(source)
    except ModuleNotFoundError as error:
        raise ValueError(f"{function!r}: {error}; the form is {form}.") from error
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise ValueError(f"{function!r}: there is no module {source!r}; the form is {form}.")
    return Path(spec.origin)


def source_sha256(function: str, base_dir: str | Path | None = None, *, example: str = METHOD) -> str:
    """Return the checksum (64 hex digits) of the function's file, so that an edited function is a new one."""
    return hashlib.sha256(source_file(function, base_dir, example=example).read_bytes()).hexdigest()


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return ' Did you mean x? Known: x, y.' for an unknown name."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return (f" Did you mean {close[0]!r}?" if close else "") + f" Known: {', '.join(known) or 'none'}."


def _run_file(path: Path) -> ModuleType:
    name = f"dara_user_{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    module = importlib.util.module_from_spec(importlib.util.spec_from_file_location(name, path))
    sys.modules[name] = module  # dataclasses and pickle look their module up there
    try:
        # Compiled here, not by the loader: its cached bytecode can be older than a file that was just saved.
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), vars(module))
    except Exception as error:  # a user's code, which may raise anything
        del sys.modules[name]
        raise ValueError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    return module

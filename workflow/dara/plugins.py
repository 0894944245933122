"""Loading of a user's own method, reward or data source from 'my_file.py:function' or 'package.module:function'."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from dara.places import expanded

METHOD, REWARD, DATA = "my_methods.py:contributions", "my_rewards.py:brevity", "my_data.py:problems"
"""An example of each kind, for messages that show the form."""


def load_function(
    function: str, base_dir: str | Path | None = None, *, example: str = METHOD
) -> tuple[Callable[..., Any], ModuleType]:
    """Return the function or class that the string names, and its module. ValueError if there is none.

    A file is relative to base_dir (default: the working directory) and is executed again at each call. example: one of
    METHOD, REWARD and DATA.
    """
    path = source_file(function, base_dir, example=example)
    source, _, name = function.rpartition(":")
    module = _run_file(path) if source.endswith(".py") else _import(function, source)
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
    dotted = source if not source.endswith(".py") else "file"
    if not colon or not name.isidentifier() or not all(part.isidentifier() for part in dotted.split(".")):
        raise ValueError(f"{function!r} names no function: write {form}.")
    if source.endswith(".py"):
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


def _import(function: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(f"{function!r} cannot be imported: {error}") from error


def _run_file(path: Path) -> ModuleType:
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    name = f"dara_user_{path.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up there
    try:
        # Compiled here, not by the loader: its cached bytecode can be older than a file that was just saved.
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), vars(module))
    except Exception as error:  # a user's code, which may raise anything
        del sys.modules[name]
        raise ValueError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    return module

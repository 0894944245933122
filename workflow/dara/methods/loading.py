"""A user's own method: from 'my_methods.py:contributions' or 'package.module:function' to the function."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from dara.methods.checks import suggestion
from dara.places import expanded

FORMS = "'my_methods.py:contributions' (a file) or 'package.module:function'"


def load_function(function: str, base_dir: str | Path | None = None) -> tuple[Callable[..., Any], ModuleType]:
    """The function or class that the string names, and its module. ValueError if there is none.

    A file is relative to base_dir (the working directory without one) and runs anew at each call.
    """
    source, name = _split(function)
    module = _run_file(source_file(function, base_dir)) if source.endswith(".py") else _import(function, source)
    found = getattr(module, name, None)
    if not callable(found):
        names = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise ValueError(f"{function!r}: {source} has no function or class {name!r}.{suggestion(name, names)}")
    return found, module


def source_file(function: str, base_dir: str | Path | None = None) -> Path:
    """The file that the string's function is read from; its bytes belong to a run's identity. Nothing is executed
    but the packages above the module. ValueError if there is no such file."""
    source, _ = _split(function)
    if source.endswith(".py"):
        path = Path(base_dir or ".") / expanded(source)
        if not path.is_file():
            raise ValueError(f"{function!r}: there is no file {path}; a file is relative to the one that names it.")
        return path
    try:
        spec = importlib.util.find_spec(source)
    except ModuleNotFoundError as error:
        raise ValueError(f"{function!r}: {error}; the form is {FORMS}.") from error
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise ValueError(f"{function!r}: there is no module {source!r}; the form is {FORMS}.")
    return Path(spec.origin)


def _split(function: str) -> tuple[str, str]:
    source, colon, name = str(function).rpartition(":")
    dotted = source if not source.endswith(".py") else "file"
    if not colon or not name.isidentifier() or not all(part.isidentifier() for part in dotted.split(".")):
        raise ValueError(f"{function!r} names no function: write {FORMS}.")
    return source, name


def _import(function: str, name: str) -> ModuleType:
    source_file(function)
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
        # Compiled here and not by the loader, whose cached bytecode can be older than a file saved a moment ago.
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), vars(module))
    except Exception as error:  # a user's code, which may raise anything
        del sys.modules[name]
        raise ValueError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    return module

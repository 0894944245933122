"""Modules by name, each imported when it is asked for: a job makes one table or figure and pays for no other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from types import ModuleType


class Modules(Mapping[str, ModuleType]):
    """The modules `names` of a package, as a mapping; KeyError for another name."""

    def __init__(self, package: str, *names: str) -> None:
        self._package = package
        self._names = names

    def __getitem__(self, name: str) -> ModuleType:
        if name not in self._names:
            raise KeyError(name)
        return import_module(f"{self._package}.{name}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

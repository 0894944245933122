"""The registry of data sources: training prompts, held-out cases and benchmarks are made from them.

A new source is a function and a line in `SOURCES`. Importing this package is quick: no torch, no transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from dara.data import laptop_math, laptop_tools
from dara.data.public import DEEPSCALER, SETS, TOOLRL, Problems, deepscaler, toolrl

if TYPE_CHECKING:
    from dara.data.hub import Fetch
    from dara.specs import DataSpec, HubData


@dataclass(frozen=True)
class Source:
    """A data source: public rows (`read`) or generated ones (`generator`).

    Attributes:
        task: the task whose rewards its references are for.
        version: raised whenever the same files or the same seed would give other rows; part of the data's identity.
        read: returns training problems, validation problems, and rows that are left out of training.
        files: ids, in config/data.lock.yaml, of the data sets that `read` uses.
        benchmarks: the benchmarks with which its training problems are compared.
        generator: a module with DEMONSTRATION_PARAMETERS, example(rng) with prompt, reference, problem (its key) and
            category, demonstration(rng, example, **parameters) and benchmark_files(examples).
    """

    task: str
    version: int
    read: Callable[[Fetch], Problems] | None = None
    files: tuple[str, ...] = ()
    benchmarks: tuple[str, ...] = ()
    generator: ModuleType | None = None


SOURCES: dict[str, Source] = {
    "laptop_tools": Source("tool_calling", 1, generator=laptop_tools),
    "laptop_math": Source("math", 1, generator=laptop_math),
    "toolrl": Source("tool_calling", 1, read=toolrl, files=TOOLRL, benchmarks=("bfcl_v4",)),
    "deepscaler": Source("math", 1, read=deepscaler, files=DEEPSCALER, benchmarks=tuple(SETS)),
}


def source_of(data: DataSpec | HubData) -> Source:
    """Return the source of a specification. ValueError if this code makes another version of it."""
    source = SOURCES[data.source]
    if data.version != source.version:
        made = "made" if source.generator else "prepared"
        raise ValueError(
            f"data.version: {data.source} is {made} in version {source.version} here, version {data.version} was asked "
            f"for; set version: {source.version}"
        )
    return source

"""The registry of data sources: training prompts, held-out cases and benchmarks are made from them.

A new source is a function and a line in `SOURCES`. Importing this package is quick: no torch, no transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from dara.data import laptop_math, laptop_tools
from dara.data.math_sets import SETS
from dara.data.public import DEEPSCALER, TOOLRL, Problems, deepscaler, toolrl

if TYPE_CHECKING:
    from dara.data.hub import Fetch

__all__ = ["SOURCES", "Source"]


@dataclass(frozen=True)
class Source:
    """A data source: public rows (`read`) or generated ones (`generator`).

    Attributes:
        task: the task whose rewards its references are for.
        version: raised whenever the same files or the same seed would give other rows; part of the data's identity.
        read: returns training problems, validation problems, and rows that are left out of training.
        files: ids, in config/data.lock.yaml, of the data sets that `read` uses.
        benchmarks: the benchmarks with which its training problems are compared.
        generator: a module with DEMONSTRATION_PARAMETERS, example(rng), prompt(example), reference(example),
            problem_key(example), category(example), demonstration(rng, example, **parameters) and
            benchmark_files(examples).
    """

    task: str
    version: int
    read: Callable[[Fetch], Problems] | None = None
    files: tuple[str, ...] = ()
    benchmarks: tuple[str, ...] = ()
    generator: ModuleType | None = None


SOURCES: dict[str, Source] = {
    "laptop_tools": Source("tool_calling", laptop_tools.VERSION, generator=laptop_tools),
    "laptop_math": Source("math", laptop_math.VERSION, generator=laptop_math),
    "toolrl": Source("tool_calling", 1, read=toolrl, files=TOOLRL, benchmarks=("bfcl_v4",)),
    "deepscaler": Source("math", 1, read=deepscaler, files=DEEPSCALER, benchmarks=tuple(SETS)),
}

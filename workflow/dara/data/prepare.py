"""Data of a run: training rows, held-out benchmark and tokenizer, written from a specification.

Generated data is made here: the held-out problems are drawn first; no training row and no demonstration of a warm start
has one of them. Published data is prepared in `dara.data.published`, whose functions can be taken from here, too.
"""

import logging
import random
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from dara.data import laptop_math, laptop_tools
from dara.data.publish import publish
from dara.data.published import prepare_benchmark, prepare_hub, sources_of, sources_of_benchmark
from dara.data.tokenizer import build_tokenizer
from dara.specs import DataSpec

__all__ = [
    "SOURCES",
    "demonstration_parameters",
    "draw",
    "held_out",
    "held_out_problems",
    "prepare",
    "prepare_benchmark",
    "prepare_hub",
    "source_module",
    "sources_of",
    "sources_of_benchmark",
    "train_rows",
]

logger = logging.getLogger(__name__)

SOURCES: dict[str, ModuleType] = {"laptop_tools": laptop_tools, "laptop_math": laptop_math}
"""Name of a source -> its module, with VERSION, DEMONSTRATION_PARAMETERS, example(rng), prompt(example),
reference(example), problem_key(example), category(example), demonstration(rng, example, **parameters) and
benchmark_files(examples)."""

MAX_DRAWS = 10_000  # draws for one example before its category counts as used up
TOKENIZER_TEXTS = 3000  # examples whose texts make the vocabulary: each word of a task is in dozens of them


def prepare(data: DataSpec, out: Path) -> None:
    """Write `train.jsonl`, `benchmark/`, `tokenizer/` and, last, `manifest.json` into `out`.

    The same specification gives identical files. Each file appears complete or not at all. Raises ValueError for
    another version of the source, and when the source has too few distinct problems for `held_out_rows`.
    """
    rows = {"train.jsonl": train_rows(data)}
    benchmark = source_module(data).benchmark_files(held_out(data))
    rows |= {f"benchmark/{name}": cases for name, cases in benchmark.items()}

    def add_tokenizer(folder: Path) -> None:
        build_tokenizer(_texts(data)).save_pretrained(folder / "tokenizer")

    publish(out, rows, {"data": data.model_dump(mode="json")}, add_tokenizer)
    logger.info("prepared %s: %d prompts, %d held-out cases", data.source, data.train_rows, data.held_out_rows)


def source_module(data: DataSpec) -> ModuleType:
    """The module of the specification's source; ValueError when this code makes another version of it."""
    module = SOURCES[data.source]
    if data.version != module.VERSION:
        raise ValueError(
            f"data.version: {data.source} is made in version {module.VERSION} here, version {data.version} was asked "
            f"for; set version: {module.VERSION}"
        )
    return module


def demonstration_parameters(source: str, overrides: Mapping[str, float]) -> dict[str, float]:
    """The source's demonstration parameters with `overrides` in place; ValueError for an unknown key or no share."""
    defaults = SOURCES[source].DEMONSTRATION_PARAMETERS
    for key, value in overrides.items():
        if key not in defaults:
            raise ValueError(
                f"warm_start.demonstrations: {source} has no parameter {key!r}; it has {', '.join(defaults)}"
            )
        if not 0 <= value <= 1:
            raise ValueError(f"warm_start.demonstrations.{key}: {value} is no share; it must lie between 0 and 1")
    return {**defaults, **overrides}


def held_out(data: DataSpec) -> list[Any]:
    """The held-out examples: `held_out_rows` distinct problems. They do not depend on `train_rows`."""
    rng, task = _rng(data, "held_out"), source_module(data)
    examples: list[Any] = []
    taken: set[tuple] = set()
    for _ in range(data.held_out_rows):
        examples.append(draw(data, rng, taken))
        taken.add(task.problem_key(examples[-1]))
    return examples


def held_out_problems(data: DataSpec) -> frozenset[tuple]:
    """Keys of the held-out problems: what training rows and demonstrations must not contain."""
    return frozenset(source_module(data).problem_key(example) for example in held_out(data))


def train_rows(data: DataSpec) -> list[dict[str, str]]:
    """The training rows {"id", "prompt", "reference"}. A problem may come back, a held-out one never comes."""
    rng, task, excluded = _rng(data, "train"), source_module(data), held_out_problems(data)
    rows = []
    for i in range(data.train_rows):
        example = draw(data, rng, excluded)
        rows.append({"id": f"train_{i}", "prompt": task.prompt(example), "reference": task.reference(example)})
    return rows


def draw(data: DataSpec, rng: random.Random, excluded: Container[tuple]) -> Any:
    """An example whose problem is not in `excluded`.

    An excluded problem is replaced by one of its own category: otherwise leaving out the held-out problems would make
    the categories with few problems rarer. Raises ValueError when a category has nothing left.
    """
    task = source_module(data)
    example = task.example(rng)
    wanted = task.category(example)
    for _ in range(MAX_DRAWS):
        if task.category(example) == wanted and task.problem_key(example) not in excluded:
            return example
        example = task.example(rng)
    raise ValueError(
        f"data.held_out_rows: {data.source} has too few distinct problems of category {wanted} to hold out "
        f"{data.held_out_rows} of all; ask for fewer"
    )


def _texts(data: DataSpec) -> Iterable[str]:
    """Texts of the task for the tokenizer: prompts, gold answers and demonstrations."""
    rng, task = _rng(data, "tokenizer"), source_module(data)
    for _ in range(TOKENIZER_TEXTS):
        example = task.example(rng)
        yield task.prompt(example)
        yield task.reference(example)
        yield task.demonstration(rng, example, **task.DEMONSTRATION_PARAMETERS)


def _rng(data: DataSpec, purpose: str) -> random.Random:
    """A generator of its own for each purpose, so that a change of one never shifts another."""
    return random.Random(f"{data.source}/{data.version}/{data.seed}/{purpose}")

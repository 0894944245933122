"""Responses of all checkpoints of a run, in one process: to import the libraries costs more than to evaluate one."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dara.config import Benchmark
from dara.evaluation.records import (
    Case,
    read_responses,
    sha256_of,
    write_responses,
)
from dara.evaluation.samplers import SAMPLERS, Sampler
from dara.evaluation.score import BENCHMARKS, identity_path, responses_path
from dara.files import write_atomically

logger = logging.getLogger(__name__)


def generate_checkpoints(
    checkpoints: Mapping[int, Path],
    benchmark: Benchmark,
    cases_dir: Path,
    out_dir: Path,
    make_sampler: Callable[[Path, int], Sampler] | None = None,
) -> None:
    """Write `<out_dir>/step_<N>/<benchmark>.jsonl.gz` for each checkpoint and, last,
    `<out_dir>/<benchmark>.identity.json`.

    The identity says what made the responses: sampler and versions, decoding, seed, and checksums of the cases and of
    each checkpoint's weights. Complete files of the same identity stay: a killed process goes on where it was.

    Args:
        checkpoints: step -> directory of a Hugging Face checkpoint with its tokenizer (step 0: the base model); none
            of a run that diverged before its first.
        cases_dir: directory of the benchmark's cases.
        make_sampler: (checkpoint directory, batch size) -> sampler; by default the one that the benchmark names.

    Raises:
        ValueError: a checkpoint is missing, a case is wrong, or finished responses of another identity are in the way.
    """
    _check_present(checkpoints, out_dir)
    make_sampler = make_sampler or SAMPLERS[benchmark.sampler]
    module = BENCHMARKS[benchmark.name]
    cases = module.load_cases(benchmark.name, cases_dir)
    prompts = [module.prompt(case) for case in cases]
    samplers = {step: make_sampler(checkpoints[step], benchmark.batch_size) for step in sorted(checkpoints)}
    # A run that diverged before its first checkpoint has nothing to generate, but an identity like the others.
    sampler = next(iter(samplers.values()), None) or make_sampler(out_dir, benchmark.batch_size)
    identity = _identity(benchmark, cases_dir, checkpoints, sampler)
    usable = _begin(out_dir, benchmark.name, identity)
    started, made = time.monotonic(), 0
    for position, (step, sampler) in enumerate(samplers.items(), 1):
        where = f"{out_dir.name}, {benchmark.name}: step {step} ({position} of {len(samplers)})"
        path = responses_path(out_dir, step, benchmark.name)
        if usable and _is_complete(path, cases, benchmark.samples):
            logger.info("%s: already there", where)
            continue
        responses = sampler.generate(prompts, benchmark.samples, benchmark.sampling, benchmark.seed)
        write_responses(path, cases, responses)
        made += 1
        left = (time.monotonic() - started) / made * (len(samplers) - position)
        logger.info("%s: %d responses, about %.0f s left", where, len(cases) * benchmark.samples, left)
    _work_path(out_dir, benchmark.name).replace(identity_path(out_dir, benchmark.name))


def _check_present(checkpoints: Mapping[int, Path], out_dir: Path) -> None:
    for step, directory in sorted(checkpoints.items()):
        if not any(directory.glob("*.safetensors")):
            raise ValueError(
                f"{directory}: the checkpoint of step {step} of {out_dir.name} is missing (no *.safetensors there); "
                f"make it again with `{_remake_command(out_dir)}` and the profile of the first time"
            )


def _remake_command(out_dir: Path) -> str:
    """`out_dir` is results/<preset>/scores/<run_id>, or .../base-<model_id> for a base model."""
    root = out_dir.parent.parent
    if out_dir.name.startswith("base-"):
        made_by = root / "models" / out_dir.name.removeprefix("base-")
    else:
        made_by = root / "runs" / out_dir.name
    return f"snakemake --force {(made_by / 'manifest.json').as_posix()}"


def _identity(
    benchmark: Benchmark, cases_dir: Path, checkpoints: Mapping[int, Path], sampler: Sampler
) -> dict[str, Any]:
    """What makes the responses, in values of JSON; how they are scored is no part of it."""
    files = BENCHMARKS[benchmark.name].case_files(benchmark.name, cases_dir)
    weights = {step: sha256_of(path.glob("*.safetensors"), path) for step, path in checkpoints.items()}
    return {
        "schema": 1,
        "benchmark": benchmark.name,
        "samples": benchmark.samples,
        "sampling": benchmark.sampling.model_dump(mode="json"),
        "seed": benchmark.seed,
        "sampler": sampler.identity,
        "cases": sha256_of(files, cases_dir),
        "checkpoints": {str(step): weights[step] for step in sorted(weights)},
    }


def _begin(out_dir: Path, name: str, identity: dict[str, Any]) -> bool:
    """Put down what the responses are going to be. Returns whether responses that are already there are the same.

    Responses without an identity, or of unfinished work of another, are deleted: once this identity stands there,
    nothing tells them from ours.
    """
    final, work = identity_path(out_dir, name), _work_path(out_dir, name)
    same = False
    if final.is_file():
        existing = json.loads(final.read_text("utf-8"))
        if existing != identity:
            keys = ", ".join(sorted(key for key in {*existing, *identity} if existing.get(key) != identity.get(key)))
            raise ValueError(
                f"{final}: these responses were made with another {keys}; "
                f"delete {out_dir} to make them again, or use the settings they were made with"
            )
        same = True
    elif work.is_file():
        same = json.loads(work.read_text("utf-8")) == identity
    if not same:
        for path in out_dir.glob(f"step_*/{name}.jsonl.gz"):
            path.unlink()
    write_atomically(work, (json.dumps(identity, indent=2, sort_keys=True) + "\n").encode())
    return same


def _work_path(out_dir: Path, name: str) -> Path:
    return out_dir / f".{name}.identity.unfinished.json"


def _is_complete(path: Path, cases: Sequence[Case], samples: int) -> bool:
    if not path.is_file():
        return False
    try:
        read_responses(path, cases, samples)
    except ValueError as error:
        logger.warning("%s; made again", error)
        return False
    return True

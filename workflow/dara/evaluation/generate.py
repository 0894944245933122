"""Responses of all checkpoints of a run, in one process: to import the libraries costs more than to evaluate one.

The responses of a checkpoint grow in a file of their own, response by response, and become the finished file when all
are there. Only the laptop's benchmarks are made in one piece, in seconds: their responses come from one stream of
random numbers, and the cached runs hold what it gave.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dara.config import Benchmark
from dara.evaluation.multi_turn import Program, one_request
from dara.evaluation.partial import PartialResponses, partial_path
from dara.evaluation.progress import Progress
from dara.evaluation.records import Case, Response, read_responses, select_cases, sha256_of, write_responses
from dara.evaluation.samplers import SAMPLERS, Sampler
from dara.evaluation.scheduling import run_programs
from dara.evaluation.score import BENCHMARKS, identity_path, responses_path
from dara.files import write_atomically
from dara.locking import HANDOVER_SECONDS, directory_lock

logger = logging.getLogger(__name__)

ONE_STREAM = ("laptop_tools", "laptop_math")
TOKENIZER_FILES = ("tokenizer*", "*chat_template*", "generation_config.json", "vocab.json", "merges.txt")


@dataclass(frozen=True)
class Part:
    """The share of one of several jobs that evaluate a run side by side: job `number` of `count`, from 1."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Part:
        """From "2/5"; ValueError for anything else."""
        number, _, count = text.partition("/")
        if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
            raise ValueError(f"--part is {text!r}; it must be K/N with K from 1 to N, such as 2/5")
        return cls(int(number), int(count))

    def of(self, steps: Sequence[int]) -> Sequence[int]:
        """This job's steps: every `count`-th, so that early and late checkpoints are dealt evenly."""
        return steps[self.number - 1 :: self.count]


def generate_checkpoints(
    checkpoints: Mapping[int, Path],
    benchmark: Benchmark,
    cases_dir: Path,
    out_dir: Path,
    make_sampler: Callable[[Path, int], Sampler] | None = None,
    part: Part | None = None,
    checksums: Mapping[int, Mapping[str, str]] | None = None,
) -> None:
    """Write `<out_dir>/step_<N>/<benchmark>.jsonl.gz` for each checkpoint and, last,
    `<out_dir>/<benchmark>.identity.json`.

    The identity says what made the responses: sampler and versions, decoding, seed, and checksums of the cases and of
    each checkpoint's weights. What is there of the same identity stays: a killed process goes on where it was, at the
    checkpoint and, except for the laptop's benchmarks, at the response.

    Args:
        checkpoints: step -> directory of a Hugging Face checkpoint with its tokenizer (step 0: the base model); none
            of a run that diverged before its first.
        cases_dir: directory of the benchmark's cases.
        make_sampler: (checkpoint directory, batch size) -> sampler; by default the one that the benchmark names.
        part: make only the responses of some checkpoints, beside jobs that make the others; `gather` writes the
            identity when all are there.
        checksums: step -> file -> sha256, where a manifest has them: hours of reading, for large models.

    Raises:
        ValueError: a checkpoint is missing, a case is wrong, or finished responses of another identity are in the way.
    """
    _check_present(checkpoints, out_dir)
    make_sampler = make_sampler or (lambda directory, _: SAMPLERS[benchmark.sampler](directory, benchmark))
    module = BENCHMARKS[benchmark.name]
    cases = select_cases(module.load_cases(benchmark.name, cases_dir), benchmark.limit)
    samplers = {step: make_sampler(checkpoints[step], benchmark.batch_size) for step in sorted(checkpoints)}
    # A run that diverged before its first checkpoint has nothing to generate, but an identity like the others.
    sampler = next(iter(samplers.values()), None) or make_sampler(out_dir, benchmark.batch_size)
    identity = _identity(benchmark, cases_dir, _checksums(checkpoints, benchmark, checksums or {}), sampler)
    # Parts that start together must not take each other's first responses for leftovers.
    beginning = (
        directory_lock(out_dir / f".{benchmark.name}.begin", seconds=HANDOVER_SECONDS)
        if part
        else contextlib.nullcontext()
    )
    with beginning:
        usable = _begin(out_dir, benchmark.name, identity)
    if part:
        samplers = {step: samplers[step] for step in part.of(sorted(samplers))}
    started, made = time.monotonic(), 0
    for position, (step, sampler) in enumerate(samplers.items(), 1):
        where = f"{out_dir.name}, {benchmark.name}: step {step} ({position} of {len(samplers)})"
        path = responses_path(out_dir, step, benchmark.name)
        if usable and _is_complete(path, cases, benchmark.samples):
            logger.info("%s: already there", where)
            continue
        with contextlib.closing(sampler):
            if benchmark.name in ONE_STREAM:
                prompts = [module.prompt(case) for case in cases]
                responses = sampler.generate(prompts, benchmark.samples, benchmark.sampling, benchmark.seed)
            else:
                responses = _by_request(cases, benchmark, sampler, path, where)
        write_responses(path, cases, responses)
        partial_path(path).unlink(missing_ok=True)
        made += 1
        left = (time.monotonic() - started) / made * (len(samplers) - position)
        logger.info("%s: %d responses, about %.0f s left", where, len(cases) * benchmark.samples, left)
    if part is None:
        _work_path(out_dir, benchmark.name).replace(identity_path(out_dir, benchmark.name))


def gather(steps: Sequence[int], benchmark: Benchmark, cases_dir: Path, out_dir: Path) -> None:
    """Write the identity of responses that the parts have made, once all of them are there. Nothing is generated.

    What the parts put down stays, so that a gathering that was interrupted can be made again.

    Raises:
        ValueError: responses are missing; the message names them.
    """
    final, work = identity_path(out_dir, benchmark.name), _work_path(out_dir, benchmark.name)
    cases = select_cases(BENCHMARKS[benchmark.name].load_cases(benchmark.name, cases_dir), benchmark.limit)
    paths = [responses_path(out_dir, step, benchmark.name) for step in sorted(steps)]
    missing = [path for path in paths if not _is_complete(path, cases, benchmark.samples)]
    if missing or not (work.is_file() or final.is_file()):
        raise ValueError(
            f"{len(missing)} of {len(paths)} response files of {out_dir.name} are missing or incomplete"
            f"{f' (the first: {missing[0]})' if missing else ''}; delete {out_dir}/{benchmark.name}.part*.done, and "
            "the workflow makes what is missing"
        )
    if work.is_file():
        write_atomically(final, work.read_bytes())


def _by_request(
    cases: Sequence[Case], benchmark: Benchmark, sampler: Sampler, path: Path, where: str
) -> list[list[Response]]:
    """Responses of all cases; those that are there already are read, each other one is kept as soon as it is there."""
    module = BENCHMARKS[benchmark.name]
    programs = getattr(module, "programs", None)
    if programs is not None and benchmark.samples != 1:
        raise ValueError(f"benchmark.samples is {benchmark.samples}; {benchmark.name} has one trajectory a case: set 1")
    opened = programs(cases, benchmark.max_steps) if programs else contextlib.nullcontext(_one_prompt(module))
    session = sampler.session(benchmark.sampling, benchmark.max_context)
    with PartialResponses(partial_path(path)) as work, opened as program:
        progress = Progress(logger, where, len(cases) * benchmark.samples, len(work.done))
        waiting = (
            ((case.id, sample), lambda case=case: program(case))
            for case in cases
            for sample in range(benchmark.samples)
            if (case.id, sample) not in work.done
        )
        for ended in run_programs(waiting, session, sampler, benchmark.seed):
            for (case_id, sample), response in ended:
                work.add(case_id, sample, response)
            progress.advance(len(ended))
        return [[work.done[case.id, sample] for sample in range(benchmark.samples)] for case in cases]


def _one_prompt(module: Any) -> Callable[[Case], Program]:
    return lambda case: one_request(module.prompt(case))


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
    benchmark: Benchmark, cases_dir: Path, weights: Mapping[int, Mapping[str, str]], sampler: Sampler
) -> dict[str, Any]:
    """What makes the responses, in values of JSON; how they are scored is no part of it."""
    module = BENCHMARKS[benchmark.name]
    identity = {
        "schema": 1,
        "benchmark": benchmark.name,
        "samples": benchmark.samples,
        "sampling": benchmark.sampling.model_dump(mode="json"),
        "seed": benchmark.seed,
        "sampler": sampler.identity,
        "cases": sha256_of(module.case_files(benchmark.name, cases_dir), cases_dir),
        "checkpoints": {str(step): weights[step] for step in sorted(weights)},
    }
    if benchmark.name not in ONE_STREAM:
        identity |= {"max_context": benchmark.max_context, "versions": getattr(module, "VERSIONS", {})}
    if hasattr(module, "programs"):
        identity["max_steps"] = benchmark.max_steps
    if benchmark.limit is not None:
        identity["limit"] = benchmark.limit
    return identity


def _checksums(
    checkpoints: Mapping[int, Path], benchmark: Benchmark, known: Mapping[int, Mapping[str, str]]
) -> dict[int, dict[str, str]]:
    """File -> sha256 of what makes the responses of each checkpoint; those that are known are not computed again."""
    if benchmark.name in ONE_STREAM:
        return {step: sha256_of(path.glob("*.safetensors"), path) for step, path in checkpoints.items()}
    sums = {}
    for step, path in checkpoints.items():
        files = {file for pattern in ("*.safetensors", *TOKENIZER_FILES) for file in path.glob(pattern)}
        listed = known.get(step, {})
        computed = sha256_of([file for file in files if file.name not in listed], path)
        sums[step] = computed | {file.name: listed[file.name] for file in files if file.name in listed}
    return sums


def _begin(out_dir: Path, name: str, identity: dict[str, Any]) -> bool:
    """Put down what the responses are going to be. Returns whether responses that are already there are the same.

    Responses without an identity, or of unfinished work of another, are deleted with their scores: once this identity
    stands there, nothing tells them from ours.
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
        responses = f"{name}.jsonl.gz"
        made = (f"step_*/{responses}", f"step_*/{partial_path(Path(responses)).name}", f"step_*/{name}.csv")
        for path in [path for pattern in (*made, f"{name}.scor*.json") for path in out_dir.glob(pattern)]:
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

"""Responses of all checkpoints of a run, in one process: to import the libraries costs more than to evaluate one.

The responses of a checkpoint grow in a file of their own, response by response, and become the finished file when all
are there. Only the laptop's benchmarks are made in one piece, in seconds: their responses come from one stream of
random numbers, and the cached runs hold what it gave.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dara.config import Benchmark
from dara.evaluation.identity import ONE_STREAM, Claim, response_identity, unfinished_path, with_finished
from dara.evaluation.identity import checksums as checkpoint_checksums
from dara.evaluation.multi_turn import Program, one_request
from dara.evaluation.partial import PartialResponses, partial_path
from dara.evaluation.progress import Progress
from dara.evaluation.records import Case, Response, read_responses, select_cases
from dara.evaluation.samplers import SAMPLERS, Sampler
from dara.evaluation.scheduling import run_programs
from dara.evaluation.score import BENCHMARKS, identity_path, responses_path
from dara.files import write_atomically

logger = logging.getLogger(__name__)


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
        make_sampler: (checkpoint directory, batch size) -> sampler; by default the one that the benchmark names. One
            serves all checkpoints.
        part: make only the responses of some checkpoints, beside jobs that make the others; `gather` writes the
            identity when all are there.
        checksums: step -> file -> sha256, where a manifest has them: hours of reading, for large models.

    Raises:
        ValueError: a checkpoint is missing, a case is wrong, or responses of another identity are in the way.
    """
    _check_present(checkpoints, out_dir)
    make_sampler = make_sampler or (lambda directory, _: SAMPLERS[benchmark.sampler](directory, benchmark))
    cases = select_cases(BENCHMARKS[benchmark.name].load_cases(benchmark.name, cases_dir), benchmark.limit)
    steps = sorted(checkpoints)
    # A run that diverged before its first checkpoint has nothing to generate, but an identity like the others.
    sampler = make_sampler(checkpoints[steps[0]] if steps else out_dir, benchmark.batch_size)
    sums = checkpoint_checksums(checkpoints, benchmark, checksums or {})
    identity = with_finished(response_identity(benchmark, cases_dir, sums, sampler), out_dir)
    own = part.of(steps) if part else steps
    claim = Claim(out_dir, benchmark.name, identity, own if part else None)
    with contextlib.closing(sampler):
        _generate({step: checkpoints[step] for step in own}, benchmark, cases, sampler, claim)
    if part is None:
        claim.finish()


def _generate(
    checkpoints: Mapping[int, Path], benchmark: Benchmark, cases: Sequence[Case], sampler: Sampler, claim: Claim
) -> None:
    """Responses of these checkpoints, one after the other; those that are there stay."""
    usable = claim.begin()
    started, made = time.monotonic(), 0
    for position, (step, directory) in enumerate(checkpoints.items(), 1):
        where = f"{claim.out_dir.name}, {benchmark.name}: step {step} ({position} of {len(checkpoints)})"
        path = responses_path(claim.out_dir, step, benchmark.name)
        if usable and _is_complete(path, cases, benchmark.samples):
            logger.info("%s: already there", where)
            continue
        claim.check()
        sampler.use(directory)
        make = _in_one_stream if benchmark.name in ONE_STREAM else _by_request
        claim.write(step, cases, make(cases, benchmark, sampler, path, where))
        made += 1
        left = (time.monotonic() - started) / made * (len(checkpoints) - position)
        logger.info("%s: %d responses, about %.0f s left", where, len(cases) * benchmark.samples, left)


def gather(steps: Sequence[int], benchmark: Benchmark, cases_dir: Path, out_dir: Path) -> None:
    """Write the identity of responses that the parts have made, once all of them are there. Nothing is generated.

    What the parts put down stays, so that a gathering that was interrupted can be made again.

    Raises:
        ValueError: responses are missing; the message names them.
    """
    final, work = identity_path(out_dir, benchmark.name), unfinished_path(out_dir, benchmark.name)
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


def _in_one_stream(
    cases: Sequence[Case], benchmark: Benchmark, sampler: Sampler, path: Path, where: str
) -> list[list[Response]]:
    """Responses of all cases at once."""
    prompts = [BENCHMARKS[benchmark.name].prompt(case) for case in cases]
    return sampler.generate(prompts, benchmark.samples, benchmark.sampling, benchmark.seed)


def _by_request(
    cases: Sequence[Case], benchmark: Benchmark, sampler: Sampler, path: Path, where: str
) -> list[list[Response]]:
    """Responses of all cases; those that are there already are read, each other one is kept as soon as it is there."""
    module = BENCHMARKS[benchmark.name]
    programs = getattr(module, "programs", None)
    if programs is not None and benchmark.samples != 1:
        raise ValueError(f"benchmark.samples is {benchmark.samples}; {benchmark.name} has one trajectory a case: set 1")
    opened = programs(cases, benchmark.max_steps) if programs else contextlib.nullcontext(_one_prompt(module))
    with PartialResponses(partial_path(path)) as work, opened as program:
        progress = Progress(logger, where, len(cases) * benchmark.samples, len(work.done))
        session = sampler.session(benchmark.sampling, benchmark.max_context, progress.made)
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


def _is_complete(path: Path, cases: Sequence[Case], samples: int) -> bool:
    if not path.is_file():
        return False
    try:
        read_responses(path, cases, samples)
    except ValueError as error:
        logger.warning("%s; made again", error)
        return False
    return True

"""Responses of all checkpoints of a run, in one process: importing the libraries takes longer than one evaluation.

The responses of a checkpoint are appended to a journal, one by one, which becomes the finished file when all are there.
Only the laptop's benchmarks are generated at once, in seconds: their responses come from one stream of random numbers,
and must equal those of the cached runs.

The identity (all settings that determine the responses) is written before the first response; responses of another
identity are never added. Several jobs may each generate the responses of some checkpoints.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dara.evaluation import records
from dara.evaluation.records import IDENTITY, RESPONSES, Case, Place, Response
from dara.evaluation.samplers import SETTINGS_FILES, Progress, Sampler, run_programs
from dara.evaluation.tools import one_request
from dara.files import read_json, write_atomically
from dara.registries import definition
from dara.specs import Benchmark
from dara.store import Journal, directory_lock

logger = logging.getLogger(__name__)

MOST_NAMED = 4  # differences that an error names


@dataclass(frozen=True)
class Part:
    """The share of one of several jobs that evaluate a run side by side: job `number` of `count`, from 1."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Part:
        """Return the part that a text such as "2/5" names. Raise ValueError for any other text."""
        number, _, count = text.partition("/")
        if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
            raise ValueError(f"--part is {text!r}; it must be K/N with K from 1 to N, such as 2/5")
        return cls(int(number), int(count))


def generate_checkpoints(
    checkpoints: Mapping[int, Path],
    settings: Benchmark,
    cases_dir: Path,
    out_dir: Path,
    make_sampler: Callable[[Path, int, int], Sampler] | None = None,
    part: Part | None = None,
    checksums: Mapping[int, Mapping[str, str]] | None = None,
) -> None:
    """Write the responses of each checkpoint into `out_dir` and, last, their identity as `responses.json`.

    The identity has sampler and versions, decoding, seed, and checksums of the cases and of each checkpoint's weights.
    Existing responses of the same identity are kept: a killed process continues where it stopped, at the checkpoint
    and, except for the laptop's benchmarks, at the response.

    Args:
        checkpoints: step -> directory of a Hugging Face checkpoint with its tokenizer (step 0: the base model); none
            of a run that diverged before its first.
        cases_dir: directory of the benchmark's cases.
        out_dir: directory of the evaluation, `<run>/<benchmark>-<hash8>`.
        make_sampler: as in `engines.SAMPLERS`, by default that of the settings. One sampler serves all checkpoints.
        part: make only the responses of some checkpoints, beside jobs that make the others; `gather` writes
            `responses.json` when all are there.
        checksums: step -> file -> sha256, where a manifest has them: hours of reading, for large models.

    Raises:
        ValueError: a checkpoint is missing, a case is wrong, or responses of another identity are in the way.
    """
    _check_present(checkpoints, out_dir)
    benchmark = definition(settings.name)
    cases = records.select_cases(benchmark.load_cases(cases_dir), settings.limit)
    steps = sorted(checkpoints)
    if make_sampler is None:
        from dara.evaluation.engines import SAMPLERS  # not at the top: it imports torch

        make_sampler = SAMPLERS[settings.sampler]
    # A run that diverged before its first checkpoint has no responses, but an identity like the others.
    first = checkpoints[steps[0]] if steps else out_dir
    sampler = make_sampler(first, settings.batch_size, settings.tensor_parallel)
    identity = response_identity(settings, cases_dir, checkpoint_checksums(checkpoints, checksums or {}), sampler)
    with contextlib.closing(sampler):
        _begin(out_dir, identity)
        started, made = time.monotonic(), 0
        # Every `count`-th, so that jobs share early and late checkpoints evenly.
        own = steps[part.number - 1 :: part.count] if part else steps
        for position, step in enumerate(own, 1):
            where = f"{out_dir.parent.name}, {settings.name}: step {step} ({position} of {len(own)})"
            if _is_complete(records.responses_path(out_dir, step), cases, settings.samples):
                logger.info("%s: already there", where)
                continue
            _check_unchanged(out_dir, identity)
            sampler.use(checkpoints[step])
            if benchmark.one_stream:
                prompts = [benchmark.prompt(case) for case in cases]
                responses = sampler.generate(prompts, settings.samples, settings.sampling, settings.seed)
            else:
                responses = _by_request(settings, cases, sampler, out_dir, step, where)
            # Another job may have replaced the identity while these responses were generated.
            _check_unchanged(out_dir, identity)
            records.write_responses(out_dir, step, cases, responses)
            records.journal_path(out_dir, step).unlink(missing_ok=True)
            made += 1
            left = (time.monotonic() - started) / made * (len(own) - position)
            logger.info("%s: %d responses, about %.0f s left", where, len(cases) * settings.samples, left)
    if part is None:
        _finish(out_dir)


def gather(steps: Sequence[int], settings: Benchmark, cases_dir: Path, out_dir: Path) -> None:
    """Write `responses.json` for responses generated by several jobs; all of them must be there.

    Nothing is generated, and all files of the jobs are kept, so an interrupted call can be repeated.

    Raises:
        ValueError: responses are missing; the message names them.
    """
    cases = records.select_cases(definition(settings.name).load_cases(cases_dir), settings.limit)
    paths = [records.responses_path(out_dir, step) for step in sorted(steps)]
    missing = [path for path in paths if not _is_complete(path, cases, settings.samples)]
    if missing or not (out_dir / IDENTITY).is_file():
        raise ValueError(
            f"{len(missing)} of {len(paths)} response files of {out_dir.parent.name} are missing or incomplete"
            f"{f' (the first: {missing[0]})' if missing else ''}; delete {out_dir}/part*.done, and the workflow makes "
            "what is missing"
        )
    _finish(out_dir)


def _finish(out_dir: Path) -> None:
    """Write the identity of the existing responses."""
    identity, made = read_json(out_dir / IDENTITY), map(str, records.steps_made(out_dir))
    checkpoints = {step: identity["checkpoints"][step] for step in made}
    write_atomically(out_dir / RESPONSES, records.json_text({**identity, "checkpoints": checkpoints}))


def _by_request(
    settings: Benchmark, cases: Sequence[Case], sampler: Sampler, out_dir: Path, step: int, where: str
) -> list[list[Response]]:
    """Return the responses to all cases: those in the journal, and new ones, each appended to the journal at once."""
    benchmark, samples = definition(settings.name), range(settings.samples)
    if benchmark.programs is None:
        opened = contextlib.nullcontext(lambda case: one_request(benchmark.prompt(case)))
    elif settings.samples != 1:
        raise ValueError(f"benchmark.samples is {settings.samples}; {settings.name} has one trajectory a case: set 1")
    else:
        opened = benchmark.programs(cases, settings.max_steps)
    with response_journal(records.journal_path(out_dir, step)) as work, opened as program:
        progress = Progress(logger, where, len(cases) * settings.samples, len(work.done))
        session = sampler.session(settings.sampling, settings.max_context, progress.made)
        waiting = (
            ((case.id, sample), lambda case=case: program(case))
            for case in cases
            for sample in samples
            if (case.id, sample) not in work.done
        )
        for ended in run_programs(waiting, session, sampler, settings.seed):
            for asked, response in ended:
                work.add(asked, response, records.response_line(step, *asked, response))
            progress.advance(len(ended))
        return [[work.done[case.id, sample] for sample in samples] for case in cases]


def response_journal(path: Path) -> Journal[Place, Response]:
    """Return the journal of a checkpoint's responses so far, by case and sample."""

    def parse(number: int, line: str) -> tuple[Place, Response]:
        row = records.parse_row(path, number, line)
        return (row.case, row.sample), row.answer

    return Journal(path, parse)


# --- identity ---------------------------------------------------------------------------------------------------------


def response_identity(
    settings: Benchmark, cases_dir: Path, weights: Mapping[int, Mapping[str, str]], sampler: Sampler
) -> dict[str, Any]:
    """Return the identity of the responses as JSON values; scoring is not part of it.

    Args:
        weights: step -> file -> sha256, see `checkpoint_checksums`.
    """
    benchmark = definition(settings.name)
    identity = {
        "benchmark": settings.name,
        **settings.of_responses,
        "sampler": sampler.identity,  # in place of its name, which the identity includes
        "cases": records.sha256_of(benchmark.case_files(cases_dir), cases_dir),
        "versions": dict(benchmark.versions()),
        "checkpoints": {str(step): dict(weights[step]) for step in sorted(weights)},
    }
    return identity if benchmark.tools_identity is None else {**identity, "tools": benchmark.tools_identity()}


def checkpoint_checksums(
    checkpoints: Mapping[int, Path], known: Mapping[int, Mapping[str, str]]
) -> dict[int, dict[str, str]]:
    """Return file -> sha256 of the files that determine each checkpoint's responses; known ones are not recomputed."""
    sums = {}
    for step, path in checkpoints.items():
        files = {file for pattern in ("*.safetensors", *SETTINGS_FILES) for file in path.glob(pattern)}
        listed = {file.name: known[step][file.name] for file in files if file.name in known.get(step, {})}
        sums[step] = records.sha256_of([file for file in files if file.name not in listed], path) | listed
    return sums


def _begin(out_dir: Path, identity: Mapping[str, Any]) -> None:
    """Write the identity of this job's responses, merged with that of existing ones.

    Raises:
        ValueError: responses of another identity exist or are being generated here.
    """
    path = out_dir / IDENTITY
    with directory_lock(out_dir / ".begin"):  # several jobs may begin at once
        there = read_json(path) if path.is_file() else {**identity, "checkpoints": {}}
        if differing := differences(there, identity):
            raise ValueError(
                f"{path}: these responses were made with another {differing}; use the settings they were made with, "
                f"or, when no other job runs, delete {out_dir} to make them again"
            )
        if not path.is_file() and (made := records.steps_made(out_dir)):
            raise ValueError(
                f"{records.responses_path(out_dir, made[0])}: nothing says what made these responses ({IDENTITY} is "
                f"gone); delete {out_dir} to make them again"
            )
        both = {**there["checkpoints"], **identity["checkpoints"]}
        write_atomically(path, records.json_text({**identity, "checkpoints": both}))


def _check_unchanged(out_dir: Path, identity: Mapping[str, Any]) -> None:
    """Raise ValueError if an evaluation with other settings has begun in this directory since this job began."""
    path = out_dir / IDENTITY
    if not path.is_file():
        raise ValueError(
            f"{path}: was deleted while this job made responses, so another evaluation may have begun; what it has "
            "not written yet is left out; start it again"
        )
    if differing := differences(read_json(path), identity):
        raise ValueError(
            f"{path}: another job has begun this evaluation with another {differing}; what this one has not written "
            "yet is left out; start it again with those settings"
        )


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Return the differences of two identities: `seed (0 there, 1 here), sampler.device ('cuda' there, 'cpu' here)`.

    A checkpoint that only one of them has is no difference.
    """
    both = there["checkpoints"].keys() & here["checkpoints"].keys()
    before, now = (
        _flat(one | {"checkpoints": {step: one["checkpoints"][step] for step in both}}) for one in (there, here)
    )
    keys = sorted(key for key in {*before, *now} if before.get(key) != now.get(key))

    def short(value: Any) -> str:
        return "nothing" if value is None else f"{value!r:.40}"

    named = [f"{key} ({short(before.get(key))} there, {short(now.get(key))} here)" for key in keys[:MOST_NAMED]]
    return ", ".join([*named, f"{len(keys) - MOST_NAMED} more"] if len(keys) > MOST_NAMED else named)


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= _flat(inner, f"{prefix}{key}.") if isinstance(inner, Mapping) else {f"{prefix}{key}": inner}
    return flat


def _is_complete(path: Path, cases: Sequence[Case], samples: int) -> bool:
    if not path.is_file():
        return False
    try:
        records.read_responses(path, cases, samples)
    except ValueError as error:
        logger.warning("%s; made again", error)
        return False
    return True


def _check_present(checkpoints: Mapping[int, Path], out_dir: Path) -> None:
    """Raise ValueError if a checkpoint is missing. `out_dir` is results/<preset>/scores/<run>/<evaluation>."""
    name, root = out_dir.parent.name, out_dir.parents[2]
    made_by = root / "models" / name.removeprefix("base-") if name.startswith("base-") else root / "runs" / name
    for step, directory in sorted(checkpoints.items()):
        if not any(directory.glob("*.safetensors")):
            raise ValueError(
                f"{directory}: the checkpoint of step {step} of {name} is missing (no *.safetensors there); make it "
                f"again with `snakemake --force {(made_by / 'manifest.json').as_posix()}` and the profile of the first "
                "time"
            )

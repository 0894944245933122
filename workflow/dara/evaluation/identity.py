"""What made the responses below a directory, and that only such responses stand there.

While responses are made, their identity stands in `.<benchmark>.identity.unfinished.json`; it becomes
`<benchmark>.identity.json` when all of them are there. Several jobs may make the responses of some checkpoints each.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dara.config import Benchmark
from dara.evaluation.partial import partial_path
from dara.evaluation.records import Case, Response, sha256_of, write_responses
from dara.evaluation.samplers import Sampler
from dara.evaluation.score import BENCHMARKS, identity_path, responses_path
from dara.evaluation.tokenizer import SETTINGS_FILES
from dara.files import read_json, write_atomically
from dara.store import HANDOVER_SECONDS, directory_lock

# Made in one piece, in seconds, from one stream of random numbers. Their scores are kept in git, so their identities
# stay as they are.
ONE_STREAM = ("laptop_tools", "laptop_math")
MOST_NAMED = 4  # differences that an error names


def response_identity(
    benchmark: Benchmark, cases_dir: Path, weights: Mapping[int, Mapping[str, str]], sampler: Sampler
) -> dict[str, Any]:
    """What makes the responses, in values of JSON; how they are scored is no part of it.

    Args:
        weights: step -> file -> sha256, see `checksums`.
    """
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
    if hasattr(module, "tools_identity"):
        identity["tools"] = module.tools_identity()
    if benchmark.limit is not None:
        identity["limit"] = benchmark.limit
    return identity


def checksums(
    checkpoints: Mapping[int, Path], benchmark: Benchmark, known: Mapping[int, Mapping[str, str]]
) -> dict[int, dict[str, str]]:
    """File -> sha256 of what makes the responses of each checkpoint; those that are known are not computed again."""
    if benchmark.name in ONE_STREAM:
        return {step: sha256_of(path.glob("*.safetensors"), path) for step, path in checkpoints.items()}
    sums = {}
    for step, path in checkpoints.items():
        files = {file for pattern in ("*.safetensors", *SETTINGS_FILES) for file in path.glob(pattern)}
        listed = known.get(step, {})
        computed = sha256_of([file for file in files if file.name not in listed], path)
        sums[step] = computed | {file.name: listed[file.name] for file in files if file.name in listed}
    return sums


def unfinished_path(out_dir: Path, name: str) -> Path:
    """Where the identity of a benchmark is while its responses are made."""
    return out_dir / f".{name}.identity.unfinished.json"


def with_finished(identity: Mapping[str, Any], out_dir: Path) -> dict[str, Any]:
    """The identity with the checkpoints too whose responses are finished already: an evaluation can be added to."""
    final = identity_path(out_dir, identity["benchmark"])
    finished = read_json(final)["checkpoints"] if final.is_file() else {}
    return {**identity, "checkpoints": {**finished, **identity["checkpoints"]}}


def shared(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two identities without the checkpoints that only one of them has: those differ from nothing."""
    both = one["checkpoints"].keys() & other["checkpoints"].keys()
    first, second = (
        {**each, "checkpoints": {step: each["checkpoints"][step] for step in both}} for each in (one, other)
    )
    return first, second


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Where two identities differ: `seed (0 there, 1 here), sampler.device ('cuda' there, 'cpu' here)`."""
    before, now = _flat(there), _flat(here)
    keys = sorted(key for key in {*before, *now} if before.get(key) != now.get(key))
    named = [f"{key} ({_short(before.get(key))} there, {_short(now.get(key))} here)" for key in keys[:MOST_NAMED]]
    more = [f"{len(keys) - MOST_NAMED} more"] if len(keys) > MOST_NAMED else []
    return ", ".join(named + more)


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= _flat(inner, f"{prefix}{key}.") if isinstance(inner, Mapping) else {f"{prefix}{key}": inner}
    return flat


def _short(value: Any) -> str:
    return "nothing" if value is None else f"{value!r:.40}"


@dataclass(frozen=True)
class Claim:
    """Says what the responses of a benchmark below a directory are, and keeps others away.

    Attributes:
        steps: the checkpoints that this job makes beside jobs that make the others; None: it makes all.
    """

    out_dir: Path
    name: str
    identity: Mapping[str, Any]
    steps: Collection[int] | None = None

    def begin(self) -> bool:
        """Put down what the responses are going to be. Returns whether those that are already there are the same.

        Responses without an identity, and begun checkpoints of another, are deleted with their scores: once this
        identity stands there, nothing tells them from ours.

        Raises:
            ValueError: finished responses of another identity are there, or other jobs are making such.
        """
        with self._alone():
            same = self._is_same()
            if not same:
                self._drop_responses()
            text = json.dumps(self.identity, indent=2, sort_keys=True) + "\n"
            write_atomically(unfinished_path(self.out_dir, self.name), text.encode())
        return same

    def check(self) -> None:
        """ValueError when another job has put down another identity since, whose responses ours would mix with."""
        work = unfinished_path(self.out_dir, self.name)
        if not work.is_file():
            raise ValueError(
                f"{work}: was deleted while this job made responses, so another evaluation may have begun; what it has "
                "not written yet is left out; start it again"
            )
        there = read_json(work)
        if there != self.identity:
            raise ValueError(
                f"{work}: another job has begun this evaluation with another {differences(there, self.identity)}; what "
                "this one has not written yet is left out; start it again with those settings"
            )

    def write(self, step: int, cases: Sequence[Case], responses: Sequence[Sequence[Response]]) -> None:
        """Write the finished responses of a checkpoint. Raises ValueError as `check` does."""
        path = responses_path(self.out_dir, step, self.name)
        with self._alone():
            self.check()
            write_responses(path, cases, responses)
        partial_path(path).unlink(missing_ok=True)

    def finish(self) -> None:
        """All responses are there: the identity stands for them from now on. Raises ValueError as `check` does."""
        self.check()
        unfinished_path(self.out_dir, self.name).replace(identity_path(self.out_dir, self.name))

    def _alone(self) -> contextlib.AbstractContextManager[None]:
        """Jobs that share a directory must not take each other's first responses for leftovers."""
        if self.steps is None:
            return contextlib.nullcontext()
        return directory_lock(self.out_dir / f".{self.name}.begin", seconds=HANDOVER_SECONDS)

    def _is_same(self) -> bool:
        final, work = identity_path(self.out_dir, self.name), unfinished_path(self.out_dir, self.name)
        if final.is_file():
            existing, own = shared(read_json(final), self.identity)
            if existing != own:
                raise ValueError(
                    f"{final}: these responses were made with another {differences(existing, own)}; "
                    f"delete {self.out_dir} to make them again, or use the settings they were made with"
                )
            return True
        if not work.is_file():
            return False
        existing, own = shared(read_json(work), self.identity)
        kept = next(self._not_to_lose(), None)
        if existing != own and kept is not None:
            raise ValueError(
                f"{work}: this evaluation has responses already, or other parts make them, with another "
                f"{differences(existing, own)} (the first: {kept}); use the same settings, or, when no other "
                f"job runs, delete {work} and {self.out_dir}/{self.name}.part*.done to make all responses again"
            )
        return existing == own

    def _not_to_lose(self) -> Iterator[Path]:
        """What other parts have begun; for a job that makes all checkpoints, those that are finished."""
        ours = {f"step_{step}" for step in self.steps or ()}
        for path in self._responses():
            finished = path.name == f"{self.name}.jsonl.gz"
            if finished if self.steps is None else path.parent.name not in ours:
                yield path

    def _responses(self) -> Iterator[Path]:
        """Responses, finished or not."""
        finished = Path(f"{self.name}.jsonl.gz")
        for name in (finished.name, partial_path(finished).name):
            yield from sorted(self.out_dir.glob(f"step_*/{name}"))

    def _drop_responses(self) -> None:
        scores = (f"step_*/{self.name}.csv", f"step_*/.{self.name}.scores.partial", f"{self.name}.scor*.json")
        for path in [*self._responses(), *(path for pattern in scores for path in self.out_dir.glob(pattern))]:
            path.unlink()

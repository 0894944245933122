"""The life and the files of a run, the same for every engine: locked, resumed if interrupted, trained, published.

The working directory of a run has `step_<N>/` (complete as soon as they have that name), metrics.jsonl (appended each
step), rewards.npz, samples.jsonl.gz and timings.json (rewritten before each checkpoint gets its name, so they are never
behind the newest checkpoint), and trackers/, a copy of the metrics for TensorBoard and Weights & Biases.
"""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
import logging
import logging.handlers
import os
import platform
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from dara.files import GitError, commit, gunzip, remove, sha256, write_atomically
from dara.runs import check_source, run_id
from dara.specs import RunSpec
from dara.store import HANDOVER_SECONDS, MANIFEST, directory_lock, record_owner, spec_sha256, write_manifest
from dara.training.stopping import Deadline, Divergence, Metrics, OutOfTime

log = logging.getLogger(__name__)

STARTS = "starts.json"
RESUME_ONLY = ("optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "method_state.pt")
"""Files of a checkpoint that are needed only to resume; only the newest checkpoint keeps them."""
SUMS = "sha256.json"  # in a checkpoint: file -> sha256
TRACKERS = ("tensorboard", "wandb")  # the trackers and their packages
MODEL_FILES = {".json", ".safetensors", ".jinja", ".txt", ".model"}
LOG_BYTES = 10_000_000  # of train.log before a new one is started; one older part is kept


@dataclass(frozen=True)
class RunInputs:
    """Inputs of a training besides its specification; none of them changes the run's results."""

    data_dir: Path  # prepared data (train.jsonl)
    model_dir: Path  # checkpoint of the base model, with its tokenizer
    scratch: Path  # work is done in `<scratch>/<run_id>/`, by one process at a time
    out: Path  # directory into which the results are published
    methods_dir: Path | None = None  # to which paths of a user's own method files are relative
    model_sums: Mapping[str, str] = field(default_factory=dict)  # file of the base model -> sha256, from its manifest
    trackers: tuple[str, ...] = ()  # that get the metrics besides the run's files: tensorboard, wandb
    deadline: Deadline | None = None  # time at which the batch system ends this job


@dataclass
class RunRecord:
    """The results of a run so far, step by step; entry i belongs to step i + 1 (samples carry their step)."""

    metrics: list[dict[str, float | int]] = field(default_factory=list)
    rewards: list[np.ndarray] = field(default_factory=list)  # (B, G, K) float64, raw
    lengths: list[np.ndarray] = field(default_factory=list)  # (B, G) int, tokens with the end token
    samples: list[dict[str, Any]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # wall-clock seconds of each step, checkpointing included
    startups: list[float] = field(default_factory=list)  # seconds from start to the first step, one for each start

    @property
    def steps(self) -> int:
        """Return the number of steps recorded so far."""
        return len(self.metrics)


@dataclass(frozen=True)
class ResumePoint:
    """A run that is about to be trained from step `record.steps` on."""

    spec: RunSpec
    inputs: RunInputs
    rows: list[dict[str, str]]  # the training prompts, each once
    directory: Path
    record: RunRecord
    started: float  # time.monotonic() at the start of the process's work


TrainSteps = Callable[[ResumePoint], tuple[RunRecord, Divergence | None]]
"""Function that makes the missing steps. It returns the record with all steps, and the divergence of the run (None if
it did not diverge). It raises OutOfTime if the next job must continue."""


def checkpoints(directory: Path) -> dict[int, Path]:
    """Return the complete checkpoints by step, ascending."""
    named = {path.name.removeprefix("step_"): path for path in directory.glob("step_*") if path.is_dir()}
    return dict(sorted((int(step), path) for step, path in named.items() if step.isdecimal()))


def last_resumable(directory: Path) -> int:
    """Return the newest step from which the run can resume, 0 if there is none.

    A checkpoint that has been replaced as the newest lacks the files for resuming, and without them TRL would silently
    begin at its step 1 with these weights.
    """
    complete = checkpoints(directory).items()
    return max((step for step, path in complete if (path / "trainer_state.json").is_file()), default=0)


def train_run(
    spec: RunSpec,
    train_steps: TrainSteps,
    inputs: RunInputs,
    *,
    libraries: Sequence[str],
    last_resumable: Callable[[Path], int] = last_resumable,
    guard: Callable[[Path], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Train the run of `spec` and publish it, from the last complete checkpoint if there is one.

    libraries: those whose versions the manifest records. last_resumable: returns the newest step of a run's directory
    from which the engine can resume. guard: context manager of the run's directory, entered once the lock is held and
    left at the end. Divergence is an outcome, written in the manifest, not an error.

    Raises ValueError for unusable data, a reward that is not a number, or inputs that changed since the run began,
    LockedError if another process trains this run, and OutOfTime if it stops before the deadline.
    """
    started, directory = time.monotonic(), inputs.scratch / run_id(spec)
    check_source(spec, inputs.methods_dir)
    with (
        directory_lock(directory, seconds=HANDOVER_SECONDS),
        _logging_into(directory / "train.log"),
        guard(directory),
    ):
        record_owner(directory, inputs.out)
        remove_unfinished(directory)
        sums = checked_inputs(inputs, directory)
        done, divergence = last_resumable(directory), None
        record = load(directory, done)
        if done == spec.steps:
            log.info("%s is already trained in %s: published again", run_id(spec), directory)
        else:
            rows = read_rows(inputs.data_dir / "train.jsonl", spec)
            record_start(directory, done, libraries)
            try:
                record, divergence = train_steps(ResumePoint(spec, inputs, rows, directory, record, started))
            except OutOfTime as stop:
                log.warning("%s | %s", title(spec), stop)
                raise
            except Exception as error:
                reason = (str(error).splitlines() or [""])[0]
                log.error("%s | stopped by %s: %s", title(spec), type(error).__name__, reason)
                raise
            if divergence:
                log.warning("%s | diverged in step %d: %s", title(spec), divergence.step, divergence.reason)
        publish(inputs.out, directory, spec, record, inputs=sums, divergence=divergence)


@contextmanager
def _logging_into(path: Path) -> Iterator[None]:
    """Append the log of a training to a file, and show it on stderr if the program has not set up logging."""
    logger = logging.getLogger("dara.training")
    file = logging.handlers.RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8")
    file.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    handlers = [file] if logger.hasHandlers() else [file, logging.StreamHandler(sys.stderr)]
    before = logger.level
    logger.setLevel(logging.INFO)
    for handler in handlers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        logger.setLevel(before)
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()


def title(spec: RunSpec) -> str:
    """Return a run's name in progress lines."""
    return f"{spec.task} {spec.method.name} G={spec.group_size} seed {spec.seed}"


def checked_inputs(inputs: RunInputs, directory: Path) -> dict[str, str]:
    """Return, and record in `directory`, checksums of the prompts and of the base model's files.

    Raises ValueError for a base model that is incomplete or differs from its manifest, and if the checkpoints in
    `directory` were trained on other inputs.
    """
    files = sorted(path for path in inputs.model_dir.iterdir() if path.suffix in MODEL_FILES)
    if not any(path.suffix == ".safetensors" for path in files):
        raise ValueError(f"{inputs.model_dir} holds no *.safetensors: it is no complete checkpoint of a base model")
    sums = {path.name: sha256(path) for path in files}
    changed = sorted(name for name, expected in inputs.model_sums.items() if sums.get(name, expected) != expected)
    missing = sorted(name for name in inputs.model_sums if not (inputs.model_dir / name).is_file())
    if changed or missing:
        raise ValueError(
            f"{inputs.model_dir} is not the base model that its manifest names: another or no "
            f"{', '.join([*changed, *missing])}; delete that manifest to make the model again"
        )
    sums = {"train.jsonl": sha256(inputs.data_dir / "train.jsonl"), **sums}
    path = directory / "inputs.json"
    before = json.loads(path.read_bytes()) if path.is_file() and checkpoints(directory) else sums
    changed = sorted(name for name in {*before, *sums} if before.get(name) != sums.get(name))
    if changed:
        raise ValueError(
            f"{directory} was begun with another {', '.join(changed)}; delete that directory to train from the new one"
        )
    write_manifest(path, sums)
    return sums


def read_rows(path: Path, spec: RunSpec) -> list[dict[str, str]]:
    """Return the training prompts {"id", "prompt", "reference"}; ValueError if there are too few for a step."""
    rows = [json.loads(line) for line in path.read_bytes().splitlines()]  # bytes, not text: a text may contain U+2028
    for number, row in enumerate(rows, 1):
        if set(row) != {"id", "prompt", "reference"}:
            raise ValueError(f"{path}, line {number} has the keys {sorted(row)}; it must have id, prompt, reference")
    distinct = spec.filter.candidate_prompts if spec.filter else spec.prompts_per_step
    if len(rows) < distinct:
        raise ValueError(f"{path} has {len(rows)} rows; a step needs {distinct} different ones")
    return rows


def check_trackers(names: Sequence[str]) -> None:
    """Raise ValueError unless each name is a tracker and its package is installed."""
    for name in names:
        if name not in TRACKERS:
            raise ValueError(f"unknown tracker {name!r}: the trackers are {', '.join(TRACKERS)}")
        if importlib.util.find_spec(name) is None:
            raise ValueError(
                f"the tracker {name} needs the package {name}, which is not installed in the environment "
                f"that trains: install it there (pip install {name}), or leave {name} out of trackers"
            )


def remove_unfinished(directory: Path) -> None:
    """Delete the incomplete files of an interrupted process: checkpoints without final name, partial files."""
    for path in [*directory.glob("checkpoint-*"), *directory.glob(".*.[0-9]*")]:
        remove(path)


def complete_checkpoint(directory: Path, written: Path, step: int) -> None:
    """Give a fully written checkpoint its name, step_<N>, and delete resume-only files from older ones.

    Its checksums are written now: computing those of all checkpoints at the end would leave GPUs idle for many minutes.
    """
    write_manifest(written / SUMS, _sums(written))
    final = directory / f"step_{step}"
    remove(final)  # left over from a run that was cut back to an older step
    os.replace(written, final)
    for older, path in checkpoints(directory).items():
        if older < step and not path.is_symlink():  # a user keeps it elsewhere
            for name in RESUME_ONLY:
                (path / name).unlink(missing_ok=True)


def _sums(checkpoint: Path) -> dict[str, str]:
    files = sorted(path for path in checkpoint.iterdir() if path.name not in (*RESUME_ONLY, SUMS))
    return {path.name: sha256(path) for path in files}


def jsonl(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Return one compact JSON object per line; NaN is an error."""
    return "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows).encode()


def append_metrics(directory: Path, line: Metrics) -> None:
    """Append a step to metrics.jsonl."""
    with (directory / "metrics.jsonl").open("ab") as file:
        file.write(jsonl([line]))


def save(directory: Path, record: RunRecord, spec: RunSpec) -> None:
    """Write everything but the metrics, before a checkpoint gets its name, and before publishing.

    rewards.npz has `rewards` float64 (steps, B, G, K), `lengths` int32 (steps, B, G), `names` (K,).
    """
    shape, buffer = (record.steps, spec.prompts_per_step, spec.group_size), io.BytesIO()
    np.savez_compressed(
        buffer,
        rewards=np.asarray(record.rewards, dtype=np.float64).reshape(*shape, len(spec.rewards)),
        lengths=np.asarray(record.lengths, dtype=np.int32).reshape(shape),
        names=np.asarray(spec.rewards, dtype=np.str_),
    )
    write_atomically(directory / "rewards.npz", buffer.getvalue())
    write_atomically(directory / "samples.jsonl.gz", gzip.compress(jsonl(record.samples), mtime=0))
    timings = {"seconds_per_step": record.seconds, "seconds_to_start": record.startups}
    write_manifest(directory / "timings.json", timings)


def load(directory: Path, step: int) -> RunRecord:
    """Return the record of an interrupted run, cut back to `step`, and cut metrics.jsonl on disk back with it.

    Raises ValueError if a file lacks one of these steps.
    """
    path = directory / "metrics.jsonl"
    if step == 0:
        path.unlink(missing_ok=True)
        return RunRecord()
    metrics = [json.loads(line) for line in path.read_bytes().splitlines()[:step]]  # a later line can be incomplete
    with np.load(directory / "rewards.npz", allow_pickle=False) as arrays:
        rewards, lengths = list(arrays["rewards"][:step]), list(arrays["lengths"][:step])
    samples = [json.loads(line) for line in gunzip(directory / "samples.jsonl.gz").splitlines()]
    timings = json.loads((directory / "timings.json").read_bytes())
    if [line["step"] for line in metrics] != list(range(1, step + 1)) or len(rewards) != step:
        raise ValueError(
            f"{directory} has a checkpoint of step {step} but not every step up to it; delete it to start again"
        )
    write_atomically(path, jsonl(metrics))
    kept = [row for row in samples if row["step"] <= step]
    return RunRecord(metrics, rewards, lengths, kept, timings["seconds_per_step"][:step], timings["seconds_to_start"])


def record_start(directory: Path, step: int, libraries: Iterable[str]) -> None:
    """Record versions of `libraries`, git commit and machine at each start: later code changes do not alter them.

    step: the last completed step, 0 at the beginning.
    """
    start = {
        "from_step": step,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in libraries}},
    }
    try:
        start["git_commit"] = commit(Path(__file__).parent)
    except GitError as error:
        log.warning("%s", error)
        start |= {"git_commit": None, "git_error": str(error)}
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.is_file() else []
    start["machine"] = {
        "host": socket.gethostname(),
        "system": platform.platform(),
        "processor": names[0].split(":", 1)[1].strip() if names else platform.machine(),
        "cpus": os.cpu_count(),
        "visible_gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }
    path = directory / STARTS
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() and step else []
    write_atomically(path, json.dumps([*before, start], indent=2) + "\n")


def publish(
    out: Path,
    directory: Path,
    spec: RunSpec,
    record: RunRecord,
    *,
    inputs: Mapping[str, str],
    divergence: Divergence | None = None,
) -> None:
    """Write the results of a finished run into `out`, manifest.json last and atomically.

    inputs: checksums. divergence: of the run, whose files then contain the complete steps before it.
    """
    out.mkdir(parents=True, exist_ok=True)
    (out / MANIFEST).unlink(missing_ok=True)
    write_atomically(out / "metrics.jsonl", jsonl(record.metrics))
    save(out, record, spec)
    outcome = {"outcome": "completed"}
    if divergence:
        outcome = {"outcome": "diverged", "diverged_at": divergence.step, "reason": divergence.reason}
    saved = {}
    for step, path in checkpoints(directory).items():
        if step <= record.steps:
            sums = json.loads((path / SUMS).read_bytes()) if (path / SUMS).is_file() else _sums(path)
            saved[str(step)] = {"directory": path.as_posix(), "sha256": sums}
    starts = json.loads((directory / STARTS).read_text(encoding="utf-8"))
    manifest = {
        "run_id": run_id(spec),
        "spec_sha256": spec_sha256(spec),
        **outcome,
        "steps": record.steps,
        "checkpoints": saved,
        "inputs": dict(inputs),
        **{key: value for key, value in starts[0].items() if key != "from_step"},
        "starts": starts,
        # Public data has no seed.
        "seeds": {"data": getattr(spec.data, "seed", None), "trainer": spec.seed, "sampler": spec.rollout_seed},
    }
    write_manifest(out / MANIFEST, manifest)

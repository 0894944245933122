"""The life of a run, the same for every engine: locked, resumed if it was interrupted, trained, published."""

from __future__ import annotations

import itertools
import json
import logging
import logging.handlers
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dara.files import sha256
from dara.runs import check_source, run_id
from dara.specs import RunSpec
from dara.store import HANDOVER_SECONDS, directory_lock, record_owner
from dara.training import run_files
from dara.training.run_files import RunRecord
from dara.training.stopping import Deadline, Divergence, OutOfTime

log = logging.getLogger(__name__)

MODEL_FILES = {".json", ".safetensors", ".jinja", ".txt", ".model"}
LOG_BYTES = 10_000_000  # of train.log before a new one is started; one older part is kept


@dataclass(frozen=True)
class RunInputs:
    """Inputs of a training besides its specification; none of them changes the run's results."""

    data_dir: Path
    """Prepared data (train.jsonl)."""
    model_dir: Path
    """Checkpoint of the base model, with its tokenizer."""
    scratch: Path
    """Work is done in `<scratch>/<run_id>/`, by one process at a time."""
    out: Path
    """Directory into which the results are published."""
    methods_dir: Path | None = None
    """Directory to which paths of a user's own method files are relative: that of config/methods.yaml."""
    model_sums: Mapping[str, str] = field(default_factory=dict)
    """File of the base model -> sha256, from its manifest."""
    trackers: tuple[str, ...] = ()
    """Trackers that get the metrics besides the run's files: tensorboard, wandb."""
    deadline: Deadline | None = None
    """Time at which the batch system ends this job."""


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


def train_run(
    spec: RunSpec,
    train_steps: TrainSteps,
    inputs: RunInputs,
    *,
    libraries: Sequence[str],
    last_resumable: Callable[[Path], int] = run_files.last_resumable,
    guard: Callable[[Path], AbstractContextManager[None]] = lambda directory: nullcontext(),
) -> None:
    """Train the run of `spec` and publish it, from the last complete checkpoint if there is one.

    libraries: those whose versions the manifest records. last_resumable: returns the newest step of a run's directory
    from which the engine can resume. guard: context manager of the run's directory, entered once the lock is held and
    left at the end. Divergence is an outcome, written in the manifest, not an error.

    Raises ValueError for unusable data, a reward that is not a number, or inputs that changed since the run began,
    LockedError if another process trains this run, and OutOfTime if it stops before the deadline.
    """
    started = time.monotonic()
    check_source(spec, inputs.methods_dir)
    directory = inputs.scratch / run_id(spec)
    with (
        directory_lock(directory, seconds=HANDOVER_SECONDS),
        _logging_into(directory / "train.log"),
        guard(directory),
    ):
        record_owner(directory, inputs.out)
        run_files.remove_unfinished(directory)
        sums = input_checksums(inputs)
        run_files.check_inputs(directory, sums)
        done = last_resumable(directory)
        record = run_files.load(directory, done)
        divergence = None
        if done == spec.steps:
            log.info("%s is already trained in %s: published again", run_id(spec), directory)
        else:
            rows = read_rows(inputs.data_dir / "train.jsonl", spec)
            run_files.record_start(directory, done, libraries)
            record, divergence = _trained(train_steps, ResumePoint(spec, inputs, rows, directory, record, started))
        run_files.publish(inputs.out, directory, spec, record, inputs=sums, divergence=divergence)


def _trained(train_steps: TrainSteps, point: ResumePoint) -> tuple[RunRecord, Divergence | None]:
    """Return the result of the engine; log how it ends."""
    try:
        record, divergence = train_steps(point)
    except OutOfTime as stop:
        log.warning("%s | %s", title(point.spec), stop)
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        log.error("%s | stopped by %s: %s", title(point.spec), type(error).__name__, reason)
        raise
    if divergence:
        log.warning("%s | diverged in step %d: %s", title(point.spec), divergence.step, divergence.reason)
    return record, divergence


def title(spec: RunSpec) -> str:
    """Return a run's name in progress lines."""
    return f"{spec.task} {spec.method.name} G={spec.group_size} seed {spec.seed}"


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


def prompt_positions(rows: int, seed: int) -> Iterator[int]:
    """Yield indices of rows without end: a random permutation, and a new one whenever all rows are used.

    The order depends on `seed` and not on the method, so that paired runs see the same prompts.
    """
    rng = np.random.default_rng(seed)
    while True:
        yield from rng.permutation(rows).tolist()


def training_rows(rows: list[dict[str, str]], spec: RunSpec) -> list[dict[str, str]]:
    """Return the prompts of all steps of a run without a filter, in order: steps x prompts_per_step rows."""
    needed = spec.steps * spec.prompts_per_step
    return [rows[i] for i in itertools.islice(prompt_positions(len(rows), spec.seed), needed)]


def input_checksums(inputs: RunInputs) -> dict[str, str]:
    """Return checksums of a run's inputs: the prompts; weights, tokenizer and settings of the base model.

    Raises ValueError for a base model that is incomplete or differs from its manifest.
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
    return {"train.jsonl": sha256(inputs.data_dir / "train.jsonl"), **sums}


@contextmanager
def _logging_into(path: Path) -> Iterator[None]:
    """Append the log of a training to a file, and show it on stderr if the program has not set up logging."""
    logger = logging.getLogger("dara.training")
    handlers: list[logging.Handler] = [
        logging.handlers.RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8")
    ]
    handlers[0].setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    if not logger.hasHandlers():
        handlers.append(logging.StreamHandler(sys.stderr))
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

"""The life of a run, whatever engine trains it: lock it, resume it where it was interrupted, publish its results."""

from __future__ import annotations

import json
import logging
import logging.handlers
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from dara.config import RunSpec
from dara.files import sha256
from dara.locking import HANDOVER_SECONDS, directory_lock
from dara.runs import check_source, run_id
from dara.training import run_files
from dara.training.deadline import Deadline, OutOfTime
from dara.training.divergence import Divergence
from dara.training.run_files import RunRecord

log = logging.getLogger(__name__)

LOG_BYTES = 10_000_000  # of train.log before it starts anew; one older part is kept


@dataclass(frozen=True)
class Start:
    """A run that is about to be trained from `record.steps` on."""

    spec: RunSpec
    rows: list[dict[str, str]]  # the training prompts, each once
    model_dir: Path
    directory: Path
    record: RunRecord
    methods_dir: Path | None
    started: float  # time.monotonic() at the start of the process's work
    deadline: Deadline | None = None  # when the batch system ends this job


class Steps(Protocol):
    """An engine: makes the steps that are missing."""

    def __call__(self, start: Start) -> tuple[RunRecord, Divergence | None]:
        """The record with all steps, and how the run diverged (None: it did not). OutOfTime: the next job continues."""


def train_run(
    spec: RunSpec,
    steps: Steps,
    *,
    data_dir: Path,
    model_dir: Path,
    scratch: Path,
    out: Path,
    methods_dir: Path | None,
    libraries: Sequence[str],
    deadline: Deadline | None = None,
    last_resumable: Callable[[Path], int] = run_files.last_resumable,
    guard: Callable[[Path], AbstractContextManager[None]] = lambda directory: nullcontext(),
) -> None:
    """Train the run of `spec` and publish it into `out`, from the last complete checkpoint if there is one.

    data_dir: prepared data (train.jsonl). model_dir: checkpoint of the base model with its tokenizer. scratch: work
    happens in `<scratch>/<run_id>/`, one process at a time. methods_dir: where a user's own method files are relative
    to (the directory of config/methods.yaml). libraries: whose versions belong in the manifest. deadline: when
    the batch system ends this job. last_resumable: the
    newest step of a run's directory that the engine can resume from. guard: entered with the run's directory once the
    lock is held, left when all is done. A diverging run is an outcome, written in the manifest, not an error.

    Raises ValueError for unusable data, a reward that is not a number, or inputs that changed under a begun run,
    LockedError if another process trains this run, and OutOfTime where it stops before the deadline.
    """
    started = time.monotonic()
    check_source(spec, methods_dir)
    directory = scratch / run_id(spec)
    with (
        directory_lock(directory, seconds=HANDOVER_SECONDS),
        _logging_into(directory / "train.log"),
        guard(directory),
    ):
        run_files.remove_unfinished(directory)
        inputs = input_checksums(data_dir, model_dir)
        run_files.check_inputs(directory, inputs)
        done = last_resumable(directory)
        record = run_files.load(directory, done)
        divergence = None
        if done == spec.steps:
            log.info("%s is already trained in %s: published again", run_id(spec), directory)
        else:
            rows = read_rows(data_dir / "train.jsonl", spec)
            run_files.record_start(directory, done, libraries)
            start = Start(spec, rows, model_dir, directory, record, methods_dir, started, deadline)
            record, divergence = _trained(steps, start)
        run_files.publish(out, directory, spec, record, inputs=inputs, divergence=divergence)


def _trained(steps: Steps, start: Start) -> tuple[RunRecord, Divergence | None]:
    """What the engine makes; how it ends stands in the run's log too."""
    try:
        record, divergence = steps(start)
    except OutOfTime as stop:
        log.warning("%s | %s", title(start.spec), stop)
        raise
    if divergence:
        log.warning("%s | diverged in step %d: %s", title(start.spec), divergence.step, divergence.reason)
    return record, divergence


def title(spec: RunSpec) -> str:
    """A run's name in progress lines."""
    return f"{spec.task} {spec.method.name} G={spec.group_size} seed {spec.seed}"


def read_rows(path: Path, spec: RunSpec) -> list[dict[str, str]]:
    """The training prompts {"id", "prompt", "reference"}; ValueError unless a step can have different ones."""
    rows = [json.loads(line) for line in path.read_bytes().splitlines()]  # of bytes: a text may hold U+2028
    for number, row in enumerate(rows, 1):
        if set(row) != {"id", "prompt", "reference"}:
            raise ValueError(f"{path}, line {number} has the keys {sorted(row)}; it must have id, prompt, reference")
    distinct = spec.filter.candidate_prompts if spec.filter else spec.prompts_per_step
    if len(rows) < distinct:
        raise ValueError(f"{path} has {len(rows)} rows; a step needs {distinct} different ones")
    return rows


def prompt_positions(rows: int, seed: int) -> Iterator[int]:
    """Indices of rows without end: a random permutation, and a new one each time all rows are used up.

    It depends on `seed` and not on the method, so that paired runs see the same prompts.
    """
    rng = np.random.default_rng(seed)
    while True:
        yield from rng.permutation(rows).tolist()


def input_checksums(data_dir: Path, model_dir: Path) -> dict[str, str]:
    """Checksums of what a run trains on: the prompts and every file of the base model."""
    files = sorted(path for path in model_dir.iterdir() if path.suffix in {".json", ".safetensors", ".jinja"})
    if not any(path.suffix == ".safetensors" for path in files):
        raise ValueError(f"{model_dir} holds no *.safetensors: it is no complete checkpoint of a base model")
    return {path.name: sha256(path) for path in [data_dir / "train.jsonl", *files]}


@contextmanager
def _logging_into(path: Path) -> Iterator[None]:
    """Append what training logs to a file, and show it on stderr where the program has set up no logging."""
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

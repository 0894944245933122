"""The TRL engine: train a run, resume it where it was interrupted, publish its results."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from dara.config import RunSpec
from dara.files import sha256
from dara.locking import HANDOVER_SECONDS, directory_lock
from dara.runs import check_source, run_id
from dara.training import run_files

log = logging.getLogger(__name__)

LIBRARIES = ("torch", "transformers", "trl", "numpy")


def train(
    spec: RunSpec, *, data_dir: Path, model_dir: Path, scratch: Path, out: Path, methods_dir: Path | None = None
) -> None:
    """Train the run of `spec` and publish it into `out`, from the last complete checkpoint if there is one.

    data_dir: prepared data (train.jsonl). model_dir: checkpoint of the base model with its tokenizer. scratch: work
    happens in `<scratch>/<run_id>/`, one process at a time. methods_dir: where a user's own method files are relative
    to (the directory of config/methods.yaml). A diverging run is an outcome, written in the manifest, not an error.

    Raises ValueError for unusable data, a reward that is not a number, or inputs that changed under a begun run, and
    LockedError if another process trains this run.
    """
    started = time.monotonic()
    check_source(spec, methods_dir)
    directory = scratch / run_id(spec)
    with directory_lock(directory, seconds=HANDOVER_SECONDS), _logging_into(directory / "train.log"):
        run_files.remove_unfinished(directory)
        inputs = input_checksums(data_dir, model_dir)
        run_files.check_inputs(directory, inputs)
        done = run_files.last_resumable(directory)
        record = run_files.load(directory, done)
        diverged_at = None
        if done == spec.steps:
            log.info("%s is already trained in %s: published again", run_id(spec), directory)
        if done < spec.steps:
            # Imported here: it takes seconds, in which the parent is watched already, and publishing needs none of it.
            from dara.training.trainer import run_steps

            run_files.record_start(directory, done, LIBRARIES)
            rows = training_rows(data_dir / "train.jsonl", spec)
            diverged_at = run_steps(spec, rows, model_dir, directory, record, methods_dir, started)
        run_files.publish(out, directory, spec, record, inputs=inputs, diverged_at=diverged_at)


def training_rows(path: Path, spec: RunSpec) -> list[dict[str, str]]:
    """The prompts of all steps in their order, steps x prompts_per_step rows {"id", "prompt", "reference"}."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for number, row in enumerate(rows, 1):
        if set(row) != {"id", "prompt", "reference"}:
            raise ValueError(f"{path}, line {number} has the keys {sorted(row)}; it must have id, prompt, reference")
    if len(rows) < spec.prompts_per_step:
        raise ValueError(f"{path} has {len(rows)} rows; a step needs {spec.prompts_per_step} different ones")
    return [rows[i] for i in prompt_order(len(rows), spec.steps * spec.prompts_per_step, spec.seed)]


def prompt_order(rows: int, needed: int, seed: int) -> np.ndarray:
    """Indices (needed,) of rows: a random permutation, and a new one each time all rows are used up.

    It depends on `seed` and not on the method, so that paired runs see the same prompts.
    """
    rng = np.random.default_rng(seed)
    rounds = -(-needed // rows)
    return np.concatenate([rng.permutation(rows) for _ in range(rounds)])[:needed]


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
    handlers: list[logging.Handler] = [logging.FileHandler(path, encoding="utf-8")]
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

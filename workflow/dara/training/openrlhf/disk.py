"""How much disk a run will need, known before it starts."""

from __future__ import annotations

import json
import logging
import math
import shutil
from pathlib import Path

from dara.specs import RunSpec

log = logging.getLogger(__name__)

BYTES = {"float32": 4, "bfloat16": 2}
OPTIMIZER_BYTES = 12  # a parameter: master weight and Adam's two moments, float32
MARGIN = 1.05  # indices, tokenizers, the other files of a run


def parameters(model_dir: Path) -> int:
    """Number of parameters of a checkpoint, from the headers of its *.safetensors."""
    return sum(_elements(path) for path in sorted(model_dir.glob("*.safetensors")))


def needed_bytes(spec: RunSpec, n_parameters: int, done: int) -> int:
    """Bytes that a run still writes after step `done`.

    A checkpoint of the policy at each checkpoint step that is left, and two states of DeepSpeed (weights and
    optimiser), of which one is there already if the run is resumed: a state is deleted when its successor is complete.
    """
    weights = BYTES[spec.precision] * n_parameters
    states = 1 if done else 2
    left = sum(step > done for step in spec.checkpoint_steps)
    return math.ceil(MARGIN * (left * weights + states * (weights + OPTIMIZER_BYTES * n_parameters)))


def check_disk(spec: RunSpec, model_dir: Path, directory: Path, done: int) -> None:
    """ValueError if the file system of `directory` has less room than the run will need."""
    needed = needed_bytes(spec, parameters(model_dir), done)
    free = shutil.disk_usage(directory).free
    if needed > free:
        left = sum(step > done for step in spec.checkpoint_steps)
        raise ValueError(
            f"the run will write about {needed / 1e9:.1f} GB into {directory} ({left} checkpoints and the optimiser's "
            f"state), and {free / 1e9:.1f} GB are free; make room, or set scratch to a larger file system"
        )
    log.info("up to %.1f GB more will be written into %s, where %.1f GB are free", needed / 1e9, directory, free / 1e9)


def _elements(path: Path) -> int:
    """Elements of the tensors of a safetensors file, whose header says them: 8 bytes of length, then JSON."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")

"""The files of a run, the same for every engine: written each step, cut back on resume, published at the end.

In the working directory of a run stand `step_<N>/` (complete as soon as they have that name), metrics.jsonl (appended
each step), rewards.npz, samples.jsonl.gz and timings.json (rewritten before each checkpoint gets its name, so they are
never behind the newest checkpoint).
"""

from __future__ import annotations

import gzip
import io
import json
import logging
import os
import platform
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from dara.config import RunSpec
from dara.files import gunzip, remove, sha256, write_atomically
from dara.git import GitError
from dara.git import commit as git_commit
from dara.runs import run_id
from dara.store import spec_sha256
from dara.training.divergence import Divergence

log = logging.getLogger(__name__)

STARTS = "starts.json"
RESUME_ONLY = ("optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "method_state.pt")
"""What a checkpoint holds to resume from, and only the newest keeps."""
SUMS = "sha256.json"
"""File -> sha256 of a checkpoint, in it."""


@dataclass
class RunRecord:
    """What a run has produced so far, step by step; entry i belongs to step i + 1 (samples carry their step)."""

    metrics: list[dict[str, float | int]] = field(default_factory=list)
    rewards: list[np.ndarray] = field(default_factory=list)  # (B, G, K) float64, raw
    lengths: list[np.ndarray] = field(default_factory=list)  # (B, G) int, tokens with the end token
    samples: list[dict[str, Any]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # wall-clock seconds of each step, checkpointing included
    startups: list[float] = field(default_factory=list)  # seconds from start to the first step, one for each start

    @property
    def steps(self) -> int:
        """Steps recorded so far."""
        return len(self.metrics)


def json_bytes(value: object) -> bytes:
    """Indented JSON with a final newline; NaN is an error."""
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()


def jsonl(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """One compact JSON object a line; NaN is an error."""
    return "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows).encode()


def rewards_npz(record: RunRecord, spec: RunSpec) -> bytes:
    """rewards.npz: `rewards` float64 (steps, B, G, K), `lengths` int32 (steps, B, G), `names` (K,).

    The same record gives the same bytes.
    """
    shape = (record.steps, spec.prompts_per_step, spec.group_size)
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        rewards=np.asarray(record.rewards, dtype=np.float64).reshape(*shape, len(spec.rewards)),
        lengths=np.asarray(record.lengths, dtype=np.int32).reshape(shape),
        names=np.asarray(spec.rewards, dtype=np.str_),
    )
    return buffer.getvalue()


# --- the working directory --------------------------------------------------------------------------------------------


def checkpoints(directory: Path) -> dict[int, Path]:
    """Complete checkpoints by step, ascending."""
    found = {int(path.name.removeprefix("step_")): path for path in directory.glob("step_*") if _is_checkpoint(path)}
    return dict(sorted(found.items()))


def _is_checkpoint(path: Path) -> bool:
    return path.is_dir() and path.name.removeprefix("step_").isdecimal()


def last_resumable(directory: Path) -> int:
    """The newest step that can be resumed from, 0 without one.

    A checkpoint that was not the newest once has lost what resuming needs, and without it TRL would silently begin at
    its step 1 with these weights.
    """
    complete = checkpoints(directory).items()
    return max((step for step, path in complete if (path / "trainer_state.json").is_file()), default=0)


def remove_unfinished(directory: Path) -> None:
    """Delete what an interrupted process left half-written: checkpoints without their final name, partial files."""
    for path in [*directory.glob("checkpoint-*"), *directory.glob(".*.[0-9]*")]:
        remove(path)


def complete_checkpoint(directory: Path, written: Path, step: int) -> Path:
    """Give a fully written checkpoint its name, step_<N>, and drop from the older ones what only resuming needs.

    Its checksums are put beside it now: those of all checkpoints at the end would be many minutes of idle GPUs.
    """
    write_atomically(written / SUMS, json_bytes(_sums(written)))
    final = directory / f"step_{step}"
    remove(final)  # left by a run that was cut back to an older step
    os.replace(written, final)
    for older, path in checkpoints(directory).items():
        if older < step and not path.is_symlink():  # kept elsewhere by somebody
            for name in RESUME_ONLY:
                (path / name).unlink(missing_ok=True)
    return final


def append_metrics(directory: Path, line: Mapping[str, float | int]) -> None:
    """Append a step to metrics.jsonl."""
    with (directory / "metrics.jsonl").open("ab") as file:
        file.write(jsonl([line]))


def save(directory: Path, record: RunRecord, spec: RunSpec) -> None:
    """Write everything but the metrics; to be called before a checkpoint gets its name, and to publish."""
    timings = {"seconds_per_step": record.seconds, "seconds_to_start": record.startups}
    write_atomically(directory / "rewards.npz", rewards_npz(record, spec))
    write_atomically(directory / "samples.jsonl.gz", gzip.compress(jsonl(record.samples), mtime=0))
    write_atomically(directory / "timings.json", json_bytes(timings))


def load(directory: Path, step: int) -> RunRecord:
    """The record of an interrupted run, cut back to `step`, and metrics.jsonl on disk cut back with it.

    Raises ValueError if a file lacks one of these steps.
    """
    path = directory / "metrics.jsonl"
    if step == 0:
        path.unlink(missing_ok=True)
        return RunRecord()
    lines = path.read_bytes().splitlines()[:step]  # a line that was cut off in writing can only be a later one
    metrics = [json.loads(line) for line in lines]
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


def check_inputs(directory: Path, inputs: Mapping[str, str]) -> None:
    """Remember the checksums of a run's inputs at its start; a run that began with other inputs cannot be resumed."""
    path = directory / "inputs.json"
    if path.is_file() and checkpoints(directory):
        before = json.loads(path.read_bytes())
        changed = sorted(name for name in {*before, *inputs} if before.get(name) != inputs.get(name))
        if changed:
            raise ValueError(
                f"{directory} was begun with another {', '.join(changed)}; "
                "delete that directory to train from the new one"
            )
    write_atomically(path, json_bytes(dict(inputs)))


# --- publishing -------------------------------------------------------------------------------------------------------


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

    inputs: checksums of what it trained on. divergence: how the run diverged; the files then hold the
    complete steps before it. Versions, commit and machine are those of `record_start`.
    """
    out.mkdir(parents=True, exist_ok=True)
    (out / "manifest.json").unlink(missing_ok=True)
    write_atomically(out / "metrics.jsonl", jsonl(record.metrics))
    save(out, record, spec)
    outcome = {"outcome": "completed"}
    if divergence is not None:
        outcome = {"outcome": "diverged", "diverged_at": divergence.step, "reason": divergence.reason}
    starts = json.loads((directory / STARTS).read_text(encoding="utf-8"))
    saved = {step: path for step, path in checkpoints(directory).items() if step <= record.steps}
    manifest = {
        "run_id": run_id(spec),
        "spec_sha256": spec_sha256(spec),
        **outcome,
        "steps": record.steps,
        "checkpoints": {str(step): _describe(path) for step, path in saved.items()},
        "inputs": dict(inputs),
        **{key: value for key, value in starts[0].items() if key != "from_step"},
        "starts": starts,
        "seeds": _seeds(spec),
    }
    write_atomically(out / "manifest.json", json_bytes(manifest))


def record_start(directory: Path, step: int, libraries: Iterable[str]) -> None:
    """Put down where and with what a run starts, or continues after `step`: code that changes later does not count."""
    start = {
        "from_step": step,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in libraries}},
        **_code(),
        "machine": _machine(),
    }
    path = directory / STARTS
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() and step else []
    write_atomically(path, json_bytes([*before, start]))


def _describe(checkpoint: Path) -> dict[str, Any]:
    known = checkpoint / SUMS
    sums = json.loads(known.read_bytes()) if known.is_file() else _sums(checkpoint)
    return {"directory": checkpoint.as_posix(), "sha256": sums}


def _sums(checkpoint: Path) -> dict[str, str]:
    files = sorted(path for path in checkpoint.iterdir() if path.name not in (*RESUME_ONLY, SUMS))
    return {path.name: sha256(path) for path in files}


def _seeds(spec: RunSpec) -> dict[str, int | None]:
    """Every seed of a run; published data has none."""
    return {"data": getattr(spec.data, "seed", None), "trainer": spec.seed, "sampler": spec.rollout_seed}


def _machine() -> dict[str, Any]:
    """Where a run is, for whoever asks later; nothing depends on it."""
    return {
        "host": socket.gethostname(),
        "system": platform.platform(),
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "visible_gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def _processor() -> str:
    """The processor's name as Linux gives it, or the architecture where it gives none."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _code() -> dict[str, str | None]:
    """The commit of this code; why it is not known where git does not say it."""
    try:
        return {"git_commit": git_commit(Path(__file__).parent)}
    except GitError as error:
        log.warning("%s", error)
        return {"git_commit": None, "git_error": str(error)}

"""The files of a run, the same for every engine: written each step, cut back on resume, published at the end.

The working directory of a run has `step_<N>/` (complete as soon as they have that name), metrics.jsonl (appended each
step), rewards.npz, samples.jsonl.gz and timings.json (rewritten before each checkpoint gets its name, so they are never
behind the newest checkpoint), and trackers/, a copy of the metrics for TensorBoard and Weights & Biases.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import io
import json
import logging
import os
import platform
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from dara.files import gunzip, remove, sha256, write_atomically
from dara.git import GitError
from dara.git import commit as git_commit
from dara.runs import run_id
from dara.specs import RunSpec
from dara.store import MANIFEST, spec_sha256, write_manifest
from dara.training.stopping import Divergence

log = logging.getLogger(__name__)

STARTS = "starts.json"
RESUME_ONLY = ("optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "method_state.pt")
"""Files of a checkpoint that are needed only to resume; only the newest checkpoint keeps them."""
SUMS = "sha256.json"
"""File in a checkpoint: file -> sha256."""
TRACKERS = ("tensorboard", "wandb")
"""Names of the trackers and of their packages."""

Metrics = Mapping[str, float | int]
"""A line of metrics.jsonl."""


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


def jsonl(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Return one compact JSON object per line; NaN is an error."""
    return "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows).encode()


def rewards_npz(record: RunRecord, spec: RunSpec) -> bytes:
    """Return rewards.npz: `rewards` float64 (steps, B, G, K), `lengths` int32 (steps, B, G), `names` (K,).

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


def remove_unfinished(directory: Path) -> None:
    """Delete the incomplete files of an interrupted process: checkpoints without final name, partial files."""
    for path in [*directory.glob("checkpoint-*"), *directory.glob(".*.[0-9]*")]:
        remove(path)


def complete_checkpoint(directory: Path, written: Path, step: int) -> Path:
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
    return final


def append_metrics(directory: Path, line: Metrics) -> None:
    """Append a step to metrics.jsonl."""
    with (directory / "metrics.jsonl").open("ab") as file:
        file.write(jsonl([line]))


def save(directory: Path, record: RunRecord, spec: RunSpec) -> None:
    """Write everything but the metrics; call it before a checkpoint gets its name, and before publishing."""
    timings = {"seconds_per_step": record.seconds, "seconds_to_start": record.startups}
    write_atomically(directory / "rewards.npz", rewards_npz(record, spec))
    write_atomically(directory / "samples.jsonl.gz", gzip.compress(jsonl(record.samples), mtime=0))
    write_manifest(directory / "timings.json", timings)


def load(directory: Path, step: int) -> RunRecord:
    """Return the record of an interrupted run, cut back to `step`, and cut metrics.jsonl on disk back with it.

    Raises ValueError if a file lacks one of these steps.
    """
    path = directory / "metrics.jsonl"
    if step == 0:
        path.unlink(missing_ok=True)
        return RunRecord()
    lines = path.read_bytes().splitlines()[:step]  # only a later line can be incomplete
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
    """Record the checksums of a run's inputs; ValueError if its checkpoints were trained on other inputs."""
    path = directory / "inputs.json"
    if path.is_file() and checkpoints(directory):
        before = json.loads(path.read_bytes())
        changed = sorted(name for name in {*before, *inputs} if before.get(name) != inputs.get(name))
        if changed:
            raise ValueError(
                f"{directory} was begun with another {', '.join(changed)}; "
                "delete that directory to train from the new one"
            )
    write_manifest(path, inputs)


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

    inputs: checksums of its inputs. divergence: how the run diverged; the files then contain the complete steps before
    it. Versions, commit and machine are those of `record_start`.
    """
    out.mkdir(parents=True, exist_ok=True)
    (out / MANIFEST).unlink(missing_ok=True)
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
        # Public data has no seed.
        "seeds": {"data": getattr(spec.data, "seed", None), "trainer": spec.seed, "sampler": spec.rollout_seed},
    }
    write_manifest(out / MANIFEST, manifest)


def record_start(directory: Path, step: int, libraries: Iterable[str]) -> None:
    """Record versions, git commit and machine at each start, so later code changes do not alter a run's provenance.

    step: the last completed step, 0 at the beginning. libraries: those whose versions are recorded.
    """
    start = {
        "from_step": step,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in libraries}},
        **_code(),
        "machine": _machine(),
    }
    path = directory / STARTS
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() and step else []
    write_atomically(path, json.dumps([*before, start], indent=2) + "\n")


def _describe(checkpoint: Path) -> dict[str, Any]:
    known = checkpoint / SUMS
    sums = json.loads(known.read_bytes()) if known.is_file() else _sums(checkpoint)
    return {"directory": checkpoint.as_posix(), "sha256": sums}


def _sums(checkpoint: Path) -> dict[str, str]:
    files = sorted(path for path in checkpoint.iterdir() if path.name not in (*RESUME_ONLY, SUMS))
    return {path.name: sha256(path) for path in files}


def _machine() -> dict[str, Any]:
    """Return a description of the machine, for information only; nothing depends on it."""
    return {
        "host": socket.gethostname(),
        "system": platform.platform(),
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "visible_gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def _processor() -> str:
    """Return the processor's name on Linux, or the architecture if there is none."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _code() -> dict[str, str | None]:
    """Return the commit of this code or, if git cannot tell, the reason."""
    try:
        return {"git_commit": git_commit(Path(__file__).parent)}
    except GitError as error:
        log.warning("%s", error)
        return {"git_commit": None, "git_error": str(error)}


# --- trackers ---------------------------------------------------------------------------------------------------------


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


@contextlib.contextmanager
def trackers(
    names: Sequence[str], directory: Path, run_id: str, lines: Iterable[Metrics]
) -> Iterator[Callable[[Metrics], None]]:
    """Yield a function that gives a line of metrics to the trackers `names` of a run, in `<directory>/trackers/`.

    The tracker files are rewritten at each start from the steps so far (`lines`), so a resumed run has no step twice,
    and nothing has to be cut back. There is no network access.

    Raises ValueError for an unknown name and for a tracker whose package is not installed.
    """
    check_trackers(names)
    root = directory / "trackers"
    shutil.rmtree(root, ignore_errors=True)
    open_tracker = {"tensorboard": _tensorboard, "wandb": _wandb}
    with contextlib.ExitStack() as stack:
        logs = [stack.enter_context(open_tracker[name](root / name, run_id)) for name in names]

        def track(line: Metrics) -> None:
            values = {name: float(value) for name, value in line.items() if name not in ("schema", "step")}
            for log_values in logs:
                log_values(values, int(line["step"]))

        for line in lines:
            track(line)
        yield track


@contextlib.contextmanager
def _tensorboard(directory: Path, run_id: str) -> Iterator[Callable[[dict[str, float], int], None]]:
    from torch.utils.tensorboard import SummaryWriter

    def log_values(values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    with contextlib.closing(SummaryWriter(log_dir=str(directory / run_id))) as writer:
        yield log_values


@contextlib.contextmanager
def _wandb(directory: Path, run_id: str) -> Iterator[Callable[[dict[str, float], int], None]]:
    import wandb

    directory.mkdir(parents=True)
    quiet = {"console": "off", "silent": True, "disable_git": True, "save_code": False}
    settings = wandb.Settings(**quiet, disable_job_creation=True, x_disable_stats=True)
    # Passed explicitly, because it then overrides the environment.
    run = wandb.init(project="dara", id=run_id, name=run_id, dir=str(directory), mode="offline", settings=settings)
    try:
        yield run.log
    finally:
        run.finish()
        wandb.teardown()  # waits until wandb's process has written everything; `finish` alone does not

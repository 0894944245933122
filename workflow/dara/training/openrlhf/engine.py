"""The OpenRLHF engine: a run is trained by OpenRLHF in a child process with a Ray of its own."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

from dara.config import Resources, RunSpec
from dara.files import write_atomically
from dara.training import run_files
from dara.training.deadline import OutOfTime
from dara.training.divergence import Divergence
from dara.training.lifecycle import Job, Start, train_run
from dara.training.openrlhf import ray_node, versions
from dara.training.openrlhf.checkpoints import last_resumable, output_of, prepare_output
from dara.training.openrlhf.disk import check_disk
from dara.training.openrlhf.labels import prompt_file
from dara.training.openrlhf.reward_file import write_reward_file
from dara.training.openrlhf.settings import ERROR, OUTCOME, PROGRESS, Settings
from dara.training.openrlhf.worker import environment_of
from dara.training.run_files import RunRecord
from dara.training.trackers import check_installed

log = logging.getLogger(__name__)

LIBRARIES = ("torch", "transformers", "openrlhf", "ray", "deepspeed", "numpy")
LOG = "openrlhf.log"
LOG_BYTES = 10_000_000  # of what earlier starts printed, kept when a run goes on
POLL_SECONDS = 0.2
LAST_LINES = 15  # of the log, shown when OpenRLHF fails


def train(
    spec: RunSpec, job: Job, *, resources: Resources, ray_address: str | None = None, keep_advantages: bool = False
) -> None:
    """Train the run of `spec` with OpenRLHF and publish it; see `lifecycle.train_run`.

    resources: the GPUs; none means the CPU adaptation. ray_address: "host:port" of a Ray cluster to use instead of an
    own one. keep_advantages: also write what the updates read,
    `<scratch>/<run_id>/openrlhf/advantages_<step>_<rank>.npz`.

    What OpenRLHF prints is in `<scratch>/<run_id>/openrlhf.log`. Raises ValueError where `lifecycle.train_run` does,
    for another OpenRLHF than the tested one and for too little disk; ChildProcessError when OpenRLHF fails.
    """
    versions.check_version()
    check_installed(job.trackers)

    def steps(start: Start) -> tuple[RunRecord, Divergence | None]:
        settings = prepare(start, resources, ray_address, keep_advantages)
        run_openrlhf(settings)
        outcome = json.loads((settings.output / OUTCOME).read_bytes())
        if outcome["out_of_time"]:
            raise OutOfTime(outcome["out_of_time"])
        diverged = Divergence(**outcome["divergence"]) if outcome["divergence"] else None
        return run_files.load(start.directory, diverged.step - 1 if diverged else spec.steps), diverged

    libraries = (*LIBRARIES, versions.vllm_package())
    train_run(spec, steps, job, libraries=libraries, last_resumable=last_resumable, guard=ray_node.guarded)


def prepare(start: Start, resources: Resources, ray_address: str | None, keep_advantages: bool) -> Settings:
    """Check the disk and write what OpenRLHF's processes will read."""
    job, directory, done = start.job, start.directory.resolve(), start.record.steps
    output = output_of(directory)
    prepare_output(output, done)
    check_disk(start.spec, job.model_dir, directory, done)
    prompts = output / "prompts.jsonl"
    prompt_file(start.rows, prompts)
    settings = Settings(
        spec=start.spec,
        resources=resources,
        directory=directory,
        output=output,
        model_dir=job.model_dir.resolve(),
        prompts=prompts,
        reward_file=write_reward_file(output, start.spec, job.methods_dir),
        methods_dir=job.methods_dir.resolve() if job.methods_dir else None,
        done=done,
        started=time.time() - (time.monotonic() - start.started),
        trackers=job.trackers,
        ray_address=ray_address,
        minutes=job.deadline.minutes if job.deadline else None,
        keep_advantages=keep_advantages,
    )
    settings.write()
    return settings


def run_openrlhf(settings: Settings) -> None:
    """One start of OpenRLHF, to its end. Its progress lines are logged here, everything else goes into its log.

    Raises what a reward, a filter or a check said in one of its processes as ValueError, anything else as
    ChildProcessError.
    """
    on_gpu = settings.resources.gpus > 0
    environment = ray_node.child_environment(settings.directory) | environment_of(on_gpu)
    command = [sys.executable, "-m", "dara.training.openrlhf.worker", str(settings.output / "settings.json")]
    progress = 0
    keep_end(settings.directory / LOG, LOG_BYTES)
    with (settings.directory / LOG).open("ab") as file:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # an interrupt from the terminal comes here first
        )
        try:
            while process.poll() is None:
                time.sleep(POLL_SECONDS)
                progress = relay(settings.output / PROGRESS, progress)
        finally:
            if process.poll() is None:
                process.terminate()
                ray_node.stop(settings.directory)
            process.wait()
    relay(settings.output / PROGRESS, progress)
    if process.returncode:
        raise failure(settings, process.returncode)


def keep_end(path: Path, size: int) -> None:
    """Cut a log to the whole lines in its last `size` bytes; an absent or shorter one stays as it is."""
    if not path.is_file() or path.stat().st_size <= size:
        return
    with path.open("rb") as file:
        file.seek(-size, os.SEEK_END)
        end = file.read()
    write_atomically(path, end[end.find(b"\n") + 1 :])


def relay(path: Path, offset: int) -> int:
    """Log the complete lines of `path` after `offset` bytes; the offset after them."""
    if not path.is_file():
        return offset
    with path.open("rb") as file:
        file.seek(offset)
        text, _, _ = file.read().rpartition(b"\n")
    for line in text.decode("utf-8").splitlines():
        log.info("%s", line)
    return offset + len(text) + 1 if text else offset


def failure(settings: Settings, code: int) -> Exception:
    """Why OpenRLHF ended with this exit code."""
    path = settings.output / ERROR
    if path.is_file():
        return ValueError(json.loads(path.read_bytes())["message"])
    log_file = settings.directory / LOG
    last = "\n".join(log_file.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:])
    return ChildProcessError(f"OpenRLHF ended with exit code {code}; the end of {log_file}:\n{last}")

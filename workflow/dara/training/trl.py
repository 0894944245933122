"""The TRL engine: trains a run on the CPU in this process."""

from __future__ import annotations

from itertools import islice

from dara.config import RunSpec
from dara.training.divergence import Divergence
from dara.training.lifecycle import Job, Start, prompt_positions, train_run
from dara.training.run_files import RunRecord

LIBRARIES = ("torch", "transformers", "trl", "numpy")


def train(spec: RunSpec, job: Job) -> None:
    """Train the run of `spec` with TRL and publish it; see `lifecycle.train_run`."""

    def steps(start: Start) -> tuple[RunRecord, Divergence | None]:
        # Imported here: it takes seconds, in which the parent is watched already, and publishing needs none of it.
        from dara.training.trainer import run_steps

        return start.record, run_steps(start, training_rows(start.rows, spec))

    train_run(spec, steps, job, libraries=LIBRARIES)


def training_rows(rows: list[dict[str, str]], spec: RunSpec) -> list[dict[str, str]]:
    """The prompts of all steps in their order: steps x prompts_per_step rows."""
    needed = spec.steps * spec.prompts_per_step
    return [rows[i] for i in islice(prompt_positions(len(rows), spec.seed), needed)]

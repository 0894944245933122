"""Files shared by OpenRLHF's program and the run: the states to resume from, and the outcome."""

from __future__ import annotations

from pathlib import Path

from dara.files import remove, write_atomically
from dara.training import run_files
from dara.training.openrlhf.command import STATES, output_of

OUTCOME = "outcome.json"
PROGRESS = "progress.log"
MARKER = "trainer_state.json"
"""File in a step_<N> that has a complete state; one of run_files.RESUME_ONLY, so only the newest step_<N> has it."""


def state_tag(step: int) -> str:
    """Return OpenRLHF's name of a step."""
    return f"global_step{step}"


def last_resumable(directory: Path) -> int:
    """Return the newest step to resume from, with complete checkpoint and state; 0 if there is none."""
    states = output_of(directory) / STATES
    complete = run_files.checkpoints(directory).items()
    return max(
        (step for step, path in complete if (path / MARKER).is_file() and (states / state_tag(step)).is_dir()),
        default=0,
    )


def remove_other_states(output: Path, step: int) -> None:
    """Delete DeepSpeed's states of all steps but `step`."""
    for path in (output / STATES).glob(state_tag(0).removesuffix("0") + "*"):
        if path.name != state_tag(step):
            remove(path)


def prepare_output(output: Path, step: int) -> None:
    """Reduce an interrupted start's output to the state of `step`, and make that state the latest.

    A start may have been killed between writing a state and completing its checkpoint; DeepSpeed would load that state.
    """
    if step == 0:
        remove(output)
    output.mkdir(parents=True, exist_ok=True)
    if step == 0:
        return
    for path in output.iterdir():
        if path.name != STATES and not path.name.startswith("advantages_"):
            remove(path)
    remove_other_states(output, step)
    write_atomically(output / STATES / "latest", state_tag(step))

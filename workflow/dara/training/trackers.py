"""TensorBoard and offline Weights & Biases, for watching a run; the run's own files stay what everything else reads.

A tracker is a view of metrics.jsonl: it is made afresh at each start from the steps so far, so that a resumed run has
no step twice, and nothing has to be cut back. Nothing here talks to a network.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb"}
Line = Mapping[str, float | int]


class Tracker:
    """Writes each step to all chosen backends; with none it does nothing."""

    def __init__(self, backends: Sequence[_TensorBoard | _Wandb]) -> None:
        self._backends = list(backends)

    def log(self, step: int, line: Line) -> None:
        """One line of metrics.jsonl; `schema` and `step` are no metrics."""
        values = {name: float(value) for name, value in line.items() if name not in ("schema", "step")}
        for backend in self._backends:
            backend.log(step, values)

    def close(self) -> None:
        """Write out what is buffered. Nothing can be logged after it."""
        for backend in self._backends:
            backend.close()
        self._backends = []


def tracker(names: Sequence[str], directory: Path, run_id: str, lines: Iterable[Line] = ()) -> Tracker:
    """The trackers `names` (of tensorboard, wandb) of a run, in `<directory>/trackers/<name>/`.

    directory: the run's working directory. lines: the steps so far, of a run that is resumed. What an earlier start
    wrote there is replaced.

    Raises ValueError for an unknown name and for one whose package is not installed.
    """
    check_installed(names)
    root = directory / "trackers"
    shutil.rmtree(root, ignore_errors=True)
    backends = {"tensorboard": _TensorBoard, "wandb": _Wandb}
    made = Tracker([backends[name](root / name, run_id) for name in names])
    for line in lines:
        made.log(int(line["step"]), line)
    return made


def check_installed(names: Sequence[str]) -> None:
    """ValueError unless each name is a tracker and its package is installed."""
    for name in names:
        if name not in PACKAGES:
            raise ValueError(f"unknown tracker {name!r}: the trackers are {', '.join(PACKAGES)}")
        if importlib.util.find_spec(PACKAGES[name]) is None:
            raise ValueError(
                f"the tracker {name} needs the package {PACKAGES[name]}, which is not installed in the environment "
                f"that trains: install it there (pip install {PACKAGES[name]}), or leave {name} out of trackers"
            )


class _TensorBoard:
    def __init__(self, directory: Path, run_id: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(log_dir=str(directory / run_id))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    def __init__(self, directory: Path, run_id: str) -> None:
        import wandb

        directory.mkdir(parents=True)
        self._run: Any = wandb.init(
            project="dara",
            id=run_id,
            name=run_id,
            dir=str(directory),
            mode="offline",  # given here, it overrules the environment
            settings=wandb.Settings(
                console="off",
                silent=True,
                disable_git=True,
                save_code=False,
                disable_job_creation=True,
                x_disable_stats=True,
            ),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        import wandb

        self._run.finish()
        wandb.teardown()  # waits until its own process has written everything; `finish` alone does not

"""What the processes of a run must know, as one JSON file: nothing of it is in environment variables."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from dara.config import Resources
from dara.files import write_atomically
from dara.specs import RunSpec

FILE = "settings.json"
OUTCOME = "outcome.json"
ERROR = "error.json"
PROGRESS = "progress.log"
PATHS = ("directory", "output", "model_dir", "reward_file", "prompts", "methods_dir")


@dataclass(frozen=True)
class Settings:
    """A start of a run."""

    spec: RunSpec
    resources: Resources
    directory: Path  # of the run: checkpoints, metrics
    output: Path  # below it: what belongs to OpenRLHF
    model_dir: Path
    prompts: Path
    reward_file: Path
    methods_dir: Path | None
    done: int  # steps that are there already
    started: float  # time.time() at the start of the process's work
    trackers: tuple[str, ...] = ()
    ray_address: str | None = None
    minutes: float | None = None  # time limit of the job; None where nobody enforces one
    keep_advantages: bool = False  # write what went into the loss, for a test

    def write(self) -> Path:
        """Write `<output>/settings.json`; its path."""
        fields = asdict(self) | {
            "spec": self.spec.model_dump(mode="json"),
            "resources": self.resources.model_dump(mode="json"),
        }
        path = self.output / FILE
        write_atomically(path, json.dumps(fields, default=str, indent=2) + "\n")
        return path

    @classmethod
    def read(cls, path: Path) -> Settings:
        """The settings that `write` wrote."""
        fields = json.loads(path.read_text(encoding="utf-8"))
        fields |= {name: Path(fields[name]) for name in PATHS if fields[name] is not None}
        fields["spec"] = RunSpec.model_validate(fields["spec"])
        fields["resources"] = Resources.model_validate(fields["resources"])
        return cls(**{**fields, "trackers": tuple(fields["trackers"])})

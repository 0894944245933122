"""The registry of engines, by the value of a run's `engine`.

A new engine is a package in dara/training/ and an entry in ENGINES. Nothing heavy is imported here: configurations are
checked with this module, and torch and Ray take seconds to import.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Engine:
    """An engine that trains runs. Its heavy modules are imported only when they are needed.

    name, title: used in configurations, and in tables. trainer: the module with `train(spec, inputs, *, resources,
    ray_address)`, which calls `training.run.train_run` with the function that makes the steps and with the libraries
    for the manifest. program: the module with `check_resources(spec, resources)` and `command_text(spec, resources, *,
    model, output)` of an engine that is a separate program, run in the environment that the preset names as
    `training_environment` and on the GPUs of the model's resources; None for an engine that computes in the process of
    the job. lacks: settings of a run that the engine does not read. hub_models: whether it trains hub models too.
    """

    name: str
    title: str
    trainer: str
    program: str | None = None
    lacks: tuple[str, ...] = ()
    hub_models: bool = True

    def check(self, spec: Any) -> None:
        """Raise ValueError if a RunSpec has settings that this engine would ignore silently."""
        used = [name for name in self.lacks if _is_set(spec, name)]
        if used:
            raise ValueError(f"engine {self.name} has no {', '.join(used)}; set engine: openrlhf")
        if not self.hub_models and hasattr(spec.model, "hub"):
            raise ValueError(
                f"engine {self.name} trains the laptop's models, not {spec.model.hub}; set engine: openrlhf"
            )

    def check_resources(self, spec: Any, resources: Any) -> None:
        """Raise ValueError if a run cannot be trained on this hardware (config.Resources)."""
        if self.program:
            importlib.import_module(self.program).check_resources(spec, resources)

    def command_text(self, spec: Any, resources: Any, **paths: Any) -> str:
        """Return the command line of a run, for people; raise ValueError for an engine without one."""
        if self.program is None:
            raise ValueError(
                f"engine {self.name} has no command line of its own: it runs in this process; use openrlhf"
            )
        return importlib.import_module(self.program).command_text(spec, resources, **paths)

    def train(self, spec: Any, inputs: Any, **options: Any) -> None:
        """Train a run and publish it; see `training.run.train_run`. options: resources, ray_address."""
        importlib.import_module(self.trainer).train(spec, inputs, **options)


def _is_set(spec: Any, name: str) -> bool:
    """Return whether a setting of a run, `key` or `key.key`, differs from its default."""
    *parents, last = name.split(".")
    for parent in parents:
        spec = getattr(spec, parent)
    return getattr(spec, last) != type(spec).model_fields[last].default


ENGINES = {
    engine.name: engine
    for engine in (
        Engine(
            "trl",
            "TRL",
            "dara.training.trl",
            lacks=("kl", "entropy_coefficient", "filter", "precision", "sampler_seed", "optimizer.dual_clip"),
            hub_models=False,
        ),
        Engine("openrlhf", "OpenRLHF", "dara.training.openrlhf.launch", program="dara.training.openrlhf.command"),
    )
}

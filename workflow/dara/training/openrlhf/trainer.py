"""OpenRLHF's trainer with our data order, experience maker, metrics and checkpoints: the actor that leads a run."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import openrlhf.trainer.ppo_trainer as ppo_trainer
import ray
import torch

from dara.files import write_atomically
from dara.methods import Method
from dara.runs import run_id
from dara.specs import RunSpec
from dara.training import run_files
from dara.training.advantages import run_method
from dara.training.deadline import Deadline, OutOfTime
from dara.training.divergence import Divergence
from dara.training.metrics import KL_REFERENCE
from dara.training.openrlhf.checkpoints import MARKER, remove_other_states, state_tag
from dara.training.openrlhf.experience import DaraExperienceMaker
from dara.training.openrlhf.labels import Label, consumed
from dara.training.openrlhf.prompts import PromptLoader
from dara.training.openrlhf.rollouts import DaraSamplesGenerator
from dara.training.openrlhf.settings import OUTCOME, PROGRESS, Settings
from dara.training.openrlhf.strategy import DaraStrategy
from dara.training.steps import Rollouts, record_step
from dara.training.trackers import tracker

METRICS = {
    "clip_fraction": "ppo_clip_ratio",
    "kl": "ppo_kl",
    "entropy": "entropy_loss",
    "grad_norm": "actor_grad_norm",
    "lr": "actor_lr",
}
"""Our name -> OpenRLHF's, in the status of a step; means over its updates."""


def prepare_datasets(strategy: DaraStrategy, tokenizer: Any) -> tuple[PromptLoader, None, int]:
    """In place of OpenRLHF's: the run's prompts in their order, no evaluation, the number of optimiser updates."""
    settings = strategy.dara
    spec, record = settings.spec, run_files.load(settings.directory, settings.done)
    start = consumed(record.metrics, spec.prompts_per_step)
    loader = PromptLoader(settings.prompts, spec.seed, spec.rollout_seed, start)
    return loader, None, spec.steps * spec.optimizer.updates_per_step


def dealt_already(experiences: list, arguments: Any) -> list:
    """In place of OpenRLHF's `balance_experiences`, which would spread groups over updates: see layout.deal."""
    return experiences


ppo_trainer.prepare_datasets = prepare_datasets
ppo_trainer.balance_experiences = dealt_already


class DaraTrainer(ppo_trainer.PPOTrainer.__ray_metadata__.modified_class):
    """Leads the steps of a run and writes its files."""

    def __init__(self, pretrain: str, strategy: DaraStrategy, *args: Any, **kwargs: Any) -> None:
        settings = strategy.dara
        _log_progress(settings.output / PROGRESS)
        super().__init__(pretrain, strategy, *args, **kwargs)
        self.settings = settings
        self.record = run_files.load(settings.directory, settings.done)
        self.method = _method(settings)
        self.deadline = Deadline.of(settings.minutes, time.monotonic() - (time.time() - settings.started))
        self.ranks = self.args.actor.num_nodes * self.args.actor.num_gpus_per_node
        self.samples_generator = DaraSamplesGenerator(
            strategy=strategy,
            prompts_dataloader=self.prompts_dataloader,
            eval_dataloader=None,
            tokenizer=self.tokenizer,
            vllm_engines=self.vllm_engines,
            spec=settings.spec,
            world_size=self.ranks,
            done=settings.done,
        )
        self.experience_maker = self._experience_maker()

    def _experience_maker(self) -> DaraExperienceMaker:
        maker = DaraExperienceMaker(
            self.actor_model_group,
            self.critic_model_group,
            self.reward_model_group,
            self.reference_model_group,
            self.kl_ctl,
            self.strategy,
            self.tokenizer,
        )
        maker.spec, maker.method, maker.ranks = self.settings.spec, self.method, self.ranks
        maker.keep_index = self.settings.keep_advantages
        return maker

    def fit(self, global_step: int = 0) -> None:
        """The steps that are missing; ends early where the run diverges. The outcome is written for the engine."""
        settings, spec, record = self.settings, self.settings.spec, self.record
        if record.steps:
            self.broadcast_to_vllm()  # which started from the base model
        record.startups.append(round(time.time() - settings.started, 3))
        follow = tracker(settings.trackers, settings.directory, run_id(spec), record.metrics)
        found = out_of_time = None
        self._step_began = time.monotonic()
        while record.steps < spec.steps and not found and not out_of_time:
            found = self._step()
            if found:
                run_files.save(settings.directory, record, spec)
                continue
            follow.log(record.steps, record.metrics[-1])
            if record.steps in spec.checkpoint_steps:
                self._checkpoint(record.steps)
            out_of_time = self._out_of_time()
        follow.close()
        outcome = {"divergence": asdict(found) if found else None, "out_of_time": out_of_time}
        write_atomically(settings.output / OUTCOME, json.dumps(outcome) + "\n")

    def _step(self) -> Divergence | None:
        """Make a step and record it, unless it is the one in which the run diverged.

        Its seconds include the checkpoint before it, as in the TRL engine.
        """
        samples, *_ = self.samples_generator.generate_samples(**self.generate_kwargs)
        status, step = self.train_step(samples, self.record.steps)
        if not is_finite(self.settings.spec, status):
            return Divergence(step, "the loss, the gradient or a weight is not finite")
        began, self._step_began = self._step_began, time.monotonic()
        return self._complete_step(samples, status, self._step_began - began)

    def _out_of_time(self) -> str | None:
        """Why the run stops here for the next job to continue; None: it goes on."""
        if self.deadline is None:
            return None
        record, done = self.record, self.settings.done
        try:
            steps = self.settings.spec.checkpoint_steps
            self.deadline.after_step(record.steps, steps, record.seconds[done:], time.monotonic())
        except OutOfTime as stop:
            return str(stop)
        return None

    def _compute_rollout_stats(self, experiences: list) -> dict[str, float]:
        """None: ours are in metrics.jsonl."""
        return {}

    def _complete_step(self, samples: list, status: dict[str, Any], seconds: float) -> Divergence | None:
        generator, made = self.samples_generator, self.experience_maker.made
        rollouts = Rollouts(
            rows=[_row(sample) for sample in samples],
            responses=generator.responses,
            rewards=made.rewards,
            lengths=made.lengths,
            output=made.output,
            pool_rewards=generator.pool_rewards,
            pool_lengths=generator.pool_lengths,
            filtered=generator.filter_metrics,
        )
        spec, directory = self.settings.spec, self.settings.directory
        return record_step(spec, directory, self.record, rollouts, engine_metrics(spec, status), seconds)

    def _checkpoint(self, step: int) -> None:
        """step_<N>, complete once it has this name: the state to resume from is written before, the older goes after.

        A run that is stopped between the two resumes from the older step_<N> and its state.
        """
        settings, tag = self.settings, state_tag(step)
        ray.get(self.actor_model_group.async_run_method(method_name="save_checkpoint", tag=tag, client_states={}))
        written = settings.directory / f"checkpoint-{step}"
        if written.exists():
            shutil.rmtree(written)
        os.replace(settings.output / f"{tag}_hf", written)
        write_atomically(written / MARKER, json.dumps({"engine": "openrlhf", "step": step}) + "\n")
        if self.method.has_state:
            torch.save(self.method.state_dict(), written / "method_state.pt")
        run_files.save(settings.directory, self.record, settings.spec)
        run_files.complete_checkpoint(settings.directory, written, step)
        remove_other_states(settings.output, step)


def engine_metrics(spec: RunSpec, status: dict[str, Any]) -> dict[str, float]:
    """The engine's metrics of a step, from OpenRLHF's status of it."""
    names = METRICS | ({KL_REFERENCE: "kl"} if spec.kl.placement == "loss" else {})
    return {ours: float(status[theirs]) for ours, theirs in names.items()}


def is_finite(spec: RunSpec, status: dict[str, Any]) -> bool:
    """Whether the loss, the metrics and the weights after a step are numbers."""
    values = [status["policy_loss"], *engine_metrics(spec, status).values()]
    return status["weights_finite"] and all(math.isfinite(value) for value in values)


def _method(settings: Settings) -> Method:
    method = run_method(settings.spec, settings.methods_dir)
    if settings.done and method.has_state:
        path = settings.directory / f"step_{settings.done}" / "method_state.pt"
        method.load_state_dict(torch.load(path, weights_only=True))
    return method


def _row(sample: Any) -> dict[str, str]:
    label = Label.loads(sample.labels[0])
    return {"id": label.id, "prompt": sample.prompts[0], "reference": label.reference}


def _log_progress(path: Path) -> None:
    """Progress lines go to a file that the engine's process reads and shows."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("dara.training")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)

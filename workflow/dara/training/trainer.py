"""TRL's GRPOTrainer with several rewards: the rollouts' rewards go through a method, the rest of the loss is TRL's.

What differs from TRL 1.16, each in one override:
* the advantages are those of `advantages.batch_advantages` (`_calculate_rewards`,
  `_generate_and_score_completions`);
* an update gets whole groups (`_prepare_inputs`); TRL deals the single responses to the updates at random;
* sampling, and log-probabilities in the update, encode each prompt once a group (`_generate_single_turn`,
  `_get_per_token_logps_and_entropies`); the policy before the update is known from sampling, without another pass;
* the metrics go to the run's files (`_compute_loss`, `log`), checkpoints become `step_<N>` (`_save_checkpoint`).
A step is a rollout batch; TRL's own global_step counts updates.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import split_tensor_dict

from dara.config import RunSpec
from dara.libraries import quiet
from dara.methods import Method
from dara.runs import run_id
from dara.training import run_files
from dara.training.advantages import batch_advantages, run_method
from dara.training.deadline import Deadline
from dara.training.divergence import Divergence
from dara.training.lifecycle import Start
from dara.training.metrics import ENGINE_METRICS, all_finite
from dara.training.policy import NotFiniteError, log_probs_and_entropies, sample
from dara.training.run_files import RunRecord
from dara.training.scoring import score_sample
from dara.training.steps import Rollouts, record_step
from dara.training.trackers import Tracker, tracker

log = logging.getLogger(__name__)


def run_steps(start: Start, rows: list[dict[str, str]]) -> Divergence | None:
    """Train from `start.record.steps` to the last step; how the run diverged, or None.

    rows: the prompts of all steps, in order.
    """
    quiet()
    torch.set_num_threads(1)  # the models are too small to share among threads; one run a core instead
    spec, directory, record = start.spec, start.directory, start.record
    method = run_method(spec, start.job.methods_dir)
    follow = tracker(start.job.trackers, directory, run_id(spec), record.metrics)
    run = Run(spec, method, directory, record, follow, start.job.deadline, record.steps)
    trainer = MultiRewardTrainer(
        model=AutoModelForCausalLM.from_pretrained(start.job.model_dir, dtype=torch.float32),
        reward_funcs=[_name_only(name) for name in spec.rewards],
        args=trl_config(spec, directory),
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(start.job.model_dir),
        run=run,
    )
    checkpoint = directory / f"step_{record.steps}" if record.steps else None
    if checkpoint and method.has_state:
        method.load_state_dict(torch.load(checkpoint / "method_state.pt", weights_only=True))
    record.startups.append(round(time.monotonic() - start.started, 3))
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except NotFiniteError:
        run.divergence = Divergence(run.step, "the policy's logits are not finite")
    finally:
        run.tracker.close()
    return run.divergence


def trl_config(spec: RunSpec, directory: Path) -> GRPOConfig:
    """A run's settings as TRL names them: one epoch a rollout batch, no KL term, float32 on the CPU."""
    optimizer, sampling, updates = spec.optimizer, spec.sampling, spec.optimizer.updates_per_step
    return GRPOConfig(
        output_dir=str(directory),
        per_device_train_batch_size=spec.prompts_per_step * spec.group_size // updates,
        gradient_accumulation_steps=1,
        steps_per_generation=updates,
        num_generations=spec.group_size,
        num_iterations=1,
        max_steps=spec.steps * updates,
        max_completion_length=sampling.max_response_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=0,
        learning_rate=optimizer.learning_rate,
        lr_scheduler_type="constant",
        optim="adamw_torch",
        adam_beta1=optimizer.betas[0],
        adam_beta2=optimizer.betas[1],
        weight_decay=optimizer.weight_decay,
        max_grad_norm=optimizer.max_grad_norm,
        beta=0.0,
        epsilon=optimizer.clip_low,
        epsilon_high=optimizer.clip_high,
        loss_type="bnpo",  # the mean over the tokens of an update
        scale_rewards="none",  # of the advantages that are replaced
        disable_dropout=True,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        seed=spec.seed,
        shuffle_dataset=False,  # the rows come in the run's own order
        dataloader_pin_memory=False,
        save_strategy="steps",
        save_steps=spec.checkpoint_every * updates,
        logging_steps=1,
        logging_nan_inf_filter=False,  # it would hide a divergence
        disable_tqdm=True,
        report_to=[],
    )


@dataclass
class Run:
    """A run in progress, as the trainer needs it."""

    spec: RunSpec
    method: Method
    directory: Path
    record: RunRecord
    tracker: Tracker
    deadline: Deadline | None
    done: int  # steps that were there at the start
    divergence: Divergence | None = None

    @property
    def step(self) -> int:
        """The step that is being made, from 1."""
        return self.record.steps + 1

    def check_deadline(self) -> None:
        """After a step, and its checkpoint where it has one: OutOfTime where the next cannot be reached."""
        if self.deadline:
            record, checkpoints = self.record, self.spec.checkpoint_steps
            self.deadline.after_step(record.steps, checkpoints, record.seconds[self.done :], time.monotonic())


class MultiRewardTrainer(GRPOTrainer):
    """GRPOTrainer whose advantages come from K rewards through the run's method."""

    def __init__(self, *args: Any, run: Run, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.run = run
        self._updates: list[dict[str, float]] = []
        self._step_began = time.monotonic()

    def _send_telemetry(self) -> None:
        """Training tells nobody anything."""

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """No model card: the run's manifest says what a checkpoint is."""

    # --- rollouts -----------------------------------------------------------------------------------------------------

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> tuple[list, list]:
        """Responses and their log-probabilities. The random numbers depend on the run's seed and step alone."""
        sampling = self.run.spec.sampling
        responses, self._sampling_log_probs = sample(
            self.accelerator.unwrap_model(self.model),
            prompt_ids[:: self.num_generations],
            self.num_generations,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_response_tokens,
            end_tokens=tuple(self.eos_token_ids),
            pad=self.processing_class.pad_token_id,
            generator=step_generator(self.run.spec.rollout_seed, self.run.step),
        )
        return responses, None

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        spec = self.run.spec
        lengths = [len(ids) for ids in completion_ids_list]
        samples = zip(inputs, completions, lengths, strict=True)
        values = [list(_score(spec, *sample).values()) for sample in samples]
        shape = (spec.prompts_per_step, spec.group_size)
        rewards = torch.tensor(values, dtype=torch.float64)
        self._rollouts = Rollouts(
            inputs, completions, rewards.view(*shape, len(spec.rewards)), torch.tensor(lengths).view(shape)
        )
        return rewards.float()  # TRL's own advantages come from these, and are replaced

    def _generate_and_score_completions(self, inputs: list[dict[str, str]]) -> dict[str, torch.Tensor]:
        batch = super()._generate_and_score_completions(inputs)
        run, rollouts = self.run, self._rollouts
        rollouts.output, advantages = batch_advantages(run.spec, run.method, rollouts.rewards, rollouts.lengths)
        batch["advantages"] = advantages.flatten().to(batch["advantages"].dtype)
        sampled = [torch.tensor(row) for row in self._sampling_log_probs]
        batch["old_per_token_logps"] = torch.nn.utils.rnn.pad_sequence(sampled, batch_first=True)
        return batch

    def _prepare_inputs(self, generation_batch: list[dict[str, str]]) -> dict[str, torch.Tensor]:
        """The rows of an update: whole groups, the first prompts of the step first.

        TRL would permute all B * G rows and cut the result, which spreads a group over updates. The prompts themselves
        come in random order, so nothing is left to permute.
        """
        updates = self.args.steps_per_generation
        if self._step % updates == 0:
            batch = self._generate_and_score_completions(generation_batch)
            self._buffered_inputs = split_tensor_dict(batch, updates)
        return self._buffered_inputs[self._step % updates]

    # --- the update ---------------------------------------------------------------------------------------------------

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, compute_entropy=False, **unused
    ):
        if not compute_entropy:  # TRL asks for the policy before the update, which sampling has given
            return None, None, None
        start = input_ids.shape[1] - logits_to_keep
        log_probs, entropies = log_probs_and_entropies(
            model,
            input_ids[:, :start],
            attention_mask[:, :start],
            input_ids[:, start:],
            attention_mask[:, start:],
            group_size=self.num_generations,
            temperature=self.temperature,
        )
        self._log_probs = log_probs.detach()
        return log_probs, entropies, None

    def _compute_loss(self, model, inputs):
        """TRL's loss; besides, the k3 estimate (Schulman, 2020) of KL(sampling policy || policy before this update)."""
        loss = super()._compute_loss(model, inputs)
        log_ratio = (self._log_probs - inputs["old_per_token_logps"])[inputs["completion_mask"].bool()]
        self._metrics["train"]["kl"].append((log_ratio.exp() - 1 - log_ratio).mean().item())
        return loss

    # --- what is written ----------------------------------------------------------------------------------------------

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Called after each update; the last update of a step completes the step."""
        if "loss" not in logs:  # TRL's summary at the end of training
            return
        seen = {name: values[-1] for name, values in self._metrics["train"].items() if values}
        self._metrics["train"].clear()
        self._updates.append(
            {
                "clip_fraction": seen["clip_ratio/region_mean"],
                "kl": seen["kl"],
                "entropy": seen["entropy"],
                "grad_norm": logs["grad_norm"],
                "lr": logs["learning_rate"],
            }
        )
        if not (math.isfinite(logs["loss"]) and all_finite(self._updates[-1]) and weights_are_finite(self.model)):
            self._diverge(Divergence(self.run.step, "the loss, the gradient or a weight is not finite"))
        elif len(self._updates) == self.args.steps_per_generation:
            self._complete_step()

    def _complete_step(self) -> None:
        run = self.run
        engine = {name: float(np.mean([update[name] for update in self._updates])) for name in ENGINE_METRICS}
        now = time.monotonic()
        found = record_step(run.spec, run.directory, run.record, self._rollouts, engine, now - self._step_began)
        if found:
            self._diverge(found)
            return
        run.tracker.log(run.record.steps, run.record.metrics[-1])
        self._updates, self._step_began = [], now
        if run.record.steps not in run.spec.checkpoint_steps:
            run.check_deadline()

    def _diverge(self, divergence: Divergence) -> None:
        self.run.divergence = divergence
        self.control.should_training_stop, self.control.should_save = True, False

    def _save_checkpoint(self, model, trial) -> None:
        """step_<N>, complete once it has this name; the files of the run are written before."""
        super()._save_checkpoint(model, trial)
        run = self.run
        written = run.directory / f"checkpoint-{self.state.global_step}"
        (written / "training_args.bin").unlink()  # a pickle with paths of this machine; the specification says it all
        if run.method.has_state:
            torch.save(run.method.state_dict(), written / "method_state.pt")
        run_files.save(run.directory, run.record, run.spec)
        run_files.complete_checkpoint(run.directory, written, run.record.steps)
        run.check_deadline()


def _score(spec: RunSpec, row: dict[str, str], response: str, n_tokens: int) -> dict[str, float]:
    given = {"prompt_id": row["id"], "prompt": row["prompt"], "reference": row["reference"]}
    return score_sample(spec.task, spec.rewards, spec.reward_params, **given, response=response, n_tokens=n_tokens)


def step_generator(seed: int, step: int) -> torch.Generator:
    """The random numbers of a step's sampling: independent between steps, and not a state to save."""
    state = np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))


def weights_are_finite(model: torch.nn.Module) -> bool:
    """Whether no parameter holds NaN or infinity."""
    return all(torch.isfinite(parameter).all().item() for parameter in model.parameters())


def _name_only(name: str) -> Callable[..., list[float]]:
    """What TRL knows of a reward: its name. The values come from `_calculate_rewards`, each response scored once."""

    def reward(**_: Any) -> list[float]:
        raise RuntimeError("rewards are computed in MultiRewardTrainer._calculate_rewards, not by calling this")

    reward.__name__ = name
    return reward

"""The TRL engine: trains a run on the CPU, in this process, with TRL's GRPOTrainer and several rewards.

The rollouts' rewards go through the run's method, the rest of the loss is TRL's. The differences from TRL 1.16, each
in one override:
* the advantages are those of `step.batch_advantages` (`_calculate_rewards`, `_generate_and_score_completions`);
* an update gets whole groups (`_prepare_inputs`); TRL spreads the single responses over the updates at random;
* sampling, and log-probabilities in the update, encode each prompt once a group (`_generate_single_turn`,
  `_get_per_token_logps_and_entropies`); the policy before the update is known from sampling, without another pass;
* the metrics go to the run's files (`_compute_loss`, `log`), checkpoints become `step_<N>` (`_save_checkpoint`).
A step is a rollout batch; TRL's own global_step counts updates.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import split_tensor_dict

from dara.config import Resources
from dara.libraries import quiet
from dara.runs import run_id
from dara.specs import RunSpec
from dara.training.run import ResumePoint, RunInputs, train_run, training_rows
from dara.training.run_files import RunRecord, trackers
from dara.training.sampling import NotFiniteError, log_probs_and_entropies, sample
from dara.training.step import ENGINE_METRICS, Progress, Rollouts, batch_advantages, score_sample
from dara.training.stopping import Divergence, not_finite

LIBRARIES = ("torch", "transformers", "trl", "numpy")


def train(
    spec: RunSpec, inputs: RunInputs, *, resources: Resources | None = None, ray_address: str | None = None
) -> None:
    """Train the run of `spec` with TRL and publish it; see `run.train_run`. It needs neither resources nor Ray."""
    train_run(spec, train_steps, inputs, libraries=LIBRARIES)


def train_steps(point: ResumePoint) -> tuple[RunRecord, Divergence | None]:
    """Train to the last step; see `run.TrainSteps`."""
    quiet()
    torch.set_num_threads(1)  # the models are too small for several threads; one run per core instead
    spec, inputs, directory, record = point.spec, point.inputs, point.directory, point.record
    progress = Progress.resume(spec, directory, record, inputs.methods_dir, inputs.deadline)
    with trackers(inputs.trackers, directory, run_id(spec), record.metrics) as progress.track:
        trainer = MultiRewardTrainer(
            model=AutoModelForCausalLM.from_pretrained(inputs.model_dir, dtype=torch.float32),
            reward_funcs=[_name_only(name) for name in spec.rewards],
            args=trl_config(spec, directory),
            train_dataset=datasets.Dataset.from_list(training_rows(point.rows, spec)),
            processing_class=AutoTokenizer.from_pretrained(inputs.model_dir),
            progress=progress,
        )
        checkpoint = str(directory / f"step_{record.steps}") if record.steps else None
        record.startups.append(round(time.monotonic() - point.started, 3))
        try:
            trainer.train(resume_from_checkpoint=checkpoint)
        except NotFiniteError:
            return record, Divergence(progress.step, "the policy's logits are not finite")
    return record, trainer.divergence


def trl_config(spec: RunSpec, directory: Path) -> GRPOConfig:
    """Return a run's settings under TRL's names: one epoch per rollout batch, no KL term, float32 on the CPU."""
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
        logging_nan_inf_filter=False,  # the filter would hide a divergence
        disable_tqdm=True,
        report_to=[],
    )


class MultiRewardTrainer(GRPOTrainer):
    """GRPOTrainer whose advantages come from K rewards through the run's method."""

    divergence: Divergence | None = None

    def __init__(self, *args: Any, progress: Progress, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.progress = progress
        self._updates: list[dict[str, float]] = []
        self._step_began = time.monotonic()

    def _send_telemetry(self) -> None:
        """Disable telemetry."""

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write no model card: the run's manifest describes the checkpoint."""

    # --- rollouts -----------------------------------------------------------------------------------------------------

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> tuple[list, list]:
        """Return the responses; keep their log-probabilities. The samples depend on seed and step alone."""
        sampling = self.progress.spec.sampling
        responses, self._sampling_log_probs = sample(
            self.accelerator.unwrap_model(self.model),
            prompt_ids[:: self.num_generations],
            self.num_generations,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_response_tokens,
            end_tokens=tuple(self.eos_token_ids),
            pad=self.processing_class.pad_token_id,
            generator=step_generator(self.progress.spec.rollout_seed, self.progress.step),
        )
        return responses, None

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        spec = self.progress.spec
        lengths = [len(ids) for ids in completion_ids_list]
        values = [_rewards(spec, *one) for one in zip(inputs, completions, lengths, strict=True)]
        shape = (spec.prompts_per_step, spec.group_size)
        rewards = torch.tensor(values, dtype=torch.float64)
        self._rollouts = Rollouts(
            inputs, completions, rewards.view(*shape, len(spec.rewards)), torch.tensor(lengths).view(shape)
        )
        return rewards.float()  # TRL computes its own advantages from these; they are replaced

    def _generate_and_score_completions(self, inputs: list[dict[str, str]]) -> dict[str, torch.Tensor]:
        batch = super()._generate_and_score_completions(inputs)
        progress, rollouts = self.progress, self._rollouts
        rollouts.output, advantages = batch_advantages(
            progress.spec, progress.method, rollouts.rewards, rollouts.lengths
        )
        batch["advantages"] = advantages.flatten().to(batch["advantages"].dtype)
        sampled = [torch.tensor(row) for row in self._sampling_log_probs]
        batch["old_per_token_logps"] = torch.nn.utils.rnn.pad_sequence(sampled, batch_first=True)
        return batch

    def _prepare_inputs(self, generation_batch: list[dict[str, str]]) -> dict[str, torch.Tensor]:
        """Return the rows of an update: whole groups, in the order of the step's prompts.

        TRL would permute all B * G rows and split the result, which spreads a group over updates. The prompts are
        already in random order, so no permutation is needed.
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
        if not compute_entropy:  # TRL wants the log-probabilities before the update, known from sampling
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
        """Return TRL's loss; log the k3 estimate (Schulman, 2020) of KL(policy that sampled || policy before this)."""
        loss = super()._compute_loss(model, inputs)
        log_ratio = (self._log_probs - inputs["old_per_token_logps"])[inputs["completion_mask"].bool()]
        self._metrics["train"]["kl"].append((log_ratio.exp() - 1 - log_ratio).mean().item())
        return loss

    # --- output files -------------------------------------------------------------------------------------------------

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Complete the step with its last update; TRL calls this after each update."""
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
        broken = not math.isfinite(logs["loss"]) or not_finite(self.progress.step, self._updates[-1])
        if broken or not weights_are_finite(self.model):
            self._diverge(Divergence(self.progress.step, "the loss, the gradient or a weight is not finite"))
        elif len(self._updates) == self.args.steps_per_generation:
            self._complete_step()

    def _complete_step(self) -> None:
        engine = {name: float(np.mean([update[name] for update in self._updates])) for name in ENGINE_METRICS}
        now = time.monotonic()
        found = self.progress.complete_step(self._rollouts, engine, now - self._step_began)
        if found:
            self._diverge(found)
            return
        self._updates, self._step_began = [], now
        if self.progress.record.steps not in self.progress.spec.checkpoint_steps:
            self.progress.check_deadline()  # else once the checkpoint is written

    def _diverge(self, divergence: Divergence) -> None:
        self.divergence = divergence
        self.control.should_training_stop, self.control.should_save = True, False

    def _save_checkpoint(self, model, trial) -> None:
        """Write step_<N>, complete once it has this name."""
        super()._save_checkpoint(model, trial)
        written = self.progress.directory / f"checkpoint-{self.state.global_step}"
        (written / "training_args.bin").unlink()  # a pickle with paths of this machine; the specification has the rest
        self.progress.complete_checkpoint(written)
        self.progress.check_deadline()


def _rewards(spec: RunSpec, row: dict[str, str], response: str, n_tokens: int) -> list[float]:
    sample = {"prompt_id": row["id"], "prompt": row["prompt"], "reference": row["reference"]}
    values = score_sample(spec.task, spec.rewards, spec.reward_params, **sample, response=response, n_tokens=n_tokens)
    return list(values.values())


def step_generator(seed: int, step: int) -> torch.Generator:
    """Return the random generator of a step's sampling: independent between steps, so there is no state to save."""
    state = np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))


def weights_are_finite(model: torch.nn.Module) -> bool:
    """Return whether all parameters are finite."""
    return all(torch.isfinite(parameter).all().item() for parameter in model.parameters())


def _name_only(name: str) -> Callable[..., list[float]]:
    """Return a reward function that only has a name, which TRL asks for; `_calculate_rewards` computes the values."""

    def reward(**_: Any) -> list[float]:
        raise RuntimeError("rewards are computed in MultiRewardTrainer._calculate_rewards, not by calling this")

    reward.__name__ = name
    return reward

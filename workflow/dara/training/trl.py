"""The TRL engine: trains a run on the CPU, in this process, with TRL's GRPOTrainer and several rewards.

The rollouts' rewards go through the run's method, the rest of the loss is TRL's. The differences from TRL 1.16, each
in one override:
* the advantages are those of `step.batch_advantages` (`_calculate_rewards`, `_generate_and_score_completions`);
* an update gets whole groups (`_prepare_inputs`); TRL spreads the single responses over the updates at random;
* sampling, and log-probabilities in the update, encode each prompt once a group (`_generate_single_turn`,
  `_get_per_token_logps_and_entropies`); the policy before the update is known from sampling, without another pass;
* the metrics go to the run's files (`_compute_loss`, `log`), checkpoints become `step_<N>` (`_save_checkpoint`).
A step is a rollout batch; TRL's own global_step counts updates.

`sample` and `log_probs_and_entropies` share the keys and values of a prompt among the G responses of its group, which
halves the cost of an update on the small models; tests/test_training_sampling.py has the plain computation.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, PreTrainedModel
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import split_tensor_dict

from dara.config import Resources
from dara.runs import run_id
from dara.specs import RunSpec
from dara.system import quiet
from dara.training import step
from dara.training.run import ResumePoint, RunInputs, RunRecord, train_run
from dara.training.step import Progress, Rollouts
from dara.training.stopping import Divergence, not_finite

LIBRARIES = ("torch", "transformers", "trl", "numpy")


class NotFiniteError(ArithmeticError):
    """Logits of the policy are not finite: it has diverged."""


def _not_called(**_: Any) -> list[float]:
    """Stand where TRL asks for reward functions."""
    raise RuntimeError("rewards are computed in MultiRewardTrainer._calculate_rewards, not by calling this")


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
    with step.trackers(inputs.trackers, directory, run_id(spec), record.metrics) as progress.track:
        trainer = MultiRewardTrainer(
            model=AutoModelForCausalLM.from_pretrained(inputs.model_dir, dtype=torch.float32),
            reward_funcs=[_not_called] * len(spec.rewards),
            args=trl_config(spec, directory),
            train_dataset=datasets.Dataset.from_list(step.training_rows(point.rows, spec)),
            processing_class=AutoTokenizer.from_pretrained(inputs.model_dir),
            progress=progress,
        )
        record.startups.append(round(time.monotonic() - point.started, 3))
        try:
            trainer.train(resume_from_checkpoint=str(directory / f"step_{record.steps}") if record.steps else None)
        except NotFiniteError:
            return record, Divergence(progress.step, "the policy's logits are not finite")
    return record, trainer.divergence


def trl_config(spec: RunSpec, directory: Path) -> GRPOConfig:
    """Return a run's settings under TRL's names: one epoch per rollout batch, no KL term, float32 on the CPU."""
    optimizer, sampling, updates = spec.optimizer, spec.sampling, spec.optimizer.updates_per_step
    return GRPOConfig(
        output_dir=str(directory),
        per_device_train_batch_size=spec.prompts_per_step * spec.group_size // updates,
        steps_per_generation=updates,
        num_generations=spec.group_size,
        max_steps=spec.steps * updates,
        max_completion_length=sampling.max_response_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        learning_rate=optimizer.learning_rate,
        lr_scheduler_type="constant",
        optim="adamw_torch",
        adam_beta1=optimizer.betas[0],
        adam_beta2=optimizer.betas[1],
        weight_decay=optimizer.weight_decay,
        max_grad_norm=optimizer.max_grad_norm,
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

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> tuple[list, list]:
        """Return the responses; keep their log-probabilities.

        The generator is of seed and step alone: independent between steps, so there is no state to save.
        """
        sampling, seed = self.progress.spec.sampling, [self.progress.spec.rollout_seed, self.progress.step]
        [state] = np.random.SeedSequence(seed).generate_state(1, np.uint64)
        responses, self._sampling_log_probs = sample(
            self.accelerator.unwrap_model(self.model),
            prompt_ids[:: self.num_generations],
            self.num_generations,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_response_tokens,
            end_tokens=tuple(self.eos_token_ids),
            pad=self.processing_class.pad_token_id,
            generator=torch.Generator().manual_seed(int(state >> np.uint64(1))),
        )
        return responses, None

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        spec, lengths = self.progress.spec, [len(ids) for ids in completion_ids_list]
        values = []
        for row, response, n_tokens in zip(inputs, completions, lengths, strict=True):
            sample = {"prompt_id": row["id"], "prompt": row["prompt"], "reference": row["reference"]}
            sample |= {"response": response, "n_tokens": n_tokens}
            values.append(list(step.score_sample(spec.task, spec.rewards, spec.reward_params, **sample).values()))
        shape, rewards = (spec.prompts_per_step, spec.group_size), torch.tensor(values, dtype=torch.float64)
        self._rollouts = Rollouts(inputs, completions, rewards.view(*shape, -1), torch.tensor(lengths).view(shape))
        return rewards.float()  # TRL computes its own advantages from these; they are replaced

    def _generate_and_score_completions(self, inputs: list[dict[str, str]]) -> dict[str, torch.Tensor]:
        batch = super()._generate_and_score_completions(inputs)
        run, rollouts = self.progress, self._rollouts
        rollouts.output, advantages = step.batch_advantages(run.spec, run.method, rollouts.rewards, rollouts.lengths)
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

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Record an update, which completes its step if it is the last; TRL calls this after each update."""
        if "loss" not in logs:  # TRL's summary at the end of training
            return
        seen = {name: values[-1] for name, values in self._metrics["train"].items() if values}
        self._metrics["train"].clear()
        update = {"clip_fraction": seen["clip_ratio/region_mean"], "kl": seen["kl"], "entropy": seen["entropy"]}
        update |= {"grad_norm": logs["grad_norm"], "lr": logs["learning_rate"]}
        self._updates.append(update)
        found, progress = None, self.progress
        if not_finite({"loss": logs["loss"], **update}) or not step.weights_are_finite(self.model.parameters()):
            found = Divergence(progress.step, "the loss, the gradient or a weight is not finite")
        elif len(self._updates) == self.args.steps_per_generation:
            engine = {name: float(np.mean([update[name] for update in self._updates])) for name in step.ENGINE_METRICS}
            now = time.monotonic()
            found = progress.complete_step(self._rollouts, engine, now - self._step_began)
            self._updates, self._step_began = [], now
            if not found and progress.record.steps not in progress.spec.checkpoint_steps:
                progress.check_deadline()  # else once the checkpoint is written
        if found:
            self.divergence = found
            self.control.should_training_stop, self.control.should_save = True, False

    def _save_checkpoint(self, model, trial) -> None:
        """Write step_<N>, complete once it has this name."""
        super()._save_checkpoint(model, trial)
        written = self.progress.directory / f"checkpoint-{self.state.global_step}"
        (written / "training_args.bin").unlink()  # a pickle with paths of this machine; the specification has the rest
        self.progress.complete_checkpoint(written)
        self.progress.check_deadline()


def _encode(model: PreTrainedModel, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, DynamicCache]:
    """Return the last hidden state (B, hidden) and the cache of B left-padded prompts (B, P)."""
    out = model.base_model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=(mask.cumsum(1) - 1).clamp(min=0),
        past_key_values=DynamicCache(config=model.config),
        use_cache=True,
    )
    return out.last_hidden_state[:, -1], out.past_key_values


def draw(
    logits: torch.Tensor, temperature: float, top_p: float, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one token for each row of `logits` (N, V), and its log-probability (N,) at this temperature.

    top_p keeps the most likely tokens, as long as the tokens before them have less than probability top_p in total. The
    log-probability is that of the policy before this truncation: it is the denominator of the policy ratio, whose
    numerator is not truncated either. Raises NotFiniteError for logits that are not finite.
    """
    log_probs = torch.log_softmax(logits / temperature, dim=-1)
    if log_probs.isnan().any():
        raise NotFiniteError("the policy's logits are not finite")
    probs = log_probs.exp()
    if top_p < 1.0:
        ordered, index = probs.sort(dim=-1, descending=True)
        # The mass before a token decides, not up to it, so the most likely token is always kept.
        ordered = ordered.masked_fill(ordered.cumsum(-1) - ordered >= top_p, 0.0)
        probs = torch.zeros_like(probs).scatter(-1, index, ordered)
    tokens = torch.multinomial(probs, 1, generator=generator)  # normalises the remaining probabilities
    return tokens[:, 0], log_probs.gather(1, tokens)[:, 0]


@torch.inference_mode()
def sample(
    model: PreTrainedModel,
    prompts: list[list[int]],
    group_size: int,
    *,
    temperature: float,
    top_p: float,
    max_tokens: int,
    end_tokens: tuple[int, ...],
    pad: int,
    generator: torch.Generator,
) -> tuple[list[list[int]], list[list[float]]]:
    """Return responses to B prompts, G = `group_size` each, prompt by prompt, and each token's log-probability.

    A response ends with one of `end_tokens`, which it includes, or after `max_tokens`. Finished rows are removed from
    the batch once they are a quarter of it.
    """
    longest = max(map(len, prompts))
    ids = torch.tensor([[pad] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    hidden, cache = _encode(model, ids, mask)
    # From here on N = B * G rows; each has a copy of its prompt's keys and values, since its own tokens follow them.
    cache.batch_repeat_interleave(group_size)
    hidden, mask = (x.repeat_interleave(group_size, 0) for x in (hidden, mask))
    rows, position = torch.arange(len(mask)), mask.sum(1)
    tokens = torch.full((len(mask), max_tokens), pad)
    log_probs = torch.zeros(len(mask), max_tokens)
    ends = torch.tensor(end_tokens)
    alive = torch.ones(len(mask), dtype=torch.bool)
    for t in range(max_tokens):
        # Finished rows still in the batch draw too, so the random numbers depend on when rows are removed: a change
        # of that rule changes every run.
        drawn, log_prob = draw(model.lm_head(hidden), temperature, top_p, generator)
        tokens[rows, t], log_probs[rows, t] = drawn, log_prob
        alive = alive & ~torch.isin(drawn, ends)
        count = int(alive.sum())
        if count == 0 or t == max_tokens - 1:
            break
        # Selecting rows copies the cache, which costs as much as a few steps, so it is not done for each finished row.
        if count <= 0.75 * len(rows):
            keep = alive.nonzero()[:, 0]
            cache.batch_select_indices(keep)
            rows, drawn, position, mask, alive = rows[keep], drawn[keep], position[keep], mask[keep], alive[keep]
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
        out = model.base_model(
            input_ids=drawn[:, None], attention_mask=mask, position_ids=position[:, None], past_key_values=cache
        )
        hidden, position = out.last_hidden_state[:, -1], position + 1
    # Cut off what a finished row drew after its first end token.
    is_end = torch.isin(tokens, ends)
    lengths = torch.where(is_end.any(1), is_end.int().argmax(1) + 1, max_tokens).tolist()
    return (
        [row[:n] for row, n in zip(tokens.tolist(), lengths, strict=True)],
        [row[:n] for row, n in zip(log_probs.tolist(), lengths, strict=True)],
    )


def log_probs_and_entropies(
    model: PreTrainedModel,
    prompt_ids: torch.Tensor,
    prompt_mask: torch.Tensor,
    response_ids: torch.Tensor,
    response_mask: torch.Tensor,
    *,
    group_size: int,
    temperature: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probability and entropy (N, C) of each response token; 0 where the mask is 0.

    Prompts (N, P) are padded left and come in groups of `group_size` equal rows, responses (N, C) are padded right.
    """
    last, cache = _encode(model, prompt_ids[::group_size], prompt_mask[::group_size])
    cache.batch_repeat_interleave(group_size)
    # The prompt's last hidden state predicts the first response token, and token i predicts i + 1: the last one of the
    # response is no input.
    mask = torch.cat([prompt_mask, response_mask[:, :-1]], dim=1)
    positions = prompt_mask.sum(1, keepdim=True) + torch.arange(response_ids.shape[1] - 1)
    hidden = last.repeat_interleave(group_size, 0)[:, None]
    if response_ids.shape[1] > 1:
        out = model.base_model(
            input_ids=response_ids[:, :-1], attention_mask=mask, position_ids=positions, past_key_values=cache
        )
        hidden = torch.cat([hidden, out.last_hidden_state], dim=1)
    valid = response_mask.bool()
    logits = model.lm_head(hidden[valid]) / temperature  # of response tokens only: padding has no logits
    log_all = logits.log_softmax(-1)
    chosen = log_all.gather(1, response_ids[valid][:, None])[:, 0]
    with torch.no_grad():  # the entropy is only logged
        entropy = -(log_all.exp() * log_all).sum(-1)
    zeros = hidden.new_zeros(valid.shape)
    return zeros.masked_scatter(valid, chosen), zeros.masked_scatter(valid, entropy)

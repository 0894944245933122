"""Rollouts: the vLLM actor with a seed for each sample, and the generator of a step's groups in the order of prompts.

Both are OpenRLHF's classes with the methods replaced that decide what is drawn and in which order it arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import openrlhf.trainer.ray.vllm_engine as vllm_engine
import ray
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

from dara.specs import RunSpec
from dara.training.openrlhf.filtering import Pool, collect
from dara.training.openrlhf.labels import Label


class DaraRolloutActor(vllm_engine.RolloutRayActor.__ray_metadata__.modified_class):
    """OpenRLHF's vLLM actor; every sample has its own seed, so what is drawn does not depend on vLLM's batches."""

    async def generate_responses(
        self,
        prompt: str,
        label: str,
        sampling_params: Any,
        max_length: int,
        hf_tokenizer: Any,
        num_samples: int = 1,
        images: Any = None,
    ) -> list[dict[str, Any]]:
        """`num_samples` outputs of the executor, in the order of the samples."""
        parsed = Label.loads(label)
        tasks = []
        for sample in range(num_samples):
            own = deepcopy(sampling_params)
            own.seed = parsed.sample_seed(sample)
            tasks.append(
                self.executor.execute(
                    prompt=prompt,
                    label=label,
                    sampling_params=own,
                    max_length=max_length,
                    hf_tokenizer=hf_tokenizer,
                    llm_engine=self,
                    images=images,
                )
            )
        return await asyncio.gather(*tasks)


@dataclass(frozen=True)
class RolloutGroup:
    """The responses to one prompt: G samples."""

    experiences: list[Experience]
    responses: list[str]
    rewards: np.ndarray  # (G, K) float64, raw
    lengths: np.ndarray  # (G,) tokens, end token included


class DaraSamplesGenerator(SamplesGenerator):
    """The groups of a step, in the order of their prompts, after the run's filter.

    After `generate_samples`: pool_rewards (P, G, K) float64 and pool_lengths (P, G) of the whole candidate pool,
    filter_metrics (empty without a filter), and responses, the text of each returned sample.
    done: steps of the run before this start. world_size: GPUs of the actor.
    """

    def __init__(self, *args: Any, spec: RunSpec, done: int = 0, world_size: int = 1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.spec = spec
        self.step = done
        self.world_size = world_size
        self._prompts: Iterator | None = None
        self.pool_rewards = self.pool_lengths = torch.empty(0)
        self.filter_metrics: dict[str, float] = {}
        self.responses: list[str] = []

    @torch.no_grad()
    def generate_samples(self, **generate_kwargs: Any) -> tuple[list[Experience], float | None, int, bool]:
        """prompts_per_step groups of group_size single-sample experiences, share accepted in percent, prompts taken,
        and False: the prompts never run out.

        Raises what a rollout actor raised (as Ray hands it on), and TooFewGroupsError.
        """
        self.step += 1
        if self._prompts is None:
            self._prompts = iter(self.prompts_dataloader)
        if self.args.vllm.enable_sleep:
            vllm_engine.batch_vllm_engine_call(self.vllm_engines, "wake_up")
        pool = collect(
            lambda n: self._groups(n, generate_kwargs),
            self.spec.prompts_per_step,
            self.spec.filter,
            self.spec.reward_weights,
            world_size=self.world_size,
            step=f"step {self.step}",
        )
        if self.args.vllm.enable_sleep:
            vllm_engine.batch_vllm_engine_call(self.vllm_engines, "sleep")
        self._describe(pool)
        kept = [pool.groups[i] for i in pool.kept]
        self.responses = [text for group in kept for text in group.responses]
        share = 100 * pool.metrics["filter/acceptance"] if pool.metrics else None
        return [one for group in kept for one in group.experiences], share, len(pool.groups), False

    def _describe(self, pool: Pool[RolloutGroup]) -> None:
        self.pool_rewards = torch.from_numpy(pool.rewards)
        self.pool_lengths = torch.from_numpy(np.stack([group.lengths for group in pool.groups]))
        self.filter_metrics = pool.metrics

    def _groups(self, size: int, generate_kwargs: dict[str, Any]) -> list[RolloutGroup]:
        """The groups of the next `size` prompts, in their order, whichever is ready first."""
        rows = [next(self._prompts) for _ in range(size)]
        prompts = [prompt for _, [prompt], _, _ in rows]
        labels = [label for _, _, [label], _ in rows]
        # The first token may be the end token, as in the TRL engine; OpenRLHF's default asks for one token before it.
        refs = self._dispatch_prompts_to_vllm(prompts, labels, **{**generate_kwargs, "min_new_tokens": 0})
        return [self._group(outputs, generate_kwargs) for outputs in ray.get(refs)]

    def _group(self, outputs: list[dict[str, Any]], generate_kwargs: dict[str, Any]) -> RolloutGroup:
        if len(outputs) != self.spec.group_size:
            raise ValueError(f"a prompt has {len(outputs)} responses; a group has {self.spec.group_size}")
        experiences = [self._process_response_into_experience(output, **generate_kwargs) for output in outputs]
        names = self.spec.rewards
        rewards = [[output["extra_logs"][name] for name in names] for output in outputs]
        lengths = [end - start for output in outputs for start, end in output["action_ranges"]]
        for experience, values in zip(experiences, rewards, strict=True):  # OpenRLHF makes them float32
            experience.info |= {
                name: torch.tensor([value], dtype=torch.float64) for name, value in zip(names, values, strict=True)
            }
        responses = [output["response"] for output in outputs]
        return RolloutGroup(experiences, responses, np.array(rewards, dtype=np.float64), np.array(lengths))

"""OpenRLHF's generation with vLLM: a seed for each sample, and the rewards of the run on the response's tokens.

It is apart from `trainer`, because a process of vLLM must not import DeepSpeed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, ClassVar

import openrlhf.trainer.ray.vllm_engine as vllm_engine
from openrlhf.utils.agent import SingleTurnAgentExecutor

from dara.rewards import load_rewards
from dara.training.openrlhf.rollouts import Label
from dara.training.step import score_sample


class DaraRolloutActor(vllm_engine.RolloutRayActor.__ray_metadata__.modified_class):
    """OpenRLHF's vLLM actor with a seed for each sample, so samples do not depend on vLLM's batches."""

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
        """Return `num_samples` outputs of the executor, in the order of the samples."""
        request = {"prompt": prompt, "label": label, "max_length": max_length, "hf_tokenizer": hf_tokenizer}
        tasks = []
        for sample in range(num_samples):
            own = deepcopy(sampling_params)
            own.seed = Label.loads(label).sample_seed(sample)
            tasks.append(self.executor.execute(**request, sampling_params=own, llm_engine=self, images=images))
        return await asyncio.gather(*tasks)


class RewardExecutor(SingleTurnAgentExecutor):
    """Generates one response and scores it; the reward file of a run has the subclass with its rewards.

    OpenRLHF's own mechanism, a reward function, gets the text of prompt and response but no tokens, and an exception in
    it is logged and swallowed. Here the exception reaches the trainer.
    """

    task: ClassVar[str]
    rewards: ClassVar[Sequence[str]]
    reward_params: ClassVar[Mapping[str, Mapping[str, float]]]
    reward_functions: ClassVar[Mapping[str, str]] = {}
    own_files: ClassVar[str | None] = None

    def __init__(self) -> None:
        super().__init__(None)
        load_rewards(self.task, self.reward_functions, self.own_files)

    async def execute(
        self,
        prompt: str,
        label: str,
        sampling_params: Any,
        max_length: int,
        hf_tokenizer: Any,
        llm_engine: Any,
        images: Any = None,
    ) -> dict[str, Any]:
        """Return OpenRLHF's output for one sample, with `reward` and `scores` (the sum), `extra_logs` (name -> value)
        and `response` (text).

        Raises RewardError, and ValueError for a prompt that OpenRLHF would cut.
        """
        output = await super().execute(
            prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine, images=images
        )
        parsed, [(start, end)] = Label.loads(label), output["action_ranges"]
        if start == max_length - sampling_params.max_tokens:  # the prompt fills its room, or its beginning is cut off
            tokens = len(hf_tokenizer(text=prompt, add_special_tokens=False)["input_ids"])
            if tokens > start:
                raise ValueError(
                    f"prompt {parsed.id} has {tokens} tokens, and the run leaves room for {start}: prepare the data "
                    "with a lower limit of the prompt's tokens, or give the run a larger one"
                )
        # Decoded as in the TRL engine, so that the same tokens have the same rewards.
        response = hf_tokenizer.decode(output["observation_tokens"][start:end], skip_special_tokens=True)
        values = await asyncio.to_thread(
            score_sample,
            self.task,
            self.rewards,
            self.reward_params,
            prompt_id=f"{parsed.id}, number {parsed.position} of the run",
            prompt=prompt,
            reference=parsed.reference,
            response=response,
            n_tokens=end - start,
        )
        total = sum(values.values())
        return {**output, "reward": total, "scores": total, "extra_logs": values, "response": response}

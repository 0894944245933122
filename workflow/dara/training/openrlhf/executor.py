"""OpenRLHF's single-turn executor, with the rewards of the run computed on the response's tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from openrlhf.utils.agent import SingleTurnAgentExecutor

from dara.rewards import load_rewards
from dara.training.openrlhf.labels import Label
from dara.training.scoring import score_sample


class RewardExecutor(SingleTurnAgentExecutor):
    """Generates one response and scores it; `reward_file` writes the subclass that says with which rewards.

    OpenRLHF's own way, a reward function, gets the text of prompt and response but no tokens, and an exception in it
    is logged and swallowed. Here it reaches the trainer.
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
        """OpenRLHF's output for one sample, with `reward` and `scores` (the sum), `extra_logs` (name -> value) and
        `response` (text).

        Raises RewardError, and ValueError for a prompt that OpenRLHF would cut.
        """
        output = await super().execute(
            prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine, images=images
        )
        parsed = Label.loads(label)
        [(start, end)] = output["action_ranges"]
        if start == max_length - sampling_params.max_tokens:
            _check_prompt(parsed, prompt, hf_tokenizer, start)
        # As the TRL engine decodes, so that the same tokens have the same rewards.
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


def _check_prompt(label: Label, prompt: str, tokenizer: Any, room: int) -> None:
    """ValueError if the prompt has more than `room` tokens: its beginning was cut off."""
    tokens = len(tokenizer(text=prompt, add_special_tokens=False)["input_ids"])
    if tokens > room:
        raise ValueError(
            f"prompt {label.id} has {tokens} tokens, and the run leaves room for {room}: prepare the data with a lower "
            "limit of the prompt's tokens, or give the run a larger one"
        )

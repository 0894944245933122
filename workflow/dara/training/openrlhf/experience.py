"""OpenRLHF's experience maker with the run's method in place of its advantage estimators."""

from __future__ import annotations

from typing import Any

import torch
from openrlhf.trainer.ppo_utils.experience import Experience, make_experience_batch, split_experience_batch
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

from dara.methods import Method
from dara.specs import RunSpec
from dara.training.openrlhf.layout import Made, deal, flatten, set_advantages


class DaraExperienceMaker(RemoteExperienceMaker):
    """Makes the advantages of a step; `made` holds what the last ones came from."""

    spec: RunSpec
    method: Method
    ranks: int
    made: Made
    keep_index: bool = False  # let each sample say where it stands in the rollout batch

    @torch.no_grad()
    def make_experience_batch(self, rollout_samples: list[Experience]) -> list[Experience]:
        """The experiences of a step with their advantages, dealt to the ranks so that whole groups go to an update.

        Micro-batches of equal size, on one rank, are in the order of the rollouts already; those by tokens are not.
        """
        experiences = super().make_experience_batch(rollout_samples)
        in_order = self.ranks == 1 and not self.args.train.dynamic_batch_enable
        return experiences if in_order else self._dealt(experiences)

    @torch.no_grad()
    def compute_advantages_and_returns(self, experiences: list[Experience]) -> list[Experience]:
        """The method's advantages on all response tokens, and the KL of a reward that has one."""
        kl_in_reward = self.initial_model_group is not None and not self.args.algo.kl.use_loss
        self.made = set_advantages(experiences, self.spec, self.method, self.kl_ctl.value if kl_in_reward else None)
        if self.keep_index:
            for experience in experiences:
                experience.info["index"] = torch.tensor(experience.index, dtype=torch.float64)
        return experiences

    def _dealt(self, experiences: list[Experience]) -> list[Experience]:
        places: list[int] = flatten(e.index for e in experiences)
        samples: list[Any] = flatten(split_experience_batch(e) for e in experiences)
        in_order = [sample for _, sample in sorted(zip(places, samples, strict=True), key=lambda pair: pair[0])]
        lengths = [int(sample.total_length) for sample in in_order]
        hands = deal(lengths, self.spec.optimizer.updates_per_step, self.ranks)
        return [make_experience_batch([in_order[i] for i in hand]) for hand in hands]

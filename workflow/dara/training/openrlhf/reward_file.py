"""The file that OpenRLHF loads the rewards from (`--train.agent_func_path`), written for one run."""

from __future__ import annotations

from pathlib import Path

from dara.files import write_atomically
from dara.specs import RunSpec

NAME = "reward.py"
TEMPLATE = '''"""The rewards of this run. OpenRLHF loads the class from here (--train.agent_func_path)."""

from dara.training.openrlhf.executor import RewardExecutor


class AgentExecutor(RewardExecutor):
    task = {task!r}
    rewards = {rewards!r}
    reward_params = {reward_params!r}
    reward_functions = {reward_functions!r}
    own_files = {own_files!r}
'''


def write_reward_file(output: Path, spec: RunSpec, own_files: Path | None = None) -> Path:
    """Write `<output>/reward.py`, and return its path. own_files: where a user's own files are relative to."""
    path = output / NAME
    functions = {name: one.function for name, one in spec.reward_functions.items()}
    text = TEMPLATE.format(
        task=spec.task,
        rewards=spec.rewards,
        reward_params=spec.reward_params,
        reward_functions=functions,
        own_files=str(own_files.resolve()) if own_files else None,
    )
    write_atomically(path, text)
    return path

"""A completed step: its line of metrics, its rewards and samples, and its progress line. The same for every engine."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dara.config import RunSpec
from dara.methods import Output
from dara.rewards import reward_ranges
from dara.training import run_files
from dara.training.divergence import Divergence, divergence
from dara.training.lifecycle import title
from dara.training.metrics import step_metrics
from dara.training.run_files import RunRecord

log = logging.getLogger(__name__)

REPORT_EVERY = 5  # steps between progress lines
SAMPLES = 4  # responses kept for reading at each checkpoint


@dataclass
class Rollouts:
    """The rollout batch of a step: B groups of G responses, K rewards, prompt by prompt."""

    rows: Sequence[Mapping[str, str]]  # B * G times {"id", "prompt", "reference"}
    responses: Sequence[str]  # B * G
    rewards: torch.Tensor  # (B, G, K) float64
    lengths: torch.Tensor  # (B, G) tokens
    output: Output | None = None
    pool_rewards: torch.Tensor | None = None  # (P, G, K): before a filter; None without one
    pool_lengths: torch.Tensor | None = None  # (P, G)
    filtered: Mapping[str, float] | None = None  # filter/*


def record_step(
    spec: RunSpec,
    directory: Path,
    record: RunRecord,
    rollouts: Rollouts,
    engine: Mapping[str, float],
    seconds: float,
) -> Divergence | None:
    """Add a completed step to the record and to metrics.jsonl, unless it is the one in which the run diverged.

    engine: the engine's metrics of the step, see step_metrics. seconds: wall-clock time of the step.
    """
    step = record.steps + 1
    line = step_metrics(
        step,
        spec.rewards,
        pool_rewards=rollouts.rewards if rollouts.pool_rewards is None else rollouts.pool_rewards,
        pool_lengths=rollouts.lengths if rollouts.pool_lengths is None else rollouts.pool_lengths,
        output=rollouts.output,
        engine=engine,
        filtered=rollouts.filtered,
    )
    ranges = dict(zip(spec.rewards, reward_ranges(spec.task, spec.rewards), strict=True))
    found = divergence(record.metrics, line, ranges)
    if found:
        return found
    if step in spec.checkpoint_steps:
        record.samples += reading_samples(spec, step, rollouts)
    run_files.append_metrics(directory, line)
    record.metrics.append(line)
    record.rewards.append(rollouts.rewards.numpy())
    record.lengths.append(rollouts.lengths.numpy())
    record.seconds.append(round(seconds, 4))
    report(spec, record)
    return None


def reading_samples(spec: RunSpec, step: int, rollouts: Rollouts) -> list[dict[str, Any]]:
    """A few responses of a step for people to read: the first one of evenly spread prompts."""
    prompts = range(0, spec.prompts_per_step, max(1, spec.prompts_per_step // SAMPLES))[:SAMPLES]
    return [
        {
            "step": step,
            **rollouts.rows[b * spec.group_size],
            "response": rollouts.responses[b * spec.group_size],
            "n_tokens": rollouts.lengths[b, 0].item(),
            "rewards": dict(zip(spec.rewards, rollouts.rewards[b, 0].tolist(), strict=True)),
            "advantage": rollouts.output.advantages[b, 0].item(),
        }
        for b in prompts
    ]


def report(spec: RunSpec, record: RunRecord) -> None:
    """Log a progress line at the first and last step and every few steps."""
    step = record.steps
    if step not in (1, spec.steps) and step % REPORT_EVERY:
        return
    line, pace = record.metrics[-1], float(np.mean(record.seconds[-REPORT_EVERY:]))
    means = " ".join(f"{name} {line[f'reward/{name}/mean']:.3g}" for name in spec.rewards)
    densities = " ".join(f"{line[f'density/{name}']:.2f}" for name in spec.rewards)
    minutes, seconds = divmod(round(pace * (spec.steps - step)), 60)
    log.info(
        "%s | step %d/%d | %s | density %s | %.2f s/step, %d:%02d left",
        *(title(spec), step, spec.steps, means, densities, pace, minutes, seconds),
    )

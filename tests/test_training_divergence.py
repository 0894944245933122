import gzip
import json

import pytest

from dara.rewards import reward_ranges
from dara.training.divergence import Divergence, collapsed, divergence, diverging, exploded, not_finite
from project import ROOT

CACHED = sorted((ROOT / "results/cached").glob("*/metrics.jsonl.gz"))
RANGES = {"correctness": (-3.0, 3.0), "format": (0.0, 1.0)}


def line(correctness, form):
    return {"grad_norm": 1.0, "reward/correctness/mean": correctness, "reward/format/mean": form}


def test_a_number_that_is_none():
    assert not_finite(7, {"kl": 0.1, "grad_norm": float("nan")}) == Divergence(7, "grad_norm is nan")
    assert not_finite(7, {"kl": float("-inf")}).reason == "kl is -inf"
    assert not_finite(7, {"kl": 0.1, "step": 7}) is None


def test_a_step_is_asked_about_before_it_is_recorded():
    healthy = [line(0.0, 0.5)] * 12
    for_step = {"step": 13, **line(0.0, 0.5)}
    assert divergence(healthy, for_step, RANGES) is None
    assert divergence(healthy, for_step | {"grad_norm": float("inf")}, RANGES) == Divergence(13, "grad_norm is inf")
    large = [line(0.0, 0.5) | {"grad_norm": 500.0}] * 2
    assert divergence([*healthy, *large], for_step | {"step": 15, "grad_norm": 500.0}, RANGES).step == 15


def test_the_gradient_explodes_at_the_third_step_above_the_bound():
    norms = [0.5] * 12 + [50.1] * 3
    assert exploded([{"grad_norm": norm} for norm in norms[:-1]]) is None
    found = exploded([{"grad_norm": norm} for norm in norms])
    assert found == Divergence(15, "the gradient norm was above 100 times its median (0.5) for 3 steps")


@pytest.mark.parametrize(
    "norms",
    [
        [0.5] * 12 + [50.0] * 3,  # exactly the bound
        [0.5] * 12 + [80.0, 80.0, 0.5],  # it came back
        [0.5] * 12 + [1e6],  # one spike, which clipping takes
        [0.5] * 9 + [500.0] * 3,  # nothing to compare with yet
        [0.0] * 20 + [1.0] * 3,  # no signal at first
        [],
    ],
)
def test_no_explosion(norms):
    assert exploded([{"grad_norm": norm} for norm in norms]) is None


def test_the_rewards_collapse():
    # as shares of their ranges: 1 and 0.5, mean 0.75; then 0 and 0.05, mean 0.025
    steps = [line(3.0, 0.5)] * 20 + [line(-3.0, 0.05)] * 10
    assert diverging(steps, RANGES) == Divergence(
        30, "the mean reward of 10 steps fell from 0.750 to 0.025 (each reward as 0..1 of its range)"
    )
    # a fifth of 0.75 is 0.15; eight of the ten steps at the bottom leave 0.17, nine 0.0975
    assert next(n for n in range(1, 31) if diverging(steps[:n], RANGES)) == 29


def test_a_run_that_starts_at_nothing_or_falls_a_little_has_not_collapsed():
    assert collapsed([line(-3.0, 0.0)] * 40, RANGES) is None
    assert collapsed([line(0.0, 0.5)] * 20 + [line(-2.0, 0.5)] * 20, RANGES) is None
    assert collapsed([line(3.0, 1.0)] * 9 + [line(-3.0, 0.0)] * 10, RANGES) is None  # too short to tell


@pytest.mark.skipif(not CACHED, reason="results/cached is not here")
def test_no_cached_run_diverges_at_any_of_its_steps():
    """They were trained before the rules, and must stay what they are."""
    for path in CACHED:
        metrics = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
        spec = json.loads((path.parent / "spec.json").read_text())
        names = spec["rewards"]
        ranges = dict(zip(names, reward_ranges(spec["task"], names), strict=True))
        assert [n for n in range(1, len(metrics) + 1) if diverging(metrics[:n], ranges)] == [], path
        assert all(not_finite(line["step"], line) is None for line in metrics)

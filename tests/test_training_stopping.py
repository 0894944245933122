"""A training stops at its job's time limit, or because it has diverged."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dara.rewards import reward_ranges
from dara.training.stopping import Deadline, Divergence, LimitTooShort, OutOfTime, divergence
from project import ROOT

HOUR = Deadline(minutes=60, started=1000.0)  # ends at 4600, and should be left at 4300
SCHEDULE = (10, 20, 30, 35)
CACHED = sorted((ROOT / "results/cached").glob("*/metrics.jsonl.gz"))
RANGES = {"correctness": (-3.0, 3.0), "format": (0.0, 1.0)}
COLLAPSED = "the mean reward of 10 steps fell from 0.750 to 0.025 (each reward as 0..1 of its range)"

# --- the time limit ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("minutes", "now", "seconds", "goes_on"),
    [
        # ten more steps of 10 s need 125 s and 10 s for the checkpoint: 135 s before 4300
        (60, 4164.9, [10.0] * 20, True),
        (60, 4165.1, [10.0] * 20, False),
        # the start was slow, the last step wrote a checkpoint: 1.25 * 9 * 10 + 18 = 130.5
        (60, 4169.4, [500.0] * 5 + [8.0] * 9 + [18.0], True),
        (60, 4169.6, [500.0] * 5 + [8.0] * 9 + [18.0], False),
        # a fifth of the limit is kept free, and at most five minutes
        (10, 1344.9, [10.0], True),
        (10, 1345.1, [10.0], False),
        (2880, 173364.9, [10.0], True),
        (2880, 173365.1, [10.0], False),
    ],
)
def test_it_stops_at_a_checkpoint_when_the_next_cannot_be_reached(minutes, now, seconds, goes_on):
    deadline = Deadline(minutes, 1000.0)
    if goes_on:
        deadline.check(20, SCHEDULE, seconds, now)
        return
    message = f"^stopped at step 20 before the time limit of {minutes} minutes; the next attempt continues$"
    with pytest.raises(OutOfTime, match=message):
        deadline.check(20, SCHEDULE, seconds, now)


def test_between_two_checkpoints_and_after_the_last_it_goes_on():
    HOUR.check(25, SCHEDULE, [10.0] * 25, 4599.0)
    HOUR.check(35, SCHEDULE, [10.0] * 35, 4600.0)


def test_a_limit_that_holds_no_checkpoint_is_an_error():
    with pytest.raises(LimitTooShort, match="60 minutes is too short to get from step 20 to the checkpoint at step 30"):
        HOUR.check(21, SCHEDULE, [900.0], 2000.0)
    with pytest.raises(LimitTooShort, match="from step 0 to the checkpoint at step 10"):
        HOUR.check(3, SCHEDULE, [10.0] * 3, 4600.0)
    HOUR.check(21, SCHEDULE, [300.0], 1100.0)


@given(st.lists(st.floats(0.01, 500), min_size=1, max_size=40), st.integers(1, 30), st.floats(2, 3000))
def test_whoever_goes_on_reaches_the_next_checkpoint_at_the_pace_so_far(seconds, interval, minutes):
    now = sum(seconds)
    try:
        Deadline(minutes, 0.0).check(30, (30, 30 + interval), seconds, now)
    except OutOfTime:
        return
    assert now + sum(seconds[-10:]) / len(seconds[-10:]) * interval < 60 * minutes


# --- divergence -------------------------------------------------------------------------------------------------------


def line(correctness, form, grad_norm=1.0):
    return {"grad_norm": grad_norm, "reward/correctness/mean": correctness, "reward/format/mean": form}


@pytest.mark.parametrize("bad", ["nan", "inf", "-inf"])
def test_a_number_that_is_none_ends_the_run(bad):
    healthy = [line(0.0, 0.5)] * 13
    assert divergence([*healthy, line(0.0, 0.5, float(bad))], RANGES) == Divergence(14, f"grad_norm is {bad}")


@pytest.mark.parametrize(
    ("norms", "step"),
    [
        ([0.5] * 12 + [50.1] * 3, 15),
        ([0.5] * 12 + [50.1] * 2, None),
        ([0.5] * 12 + [50.0] * 3, None),  # exactly the bound
        ([0.5] * 12 + [80.0, 80.0, 0.5], None),  # it came back
        ([0.5] * 12 + [1e6], None),  # one spike, which clipping takes
        ([0.5] * 9 + [500.0] * 3, None),  # nothing to compare with yet
        ([0.0] * 20 + [1.0] * 3, None),  # no signal at first
    ],
)
def test_the_gradient_explodes_at_the_third_step_above_the_bound(norms, step):
    reason = "the gradient norm was above 100 times its median (0.5) for 3 steps"
    assert divergence([line(0.0, 0.5, norm) for norm in norms], RANGES) == (step and Divergence(step, reason))


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        # as shares of their ranges: 1 and 0.5, mean 0.75; then 0 and 0.05, mean 0.025
        ([line(3.0, 0.5)] * 20 + [line(-3.0, 0.05)] * 10, Divergence(30, COLLAPSED)),
        # a fifth of 0.75 is 0.15; eight of the ten steps at the bottom leave 0.17, nine 0.0975
        ([line(3.0, 0.5)] * 20 + [line(-3.0, 0.05)] * 9, Divergence(29, COLLAPSED.replace("0.025", "0.098"))),
        ([line(3.0, 0.5)] * 20 + [line(-3.0, 0.05)] * 8, None),
        ([line(-3.0, 0.0)] * 40, None),
        ([line(0.0, 0.5)] * 20 + [line(-2.0, 0.5)] * 20, None),
        ([line(3.0, 1.0)] * 9 + [line(-3.0, 0.0)] * 10, None),  # too short to say
    ],
)
def test_the_rewards_collapse(steps, found):
    assert divergence(steps, RANGES) == found


@pytest.mark.skipif(not CACHED, reason="results/cached is not here")
def test_no_cached_run_diverges():
    """They were trained before the rules, and must stay what they are."""
    for path in CACHED:
        metrics = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
        spec = json.loads((path.parent / "spec.json").read_text())
        ranges = dict(zip(spec["rewards"], reward_ranges(spec["task"], spec["rewards"]), strict=True))
        assert [n for n in range(1, len(metrics) + 1) if divergence(metrics[:n], ranges)] == [], path

"""A training stops at its job's time limit, or because it has diverged."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dara.rewards import reward_ranges
from dara.training.stopping import (
    Deadline,
    Divergence,
    LimitTooShort,
    OutOfTime,
    collapsed,
    divergence,
    exploded,
    seconds_needed,
)
from project import ROOT

HOUR = Deadline(minutes=60, started=1000.0)  # ends at 4600, and should be left at 4300
CACHED = sorted((ROOT / "results/cached").glob("*/metrics.jsonl.gz"))
RANGES = {"correctness": (-3.0, 3.0), "format": (0.0, 1.0)}

# --- the time limit ---------------------------------------------------------------------------------------------------


def test_a_fifth_of_the_limit_is_kept_free_and_at_most_five_minutes():
    assert Deadline.of(None, 0.0) is None
    assert Deadline.of(60, 1000.0) == HOUR
    for minutes, reserve in [(1, 12), (10, 120), (25, 300), (2880, 300)]:
        assert Deadline(minutes, 0.0).reserve == pytest.approx(reserve)


def test_the_estimate_is_the_recent_pace_with_caution_and_a_checkpoint():
    seconds = [500.0] * 5 + [8.0] * 9 + [18.0]  # the start was slow, the last step wrote a checkpoint
    assert seconds_needed(seconds, 10) == pytest.approx(1.25 * 9.0 * 10 + 18.0)


def test_it_stops_at_a_checkpoint_when_the_next_cannot_be_reached():
    # ten more steps of 10 s need 125 s and 10 s for the checkpoint: 135 s before 4300
    HOUR.check(4164.9, [10.0] * 20, step=20, since=20, next_checkpoint=30)
    with pytest.raises(OutOfTime, match=r"^stopped at step 20 before the time limit of 60 minutes; the next attempt"):
        HOUR.check(4165.1, [10.0] * 20, step=20, since=20, next_checkpoint=30)
    HOUR.check(4599.0, [10.0] * 25, step=25, since=20, next_checkpoint=30)  # between two checkpoints it goes on


def test_a_limit_that_holds_no_checkpoint_is_an_error():
    with pytest.raises(LimitTooShort, match="60 minutes is too short to get from step 20 to the checkpoint at step 30"):
        HOUR.check(2000.0, [900.0], step=21, since=20, next_checkpoint=30)
    HOUR.check(1100.0, [300.0], step=21, since=20, next_checkpoint=30)


def test_after_a_step_the_schedule_says_where_the_checkpoints_are():
    schedule, end = (10, 20, 25), HOUR.end
    with pytest.raises(OutOfTime, match="stopped at step 20"):
        HOUR.after_step(20, schedule, [10.0], end)
    with pytest.raises(LimitTooShort, match="from step 0 to the checkpoint at step 10"):
        HOUR.after_step(3, schedule, [10.0] * 3, end)
    HOUR.after_step(23, schedule, [10.0] * 23, end)  # on the way from one checkpoint to the next
    HOUR.after_step(25, schedule, [10.0] * 25, end)  # done


@given(st.lists(st.floats(0.01, 500), min_size=1, max_size=40), st.integers(1, 30), st.floats(2, 3000))
def test_whoever_goes_on_reaches_the_next_checkpoint_at_the_pace_so_far(seconds, interval, minutes):
    deadline, now = Deadline(minutes, 0.0), sum(seconds)
    try:
        deadline.check(now, seconds, step=30, since=30, next_checkpoint=30 + interval)
    except OutOfTime:
        return
    pace = sum(seconds[-10:]) / len(seconds[-10:])
    assert now + pace * interval < deadline.end


# --- divergence -------------------------------------------------------------------------------------------------------


def line(correctness, form, grad_norm=1.0):
    return {"grad_norm": grad_norm, "reward/correctness/mean": correctness, "reward/format/mean": form}


def test_a_number_that_is_none_ends_the_run():
    healthy = [line(0.0, 0.5)] * 13
    assert divergence(healthy, RANGES) is None
    for bad in ("nan", "inf", "-inf"):
        found = divergence([*healthy, line(0.0, 0.5, float(bad))], RANGES)
        assert found == Divergence(14, f"grad_norm is {bad}")
    large = [line(0.0, 0.5, 500.0)] * 3
    assert divergence([*healthy, *large], RANGES).step == 16


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
        ([], None),
    ],
)
def test_the_gradient_explodes_at_the_third_step_above_the_bound(norms, step):
    found = exploded([{"grad_norm": norm} for norm in norms])
    reason = "the gradient norm was above 100 times its median (0.5) for 3 steps"
    assert found == (Divergence(step, reason) if step else None)


def test_the_rewards_collapse():
    # as shares of their ranges: 1 and 0.5, mean 0.75; then 0 and 0.05, mean 0.025
    steps = [line(3.0, 0.5)] * 20 + [line(-3.0, 0.05)] * 10
    assert divergence(steps, RANGES) == Divergence(
        30, "the mean reward of 10 steps fell from 0.750 to 0.025 (each reward as 0..1 of its range)"
    )
    # a fifth of 0.75 is 0.15; eight of the ten steps at the bottom leave 0.17, nine 0.0975
    assert next(n for n in range(1, 31) if divergence(steps[:n], RANGES)) == 29
    assert collapsed([line(-3.0, 0.0)] * 40, RANGES) is None
    assert collapsed([line(0.0, 0.5)] * 20 + [line(-2.0, 0.5)] * 20, RANGES) is None
    assert collapsed([line(3.0, 1.0)] * 9 + [line(-3.0, 0.0)] * 10, RANGES) is None  # too short to say


@pytest.mark.skipif(not CACHED, reason="results/cached is not here")
def test_no_cached_run_diverges_at_any_of_its_steps():
    """They were trained before the rules, and must stay what they are."""
    for path in CACHED:
        metrics = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
        spec = json.loads((path.parent / "spec.json").read_text())
        ranges = dict(zip(spec["rewards"], reward_ranges(spec["task"], spec["rewards"]), strict=True))
        assert [n for n in range(1, len(metrics) + 1) if divergence(metrics[:n], ranges)] == [], path

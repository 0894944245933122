import pytest
from hypothesis import given
from hypothesis import strategies as st

from dara.training.deadline import Deadline, LimitTooShort, OutOfTime, seconds_needed

HOUR = Deadline(minutes=60, started=1000.0)  # ends at 4600, and should be left at 4300


def test_no_limit_no_deadline():
    assert Deadline.of(None, 0.0) is None
    assert Deadline.of(60, 1000.0) == HOUR


@pytest.mark.parametrize(("minutes", "reserve"), [(1, 12), (10, 120), (25, 300), (60, 300), (2880, 300)])
def test_a_fifth_is_kept_free_and_at_most_five_minutes(minutes, reserve):
    assert Deadline(minutes, 0.0).reserve == pytest.approx(reserve)


def test_the_estimate_is_the_recent_pace_with_caution_and_a_checkpoint():
    seconds = [500.0] * 5 + [8.0] * 9 + [18.0]  # the start was slow, the last step wrote a checkpoint
    assert seconds_needed(seconds, 10) == pytest.approx(1.25 * 9.0 * 10 + 18.0)


@pytest.mark.parametrize(("now", "stops"), [(4164.9, False), (4165.1, True)])
def test_it_stops_at_a_checkpoint_when_the_next_cannot_be_reached(now, stops):
    # ten more steps of 10 s need 125 s and 10 s for the checkpoint: 135 s before 4300
    def check():
        HOUR.check(now, [10.0] * 20, step=20, since=20, next_checkpoint=30)

    if not stops:
        return check()
    with pytest.raises(OutOfTime, match=r"^stopped at step 20 before the time limit of 60 minutes; the next attempt"):
        check()
    return None


def test_it_goes_on_between_checkpoints_once_there_is_one():
    HOUR.check(4599.0, [10.0] * 25, step=25, since=20, next_checkpoint=30)


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
    deadline = Deadline(minutes, 0.0)
    now = sum(seconds)
    try:
        deadline.check(now, seconds, step=30, since=30, next_checkpoint=30 + interval)
    except OutOfTime:
        return
    pace = sum(seconds[-10:]) / len(seconds[-10:])
    assert now + pace * interval < deadline.end

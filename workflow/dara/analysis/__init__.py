"""Analysis: from the files of runs to tidy frames, and the statistics that tables and figures use.

docs/statistics.md defines every number.
"""

from dara.analysis.collect import analyse, collect
from dara.analysis.crossing import Crossing, first_crossing, stable_crossing
from dara.analysis.frames import FRAMES, FrameError, read_frame, write_frame
from dara.analysis.hierarchical import hierarchical_interval, metric_differences
from dara.analysis.intervals import (
    Interval,
    bootstrap_interval,
    bootstrap_intervals,
    keyed_generator,
    t_interval,
    wilson_interval,
)
from dara.analysis.paired import PairedDifference, paired_scores, paired_steps
from dara.analysis.records import RecordError
from dara.analysis.speed_up import SpeedUp, speed_up
from dara.analysis.summary import median, quartiles, summarise_seeds
from dara.analysis.survival import CrossingTimes, median_step, median_text, times_of

__all__ = [
    "FRAMES",
    "Crossing",
    "CrossingTimes",
    "FrameError",
    "Interval",
    "PairedDifference",
    "RecordError",
    "SpeedUp",
    "analyse",
    "bootstrap_interval",
    "bootstrap_intervals",
    "collect",
    "first_crossing",
    "hierarchical_interval",
    "keyed_generator",
    "median",
    "median_step",
    "median_text",
    "metric_differences",
    "paired_scores",
    "paired_steps",
    "quartiles",
    "read_frame",
    "speed_up",
    "stable_crossing",
    "summarise_seeds",
    "t_interval",
    "times_of",
    "wilson_interval",
    "write_frame",
]

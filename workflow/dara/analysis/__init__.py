"""Analysis: from the files of runs to tidy frames, and the statistics that tables and figures use.

docs/statistics.md defines every number.
"""

from dara.analysis.collect import analyse, collect
from dara.analysis.crossing import Crossing, first_crossing, stable_crossing
from dara.analysis.curves import check_steps, series_of
from dara.analysis.frames import FRAMES, FrameError, read_frame, write_frame
from dara.analysis.intervals import (
    Interval,
    bootstrap_interval,
    bootstrap_intervals,
    keyed_generator,
    t_interval,
    wilson_interval,
)
from dara.analysis.records import RecordError
from dara.analysis.summary import median, median_curve, quartiles, summarise_seeds

__all__ = [
    "FRAMES",
    "Crossing",
    "FrameError",
    "Interval",
    "RecordError",
    "analyse",
    "bootstrap_interval",
    "bootstrap_intervals",
    "check_steps",
    "collect",
    "first_crossing",
    "keyed_generator",
    "median",
    "median_curve",
    "quartiles",
    "read_frame",
    "series_of",
    "stable_crossing",
    "summarise_seeds",
    "t_interval",
    "wilson_interval",
    "write_frame",
]

"""Analysis: tidy frames from the files of runs, and the statistics of tables and figures.

docs/statistics.md defines every number.
"""

from dara.analysis.crossing import first_crossing, stable_crossing
from dara.analysis.intervals import bootstrap_interval, t_interval, wilson_interval

__all__ = ["bootstrap_interval", "first_crossing", "stable_crossing", "t_interval", "wilson_interval"]

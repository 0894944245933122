"""Analysis: tidy frames from the files of runs, and the statistics of tables and figures.

docs/statistics.md defines every number.
"""

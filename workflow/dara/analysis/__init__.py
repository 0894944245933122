"""Analysis: from the files of runs to tidy frames, and the statistics that tables and figures use.

docs/statistics.md defines every number.
"""

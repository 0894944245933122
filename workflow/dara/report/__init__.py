"""The report of a preset: one HTML file with the claims of the paper, every table and figure, and their sources."""

from dara.report.page import write_report

__all__ = ["write_report"]

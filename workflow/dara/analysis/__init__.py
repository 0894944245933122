"""Analysis: tidy frames from the files of runs, and the statistics of tables and figures.

docs/statistics.md defines every number.
"""

from importlib import import_module
from typing import Any

__all__ = ["bootstrap_interval", "first_crossing", "stable_crossing", "t_interval", "wilson_interval"]


def __getattr__(name: str) -> Any:
    """Import what users import when they do: a workflow that plans figures and tables needs no numpy."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{'crossing' if name.endswith('crossing') else 'intervals'}"), name)

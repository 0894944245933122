"""Where the report's numbers come from: a view of our runs and one of the published numbers, for each experiment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from dara.analysis.view_published import PublishedView
from dara.analysis.view_runs import Frames, RunsView
from dara.config import Experiment, MethodEntry


@dataclass(frozen=True)
class Sources:
    """Views by experiment; an experiment that a source does not have, or has no number of, is not there."""

    ours: Mapping[str, RunsView]
    theirs: Mapping[str, PublishedView]
    methods: Mapping[str, MethodEntry]

    @classmethod
    def of(
        cls,
        frames: Frames,
        experiments: Mapping[str, Experiment],
        published: pd.DataFrame,
        published_experiments: Mapping[str, Experiment],
        methods: Mapping[str, MethodEntry],
        preset: str,
    ) -> Sources:
        """The views of a preset's experiments and of the published ones (config/published.yaml)."""
        runs = frames["runs"]
        present = set(runs.loc[runs["origin"] != "missing", "experiment"])
        ours = {
            name: RunsView(frames, experiment, methods, preset)
            for name, experiment in experiments.items()
            if name in present
        }
        theirs = {
            name: PublishedView(published, experiment, methods) for name, experiment in published_experiments.items()
        }
        return cls(ours, theirs, methods)

    def label(self, method: str) -> str:
        """The method's name in tables, or its own where config/methods.yaml has no row for it."""
        return self.methods[method].label if method in self.methods else method

    def shown_in(self, experiment: str, module: str, frame: str) -> str:
        """The table of an experiment that has a number, or the frame where the preset does not draw that table."""
        tables = self.ours[experiment].experiment.tables if experiment in self.ours else {}
        names = [f"tables/{name}.md" for name, found in tables.items() if found == module]
        return names[0] if names else f"data/{frame}.csv"

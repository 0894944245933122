"""The report of a preset as one HTML file that opens without a network, and with no script in it."""

from __future__ import annotations

import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from dara.analysis.frames import FrameFiles
from dara.analysis.paper_numbers import read_published
from dara.config import Experiment
from dara.files import write_atomically
from dara.plan import WorkflowPlan
from dara.report.checks import run_checks
from dara.report.claims import CLAIMS, Result, assess
from dara.report.measures import other_methods
from dara.report.pieces import Figure, MarkdownTable, caption, read_figure, read_table
from dara.report.provenance import Run, runs_of
from dara.report.sources import Sources
from dara.report.verdicts import COMMON, OF_CLAIMS, RULES, Verdict

log = logging.getLogger(__name__)

LONGEST = 2000
"""Characters of a prompt or a response that are shown."""

Published = Mapping[str, Experiment]
"""The published experiments by name (`WorkflowPlan.published`)."""

SIDE_BY_SIDE = "{}_side_by_side"
"""File name of the table that has ours, the published and the difference in its columns."""


@dataclass(frozen=True)
class Output:
    """A figure or a table: ours, the published one, and for tables both side by side; None where a source has none.

    What a source should have and what is not drawn is there, without content, so that the report can name it.
    """

    id: str
    caption: str
    ours: Figure | MarkdownTable | None
    published: Figure | MarkdownTable | None
    together: MarkdownTable | None = None


@dataclass(frozen=True)
class Section:
    """An experiment: what it asks, what it was run with (empty for a published one), its figures and tables."""

    name: str
    question: str
    setting: str
    figures: list[Output]
    tables: list[Output]


def write_report(flow: WorkflowPlan, out: Path) -> None:
    """Write the report of a preset; the same results give the same bytes.

    Figures, tables, runs and responses that are not there are named in the report; the frames must be there.

    Args:
        flow: the preset, in the directory that its results are in.
        out: the file, results/<preset>/report.html.

    Raises:
        ValueError: a frame, the published numbers, a manifest, a table or a response breaks its form.
    """
    frames = FrameFiles(flow.paths.frames)
    published, experiments = read_published(flow.paths.published / "data"), flow.published.experiments
    preset, methods = flow.configuration.preset.preset, flow.configuration.methods
    sources = Sources.of(frames, flow.outputs.experiments, published, experiments, methods, preset)
    runs = runs_of(flow, frames["runs"])
    results = assess(sources)
    context = {
        "preset": preset,
        "results": flow.paths.root.as_posix(),
        "claims": [(claim, [result for result in results if result.claim is claim]) for claim in CLAIMS],
        "counts": {
            verdict.value: sum(found.judgement.verdict is verdict for found in results) for verdict in OF_CLAIMS
        },
        "checks": run_checks(sources),
        "other_methods": other_methods(sources),
        "untested": _untested(flow, results, runs),
        "common": COMMON,
        "rules": RULES,
        "sections": [_section(flow, name, experiments) for name in flow.configuration.preset.experiments],
        "others": _others(flow, experiments),
        "runs": runs,
        "outcomes": Counter(run.outcome for run in runs),
        "origins": Counter(run.origin for run in runs),
    }
    write_atomically(out, render(context))
    log.info("report of %s: %s, %.1f MB", context["preset"], out, out.stat().st_size / 1e6)


def render(context: dict) -> str:
    """The HTML of a report. Everything that is put into the template is escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"visible": visible, "prose": prose, "compact": compact, "slug": slug, "parts": parts}
    return environment.get_template("template.html.jinja").render(context)


def visible(text: object, longest: int = LONGEST) -> str:
    """Text of a model as it can be shown: cut to `longest` characters, and what is not printable as its escape.

    Control characters, halves of surrogate pairs and those that turn the direction of writing would spoil the page.
    """
    full = str(text)
    shown = "".join(character if _printable(character) else _escaped(character) for character in full[:longest])
    return shown if len(full) <= longest else f"{shown} … ({len(full) - longest:,} more characters)"


def prose(text: str) -> Markup:
    """Escaped text with `code` between backticks, and **bold** between pairs of stars."""
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    return Markup(re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", marked))


def parts(text: str) -> list[str]:
    """The parts of a cell between semicolons, each with its intervals and percent signs kept on one line."""
    bound = re.sub(r"\[[^\]]*\]", lambda found: found[0].replace(" ", "\u00a0"), text.replace(" %", "\u00a0%"))
    return bound.split("; ") if bound else []


def compact(value: object) -> str:
    """A reward or an advantage, short."""
    return f"{value:.3g}".replace("-", "−") if isinstance(value, int | float) else visible(value)


def slug(text: str) -> str:
    """`text` as the name of a place in the page."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text)


def _printable(character: str) -> bool:
    return character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Cn")


def _escaped(character: str) -> str:
    return f"\\u{ord(character):04x}" if ord(character) < 0x10000 else f"\\U{ord(character):08x}"


def _section(flow: WorkflowPlan, name: str, published: Published) -> Section:
    experiment, matrix = flow.outputs.experiments[name], flow.configuration.preset.experiments[name]
    methods = [flow.configuration.methods[method].label for method in experiment.methods]
    parts = {
        "Task": experiment.task,
        "rewards": ", ".join(experiment.rewards),
        "methods": ", ".join(methods),
        "models": ", ".join(matrix.models),
        "G": ", ".join(map(str, matrix.group_sizes)),
        "seeds": ", ".join(map(str, matrix.seeds)),
    }
    figures = [_output(flow, published, "figures", *found) for found in experiment.figures.items()]
    tables = [_output(flow, published, "tables", *found) for found in experiment.tables.items()]
    setting = "; ".join(f"{label}: {value}" for label, value in parts.items()) + "."
    return Section(name, experiment.question, setting, figures, tables)


def _output(
    flow: WorkflowPlan, published: Published, kind: str, output: str, module: str, *, ours: bool = True
) -> Output:
    """The figure or table of this id, from the preset (`ours`) and from the published numbers where they have it."""
    read = read_figure if kind == "figures" else read_table
    theirs = any(output in getattr(experiment, kind) for experiment in published.values())
    return Output(
        output,
        caption(kind, module),
        read(flow.paths.root / kind / output) if ours else None,
        read(flow.paths.published / kind / output) if theirs else None,
        read_table(flow.paths.root / kind / SIDE_BY_SIDE.format(output)) if kind == "tables" and ours else None,
    )


def _others(flow: WorkflowPlan, published: Published) -> list[Section]:
    """The published experiments with the figures and tables that this preset does not have."""
    found = []
    for name, experiment in published.items():
        figures, tables = (
            [
                _output(flow, published, kind, output, module, ours=False)
                for output, module in getattr(experiment, kind).items()
                if output not in flow.outputs.ids(kind)
            ]
            for kind in ("figures", "tables")
        )
        if figures or tables:
            found.append(Section(name, experiment.question, "", figures, tables))
    return found


def _untested(flow: WorkflowPlan, results: list[Result], runs: list[Run]) -> list[str]:
    """What this preset says nothing about, in sentences."""
    untested: dict[tuple[str, str], list[str]] = {}
    for result in results:
        if result.judgement.verdict is Verdict.NOT_TESTED:
            untested.setdefault((result.claim.statement, result.judgement.reason), []).append(result.label)
    found = [f"{', '.join(labels)}: “{statement}” {reason}." for (statement, reason), labels in untested.items()]
    files = sorted((flow.configuration.directory / "experiments").glob("*.yaml"))
    absent = [file.stem for file in files if file.stem not in flow.configuration.preset.experiments]
    if absent:
        found.append(f"Experiments that this preset does not have: {', '.join(absent)}.")
    for outcome in ("missing", "diverged"):
        named = [run.id for run in runs if run.outcome == outcome]
        if named:
            found.append(f"Runs that are {outcome}: {', '.join(named)}.")
    sources = sorted({data.source for data in flow.matrix.data.values()})
    models = sorted({model.name for model in flow.matrix.models.values()})
    found.append(
        f"The paper's own setting: its models have 1.5 to 7 billion parameters. Here the data are {', '.join(sources)} "
        f"and the models {', '.join(models)}; their sizes stand in the specifications of the runs."
    )
    return found

"""The report of a preset as one HTML file that opens without a network, and with no script in it."""

from __future__ import annotations

import base64
import json
import logging
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from dara.analysis.figures import describe
from dara.analysis.frames import FrameFiles
from dara.analysis.tables import Table, build_table
from dara.analysis.tables import describe as describe_table
from dara.analysis.view import View
from dara.analysis.view_published import PublishedView, read_published
from dara.analysis.view_runs import RunsView
from dara.config import Preset
from dara.files import gunzip, read_json, sha256, write_atomically
from dara.plan import WorkflowPlan
from dara.report.claims import Sources, assess, check_formulas, other_methods, read_claims
from dara.report.verdicts import OF_CLAIMS
from dara.store import spec_sha256
from dara.table_options import ScoreTable

log = logging.getLogger(__name__)

MIME = {".png": "image/png", ".svg": "image/svg+xml"}
LONGEST = 2000  # characters shown of a prompt or a response
RESPONSES = 3  # shown for each of the two checkpoints of a run
ASKED = ("step", "prompt", "reference", "response", "n_tokens", "rewards")  # keys of a line of samples.jsonl.gz


def write_report(flow: WorkflowPlan, out: Path) -> None:
    """Write the report of a preset, results/<preset>/report.html; the same results give the same bytes.

    The report names figures, tables, runs and responses that are missing; the frames must exist. Raises ValueError if a
    frame, the published numbers, a manifest or a response breaks its form.
    """
    configuration, frames = flow.configuration, FrameFiles(flow.paths.frames)
    preset, methods = configuration.preset.preset, configuration.methods
    numbers, present = read_published(flow.paths.published / "data"), frames["runs"].query("origin != 'missing'")
    own = {name: one for name, one in flow.outputs.experiments.items() if name in set(present["experiment"])}
    sources = Sources(
        {name: RunsView(frames, experiment, methods, preset) for name, experiment in own.items()},
        {name: PublishedView(numbers, one, methods) for name, one in flow.published.experiments.items()},
        methods,
    )
    rows = frames["runs"].drop_duplicates("run_id").set_index("run_id").to_dict("index")
    runs = [_run(flow, name, rows.get(name)) for name in flow.matrix.runs]
    results = assess(sources)
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters |= {"visible": visible, "prose": prose, "compact": compact, "parts": parts}
    page = environment.get_template("template.html.jinja").render(
        preset=preset,
        results=flow.paths.root.as_posix(),
        declared=read_claims(),
        verdicts=results,
        counts={verdict: sum(one.judgement.verdict is verdict for one in results) for verdict in OF_CLAIMS},
        formulas=check_formulas(sources),
        others=other_methods(sources),
        untested=[*_untested(flow, runs)],
        sections=[*_sections(flow, sources)],
        runs=runs,
        outcomes=Counter(run["outcome"] for run in runs),
        origins=Counter(run["origin"] for run in runs),
    )
    write_atomically(out, page)
    log.info("report of %s: %s, %.1f MB", preset, out, out.stat().st_size / 1e6)


def visible(text: object, longest: int = LONGEST) -> str:
    """Return text of a model in displayable form: cut to `longest` characters, with unprintable characters escaped.

    Control characters, lone surrogates and characters that change the direction of writing would break the page.
    """
    full = str(text)
    shown = "".join(
        character if character.isprintable() or character in "\n\t" else character.encode("unicode_escape").decode()
        for character in full[:longest]
    )
    return shown if len(full) <= longest else f"{shown} … ({len(full) - longest:,} more characters)"


def prose(text: str) -> Markup:
    """Return escaped text with `code` between backticks."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def parts(text: str) -> list[str]:
    """Return the parts of a cell between semicolons, each with its intervals and percent signs kept on one line."""
    bound = re.sub(r"\[[^\]]*\]", lambda found: found[0].replace(" ", "\u00a0"), text.replace(" %", "\u00a0%"))
    return bound.split("; ") if bound else []


def compact(value: object) -> str:
    """Return a reward or an advantage as short text."""
    return f"{value:.3g}".replace("-", "−") if isinstance(value, int | float) else visible(value)


def _sections(flow: WorkflowPlan, sources: Sources) -> Iterator[dict[str, Any]]:
    """Yield each experiment of the preset, then each that only the paper has, with its figures and tables."""
    own, theirs = flow.outputs, flow.published
    for name in dict.fromkeys([*own.experiments, *theirs.experiments]):
        experiment, published = own.experiments.get(name), theirs.experiments.get(name)
        outputs = []
        for kind, beside in (("figures", ()), ("tables", getattr(experiment, "side_by_side", ()))):
            ids = [*getattr(experiment, kind, ()), *beside]
            ids += [output for output in getattr(published, kind, ()) if output not in own.ids(kind)]
            outputs += [_output(flow, sources, kind, output) for output in dict.fromkeys(ids)]
        if outputs:
            setting = _setting(flow, name) if experiment else "Published only: this preset does not have it."
            yield {"name": name, "question": (experiment or published).question, "setting": setting, "outputs": outputs}


def _output(flow: WorkflowPlan, sources: Sources, kind: str, output: str) -> dict[str, Any]:
    """Return a figure or table of the runs, of the published numbers, and with both side by side."""
    preset, module, shown = flow.configuration.preset, "", {}
    own = f"--configfile config/presets/{preset.preset}.yaml"
    for label, outputs, views, directory, option in (
        ("Runs of this preset", flow.outputs, sources.runs, flow.paths.root, own),
        ("Published", flow.published, sources.published, flow.paths.published, "--config reuse=only"),
    ):
        if output in outputs.ids(kind):
            experiment, module = outputs.owner(kind, output)
            view = views.get(experiment.experiment)
            shown[label] = _figure(directory, output, option) if kind == "figures" else _table(module, preset, view)
    if kind == "tables" and output in flow.outputs.ids("side_by_side"):
        experiment, module = flow.outputs.owner("side_by_side", output)
        name = experiment.experiment
        shown["Side by side"] = _table(module, preset, sources.runs.get(name), sources.published.get(name))
    caption = (describe(module) if kind == "figures" else describe_table(module)).removeprefix("Figure: ")
    caption = caption.removeprefix("Table: ")
    return {"kind": kind[:-1], "id": output, "caption": caption[:1].upper() + caption[1:], "shown": shown}


def _figure(directory: Path, output: str, options: str) -> dict[str, str] | str:
    """Return the smaller of a figure's files as a data address (both show the same), or the command that draws it."""
    paths = [directory / "figures" / f"{output}{suffix}" for suffix in MIME]
    found = [path for path in paths if path.is_file()]
    if not found:
        command = f"snakemake --profile profiles/local {options} -- {paths[0].as_posix()}"
        return f"Missing: `{paths[0].as_posix()}` is not there. Make it with `{command}`"
    chosen = min(found, key=lambda path: (path.stat().st_size, path.suffix))
    return {"data": f"data:{MIME[chosen.suffix]};base64,{base64.b64encode(chosen.read_bytes()).decode('ascii')}"}


def _table(module: str | ScoreTable, preset: Preset, *views: View | None) -> Table | str:
    """Build a table of one view, or of two side by side; return a sentence if the numbers are missing."""
    if None in views:
        return "Missing: this experiment has no finished run, or no published numbers."
    settings = {"preset": preset} if module == "hyperparameters" and isinstance(views[0], RunsView) else {}
    try:
        return build_table(module, *views, **settings)
    except ValueError as error:
        return f"Missing: {error}"


def _setting(flow: WorkflowPlan, name: str) -> str:
    """Return the settings of an experiment as text."""
    experiment, matrix = flow.outputs.experiments[name], flow.configuration.preset.experiments[name]
    methods = ", ".join(flow.configuration.methods[method].label for method in experiment.methods)
    models, sizes, seeds = (", ".join(map(str, of)) for of in (matrix.models, matrix.group_sizes, matrix.seeds))
    start = f"Task: {experiment.task}; rewards: {', '.join(experiment.rewards)}; methods: {methods}"
    return f"{start}; models: {models}; G: {sizes}; seeds: {seeds}."


def _untested(flow: WorkflowPlan, runs: list[dict[str, Any]]) -> Iterator[str]:
    """Yield sentences on what this preset does not test."""
    files = {file.stem for file in (flow.configuration.directory / "experiments").glob("*.yaml")}
    if absent := sorted(files - flow.configuration.preset.experiments.keys()):
        yield f"Experiments that this preset does not have: {', '.join(absent)}."
    for outcome in ("missing", "diverged"):
        if named := [run["id"] for run in runs if run["outcome"] == outcome]:
            yield f"Runs that are {outcome}: {', '.join(named)}."
    sources = sorted({data.source for data in flow.matrix.data.values()})
    models = sorted({model.name for model in flow.matrix.models.values()})
    yield (
        f"The paper's own setting: its models have 1.5 to 7 billion parameters. Here the data are {', '.join(sources)} "
        f"and the models {', '.join(models)}; their sizes are in the specifications of the runs."
    )


def _run(flow: WorkflowPlan, name: str, row: dict[str, Any] | None) -> dict[str, Any]:
    """Return the origin of a planned run, and some of its responses; `row` is its row of the frame runs."""
    row = row or {"outcome": "missing", "origin": "missing", "steps": 0}
    spec, directory = flow.matrix.runs[name], flow.run_directory(name)
    label, repeat = flow.configuration.methods[spec.method.name].label, f", repeat {spec.repeat}" if spec.repeat else ""
    path, samples = directory / "manifest.json", directory / "samples.jsonl.gz"
    manifest = read_json(path) if path.is_file() else {}
    # The checkpoints, the longest entry, come last.
    manifest |= {"checkpoints": manifest.pop("checkpoints", {})} if manifest else {}
    made, identity, missing = str(manifest.get("spec_sha256", "not recorded")), spec_sha256(spec), []
    if not manifest:
        missing.append(f"no manifest: {path.as_posix()} is not there; the run is not finished")
    elif made != identity:
        missing.append(f"its files were made from another specification ({made:.8}, planned: {identity:.8})")
    responses = _responses(samples)
    if not responses:
        missing.append(f"no responses: {samples.as_posix()} is not there, or is empty")
    return {name: row[name] for name in ("outcome", "origin", "steps")} | {
        "id": name,
        "title": f"{label}, {spec.model.name}, G = {spec.group_size}, seed {spec.seed}{repeat}",
        "experiments": [experiment for experiment, runs in flow.matrix.experiments.items() if name in runs],
        "directory": directory.as_posix(),
        "manifest": yaml.dump(manifest, sort_keys=False, Dumper=yaml.CSafeDumper) if manifest else "",
        "checksum": sha256(path) if manifest else "",
        "spec": yaml.dump(spec.model_dump(mode="json"), sort_keys=False, Dumper=yaml.CSafeDumper),
        "responses": responses,
        "missing": missing,
    }


def _responses(path: Path) -> dict[int, list[dict[str, Any]]]:
    """Return the first responses of the first and of the last recorded step; empty without the file."""
    by_step: dict[int, list[dict[str, Any]]] = {}
    for number, line in enumerate(gunzip(path).decode("utf-8").split("\n") if path.is_file() else (), 1):
        if not line:
            continue
        where = f"{path}: line {number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{where} is not JSON ({error.msg})") from None
        absent = [name for name in ASKED if name not in row]
        if absent:
            raise ValueError(
                f"{where} has no {absent[0]!r}; a response has step, prompt, reference, response and rewards"
            )
        by_step.setdefault(row["step"], []).append(row)
    return {step: by_step[step][:RESPONSES] for step in sorted(by_step) if step in (min(by_step), max(by_step))}

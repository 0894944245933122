"""The paper's claims, as claims.yaml declares them, and the verdict of a preset's runs on each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from dara.analysis.compare import compared_pairs
from dara.analysis.names import FIXED, HEADLINE, PAPER_METHODS, SCORES, headline_threshold
from dara.analysis.tables.render import number
from dara.analysis.view import Setting, name_of
from dara.analysis.view_published import PublishedView
from dara.analysis.view_runs import RunsView
from dara.config import MethodEntry
from dara.loading import read_yaml, validate
from dara.report import verdicts
from dara.report.measures import MEASURES, Measure, Pair
from dara.report.verdicts import Finding, Judgement, Rule, overall, untested
from dara.specs import Model

FILE = Path(__file__).with_name("claims.yaml")
UNKNOWN = "no number is known"


class Claim(Model):
    """A claim of the paper, or a difference without a claim (rule `either`); claims.yaml explains the keys."""

    statement: str = ""
    experiment: str
    methods: tuple[str, ...]
    baselines: tuple[str, ...] = ()
    rule: Rule
    number: str = ""
    measure: Literal[tuple(MEASURES)] | None = None
    untested: str = ""
    of: str = ""
    level: float | None = None
    at: int | None = None
    title: str = ""


class Formula(Model):
    """A formula that must hold; check: the function in verdicts.py that checks it in the runs of an experiment."""

    statement: str
    number: str
    check: Literal["energy_of_density", "balanced_energy", "bounded_energy"]


class Claims(Model):
    """The file claims.yaml: claims and formulas by id, the text of each rule, and the paper's names of its models."""

    claims: dict[str, Claim]
    formulas: dict[str, Formula]
    rules: dict[Rule, str]
    common: str
    models: dict[str, str]


@dataclass(frozen=True)
class Sources:
    """Views of a preset's runs and of the published numbers, by experiment, as far as there are numbers."""

    runs: Mapping[str, RunsView]
    published: Mapping[str, PublishedView]
    methods: Mapping[str, MethodEntry]

    def label(self, method: str) -> str:
        """Return the method's name in tables, or `method` itself if config/methods.yaml has no row for it."""
        return self.methods[method].label if method in self.methods else method


class Row(NamedTuple):
    """A comparison: the judged method, the quantity, the paper's numbers, and the table or frame with the number."""

    method: str
    what: str
    paper: str
    finding: Finding
    shown: str = ""


class Result(NamedTuple):
    """The result of a claim for one method, or of a formula for all: its comparisons, and the verdict."""

    id: str
    claim: Claim | Formula
    method: str
    label: str
    rows: list[Row]
    judgement: Judgement


@cache
def read_claims() -> Claims:
    """Read claims.yaml. The ConfigurationError of a mistake names its key."""
    return validate(Claims, read_yaml(FILE), [FILE])


def assess(sources: Sources) -> list[Result]:
    """Compare the runs with every claim, for every method that it names, in the order of claims.yaml."""
    results = []
    for name, claim in read_claims().claims.items():
        rows = list(compare(sources, claim))
        for method in claim.methods:
            own = [row for row in rows if row.method == method]
            judgement = overall([row.finding.judgement for row in own])
            results.append(Result(name, claim, method, sources.label(method), own, judgement))
    return results


def check_formulas(sources: Sources) -> list[Result]:
    """Check every formula in every experiment that has runs."""
    results = []
    for name, formula in read_claims().formulas.items():
        found = {one: getattr(verdicts, formula.check)(view) for one, view in sources.runs.items()}
        rows = [Row("", one, "", finding, "data/energies.csv") for one, finding in found.items() if finding]
        judgements = [row.finding.judgement for row in rows] or [untested("no runs to check it in").judgement]
        results.append(Result(name, formula, "", "", rows, overall(judgements)))
    return results


def other_methods(sources: Sources) -> dict[str, list[Row]]:
    """Compare the methods that are not in the paper (a user's own), by experiment.

    Each is compared with GDPO and with both forms of DARA, if the experiment has them: the crossing of the sparse
    reward, the final scores, and the share of the sparse reward in the energy of the method's contributions.
    """
    alone, found = replace(sources, published={}), {}
    for name, view in sources.runs.items():
        reward, thresholds = view.experiment.sparse_reward, view.experiment.thresholds
        scores = SCORES[view.experiment.task].items()
        measured = [{"measure": "score", "of": metric, "title": title} for metric, title in scores]
        measured.append({"measure": "energy_share", "of": reward})
        if reward in thresholds:
            kind, level = HEADLINE.get(reward, ("stable",))[0], headline_threshold(reward, thresholds[reward])
            measured.insert(0, {"measure": kind, "of": reward, "level": level})
        for method, baseline in compared_pairs(view.methods):
            if method not in PAPER_METHODS:
                own = {"experiment": name, "methods": (method,), "baselines": (baseline,), "rule": "either"}
                first, *others = ([*compare(alone, Claim(**own, **one))] for one in measured)
                # One row is enough if no run has any of the numbers.
                found.setdefault(name, []).extend([*first, *(row for rows in others for row in rows if row.shown)])
    return found


def compare(sources: Sources, claim: Claim) -> Iterator[Row]:
    """Yield a row for each pair of methods and setting with both planned; for group sizes, one for each method."""
    view, published = sources.runs.get(claim.experiment), sources.published.get(claim.experiment)
    measure = MEASURES.get(claim.measure)
    for method in () if claim.baselines else claim.methods:
        paper = (published and measure.published(published, claim, method)) or UNKNOWN
        yield from _over_sizes(sources, claim, method, paper)
    for pair in ((method, baseline) for method in claim.methods for baseline in claim.baselines):
        if pair[1] in FIXED.values() and FIXED[pair[0]] != pair[1]:  # of the other form
            continue
        what = " against ".join(map(sources.label, pair))
        if measure and (title := claim.title or measure.title.format(of=claim.of, level=number(claim.level))):
            what = f"{what}, {title}"
        planned = [
            one for one in (view.settings if view and measure else ()) if all(view.planned(m, one) for m in pair)
        ]
        for setting in planned:
            there = set(view.selection.of_setting(view.selection.present, setting)["method"])
            absent = " and ".join(sources.label(method) for method in pair if method not in there)
            finding = None if absent else measure.runs(view, claim, pair, setting)
            place, shown = f"{what}; {name_of(setting, view.settings)}", _shown(view, measure) if finding else ""
            finding = finding or untested(f"no runs of {absent} here" if absent else measure.lacking)
            yield Row(pair[0], place, _paper(published, claim, pair, setting.group_size), finding, shown)
        if not planned:
            yield Row(
                pair[0],
                what,
                _paper(published, claim, pair, None),
                untested(claim.untested or "no runs to compare here"),
            )


def _paper(view: PublishedView | None, claim: Claim, pair: Pair, group_size: int | None) -> str:
    """Return the paper's numbers for a pair; if it has several group sizes, only those of one (None: of all)."""
    settings, texts = (view.settings if view and claim.measure else ()), []
    several = len({setting.group_size for setting in settings}) > 1
    for setting in settings:
        if not several or group_size in (None, setting.group_size):
            model = read_claims().models.get(setting.model, setting.model)
            model = f"{model}, G = {setting.group_size}" if several else model
            texts += [
                text.format(model=model) for text in MEASURES[claim.measure].published(view, claim, pair, setting)
            ]
    return "; ".join(texts) or UNKNOWN


def _over_sizes(sources: Sources, claim: Claim, method: str, paper: str) -> list[Row]:
    """Compare the largest group size of a method with its smallest, for each model and engine that has several."""
    view, label, measure = sources.runs.get(claim.experiment), sources.label(method), MEASURES[claim.measure]
    places: dict[str, list[Setting]] = {}
    for setting in view.settings if view else ():
        places.setdefault(name_of(setting._replace(group_size=None), view.settings), []).append(setting)
    rows = []
    for place, settings in places.items():
        if found := measure.runs(view, claim, method, settings):
            high, low, finding = found
            rows.append(
                Row(method, f"{label}, G = {high} against {low}; {place}", paper, finding, _shown(view, measure))
            )
    return rows or [Row(method, label, paper, untested("no runs with several group sizes here"))]


def _shown(view: RunsView, measure: Measure) -> str:
    """Return the table of an experiment that has a number, or the frame if the preset does not draw that table."""
    for name, entry in view.experiment.tables.items():
        if measure.table == ("score_intervals" if getattr(entry, "step", "") == "each" else entry):
            return f"tables/{name}.md"
    return f"data/{measure.frame}.csv"

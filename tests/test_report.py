"""The report: verdicts with known answers, hostile text, one file without an address, the same bytes, missing pieces."""

import gzip
import json
import math
import re
from html.parser import HTMLParser

import pandas as pd
import pytest

from dara.analysis.frames import rows_to_frame, write_frame
from dara.analysis.paired import paired_scores
from dara.analysis.published import read_published
from dara.analysis.survival import CrossingTimes
from dara.analysis.tables.render import Table, render_table
from dara.dag import Workflow
from dara.loading import merge, read_yaml
from dara.report import write_report
from dara.report.claims import CLAIMS, assess
from dara.report.evidence import Evidence, paired_steps
from dara.report.html import SIDE_BY_SIDE, parts, prose, visible
from dara.report.pieces import read_figure, read_table
from dara.report.verdicts import (
    RULES,
    Judgement,
    Verdict,
    judge_difference,
    judge_exact,
    judge_not_worse,
    judge_share,
    overall,
)
from dara.runs import spec_sha256
from project import ROOT
from synthetic import METHODS, simulate

GOOD, BAD, OPEN = Verdict.REPRODUCED, Verdict.NOT_REPRODUCED, Verdict.NOT_TESTED


@pytest.fixture(scope="module")
def published() -> pd.DataFrame:
    return read_published(ROOT / "results" / "published" / "data")


# --- rules ------------------------------------------------------------------------------------------------------------


def scores(*values: float) -> dict[int, float]:
    return dict(enumerate(values))


@pytest.mark.parametrize(
    ("differences", "sign", "verdict", "reason"),
    [
        ((-4, -5, -6), -1, GOOD, "excludes 0"),
        ((-4, -5, -6), 1, BAD, "the opposite"),
        ((-1, -30, -2), -1, BAD, "undecided: the claimed sign"),
        ((1, 30, 2), -1, BAD, "undecided: the opposite sign"),
        ((0, 0, 0), -1, BAD, "no difference"),
        ((-6, -6, -6), -1, GOOD, "excludes 0"),
        ((-4, -5), -1, OPEN, "2 pairs"),
        ((-4,), -1, OPEN, "1 pair of"),
    ],
)
def test_difference(differences, sign, verdict, reason):
    found = judge_difference(paired_scores(scores(*differences), scores(*[0.0] * len(differences))), sign)
    assert found.verdict is verdict
    assert reason in found.reason


@pytest.mark.parametrize(
    ("differences", "verdict", "reason"),
    [
        ((0.001, -0.001, 0.002), GOOD, "above −2 points"),
        ((0.05, 0.06, 0.055), GOOD, "above −2 points"),
        ((0.05, -0.05, 0.0), BAD, "undecided"),
        ((-0.04, -0.05, -0.045), BAD, "lower"),
        ((0.0, 0.0), OPEN, "2 pairs"),
    ],
)
def test_not_worse(differences, verdict, reason):
    found = judge_not_worse(paired_scores(scores(*differences), scores(*[0.0] * len(differences))))
    assert (found.verdict, reason in found.reason) == (verdict, True)


def test_share_is_compared_as_a_fraction_and_needs_three_runs():
    assert judge_share(2, 3, 4, 6).verdict is GOOD
    assert judge_share(2, 3, 3, 3).verdict is BAD
    assert judge_share(2, 2, 3, 3).verdict is OPEN
    assert judge_share(0, 3, 0, 3).verdict is OPEN


def test_exact_needs_a_step():
    assert [judge_exact(*given).verdict for given in ((1e-6, 9), (2e-4, 9), (0.0, 0))] == [GOOD, BAD, OPEN]


def test_overall_needs_every_comparison_that_was_made():
    good, bad, untested = Judgement(GOOD, "a"), Judgement(BAD, "why not"), Judgement(OPEN, "no runs")
    assert overall([good, untested]) == (GOOD, "1 of 1 comparison; 1 could not be made")
    assert overall([good, bad, bad]) == (BAD, "1 of 3 comparisons; why not")
    assert overall([untested, untested]) == (OPEN, "no runs")


def test_a_run_that_does_not_cross_counts_as_the_last_step_that_was_watched():
    method = CrossingTimes((1, 2, 3), (20.0, 30.0, 60.0), (True, True, False), 60.0)
    baseline = CrossingTimes((1, 2, 4), (60.0, 40.0, 10.0), (False, True, True), 60.0)
    pairs, tau, late = paired_steps(method, baseline)
    assert (pairs.differences, tau, late) == ((-40.0, -10.0), 60.0, 1)


# --- claims -----------------------------------------------------------------------------------------------------------


def small_frames(**changes) -> dict[str, pd.DataFrame]:
    """Three seeds of GDPO, GRPO and both DARA methods in every experiment, each number as a claim says it."""
    rows = {name: [] for name in ("runs", "training_curves", "checkpoint_scores", "crossings", "energies")}
    numbers = {
        "first": {"grpo": 40, "gdpo": 20, "dara_asym": 15, "dara_sym": 14},
        "stable": {"grpo": 80, "gdpo": 70, "dara_asym": 50, "dara_sym": 40},
        "score": {"grpo": 0.5, "gdpo": 0.5, "dara_asym": 0.51, "dara_sym": 0.51, "static_asym": 0.5, "static_sym": 0.5},
        "density": {4: 0.05, 8: 0.1, 16: 0.2},
        "seeds": (100, 101, 102),
    } | changes
    for experiment, task, reward, sizes in (
        ("tool_main", "tool_calling", "format", (4,)),
        ("math_main", "math", "length", (8,)),
        ("fixed_weight", "math", "length", (8,)),
        ("group_size", "tool_calling", "format", (4, 8, 16)),
    ):
        for size in sizes:
            for method in ("grpo", "gdpo", "dara_asym", "dara_sym", "static_asym", "static_sym"):
                if not method.startswith("static") or experiment == "fixed_weight":
                    for seed in numbers["seeds"]:
                        add_run(rows, experiment, task, reward, size, method, seed, numbers)
    return {name: rows_to_frame(found, name) for name, found in rows.items()}


def add_run(rows, experiment, task, reward, size, method, seed, numbers) -> None:
    run = {"run_id": f"{experiment}-{method}-g{size}-s{seed}", "task": task, "model": "tiny", "method": method}
    run |= {"group_size": size, "seed": seed}
    state = {"repeat": 0, "steps": 100, "engine": "trl", "outcome": "completed", "origin": "trained"}
    rows["runs"].append({"experiment": experiment} | run | state)
    jitter = (seed - 101) / 1000
    for step in (1, 2):
        density = numbers["density"].get(size, 0.1) + jitter
        curves = {f"density/{reward}": density, "groups": 32.0}
        rows["training_curves"] += [run | {"step": step, "metric": m, "value": v} for m, v in curves.items()]
        for name, pi in {"correctness": 4 * density, reward: density}.items():
            weight = math.sqrt(4 * density / pi)
            energy = 32 * pi * (size - 1)
            factor = {"dara_sym": weight**2, "dara_asym": (1 + weight**2) / 2}.get(method, 1.0)
            factor *= numbers.get("factor", {}).get(method, 1.0) if name == reward else 1.0
            row = {"density": pi, "weight": weight, "energy_pos": energy / 2, "energy_neg": energy / 2}
            row |= {"contributed_pos": energy * factor / 2, "contributed_neg": energy * factor / 2}
            rows["energies"].append(run | {"step": step, "reward": name} | row)
    for threshold in (0.8, 0.9, 0.95, 0.99):
        first, stable = (numbers[kind].get(method) for kind in ("first", "stable"))
        found = {"first_step": first and first + seed % 2, "stable_step": stable and stable + seed % 2}
        found |= {"status": "reached" if stable else "not_reached", "budget": 110}
        rows["crossings"].append(run | {"reward": reward, "threshold": threshold} | found)
    for metric in ("average_accuracy", "acc", "joint"):
        value = numbers["score"].get(method, 0.5) + jitter
        score = {"step": 100, "benchmark": "b", "metric": metric, "value": value, "n_questions": 100}
        rows["checkpoint_scores"].append(run | score)


def verdicts(published, **changes) -> dict[str, Verdict]:
    results = assess(Evidence(small_frames(**changes), published, METHODS))
    return {result.claim.id: result.judgement.verdict for result in results}


def test_every_claim_is_reproduced_by_numbers_that_say_so(published):
    found = verdicts(published)
    assert list(found) == [claim.id for claim in CLAIMS]
    assert set(found.values()) == {GOOD}


@pytest.mark.parametrize(
    ("changes", "claims"),
    [
        ({"first": {"grpo": 40, "gdpo": 13, "dara_asym": 15, "dara_sym": 12}}, {"format-gdpo"}),
        ({"first": {"grpo": 14, "gdpo": 50, "dara_asym": 15, "dara_sym": 13}}, {"format-grpo"}),
        ({"first": {"grpo": 40, "gdpo": 20, "dara_asym": 15}}, {"format-gdpo", "format-grpo", "format-share"}),
        ({"stable": {"gdpo": 40, "dara_asym": 50, "dara_sym": 60}}, {"length-90", "length-99"}),
        (
            {"score": {"gdpo": 0.6, "grpo": 0.6, "static_asym": 0.6, "static_sym": 0.6}},
            {"tool-accuracy", "math-accuracy", "fixed-weights"},
        ),
        ({"density": {4: 0.2, 8: 0.1, 16: 0.05}}, {"group-density"}),
        ({"factor": {"dara_sym": 1.01}}, {"energy-sym"}),
        ({"factor": {"dara_asym": 2.0}}, {"energy-asym"}),
    ],
)
def test_other_numbers_do_not_reproduce_just_that_claim(published, changes, claims):
    found = verdicts(published, **changes)
    assert {name for name, verdict in found.items() if verdict is not GOOD} == claims
    assert all(found[name] is BAD for name in claims)


def test_an_energy_that_is_not_that_of_the_density(published):
    frames = small_frames()
    frames["energies"].loc[3, "energy_pos"] *= 1.001
    result = assess(Evidence(frames, published, METHODS))[-1]
    assert (result.claim.id, result.judgement.verdict) == ("energy-density", BAD)


def test_two_seeds_test_no_difference_but_the_formulas(published):
    found = verdicts(published, seeds=(100, 101))
    formulas = {"energy-sym", "energy-asym", "energy-density"}
    assert {name for name, verdict in found.items() if verdict is GOOD} == formulas
    assert {found[name] for name in found.keys() - formulas} == {OPEN}


def test_nobody_gets_there_is_not_a_failure_of_the_claim(published):
    results = assess(Evidence(small_frames(stable={}), published, METHODS))
    found = next(result for result in results if result.claim.id == "length-99")
    assert found.judgement == (OPEN, "no run of either method gets there in the planned steps")


def test_an_experiment_without_runs_still_shows_the_papers_numbers(published):
    frames = simulate("tool_calling")
    results = {result.claim.id: result for result in assess(Evidence(frames, published, METHODS))}
    length = results["length-99"]
    assert length.judgement == (OPEN, "no runs to compare here")
    assert [row.ours for row in length.comparisons] == ["–", "–"]
    assert length.comparisons[0].paper == (
        "66 against 111 steps (41 % fewer, Qwen3-4B); 56 against 142 steps (61 % fewer, R1-7B)"
    )
    assert results["format-gdpo"].judgement.verdict is GOOD


def test_the_papers_numbers_are_computed_from_its_files(published):
    results = {result.claim.id: result for result in assess(Evidence(small_frames(), published, METHODS))}
    paper = {name: [row.paper for row in result.comparisons] for name, result in results.items()}
    assert paper["format-gdpo"][0].startswith("14 against 19 steps (26 % fewer, median curves, 1.5B)")
    assert "over its seeds −24.4 [−60.1, 11.3] steps, 5 pairs (1.5B)" in paper["format-gdpo"][0]
    assert paper["format-share"][0] == "5 of 5 against 5 of 5"
    assert paper["tool-accuracy"][0].startswith("50.6 against 50.4 %, +0.2 [−1.5, 2.0] points, 5 pairs (1.5B)")
    assert paper["math-accuracy"][0] == (
        "45.8 against 44.1 % (R1-1.5B); 60.3 against 60.8 % (Qwen3-4B); 58.3 against 57.5 % (R1-7B)"
    )
    assert paper["fixed-weights"] == ["47.8 against 46.7 % (R1-1.5B)", "46.7 against 46.0 % (R1-1.5B)"]
    assert "steps 59, 62, 48; GDPO has 0.45, 0.46, 0.31 at step 40" in paper["energy-sym"][0]
    assert "for G = 4, 8, 16, 32" in paper["group-density"][0]


def test_ours_are_printed_with_interval_and_number_of_pairs(published):
    results = {result.claim.id: result for result in assess(Evidence(small_frames(), published, METHODS))}
    row = results["format-gdpo"].comparisons[0]
    assert row.what == "DARA-Asym against GDPO, format 0.8; tiny, G = 4"
    assert row.ours == "−5.0 [−5.0, −5.0] steps, 3 pairs"
    assert row.detail.startswith("medians 15 against 20; earlier in 3 of 3 pairs; 25 [")
    assert results["tool-accuracy"].comparisons[0].ours == "+1.0 [1.0, 1.0] points, 3 pairs"


def test_every_rule_that_a_claim_names_is_there():
    assert {claim.rule for claim in CLAIMS} <= set(RULES)
    assert len({claim.id for claim in CLAIMS}) == len(CLAIMS)


# --- pieces -----------------------------------------------------------------------------------------------------------


def test_a_rendered_table_is_read_back(tmp_path):
    rows = pd.DataFrame({"A": ["a|b", "\\", "<b>"], "B": ["1", "", "–"]})
    render_table(Table(rows, "A title", ["`>40` is late", "two"], ["A", "B"]), tmp_path / "t.x")
    table = read_table(tmp_path / "t.x")
    assert (table.title, table.header) == ("A title", ("A", "B"))
    assert table.rows == (("a|b", "1"), ("\\", ""), ("<b>", "–"))
    assert table.notes == ("`>40` is late", "two")
    (tmp_path / "right.md").write_text("| a | b |\n| --- | ---: |\n| **x** | 2 |\n")
    assert read_table(tmp_path / "right").right == (False, True)
    (tmp_path / "bad.md").write_text("| a | b |\n| --- | --- |\n| 1 |\n")
    with pytest.raises(ValueError, match=r"bad\.md: not a table"):
        read_table(tmp_path / "bad")


def test_the_smaller_picture_is_taken_and_keeps_its_width(tmp_path):
    assert read_figure(tmp_path / "none").data is None
    (tmp_path / "f.svg").write_text('<svg xmlns="x" width="504pt" height="1pt"></svg>')
    (tmp_path / "f.png").write_bytes(b"\x89PNG" + b"0" * 500)
    figure = read_figure(tmp_path / "f")
    assert figure.data.startswith("data:image/svg+xml;base64,")
    assert figure.width == 875


def test_text_of_a_model_is_shown_without_what_cannot_be_printed():
    assert visible("a\n\tb<i>é漢") == "a\n\tb<i>é漢"
    assert visible("\x00\x7f\u202e\ud800\U000e0041\r") == r"\u0000\u007f\u202e\ud800\U000e0041\u000d"
    assert visible("x" * 12, 10) == "x" * 10 + " … (2 more characters)"
    assert prose("`<a>` & b") == "<code>&lt;a&gt;</code> &amp; b"
    assert prose("**<2>** * 3") == "<strong>&lt;2&gt;</strong> * 3"
    assert parts("1 [2, 3] %; b") == ["1 [2,\u00a03]\u00a0%", "b"]
    assert parts("") == []


# --- the page ---------------------------------------------------------------------------------------------------------

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>&lt;\x00\ud800{{ 7 * 7 }}"


@pytest.fixture(scope="module")
def flow(tmp_path_factory) -> Workflow:
    """The smoke preset with a run and frames of its own, one run missing, some figures and tables drawn."""
    files = [ROOT / "config/config.yaml", ROOT / "config/presets/smoke.yaml"]
    results = tmp_path_factory.mktemp("report") / "results"
    flow = Workflow.load(
        ROOT, merge(read_yaml(files[0]), read_yaml(files[1])) | {"results": str(results), "reuse": "none"}, files[1:]
    )
    missing = next(reversed(flow.plan.runs))
    for name, frame in planned_frames(flow, missing).items():
        write_frame(frame, name, flow.paths.frames / f"{name}.csv")
    for run in flow.plan.runs:
        if run != missing:
            finish(flow, run)
    draw(flow)
    return flow


def planned_frames(flow: Workflow, missing: str) -> dict[str, pd.DataFrame]:
    """Frames that name the planned runs and hold nothing else."""
    rows = []
    for experiment, names in flow.plan.experiments.items():
        for name in names:
            spec = flow.plan.runs[name]
            row = {"experiment": experiment, "run_id": name, "task": spec.task, "model": spec.model.name}
            row |= {"method": spec.method.name, "group_size": spec.group_size, "seed": spec.seed, "repeat": 0}
            state = ("missing", "missing", 0) if name == missing else ("completed", "trained", spec.steps)
            rows.append(row | dict(zip(("outcome", "origin", "steps"), state, strict=True)) | {"engine": "trl"})
    others = ("training_curves", "checkpoint_scores", "crossings", "energies")
    return {"runs": rows_to_frame(rows, "runs")} | {name: rows_to_frame([], name) for name in others}


def finish(flow: Workflow, name: str) -> None:
    """A manifest and the kept responses of a run."""
    directory, spec = flow.paths.run(name), flow.plan.runs[name]
    directory.mkdir(parents=True)
    manifest = {"spec_sha256": spec_sha256(spec), "seeds": {"trainer": spec.seed}, "versions": {"torch": "2.13.0"}}
    manifest |= {"git_commit": "0123abcd", "machine": {"cpus": 2}, "inputs": {"train.jsonl": "aa11"}}
    manifest["checkpoints"] = {step: {"directory": "x", "sha256": {"model": f"f{step}"}} for step in ("3", "6")}
    (directory / "manifest.json").write_text(json.dumps(manifest))
    row = {"prompt": "<user>2+2</user>", "reference": "<b>4</b>", "response": HOSTILE, "n_tokens": 9, "advantage": -0.5}
    kept = [row | {"step": step, "rewards": {"<u>format": 1.0}} for step in (3, 4, 6) for _ in range(5)]
    text = "\n".join(json.dumps(line) for line in kept)
    (directory / "samples.jsonl.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def draw(flow: Workflow) -> None:
    """One figure and one table of ours; the published and the side-by-side table of the same name."""
    figure, table = flow.outputs.ids("figures")[0], flow.outputs.ids("tables")[0]
    (flow.paths.root / "figures").mkdir()
    (flow.paths.root / "figures" / f"{figure}.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"></svg>')
    built = Table(pd.DataFrame({"A": ["<script>1</script>"]}), "A <i>title</i>", ["a note"], ["A"])
    for path in (table, SIDE_BY_SIDE.format(table)):
        render_table(built, flow.paths.root / "tables" / path)
    render_table(built, flow.paths.results / "published" / "tables" / table)


@pytest.fixture(scope="module")
def page(flow) -> str:
    out = flow.paths.root / "report.html"
    write_report(flow, out)
    return out.read_text(encoding="utf-8")


class Tags(HTMLParser):
    """Names of the tags, their attributes, and the text, as a browser would read them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_data(self, data):
        self.text.append(data)


def test_hostile_text_is_text(page):
    tags = Tags(page)
    assert not {"script", "i", "b", "u", "user", "iframe", "object", "link"} & set(tags.tags)
    assert not [name for name, _ in tags.attributes if name.startswith("on")]
    text = "".join(tags.text)
    assert r"</pre><script>alert(1)</script><img src=x onerror=alert(2)>&lt;\u0000\ud800{{ 7 * 7 }}" in text
    assert "<script>1</script>" in text
    assert "<u>format 1; advantage −0.5" in text
    assert "default-src 'none'" in page


def test_the_page_needs_nothing_from_outside(page):
    addresses = [value for name, value in Tags(page).attributes if name in ("src", "href", "srcset", "data", "action")]
    assert addresses
    assert all(address.startswith(("#", "data:image/")) for address in addresses)
    assert not re.search(r"url\(|@import|https?://", page)


def test_each_link_in_the_page_has_its_place_and_each_place_one_name(page):
    tags = Tags(page)
    places = [value for name, value in tags.attributes if name == "id"]
    links = {value[1:] for name, value in tags.attributes if name == "href"}
    assert links <= set(places)
    assert len(places) == len(set(places))


def test_what_is_missing_is_named(flow, page):
    missing = next(reversed(flow.plan.runs))
    for figure in flow.outputs.ids("figures")[1:]:
        path = (flow.paths.root / "figures" / f"{figure}.png").as_posix()
        assert f"Missing: <code>{path}</code>" in page
        assert f"snakemake --profile profiles/local --configfile config/presets/smoke.yaml -- {path}" in page
    assert f"Runs that are missing: {missing}." in page
    assert f"{flow.paths.run(missing).as_posix()}/samples.jsonl.gz</code> is not there" in page
    assert f"no manifest: {flow.paths.run(missing).as_posix()}/manifest.json is not there" in page
    assert "Experiments that this preset does not have:" in page


def test_verdicts_provenance_and_responses_are_on_the_page(flow, page):
    text = re.sub(r"\s+", " ", "".join(Tags(page).text))
    for claim in CLAIMS:
        assert text.count(claim.statement) >= 3
        assert RULES[claim.rule] in text
    assert f"{len(CLAIMS)} not tested at this scale" in text
    for run, spec in flow.plan.runs.items():
        assert run in text
        assert f'"seed": {spec.seed}' in text
    for fact in ("torch 2.13.0", "0123abcd", "cpus 2", "trainer 100", "aa11", "f3", "Step 3", "Step 6"):
        assert fact in text
    assert "Step 4" not in text
    assert text.count("Side by side") == 1


def test_the_same_results_give_the_same_bytes(flow, page, tmp_path):
    write_report(flow, tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == page


def test_a_specification_that_changed_since_is_said(flow, tmp_path):
    run = next(iter(flow.plan.runs))
    path = flow.paths.run(run) / "manifest.json"
    before = path.read_text()
    path.write_text(json.dumps(json.loads(before) | {"spec_sha256": "ffff0000" * 8}))
    try:
        write_report(flow, tmp_path / "report.html")
    finally:
        path.write_text(before)
    assert "made from another specification (ffff0000, planned:" in (tmp_path / "report.html").read_text()


def test_a_broken_response_names_its_line(flow, tmp_path):
    path = flow.paths.run(next(iter(flow.plan.runs))) / "samples.jsonl.gz"
    before = path.read_bytes()
    path.write_bytes(gzip.compress(b'{"step": 1}\n'))
    try:
        with pytest.raises(ValueError, match=r"samples\.jsonl\.gz: line 1 has no 'prompt'"):
            write_report(flow, tmp_path / "report.html")
    finally:
        path.write_bytes(before)


def test_numpy_numbers_never_reach_the_page(page):
    assert not re.search(r"np\.(float|int)|\bnan\b|\bNone\b", "".join(Tags(page).text))

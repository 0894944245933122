"""The report: hostile text, one file without an address, the same bytes, missing pieces. Verdicts: test_claims.py."""

import gzip
import json
import re
import shutil
from html.parser import HTMLParser

import pandas as pd
import pytest

from dara.analysis.frames import rows_to_frame, write_frame
from dara.analysis.tables.render import Table, render_table
from dara.loading import merge, read_yaml
from dara.plan import WorkflowPlan
from dara.report import write_report
from dara.report.checks import CHECKS
from dara.report.claims import CLAIMS
from dara.report.html import SIDE_BY_SIDE, parts, prose, visible
from dara.report.pieces import read_figure, read_table
from dara.report.verdicts import RULES
from dara.store import spec_sha256
from project import ROOT

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
def flow(tmp_path_factory) -> WorkflowPlan:
    """The smoke preset with a run and frames of its own, one run missing, some figures and tables drawn."""
    files = [ROOT / "config/config.yaml", ROOT / "config/presets/smoke.yaml"]
    results = tmp_path_factory.mktemp("report") / "results"
    flow = WorkflowPlan.load(
        ROOT, merge(read_yaml(files[0]), read_yaml(files[1])) | {"results": str(results), "reuse": "none"}, files[1:]
    )
    shutil.copytree(ROOT / "results/published/data", results / "published/data")
    missing = next(reversed(flow.matrix.runs))
    for name, frame in planned_frames(flow, missing).items():
        write_frame(frame, name, flow.paths.frames / f"{name}.csv")
    for run in flow.matrix.runs:
        if run != missing:
            finish(flow, run)
    draw(flow)
    return flow


def planned_frames(flow: WorkflowPlan, missing: str) -> dict[str, pd.DataFrame]:
    """Frames that name the planned runs and hold nothing else."""
    rows = []
    for experiment, names in flow.matrix.experiments.items():
        for name in names:
            spec = flow.matrix.runs[name]
            row = {"experiment": experiment, "run_id": name, "task": spec.task, "model": spec.model.name}
            row |= {"method": spec.method.name, "group_size": spec.group_size, "seed": spec.seed, "repeat": 0}
            state = ("missing", "missing", 0) if name == missing else ("completed", "trained", spec.steps)
            rows.append(row | dict(zip(("outcome", "origin", "steps"), state, strict=True)) | {"engine": "trl"})
    others = ("training_curves", "checkpoint_scores", "score_intervals", "crossings", "energies")
    return {"runs": rows_to_frame(rows, "runs")} | {name: rows_to_frame([], name) for name in others}


def finish(flow: WorkflowPlan, name: str) -> None:
    """A manifest and the kept responses of a run."""
    directory, spec = flow.paths.run(name), flow.matrix.runs[name]
    directory.mkdir(parents=True)
    manifest = {"spec_sha256": spec_sha256(spec), "seeds": {"trainer": spec.seed}, "versions": {"torch": "2.13.0"}}
    manifest |= {"git_commit": "0123abcd", "machine": {"cpus": 2}, "inputs": {"train.jsonl": "aa11"}}
    manifest["checkpoints"] = {step: {"directory": "x", "sha256": {"model": f"f{step}"}} for step in ("3", "6")}
    (directory / "manifest.json").write_text(json.dumps(manifest))
    row = {"prompt": "<user>2+2</user>", "reference": "<b>4</b>", "response": HOSTILE, "n_tokens": 9, "advantage": -0.5}
    kept = [row | {"step": step, "rewards": {"<u>format": 1.0}} for step in (3, 4, 6) for _ in range(5)]
    text = "\n".join(json.dumps(line) for line in kept)
    (directory / "samples.jsonl.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def draw(flow: WorkflowPlan) -> None:
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
    missing = next(reversed(flow.matrix.runs))
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
    assert f"{sum(len(claim.methods) for claim in CLAIMS)} not tested" in text
    for check in CHECKS:
        assert check.statement in text
    assert "no claims): energy-density not tested" in text
    for run, spec in flow.matrix.runs.items():
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
    run = next(iter(flow.matrix.runs))
    path = flow.paths.run(run) / "manifest.json"
    before = path.read_text()
    path.write_text(json.dumps(json.loads(before) | {"spec_sha256": "ffff0000" * 8}))
    try:
        write_report(flow, tmp_path / "report.html")
    finally:
        path.write_text(before)
    assert "made from another specification (ffff0000, planned:" in (tmp_path / "report.html").read_text()


def test_a_broken_response_names_its_line(flow, tmp_path):
    path = flow.paths.run(next(iter(flow.matrix.runs))) / "samples.jsonl.gz"
    before = path.read_bytes()
    path.write_bytes(gzip.compress(b'{"step": 1}\n'))
    try:
        with pytest.raises(ValueError, match=r"samples\.jsonl\.gz: line 1 has no 'prompt'"):
            write_report(flow, tmp_path / "report.html")
    finally:
        path.write_bytes(before)


def test_numpy_numbers_never_reach_the_page(page):
    assert not re.search(r"np\.(float|int)|\bnan\b|\bNone\b", "".join(Tags(page).text))

"""The report: hostile text, one file without an address, the same bytes, missing pieces. Verdicts: test_claims.py."""

import gzip
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import pandas as pd
import pytest

from dara.analysis.frames import rows_to_frame, write_frame
from dara.plan import WorkflowPlan
from dara.report import page as page_module
from dara.report import write_report
from dara.report.claims import read_claims
from dara.report.page import parts, prose, visible
from dara.store import spec_sha256
from project import ROOT, planned


def test_the_smaller_picture_is_embedded(tmp_path):
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures/f.svg").write_text('<svg xmlns="x"></svg>')
    (tmp_path / "figures/f.png").write_bytes(b"\x89PNG" + b"0" * 500)
    assert page_module._figure(tmp_path, "f", "")["data"].startswith("data:image/svg+xml;base64,")


def test_text_of_a_model_is_shown_without_what_cannot_be_printed():
    assert visible("a\n\tb<i>é漢") == "a\n\tb<i>é漢"
    assert visible("\x00\x7f\u202e\ud800\U000e0041\r") == r"\x00\x7f\u202e\ud800\U000e0041\r"
    assert visible("x" * 12, 10) == "x" * 10 + " … (2 more characters)"
    assert prose("`<a>` & b") == "<code>&lt;a&gt;</code> &amp; b"
    assert parts("1 [2, 3] %; b") == ["1 [2,\u00a03]\u00a0%", "b"]
    assert parts("") == []


# --- the page ---------------------------------------------------------------------------------------------------------

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>&lt;\x00\ud800{{ 7 * 7 }}"


@pytest.fixture(scope="module")
def flow(tmp_path_factory) -> WorkflowPlan:
    """The smoke preset with a run and frames of its own, one run missing, one figure drawn, and labels that are markup."""
    results = tmp_path_factory.mktemp("report") / "results"
    flow = planned("smoke", results=str(results), reuse="none")
    shutil.copytree(ROOT / "results/published/data", results / "published/data")
    math = flow.published.experiments["math_main"]
    vars(flow)["published"] = replace(flow.published, experiments={"math_main": math})  # the others take seconds
    missing = next(reversed(flow.matrix.runs))
    for name, frame in planned_frames(flow, missing).items():
        write_frame(frame, name, flow.paths.frames / f"{name}.csv")
    for run in flow.matrix.runs:
        if run != missing:
            finish(flow, run)
    figures = flow.paths.root / "figures"
    figures.mkdir()
    (figures / f"{flow.outputs.ids('figures')[0]}.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"></svg>')
    for name, entry in flow.configuration.methods.items():
        flow.configuration.methods[name] = entry.model_copy(update={"label": f"<script>{name}</script>"})
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
    assert r"</pre><script>alert(1)</script><img src=x onerror=alert(2)>&lt;\x00\ud800{{ 7 * 7 }}" in text
    assert "<script>gdpo</script>" in text
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
    assert f"{flow.paths.run(missing).as_posix()}/samples.jsonl.gz is not there" in page
    assert f"no manifest: {flow.paths.run(missing).as_posix()}/manifest.json is not there" in page
    assert "Experiments that this preset does not have:" in page


def test_verdicts_provenance_and_responses_are_on_the_page(flow, page):
    text, declared = re.sub(r"\s+", " ", "".join(Tags(page).text)), read_claims()
    for claim in (*declared.claims.values(), *declared.formulas.values()):
        assert claim.statement in text
        assert claim.number in text
    assert all(rule in text for rule in declared.rules.values())
    assert f"{sum(len(claim.methods) for claim in declared.claims.values())} not tested" in text
    assert "no claims): energy-density not tested" in text
    for run, spec in flow.matrix.runs.items():
        assert run in text
        assert f"seed: {spec.seed}" in text
    for fact in ("torch: 2.13.0", "0123abcd", "cpus: 2", "trainer: 100", "aa11", "f3", "Step 3", "Step 6"):
        assert fact in text
    assert "Step 4" not in text
    assert "Side by side" in text
    assert "Missing: smoke: experiment math_main: no " in text  # a table without numbers
    assert "(math_main) " in text  # a table of the published numbers


def test_the_same_results_give_the_same_bytes(flow, page, tmp_path):
    write_report(flow, tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == page


def test_what_is_wrong_with_the_files_of_a_run_is_said(flow, tmp_path):
    run = next(iter(flow.matrix.runs))
    manifest, samples = (flow.paths.run(run) / name for name in ("manifest.json", "samples.jsonl.gz"))
    before = manifest.read_bytes(), samples.read_bytes()
    try:
        manifest.write_text(json.dumps(json.loads(before[0]) | {"spec_sha256": "ffff0000" * 8}))
        (missing,) = page_module._run(flow, run, None)["missing"]
        assert "made from another specification (ffff0000, planned:" in missing
        samples.write_bytes(gzip.compress(b'{"step": 1}\n'))
        with pytest.raises(ValueError, match=r"samples\.jsonl\.gz: line 1 has no 'prompt'"):
            write_report(flow, tmp_path / "report.html")
    finally:
        manifest.write_bytes(before[0])
        samples.write_bytes(before[1])


def test_numpy_numbers_never_reach_the_page(page):
    assert not re.search(r"np\.(float|int)|\bnan\b|\bNone\b", "".join(Tags(page).text))

"""Fetching by id and pinned revision: checksums, the cache, local stand-ins, mirrors and what is said when all fails."""

import hashlib
import json
import re
from pathlib import Path

import httpx
import pytest
import yaml

from dara.data import downloads, network
from dara.data.hub import (
    Fetch,
    check_available,
    dataset_file,
    fetch_as_configured,
    model_directory,
    tokenizer_directory,
    write_model_manifest,
)
from dara.data.pins import model_sums, read_pin
from dara.data.rows import read_rows
from dara.specs import HubModel
from hub_fakes import COMMIT, pin, write_lock
from project import ROOT

CONTENT = b'{"problem": "1+1", "answer": "2"}\n'
SUM = hashlib.sha256(CONTENT).hexdigest()
MODEL = {"config.json": b"{}", "model.safetensors": b"weights", "tokenizer.json": b"words", "merges.txt": b"m"}


class FakeHub:
    """What the downloads write, and how often and from where they were asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.content, self.calls = CONTENT, []
        monkeypatch.setattr(downloads, "hub_file", self.file)
        monkeypatch.setattr(downloads, "github_file", self.file)
        monkeypatch.setattr(downloads, "snapshot", self.snapshot)

    def file(self, pin, folder, mirror):
        self.calls.append((pin.repository, pin.revision, mirror))
        name = pin.file.replace("*", "00000")
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(self.content)
        return name

    def snapshot(self, hub_id, revision, patterns, folder, mirror):
        self.calls.append((hub_id, revision, mirror))
        (folder / ".cache").mkdir()
        for name, content in MODEL.items():
            if any(Path(name).match(pattern) for pattern in patterns):
                (folder / name).write_bytes(content)


@pytest.fixture
def hub(monkeypatch):
    return FakeHub(monkeypatch)


@pytest.fixture
def places(tmp_path):
    lock = write_lock(tmp_path / "data.lock.yaml", {"sums": pin(1), "tools": pin(1, host="github")})
    return {"cache": tmp_path / "cache", "local": {}, "mirror": None, "lock": lock}


def test_the_first_fetch_records_and_later_ones_verify_without_fetching(hub, places):
    path = dataset_file("sums", **places)
    assert path.read_bytes() == CONTENT
    assert read_pin(places["lock"], "sums").sha256 == SUM
    assert places["lock"].read_text().startswith("# pins of a test\n")
    assert dataset_file("sums", **places) == path
    assert hub.calls == [("owner/name", COMMIT, None)]
    assert not list(places["cache"].rglob("*.partial"))


def test_a_cached_file_that_changed_is_refused_with_file_and_both_sums(hub, places):
    path = dataset_file("sums", **places)
    path.write_bytes(b"else")
    other = hashlib.sha256(b"else").hexdigest()
    with pytest.raises(
        ValueError, match=f"{re.escape(str(path))}: its sha256 is {other}, but {SUM} is pinned for sums"
    ):
        dataset_file("sums", **places)


def test_a_fetched_file_that_is_not_the_pinned_one_is_refused_and_not_kept(hub, places):
    write_lock(places["lock"], {"sums": pin(1, sha256="0" * 64)})
    with pytest.raises(ValueError, match=f"its sha256 is {SUM}, but {'0' * 64} is pinned"):
        dataset_file("sums", **places)
    assert not [path for path in places["cache"].rglob("*") if path.is_file() and path.name != "lock"]
    write_lock(places["lock"], {"sums": pin(1, sha256=SUM)})
    assert dataset_file("sums", **places).read_bytes() == CONTENT


def test_a_pattern_becomes_the_name_that_was_fetched(hub, places):
    write_lock(places["lock"], {"sums": pin(1, file="data/train-*.jsonl")})
    path = dataset_file("sums", **places)
    assert path.name == "train-00000.jsonl"
    assert read_pin(places["lock"], "sums").file == "data/train-00000.jsonl"
    assert dataset_file("sums", **places) == path


@pytest.mark.parametrize(("names", "count"), [(["a/b.txt"], 0), (["data/x-1.parquet", "data/x-2.parquet"], 2)])
def test_a_pattern_must_fit_one_file(monkeypatch, places, names, count):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda self, *args, **keys: names)
    write_lock(places["lock"], {"sums": pin(1, file="*x-*.parquet")})
    with pytest.raises(ValueError, match=rf"owner/name at revision {COMMIT}: {count} files fit"):
        dataset_file("sums", **places)


def test_the_hub_library_is_asked_for_the_pinned_revision_at_the_mirror(monkeypatch, places, tmp_path):
    import huggingface_hub

    asked = []

    def download(repository, name, **keys):
        asked.append((repository, name, keys["repo_type"], keys["revision"], keys["endpoint"]))
        (Path(keys["local_dir"]) / name).write_bytes(CONTENT)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    dataset_file("sums", **{**places, "mirror": "http://mirror.test"})
    assert asked == [("owner/name", "data.jsonl", "dataset", COMMIT, "http://mirror.test")]


def test_a_missing_file_names_id_revision_and_both_ways_to_get_it(monkeypatch, places):
    def refuse(*args):
        raise httpx.ConnectError("no route to host")

    monkeypatch.setattr(downloads, "hub_file", refuse)
    pattern = (
        rf"data set sums \(owner/name at revision {COMMIT}, .*no route to host.*data_local: {{sums: PATH}}.*hub_mirror"
    )
    with pytest.raises(ValueError, match=pattern):
        dataset_file("sums", **places)
    monkeypatch.setattr(downloads, "github_file", refuse)
    with pytest.raises(ValueError, match=r"data set tools .*data_local: {tools: PATH}"):
        dataset_file("tools", **places)
    monkeypatch.setattr(downloads, "snapshot", refuse)
    pattern = rf"model a/b at revision {COMMIT} is missing: .*models_local: {{a/b: DIRECTORY}}.*hub_mirror: ADDRESS"
    with pytest.raises(ValueError, match=pattern):
        model_directory("a/b", COMMIT, **places)


def test_a_fetch_that_breaks_off_leaves_no_complete_file(monkeypatch, hub, places):
    def half(pin, folder, mirror):
        (folder / pin.file).write_bytes(CONTENT[:5])
        raise httpx.ReadTimeout("timed out")

    whole = hub.file
    monkeypatch.setattr(downloads, "hub_file", half)
    with pytest.raises(ValueError, match="timed out"):
        dataset_file("sums", **places)
    assert read_pin(places["lock"], "sums").sha256 is None
    monkeypatch.setattr(downloads, "hub_file", whole)
    assert dataset_file("sums", **places).read_bytes() == CONTENT


def test_local_files(hub, places, tmp_path, caplog):
    write_lock(places["lock"], {"sums": pin(1, sha256=SUM)})
    same, other, table = tmp_path / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "c.json"
    same.write_bytes(CONTENT)
    other.write_bytes(b"else")
    table.write_text("[]")
    assert dataset_file("sums", **{**places, "local": {"sums": same}}) == same
    assert not caplog.records
    assert dataset_file("sums", **{**places, "local": {"sums": str(table)}}) == table
    assert "stands in for sums in another format" in caplog.text
    with pytest.raises(ValueError, match=r"b.jsonl: its sha256 is"):
        dataset_file("sums", **{**places, "local": {"sums": other}})
    with pytest.raises(ValueError, match=r"sums .* is missing: .*absent.jsonl does not exist"):
        dataset_file("sums", **{**places, "local": {"sums": tmp_path / "absent.jsonl"}})
    assert hub.calls == []


def test_a_number_of_rows_that_is_not_known_is_recorded_with_the_checksum(hub, places, tmp_path):
    write_lock(places["lock"], {"sums": pin(None)})
    fetch = Fetch(places["cache"], places["lock"])
    assert len(fetch.rows("sums")) == 1
    assert (read_pin(places["lock"], "sums").rows, read_pin(places["lock"], "sums").sha256) == (1, SUM)
    (tmp_path / "two.json").write_text('[{"a": 1}, {"a": 2}]')
    local = Fetch(places["cache"], places["lock"], data_local={"sums": tmp_path / "two.json"})
    with pytest.raises(ValueError, match=r"two.json: has 2 rows; sums has 1, so this is another set"):
        local.rows("sums")
    write_lock(places["lock"], {"sums": pin(None)})
    assert len(local.rows("sums")) == 2


def test_an_unknown_data_set_and_a_wrong_pin(places, tmp_path):
    with pytest.raises(ValueError, match=r"data.lock.yaml: has no data set 'sumz'; it has sums, tools"):
        dataset_file("sumz", **places)
    write_lock(places["lock"], {"sums": {"host": "hub"}})
    with pytest.raises(ValueError, match=r"datasets.sums must have host, repository, revision, file, rows, sha256"):
        dataset_file("sums", **places)
    with pytest.raises(ValueError, match=r"absent.yaml: the file does not exist"):
        read_pin(tmp_path / "absent.yaml", "sums")


def test_the_number_of_rows_is_checked(hub, places):
    write_lock(places["lock"], {"sums": pin(2)})
    fetch = Fetch(places["cache"], places["lock"])
    with pytest.raises(ValueError, match=r"has 1 rows; sums has 2, so this is another set"):
        fetch.rows("sums")
    write_lock(places["lock"], {"sums": pin(1)})
    assert fetch.rows("sums") == [{"problem": "1+1", "answer": "2"}]
    assert fetch.describe("sums") == {
        "repository": "owner/name", "revision": COMMIT, "file": "data.jsonl", "sha256": SUM, "local": False,
    }  # fmt: skip


def test_a_model_is_fetched_once_and_verified(hub, places):
    folder = model_directory("a/b", COMMIT, **places)
    assert {path.name for path in folder.iterdir()} == set(MODEL)
    assert model_sums(places["lock"], "a/b", COMMIT) == {
        name: hashlib.sha256(content).hexdigest() for name, content in sorted(MODEL.items())
    }
    assert model_directory("a/b", COMMIT, **places) == folder
    assert tokenizer_directory("a/b", COMMIT, **places) == folder
    assert len(hub.calls) == 1
    (folder / "model.safetensors").write_bytes(b"others")
    with pytest.raises(ValueError, match=r"model.safetensors: its sha256 is .*, but .* is pinned for a/b at revision"):
        model_directory("a/b", COMMIT, **places)


def test_a_tokenizer_comes_without_weights(hub, places):
    folder = tokenizer_directory("a/b", COMMIT, **places)
    assert {path.name for path in folder.iterdir()} == {"config.json", "tokenizer.json", "merges.txt"}
    assert tokenizer_directory("a/b", COMMIT, **places) == folder
    assert len(hub.calls) == 1
    whole = model_directory("a/b", COMMIT, **places)
    assert whole != folder
    assert "model.safetensors" in model_sums(places["lock"], "a/b", COMMIT)


def test_a_local_model_must_be_complete_and_the_pinned_one(hub, places, tmp_path, caplog):
    folder = tmp_path / "model"
    local = {**places, "local": {"a/b": folder}}
    with pytest.raises(ValueError, match=r"model a/b at revision .* is missing: .*model does not exist"):
        model_directory("a/b", COMMIT, **local)
    folder.mkdir()
    (folder / "config.json").write_bytes(MODEL["config.json"])
    with pytest.raises(ValueError, match=r"model has no model.safetensors"):
        model_directory("a/b", COMMIT, **local)
    index = {"weight_map": {"x": "model-1-of-2.safetensors", "y": "model-2-of-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model-1-of-2.safetensors").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"model has no model-2-of-2.safetensors"):
        model_directory("a/b", COMMIT, **local)
    (folder / "model-2-of-2.safetensors").write_bytes(b"y")
    assert model_directory("a/b", COMMIT, **local) == folder
    assert "cannot be checked" in caplog.text
    write_lock(places["lock"], {}, {f"a/b@{COMMIT}": {"config.json": "0" * 64}})
    with pytest.raises(ValueError, match=r"config.json: its sha256 is .*, but 0{64} is pinned"):
        model_directory("a/b", COMMIT, **local)
    assert hub.calls == []


def test_the_manifest_of_a_model(hub, places, tmp_path):
    fetch = Fetch(places["cache"], places["lock"])
    spec = HubModel(name="b", hub="a/b", revision=COMMIT)
    write_model_manifest(spec, tmp_path / "models" / "manifest.json", fetch=fetch)
    content = json.loads((tmp_path / "models" / "manifest.json").read_text())
    assert content["model"] == {"name": "b", "hub": "a/b", "revision": COMMIT}
    assert content["directory"] == str(fetch.model("a/b", COMMIT))
    assert content["sha256"] == model_sums(places["lock"], "a/b", COMMIT)


def test_a_model_needs_a_whole_commit(hub, places):
    with pytest.raises(ValueError, match=r"model a/b: revision '0123456' must be all 40 digits"):
        model_directory("a/b", "0123456", **places)


def test_what_is_missing_is_listed_at_once_before_a_job_is_submitted(monkeypatch, hub, places, tmp_path):
    asked = []
    silent = {"http://mirror.test": None}
    monkeypatch.setattr(network, "unreachable", lambda address: asked.append(address) or silent.get(address, "silent"))
    fetch = Fetch(places["cache"], places["lock"])
    wanted = (["sums", "tools"], [("a/b", COMMIT)])
    with pytest.raises(ValueError) as caught:
        check_available(*wanted, fetch)
    lines = str(caught.value).split("\n")
    assert lines[0] == "3 needed and neither here nor within reach:"
    assert ["data_local: {sums: PATH}" in lines[1], "data_local: {tools: PATH}" in lines[2]] == [True, True]
    assert f"model a/b at revision {COMMIT}" in lines[3]
    assert len(asked) == len(set(asked)) == 2  # each host once

    with pytest.raises(ValueError, match=r"^1 needed .*\n.*data set tools"):  # a mirror of the hub is not GitHub's
        check_available(*wanted, Fetch(places["cache"], places["lock"], mirror="http://mirror.test"))

    path = tmp_path / "tools.jsonl"
    path.write_bytes(CONTENT)
    check_available(*wanted, Fetch(places["cache"], places["lock"], {"tools": path}, mirror="http://mirror.test"))

    dataset_file("sums", **places)
    model_directory("a/b", COMMIT, **places)
    check_available(["sums"], [("a/b", COMMIT)], fetch)  # in the cache

    with pytest.raises(ValueError, match=r"data set sums .*absent does not exist"):
        check_available(["sums"], [], Fetch(places["cache"], places["lock"], {"sums": tmp_path / "absent"}))


def test_formats_of_rows(tmp_path):
    import pyarrow
    import pyarrow.parquet

    rows = [{"a": 1.0, "b": ["x", "y"]}, {"a": 2.5, "b": []}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [read_rows(tmp_path / f"rows.{kind}") for kind in ("parquet", "json", "jsonl")] == [rows] * 3
    (tmp_path / "rows.parquet").write_bytes(b"PAR1 and then nothing")
    (tmp_path / "rows.json").write_text('{"a": 1}')
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n[1]\n')
    (tmp_path / "rows.csv").write_text("a\n1\n")
    for name, message in {
        "rows.parquet": "not a complete Parquet file", "rows.json": "must be a JSON list of objects",
        "rows.jsonl": "row 2: must be an object", "rows.csv": "must end with .parquet, .jsonl, .json",
        "absent.json": "the file does not exist",
    }.items():  # fmt: skip
        with pytest.raises(ValueError, match=message):
            read_rows(tmp_path / name)


def test_the_pins_in_git():
    path = ROOT / "config" / "data.lock.yaml"
    pins = {name: read_pin(path, name) for name in yaml.safe_load(path.read_text())["datasets"]}
    assert {name: one.rows for name, one in pins.items()} == {
        "toolrl_train": 3920, "toolrl_validation": 80, "deepscaler_train": None, "deepscaler_validation": 200,
        "math500": 500, "aime24": 30, "amc": 83, "minerva": 272, "olympiadbench": 674,
    }  # fmt: skip
    assert all(re.fullmatch("[0-9a-f]{40}", one.revision) for one in pins.values())
    authors = {(pins[name].host, pins[name].repository) for name in pins if name.startswith("deepscaler")}
    assert authors == {("github", "zhaihaotian/DARA")}
    assert pins["toolrl_validation"].sha256 == "f7f300ebe755fd04985c83e18097d5a94a08619d72809fe06128ed3f00da7554"


def test_what_a_preset_leaves_out_is_the_hub_itself(tmp_path):
    fetch = fetch_as_configured(tmp_path, {"data_local": {"math500": "m.jsonl"}})
    assert fetch == Fetch(Path(".scratch/hub"), tmp_path / "config/data.lock.yaml", data_local={"math500": "m.jsonl"})
    with pytest.raises(ValueError, match="--fetch: 'mirror' is no key of it; the keys are scratch, data_local, models"):
        fetch_as_configured(tmp_path, {"mirror": "x"})

"""Fetching by id and pinned commit: the hub's own client against a mirror on this machine, the cache, local files."""

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from dara.data import hub, network
from dara.data.hub import Fetch, check_available, fetch_as_configured, read_pin, write_model_manifest
from dara.data.public import read_rows
from dara.specs import HubModel
from hub_fakes import COMMIT, git_blob, pin, write_lock
from project import ROOT

CONTENT = b'{"problem": "1+1", "answer": "2"}\n'
MODEL = {
    "config.json": b"{}", "model.safetensors": b"weights", "tokenizer.json": b"words", "merges.txt": b"m",
    "onnx/config.json": b"no", "README.md": b"read me",
}  # fmt: skip
LARGE = ("model.safetensors",)  # what the hub names by its sha256


class Mirror(BaseHTTPRequestHandler):
    """As much of the hub's interface, and of GitHub's, as a fetch of pinned files needs."""

    data, model, asked = {}, MODEL, []

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self._answer(body=False)

    def do_GET(self):
        self._answer(body=True)

    def _answer(self, body):
        path = self.path.partition("?")[0]
        self.asked.append(path)
        files = self.data if path.startswith(("/datasets/", "/api/datasets/", "/owner/name/raw/")) else self.model
        content, name = b"a mirror", re.sub(rf".*/(resolve|raw)/{COMMIT}/", "", path)
        if path.endswith(f"/tree/{COMMIT}"):
            listing = [
                {"type": "file", "path": name, "size": len(text), "oid": git_blob(text)} for name, text in files.items()
            ]
            content = json.dumps(listing).encode()
        elif name != path:
            content = files[name]
        hashed = hashlib.sha256(content).hexdigest() if name in LARGE else git_blob(content)
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Type", "application/json")
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashed}"')
        self.end_headers()
        if body:
            self.wfile.write(content)


@pytest.fixture
def mirror(monkeypatch):
    """The handler's class, whose files a test may change; everything is fetched from it, GitHub's files too."""
    handler = type("Own", (Mirror,), {"data": {"data.jsonl": CONTENT}, "model": dict(MODEL), "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    handler.address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(hub, "GITHUB", handler.address)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)  # between its attempts
    yield handler
    server.shutdown()
    server.server_close()


@pytest.fixture
def fetch(mirror, tmp_path):
    lock = write_lock(tmp_path / "data.lock.yaml", {"sums": pin(1), "tools": pin(1, host="github")})
    return Fetch(tmp_path / "cache", lock, mirror=mirror.address)


def local(fetch, **places):
    return Fetch(fetch.cache, fetch.lock, **places, mirror=fetch.mirror)


@pytest.mark.parametrize("name", ["sums", "tools"])
def test_a_file_is_fetched_once_and_compared_at_each_use(mirror, fetch, name):
    check_available([name], [], fetch)
    assert mirror.asked == ["/"]
    path = fetch.dataset(name)
    assert path.read_bytes() == CONTENT
    asked = list(mirror.asked)
    assert any(COMMIT in address for address in asked)
    assert fetch.dataset(name) == path
    check_available([name], [], Fetch(fetch.cache, fetch.lock, mirror="http://nowhere.test"))
    assert mirror.asked == asked
    path.write_bytes(b"else")
    message = (
        rf"{re.escape(str(path.resolve()))}: its hash is {git_blob(b'else')}, but {git_blob(CONTENT)} is pinned for "
        rf".*owner/name at revision {COMMIT}; remove the file"
    )
    with pytest.raises(ValueError, match=message):
        fetch.dataset(name)
    path.resolve().unlink()
    assert fetch.dataset(name).read_bytes() == CONTENT


def test_a_file_of_github_is_compared_with_its_pin(fetch, tmp_path):
    write_lock(fetch.lock, {"tools": pin(1, host="github", blob="0" * 40)})
    with pytest.raises(ValueError, match=f"its hash is {git_blob(CONTENT)}, but {'0' * 40} is pinned"):
        fetch.dataset("tools")
    write_lock(fetch.lock, {"tools": pin(1, host="github", blob=git_blob(CONTENT))})
    assert fetch.dataset("tools").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("names", "count"), [(["data/x-0.jsonl", "else"], 1), (["a/b.txt"], 0), (["data/x-1.jsonl", "data/x-2.jsonl"], 2)]
)
def test_a_pattern_must_fit_one_file(mirror, fetch, names, count):
    mirror.data = dict.fromkeys(names, CONTENT)
    write_lock(fetch.lock, {"sums": pin(1, file="*x-*.jsonl")})
    if count == 1:
        assert [fetch.dataset("sums").name for _ in range(2)] == ["x-0.jsonl"] * 2
        return
    with pytest.raises(ValueError, match=rf"owner/name at revision {COMMIT}: {count} files fit '\*x-\*.jsonl'"):
        fetch.dataset("sums")


def test_what_cannot_be_fetched_names_id_revision_and_each_way_to_get_it(fetch, monkeypatch):
    monkeypatch.setattr(hub, "GITHUB", "http://127.0.0.1:9")
    nowhere = Fetch(fetch.cache, fetch.lock, mirror="http://127.0.0.1:9")
    origin = rf"\(owner/name at revision {COMMIT}, file data.jsonl\) is missing: .*"
    for get, message in (
        (lambda: nowhere.dataset("sums"), rf"data set sums {origin}data_local: {{sums: PATH}}.*hub_mirror: ADDRESS"),
        (lambda: nowhere.dataset("tools"), rf"data set tools {origin}data_local: {{tools: PATH}}.*host can be reached"),
        (
            lambda: nowhere.model("a/b", COMMIT),
            rf"model a/b at revision {COMMIT} is missing: .*models_local: {{a/b: DIRECTORY}}.*hub_mirror: ADDRESS",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            get()


def test_a_fetch_that_breaks_off_leaves_no_complete_model(mirror, fetch):
    fetch.tokenizer("a/b", COMMIT)
    away = Fetch(fetch.cache, fetch.lock, mirror="http://127.0.0.1:9")
    with pytest.raises(ValueError, match="does not answer"):
        check_available([], [("a/b", COMMIT)], away)
    with pytest.raises(ValueError, match="does not answer"):
        away.model("a/b", COMMIT)
    assert (fetch.model("a/b", COMMIT) / "model.safetensors").read_bytes() == b"weights"
    check_available([], [("a/b", COMMIT)], away)


def test_local_files(mirror, fetch, tmp_path, caplog):
    write_lock(fetch.lock, {"tools": pin(1, host="github", blob=git_blob(CONTENT))})
    same, other, table = tmp_path / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "c.json"
    same.write_bytes(CONTENT)
    other.write_bytes(b"else")
    table.write_text("[]")
    assert local(fetch, data_local={"tools": same}).dataset("tools") == same
    assert not caplog.records
    assert local(fetch, data_local={"tools": str(table)}).dataset("tools") == table
    assert "stands in for tools in another format" in caplog.text
    with pytest.raises(ValueError, match=r"b.jsonl: its hash is"):
        local(fetch, data_local={"tools": other}).dataset("tools")
    absent = local(fetch, data_local={"tools": tmp_path / "absent.jsonl"})
    for get in (absent.dataset, lambda name: check_available([name], [], absent)):
        with pytest.raises(ValueError, match=r"tools .* is missing: .*absent.jsonl does not exist"):
            get("tools")
    assert mirror.asked == []


def test_the_number_of_rows_is_checked_where_it_is_pinned(fetch):
    write_lock(fetch.lock, {"sums": pin(2)})
    with pytest.raises(ValueError, match=r"data.jsonl: has 1 rows; sums has 2, so this is another set"):
        fetch.rows("sums")
    for known in (1, None):
        write_lock(fetch.lock, {"sums": pin(known)})
        assert fetch.rows("sums") == [{"problem": "1+1", "answer": "2"}]
    assert fetch.describe("sums") == {
        "repository": "owner/name", "revision": COMMIT, "file": "data.jsonl",
        "sha256": hashlib.sha256(CONTENT).hexdigest(), "local": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"datasets": {"tools": {}}}, r"data.lock.yaml: has no data set 'sums'; it has tools"),
        ({"datasets": {"sums": {"host": "hub"}}}, r"datasets.sums must have host .*, repository, revision .*, rows"),
        ({"datasets": {"sums": {**pin(1), "revision": "main"}}}, r"datasets.sums must have .* revision \(40 digits\)"),
        ({"datasets": []}, "must have the mapping datasets"),
        ("{", "not valid YAML"),
        (None, "the file does not exist"),
    ],
)
def test_wrong_pins(fetch, content, message):
    fetch.lock.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    if content is None:
        fetch.lock.unlink()
    with pytest.raises(ValueError, match=message):
        fetch.dataset("sums")


def test_a_tokenizer_and_then_the_whole_model(mirror, fetch, tmp_path):
    folder = fetch.tokenizer("a/b", COMMIT)
    assert {path.name for path in folder.iterdir()} == {"config.json", "tokenizer.json", "merges.txt"}
    assert fetch.model("a/b", COMMIT) == folder
    whole = {"config.json", "tokenizer.json", "merges.txt", "model.safetensors"}  # others, in folders, are not wanted
    assert {path.name for path in folder.iterdir()} == whole
    asked = list(mirror.asked)
    assert fetch.tokenizer("a/b", COMMIT) == fetch.model("a/b", COMMIT) == folder
    assert mirror.asked == asked

    spec = HubModel(name="b", hub="a/b", revision=COMMIT)
    write_model_manifest(spec, tmp_path / "models" / "manifest.json", fetch=fetch)
    content = json.loads((tmp_path / "models" / "manifest.json").read_text())
    assert content["model"] == {"name": "b", "hub": "a/b", "revision": COMMIT}
    assert content["directory"] == str(folder)
    assert content["sha256"] == {name: hashlib.sha256(MODEL[name]).hexdigest() for name in sorted(whole)}

    for name in ("model.safetensors", "config.json"):
        before = (folder / name).read_bytes()
        (folder / name).write_bytes(b"others")
        with pytest.raises(ValueError, match=r"its hash is .*, but .* is pinned for a/b at revision"):
            fetch.model("a/b", COMMIT)
        (folder / name).write_bytes(before)
    with pytest.raises(ValueError, match=r"model a/b: revision '0123456' must be all 40 digits"):
        fetch.model("a/b", "0123456")


def test_a_local_model_must_be_complete(mirror, fetch, tmp_path, caplog):
    folder = tmp_path / "model"
    here = local(fetch, models_local={"a/b": folder})
    with pytest.raises(ValueError, match=r"model a/b at revision .* is missing: .*model does not exist"):
        here.model("a/b", COMMIT)
    folder.mkdir()
    (folder / "config.json").write_bytes(MODEL["config.json"])
    with pytest.raises(ValueError, match=r"model has no model.safetensors"):
        here.model("a/b", COMMIT)
    index = {"weight_map": {"x": "model-1-of-2.safetensors", "y": "model-2-of-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model-1-of-2.safetensors").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"model has no model-2-of-2.safetensors"):
        here.model("a/b", COMMIT)
    (folder / "model-2-of-2.safetensors").write_bytes(b"y")
    assert here.model("a/b", COMMIT) == folder
    assert "cannot be checked" in caplog.text
    assert mirror.asked == []


def test_what_is_missing_is_listed_at_once_before_a_job_is_submitted(monkeypatch, fetch, tmp_path):
    asked = []
    silent = {"http://mirror.test": None}
    monkeypatch.setattr(network, "unreachable", lambda address: asked.append(address) or silent.get(address, "silent"))
    monkeypatch.setattr(hub, "GITHUB", "https://github.com")
    wanted = (["sums", "tools"], [("a/b", COMMIT)])
    with pytest.raises(ValueError) as caught:
        check_available(*wanted, Fetch(fetch.cache, fetch.lock))
    lines = str(caught.value).split("\n")
    assert lines[0] == "3 needed and neither here nor within reach:"
    assert ["data_local: {sums: PATH}" in lines[1], "data_local: {tools: PATH}" in lines[2]] == [True, True]
    assert f"model a/b at revision {COMMIT}" in lines[3]
    assert len(asked) == len(set(asked)) == 2  # each host once
    mirrored = Fetch(fetch.cache, fetch.lock, mirror="http://mirror.test")
    with pytest.raises(ValueError, match=r"^1 needed .*\n.*data set tools"):  # a mirror of the hub is not GitHub's
        check_available(*wanted, mirrored)
    path = tmp_path / "tools.jsonl"
    path.write_bytes(CONTENT)
    check_available(*wanted, Fetch(fetch.cache, fetch.lock, {"tools": path}, mirror="http://mirror.test"))
    with pytest.raises(ValueError, match=r"has no data set 'tool'; it has sums, tools"):
        check_available([], [], Fetch(fetch.cache, fetch.lock, {"tool": path}))


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
    (tmp_path / "broken.jsonl").write_text('{"a": 1}\n{"a"\n')
    for name, message in {
        "rows.parquet": "not a complete Parquet file", "rows.json": "must be a JSON list of objects",
        "rows.jsonl": "row 2: must be an object", "rows.csv": "must end with .parquet, .jsonl, .json",
        "absent.json": "the file does not exist", "broken.jsonl": "row 2: not valid JSON",
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
    authors = {(pins[name].host, pins[name].repository) for name in pins if name.startswith("deepscaler")}
    assert authors == {("github", "zhaihaotian/DARA")}


def test_what_a_preset_leaves_out_is_the_hub_itself(tmp_path):
    fetch = fetch_as_configured(tmp_path, {"data_local": {"math500": "m.jsonl"}})
    assert fetch == Fetch(Path(".scratch/hub"), tmp_path / "config/data.lock.yaml", data_local={"math500": "m.jsonl"})
    with pytest.raises(ValueError, match="--fetch: 'mirror' is no key of it; the keys are scratch, data_local, models"):
        fetch_as_configured(tmp_path, {"mirror": "x"})

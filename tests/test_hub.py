"""Fetching by id and pinned commit: the hub's own client against servers on this machine, the cache, local files.

Everything that can go wrong with the network is one sentence that names the address, and the key or variable to change.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from dara.data import hub, network
from dara.data.hub import Fetch, check_available, fetch_as_configured, read_pin, write_model_manifest
from dara.data.public import read_rows
from dara.loading import ConfigurationError, load_preset
from dara.specs import HubModel
from hub_fakes import COMMIT, git_blob, pin, write_lock
from project import ROOT

CONTENT = b'{"problem": "1+1", "answer": "2"}\n'
MODEL = {
    "config.json": b"{}", "model.safetensors": b"weights", "tokenizer.json": b"words", "merges.txt": b"m",
    "onnx/config.json": b"no", "README.md": b"read me",
}  # fmt: skip
LARGE = ("model.safetensors",)  # what the hub names by its sha256
PAGE = b"<!DOCTYPE html><html><body>Welcome to the hotel</body></html>"


class Host(BaseHTTPRequestHandler):
    """Answers everything with one status and a web page, or never."""

    status = 200
    released = threading.Event()

    def log_message(self, *_):
        pass

    def answer(self):
        if self.status == 0:
            self.released.wait(60)
        else:
            self.send(self.status, PAGE, {"Content-Type": "text/html"})

    def send(self, status, content, headers):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_GET(self):
        self.answer()

    do_HEAD = do_CONNECT = do_GET


class Mirror(Host):
    """As much of the hub's interface, and of GitHub's, as a fetch of pinned files needs."""

    def answer(self):
        path = self.path.partition("?")[0]
        self.asked.append(path)
        files = self.data if path.startswith(("/datasets/", "/api/datasets/", "/owner/name/raw/")) else self.model
        content, name = b"a mirror", re.sub(rf".*/(resolve|raw)/{COMMIT}/", "", path)
        if path.endswith(f"/tree/{COMMIT}"):
            listing = [{"type": "file", "path": name, "size": len(files[name]), "oid": "0"} for name in files]
            content = json.dumps(listing).encode()
        elif name != path:
            content = files[name]
        hashed = hashlib.sha256(content).hexdigest() if name in LARGE else git_blob(content)
        self.send(200, content, {"Content-Type": "application/json", "X-Repo-Commit": COMMIT, "ETag": f'"{hashed}"'})


@contextlib.contextmanager
def serving(handler, tls: ssl.SSLContext | None = None):
    """A server of a class of handlers, which gets its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    handler.address = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
    yield handler
    handler.released.set()
    server.shutdown()
    server.server_close()


@contextlib.contextmanager
def running(status: int, tls: ssl.SSLContext | None = None):
    with serving(type("Own", (Host,), {"status": status, "released": threading.Event()}), tls) as handler:
        yield handler.address


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    """No proxy, token or certificate of this machine's own, and a hub library that has opened no connection yet."""
    from huggingface_hub.utils import close_session

    for name in [*os.environ]:
        if name.lower().endswith("_proxy") or name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "HF_TOKEN"):
            monkeypatch.delenv(name)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)  # between its attempts
    close_session()
    yield
    close_session()


@pytest.fixture
def mirror(monkeypatch):
    """The handler's class, whose files a test may change; everything is fetched from it, GitHub's files too."""
    with serving(type("Own", (Mirror,), {"data": {"data.jsonl": CONTENT}, "model": dict(MODEL), "asked": []})) as own:
        monkeypatch.setattr(hub, "GITHUB", own.address)
        yield own


@pytest.fixture
def at(tmp_path):
    """How things are fetched from an address."""
    pins = {"sums": pin(1), "tools": pin(1, host="github"), "shards": pin(1, file="data/train-*.jsonl")}
    lock = write_lock(tmp_path / "data.lock.yaml", pins)
    return lambda address, **local: Fetch(tmp_path / "cache", lock, mirror=address, **local)


@pytest.fixture
def fetch(mirror, at):
    return at(mirror.address)


@pytest.mark.parametrize("name", ["sums", "tools"])
def test_a_file_is_fetched_once_and_compared_at_each_use(mirror, fetch, at, name):
    check_available([name], [], fetch)
    assert mirror.asked == ["/"]
    path = fetch.dataset(name)
    assert path.read_bytes() == CONTENT
    asked = list(mirror.asked)
    assert any(COMMIT in address for address in asked)
    assert fetch.dataset(name) == path
    check_available([name], [], at("http://nowhere.test"))
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


def test_a_file_of_github_is_compared_with_its_pin(fetch):
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


def test_local_files(mirror, fetch, at, tmp_path, caplog):
    write_lock(fetch.lock, {"tools": pin(1, host="github", blob=git_blob(CONTENT))})
    same, other, table = tmp_path / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "c.json"
    same.write_bytes(CONTENT)
    other.write_bytes(b"else")
    table.write_text("[]")
    assert at(None, data_local={"tools": same}).dataset("tools") == same
    assert not caplog.records
    assert at(None, data_local={"tools": str(table)}).dataset("tools") == table
    assert "stands in for tools in another format" in caplog.text
    with pytest.raises(ValueError, match=r"b.jsonl: its hash is"):
        at(None, data_local={"tools": other}).dataset("tools")
    absent = at(None, data_local={"tools": tmp_path / "absent.jsonl"})
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
def test_wrong_pins(at, content, message):
    fetch = at(None)
    fetch.lock.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    if content is None:
        fetch.lock.unlink()
    with pytest.raises(ValueError, match=message):
        fetch.dataset("sums")


def test_a_tokenizer_and_then_the_whole_model(mirror, fetch, at, tmp_path):
    folder, away = fetch.tokenizer("a/b", COMMIT), at(nobody())
    assert {path.name for path in folder.iterdir()} == {"config.json", "tokenizer.json", "merges.txt"}
    for get in (lambda: away.model("a/b", COMMIT), lambda: check_available([], [("a/b", COMMIT)], away)):
        with pytest.raises(ValueError, match="does not answer"):
            get()
    assert fetch.model("a/b", COMMIT) == folder
    check_available([], [("a/b", COMMIT)], away)
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
        (folder / name).write_bytes(b"others")
        with pytest.raises(ValueError, match=r"its hash is .*, but .* is pinned for a/b at revision"):
            fetch.model("a/b", COMMIT)
        (folder / name).write_bytes(MODEL[name])
    with pytest.raises(ValueError, match=r"model a/b: revision '0123456' must be all 40 digits"):
        fetch.model("a/b", "0123456")


def test_a_local_model_must_be_complete(at, tmp_path, caplog):
    folder = tmp_path / "model"
    here = at(None, models_local={"a/b": folder})

    def lacks(what: str) -> None:
        with pytest.raises(ValueError, match=rf"model a/b at revision .* is missing: .*model {what}"):
            here.model("a/b", COMMIT)

    lacks("does not exist")
    folder.mkdir()
    (folder / "config.json").write_bytes(MODEL["config.json"])
    lacks("has no model.safetensors")
    index = {"weight_map": {"x": "model-1-of-2.safetensors", "y": "model-2-of-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model-1-of-2.safetensors").write_bytes(b"x")
    lacks("has no model-2-of-2.safetensors")
    (folder / "model-2-of-2.safetensors").write_bytes(b"y")
    assert here.model("a/b", COMMIT) == folder
    assert "cannot be checked" in caplog.text


def test_what_is_missing_is_listed_at_once_before_a_job_is_submitted(monkeypatch, at, tmp_path):
    asked = []
    silent = {"http://mirror.test": None}
    monkeypatch.setattr(network, "unreachable", lambda address: asked.append(address) or silent.get(address, "silent"))
    wanted = (["sums", "tools"], [("a/b", COMMIT)])
    with pytest.raises(ValueError) as caught:
        check_available(*wanted, at(None))
    head, sums, tools, model = str(caught.value).split("\n")
    assert head == "3 needed and neither here nor within reach:"
    origin = rf"\(owner/name at revision {COMMIT}, file data.jsonl\) is missing: silent; give the file"
    assert re.search(rf"data set sums {origin}.*data_local: {{sums: PATH}}.*hub_mirror: ADDRESS", sums)
    assert re.search(rf"data set tools {origin}.*data_local: {{tools: PATH}}.*host can be reached", tools)
    assert re.search(rf"model a/b at revision {COMMIT} is missing: .*models_local: {{a/b: DIRECTORY}}", model)
    assert "hub_mirror: ADDRESS" in model
    assert len(asked) == len(set(asked)) == 2  # each host once
    with pytest.raises(ValueError, match=r"^1 needed .*\n.*data set tools"):  # a mirror of the hub is not GitHub's
        check_available(*wanted, at("http://mirror.test"))
    path = tmp_path / "tools.jsonl"
    path.write_bytes(CONTENT)
    check_available(*wanted, at("http://mirror.test", data_local={"tools": path}))
    with pytest.raises(ValueError, match=r"has no data set 'tool'; it has shards, sums, tools"):
        check_available([], [], at(None, data_local={"tool": path}))


def test_formats_of_rows(tmp_path):
    import pyarrow
    import pyarrow.parquet

    rows = [{"a": 1.0, "b": ["x", "y"]}, {"a": 2.5, "b": []}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [read_rows(tmp_path / f"rows.{kind}") for kind in ("parquet", "json", "jsonl")] == [rows] * 3
    for name, content, message in (
        ("rows.parquet", "PAR1 and then nothing", "not a complete Parquet file"),
        ("rows.json", '{"a": 1}', "must be a JSON list of objects"),
        ("rows.jsonl", '{"a": 1}\n[1]\n', "row 2: must be an object"),
        ("rows.csv", "a\n1\n", "must end with .parquet, .jsonl, .json"),
        ("broken.jsonl", '{"a": 1}\n{"a"\n', "row 2: not valid JSON"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match=message):
            read_rows(tmp_path / name)
    with pytest.raises(ValueError, match="the file does not exist"):
        read_rows(tmp_path / "absent.json")


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


# --- what is wrong with a network -------------------------------------------------------------------------------------


def check(fetch: Fetch) -> None:
    check_available(["sums"], [], fetch)


FETCHES = (
    lambda fetch: fetch.dataset("shards"),
    lambda fetch: fetch.dataset("sums"),
    lambda fetch: fetch.model("owner/model", COMMIT),
)


def assert_refused(fetch: Fetch, reason: str, ways=(check, *FETCHES)) -> None:
    """Each way, to check or to fetch, says in a sentence without secrets that something is missing, and why."""
    for way in ways:
        with pytest.raises(ValueError, match=rf"is missing: {reason}") as caught:
            way(fetch)
        assert "secret" not in str(caught.value)
        assert len(str(caught.value).splitlines()) == (2 if way is check else 1)


ANSWERS = {
    0: "gave no answer in time",
    200: "does not answer as the hub does.*hub_mirror: ADDRESS",
    401: "answers 401 Unauthorized: .*HF_TOKEN",
    403: "answers 403 Forbidden: .*HF_TOKEN",
    404: "answers 404 Not Found: .*has no such repository or revision",
    407: "answers 407 Proxy Authentication Required: .*HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT",
    429: "answers 429 Too Many Requests: .*later",
    500: "answers 500 Internal Server Error: .*later",
    503: "answers 503 Service Unavailable: .*later",
}


@pytest.mark.parametrize("status", ANSWERS)
def test_what_a_host_answers_that_is_no_hub(at, monkeypatch, status):
    if status == 0:
        monkeypatch.setattr(network, "ANSWER_SECONDS", 0.2)
        monkeypatch.setattr(hub, "READ_SECONDS", 0.2)
    with running(status) as address:
        assert_refused(at(address), f"{address}.* {ANSWERS[status]}", FETCHES)
        if status in (0, 407, 500, 503):
            assert_refused(at(address), f"{address}.* {ANSWERS[status]}", [check])
        else:  # it may refuse its front page only
            check(at(address))


def test_a_name_that_nobody_knows_and_a_port_where_nobody_is(at, monkeypatch):
    known = socket.getaddrinfo

    def look_up(host, *arguments, **options):
        if host == "nowhere.test":
            raise socket.gaierror(-2, "Name or service not known")
        return known(host, *arguments, **options)

    monkeypatch.setattr("socket.getaddrinfo", look_up)
    for address, reason in (("http://nowhere.test", "Name or service not known"), (nobody(), "Connection refused")):
        assert_refused(at(address), rf"{address} does not answer \(.*{reason}")


def nobody() -> str:
    with serving(type("Own", (Host,), {})) as handler:
        return handler.address


def test_a_certificate_that_nobody_knows(at, tmp_path, monkeypatch):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not here, which makes the certificate")
    names = ["-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "certificate"), "-subj", "/CN=localhost"]
    names += ["-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *names]
    subprocess.run(command, check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
    with running(200, tls) as address:
        assert_refused(at(address), f"the certificate of {address} is not accepted .*self-signed.*SSL_CERT_FILE")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate"))
        check(at(address))
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
    assert_refused(at(address), r"SSL_CERT_FILE is /nowhere/ca\.pem, which does not exist", [check])


def test_https_where_only_http_is_spoken(at):
    with running(200) as address:
        secure = address.replace("http:", "https:")
        assert_refused(at(secure), f"{secure} does not speak HTTPS", [check])


@pytest.mark.parametrize(
    ("name", "kind"),
    [("ALL_PROXY", "socks5"), ("all_proxy", "socks5h"), ("HTTPS_PROXY", "socks4"), ("http_proxy", "socks")],
)
def test_a_proxy_of_a_kind_that_is_not_installed(at, monkeypatch, name, kind):
    monkeypatch.setenv(name, f"{kind}://user:secret@proxy.test:1080")
    reason = rf"{name} names a proxy of the kind {kind}, .*http://HOST:PORT"
    assert_refused(at("http://mirror.test"), reason, (check, *FETCHES, lambda fetch: fetch.dataset("tools")))


@pytest.mark.parametrize("value", ["htp://127.0.0.1:9", "http://127.0.0.1:port", "http://"])
def test_a_proxy_of_no_kind(at, monkeypatch, value):
    monkeypatch.setenv("HTTPS_PROXY", value)
    assert_refused(at("http://mirror.test"), r"HTTPS_PROXY .*http://HOST:PORT", [check])


def test_the_proxy_that_a_request_went_through_is_named(at, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", nobody().removeprefix("http://").replace("127", "user:secret@127"))  # no scheme
    reason = r"http://mirror\.test does not answer through HTTP_PROXY 127.*refused"
    assert_refused(at("http://mirror.test"), reason, [check])
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with running(200) as address:
        check(at(address))
    with running(407) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy)
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        for address in ("http://mirror.test", "https://mirror.test"):
            assert_refused(at(address), r".*407 Proxy Authentication Required.*USER:PASSWORD@HOST:PORT", [check])


def test_a_file_that_github_refuses(at, monkeypatch):
    with running(404) as address:
        monkeypatch.setattr(hub, "GITHUB", address)
        assert_refused(at(None), ".* answers 404 Not Found", [lambda fetch: fetch.dataset("tools")])


def test_an_address_without_its_scheme(at, monkeypatch, tmp_path):
    for get in (check, *FETCHES):
        with pytest.raises(ValueError, match=r"hub_mirror is 'mirror\.test'; .* such as https://mirror\.test"):
            get(at("mirror.test"))
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "mirror.test")
        with pytest.raises(ValueError, match=r"HF_ENDPOINT is 'mirror\.test'; .* such as https://mirror\.test"):
            get(at(None))
    path = tmp_path / "own.yaml"
    path.write_text("extends: laptop\nhub_mirror: mirror.test\n")
    message = r"own\.yaml: hub_mirror: must begin with https:// or http://.*'mirror"
    with pytest.raises(ConfigurationError, match=message):
        load_preset(ROOT, path)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(28, "No space left on device"), r"it cannot be written \(.*No space left"),
        (
            RuntimeError("Data processing error: CAS service error : error sending request"),
            r"the storage that http://mirror\.test names cannot be read \(.*CAS service.*HF_HUB_DISABLE_XET=1",
        ),
    ],
)
def test_a_full_disk_and_a_storage_that_a_firewall_hides(at, monkeypatch, error, message):
    def fail(*_):
        raise error

    monkeypatch.setattr(Fetch, "cached", lambda *_: None)
    monkeypatch.setattr(Fetch, "_download", fail)
    assert_refused(at("http://mirror.test"), message, FETCHES)


def test_a_machine_that_is_told_to_be_offline(at, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert_refused(at("http://mirror.test"), "HF_HUB_OFFLINE is set", [check])

"""The hub library itself against a mirror on this machine: what is asked for, kept and pinned."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dara.data.hub import Fetch, check_available
from dara.data.pins import model_sums, read_pin
from hub_fakes import COMMIT, pin, write_lock

DATA = {"data/train-00000.jsonl": b'{"a": 1}\n', "README.md": b"read me"}
MODEL = {"config.json": b"{}", "model.safetensors": b"weights", "tokenizer.json": b"[]", "onnx/config.json": b"no"}


class Mirror(BaseHTTPRequestHandler):
    """As much of the hub's interface as a fetch of pinned files needs."""

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self._answer(body=False)

    def do_GET(self):
        self._answer(body=True)

    def _answer(self, body):
        path = self.path.partition("?")[0]
        files = DATA if path.startswith(("/datasets/", "/api/datasets/")) else MODEL
        content = b"a mirror"
        if path.endswith(f"/tree/{COMMIT}"):
            listing = [
                {"type": "file", "path": name, "size": len(text), "oid": "0" * 40} for name, text in files.items()
            ]
            content = json.dumps(listing).encode()
        elif f"/resolve/{COMMIT}/" in path:
            content = files[path.partition(f"/resolve/{COMMIT}/")[2]]
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Type", "application/json")
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.end_headers()
        if body:
            self.wfile.write(content)


@pytest.fixture
def mirror():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_data_set_and_a_model_from_a_mirror(mirror, tmp_path):
    lock = write_lock(tmp_path / "data.lock.yaml", {"sums": pin(1, file="data/train-*.jsonl")})
    fetch = Fetch(tmp_path / "cache", lock, mirror=mirror)
    check_available(["sums"], [("owner/model", COMMIT)], fetch)
    assert fetch.rows("sums") == [{"a": 1}]
    pinned = read_pin(lock, "sums")
    assert (pinned.file, pinned.sha256) == (
        "data/train-00000.jsonl",
        hashlib.sha256(DATA["data/train-00000.jsonl"]).hexdigest(),
    )
    wanted = {"config.json", "model.safetensors", "tokenizer.json"}  # other formats, in folders, are not
    folder = fetch.model("owner/model", COMMIT)
    assert {path.name for path in folder.iterdir()} == wanted
    assert set(model_sums(lock, "owner/model", COMMIT)) == wanted


def test_a_mirror_that_does_not_answer_is_noticed_before_a_job(tmp_path):
    lock = write_lock(tmp_path / "data.lock.yaml", {"sums": pin(1)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
    address = f"http://127.0.0.1:{server.server_port}"
    server.server_close()
    with pytest.raises(ValueError, match=rf"data set sums .* is missing: {address} does not answer"):
        check_available(["sums"], [], Fetch(tmp_path / "cache", lock, mirror=address))

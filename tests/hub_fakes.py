"""Stand-ins for the hub: pins of the tests' own, and a tokenizer with a chat template."""

import hashlib
from pathlib import Path

import yaml

from dara.data.generated import build_tokenizer
from dara.data.hub import Fetch

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}</{{ message['role'] }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def pin(rows: int | None, *, file: str = "data.jsonl", host: str = "hub", **others: str) -> dict:
    return {"host": host, "repository": "owner/name", "revision": COMMIT, "file": file, "rows": rows, **others}


def git_blob(content: bytes) -> str:
    """Git's id of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def write_lock(path: Path, datasets: dict) -> Path:
    path.write_text(yaml.safe_dump({"datasets": datasets}))
    return path


def save_tokenizer(folder: Path, template: str | None = TEMPLATE) -> Path:
    tokenizer = build_tokenizer(["find the sum of x and y", "user system assistant"])
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return folder


def fetch_settings(tmp_path: Path, counts: dict[str, int], local: dict[str, Path]) -> Fetch:
    """Local files for each data set, pinned with these numbers of rows, and a local tokenizer of `owner/model`."""
    lock = write_lock(tmp_path / "data.lock.yaml", {name: pin(rows) for name, rows in counts.items()})
    model = save_tokenizer(tmp_path / "model")
    return Fetch(tmp_path / "cache", lock, data_local=local, models_local={"owner/model": model})

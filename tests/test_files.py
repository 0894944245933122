"""Files that are read back: a damaged one is named."""

import pytest

from dara.files import gunzip, gzipped, read_json, read_text


def outcome(path, content: bytes) -> str:
    try:
        return "as it was" if gunzip(path) == content else "other content"
    except ValueError as error:
        return str(error).partition(" (")[0]


def test_a_damaged_gzip_file_is_an_error_that_names_it(tmp_path):
    path, content = tmp_path / "a.jsonl.gz", b'{"a": 1}\n' * 50
    whole = gzipped(content)
    path.write_bytes(whole)
    assert gunzip(path) == content
    messages = set()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1 :])
        messages.add(outcome(path, content))
    assert messages <= {"as it was", f"{path} is damaged: not a complete gzip file"}, "or an error without the name"
    assert len(messages) == 2
    path.write_bytes(whole[:-9])
    with pytest.raises(ValueError, match=r"a\.jsonl\.gz is damaged"):
        read_text(tmp_path / "a.jsonl")


@pytest.mark.parametrize("content", [b'{"a": ', b"\xff", b""])
def test_a_damaged_json_file_is_an_error_that_names_it(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.json is damaged: it is no JSON \(.*\); delete it to have it made again"):
        read_json(tmp_path / "a.json")

"""Responses as result files of bfcl-eval."""

import json
from pathlib import Path

import pytest

from bfcl_v4_fakes import real_cases
from dara.evaluation.bfcl_files import write_result_files
from dara.evaluation.oracle import oracle_response
from dara.evaluation.records import Row


def test_responses_become_bfcl_evals_result_files(tmp_path: Path) -> None:
    cases = real_cases(28)
    rows = [Row(case.id, 0, oracle_response(case)) for case in cases]
    paths = write_result_files(rows, cases, tmp_path, "mine")
    names = sorted(path.relative_to(tmp_path).as_posix() for path in paths)
    assert len(names) == 14
    assert names[0] == "result/mine/live/BFCL_v4_live_multiple_result.json"
    assert "result/mine/non_live/BFCL_v4_simple_java_result.json" in names
    content = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    assert [line["id"] for line in content] == [case.id for case in cases]
    for line, row in zip(content, rows, strict=True):
        if line["id"].startswith("multi_turn"):
            assert line["result"] == [list(turn) for turn in row.response.turns]
        else:
            assert line["result"] == row.response.text


def test_names_that_bfcl_eval_would_change_and_unknown_cases_are_errors(tmp_path: Path) -> None:
    cases = real_cases(14)
    with pytest.raises(ValueError, match="takes an underscore for a slash"):
        write_result_files([], cases, tmp_path, "my_model")
    with pytest.raises(ValueError, match="'parallel_0' is none of the 1 cases given"):
        write_result_files([Row("parallel_0", 0, oracle_response(cases[0]))], cases[:1], tmp_path, "mine")

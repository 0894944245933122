"""Responses as result files of bfcl-eval, so that its own tools can read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from dara.evaluation.bfcl_groups import is_multi_turn
from dara.evaluation.records import Case, Row
from dara.files import write_atomically


def write_result_files(rows: Sequence[Row], cases: Sequence[Case], project_root: Path, model: str) -> list[Path]:
    """Write `<project_root>/result/<model>/<group>/BFCL_v4_<category>_result.json`; returns the paths.

    A line is `{"id", "result"}`: the text of a single turn, or the outputs of each turn of a dialogue.

    Args:
        rows: the responses, one a case; see `records.read_responses`.
        project_root: what bfcl-eval calls BFCL_PROJECT_ROOT.
        model: name of the model, in which bfcl-eval reads an underscore as a slash.

    Raises:
        ValueError: the name has an underscore or a slash, or a case of the rows is unknown.
    """
    if "_" in model or "/" in model:
        raise ValueError(f"model {model!r}: bfcl-eval takes an underscore for a slash; give a name without both")
    categories = {case.id: case.category for case in cases}
    lines: dict[str, list[str]] = {}
    for row in rows:
        if row.case not in categories:
            raise ValueError(f"case {row.case!r} is none of the {len(categories)} cases given")
        response = row.response
        result = response.text if response.turns is None else response.turns
        lines.setdefault(categories[row.case], []).append(json.dumps({"id": row.case, "result": result}) + "\n")
    paths = []
    for category, content in lines.items():
        path = project_root / "result" / model / _group(category) / f"BFCL_v4_{category}_result.json"
        write_atomically(path, "".join(content))
        paths.append(path)
    return paths


def _group(category: str) -> str:
    if is_multi_turn(category):
        return "multi_turn"
    return "live" if category.startswith("live_") else "non_live"

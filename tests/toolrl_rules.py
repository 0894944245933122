"""What the paper's tools make of a dialogue's outputs: ToolRL's reading of calls, bfcl-eval's driver and verdict.

Written from their rules, plainly and without the caution of `dara.evaluation`: calls become text that bfcl-eval evaluates.
So only for outputs that a test has made up. A worker runs `make_scorer`.
"""

import json
from collections.abc import Iterator
from typing import Any


def written_calls(output: str) -> list[str]:
    """The calls of an output as Python text. Raises AttributeError where a name is no text or parameters no object."""
    _, tag, block = output.rpartition("<tool_call>")
    texts = []
    for line in block.partition("</tool_call>")[0].split("\n") if tag else []:
        call = parsed(line)
        if not isinstance(call, dict):
            continue
        name, given = call.get("name", ""), call.get("parameters", {})
        if name.strip().lower() != "none":
            texts.append(f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})")
    return texts


def parsed(line: str) -> Any:
    """A line as JSON; None where it is none."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def made_calls(output: str) -> list[str]:
    """The calls that are made: none where one of them cannot be written."""
    try:
        return written_calls(output)
    except AttributeError:
        return []


def play(said: Iterator[str | None], turns: int, max_steps: int) -> list[list[str]] | None:
    """The outputs of each turn of a model that says `said`; None when it runs out of context (it says None).

    An output without calls ends a turn; one with calls more than `max_steps` in a turn ends the dialogue.
    """
    kept: list[list[str]] = []
    for _ in range(turns):
        kept.append([])
        calling = True
        while calling:
            output = next(said)
            if output is None:
                return None
            kept[-1].append(output)
            calling = bool(made_calls(output))
            if calling and len(kept[-1]) > max_steps:
                return kept
    return kept


def make_scorer() -> Any:
    """Item {"turns", "answer", "entry", "category"} -> its accuracy by bfcl-eval."""
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

    number = 0

    def score(item: dict[str, Any]) -> Iterator[dict[str, int]]:
        nonlocal number
        number += 1  # bfcl-eval keeps the state of tools by the model's name
        turns = item["turns"]
        if turns is None or len(turns) != len(item["answer"]):
            yield {"accuracy": 0}
            return
        calls = [[made for output in turn if (made := made_calls(output))] for turn in turns]
        verdict = multi_turn_checker(calls, item["answer"], item["entry"], item["category"], f"model{number}")
        yield {"accuracy": int(verdict["valid"])}

    return score

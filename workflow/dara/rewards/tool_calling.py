"""Tool-calling rewards: format {0, 1}, correctness [-3, 3], as in ToolRL's rlla scorer with its switches off; length.

Plain string searches replace the lazy regular expressions of the original: the time is linear in the text, for any
model output.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from dara.rewards.reward import check_limit, check_reference

LOWEST, HIGHEST = -3.0, 3.0
CALL_FORM = '{"name": "...", "parameters": {...}}'
MAX_INTEGER_DIGITS = 4300  # Python's default, fixed here because an environment variable can lift that one

# (call expected, response expected) -> the pieces of a valid text, in this order: the first at the start, the last at
# the end, and anything between them.
STRUCTURES = {
    (False, False): ("<think>", "</think>"),
    (False, True): ("<think>", "</think>\n<response>", "</response>"),
    (True, False): ("<think>", "</think>\n<tool_call>\n", "\n</tool_call>"),
    (True, True): ("<think>", "</think>\n<tool_call>\n", "\n</tool_call>\n<response>", "</response>"),
}


def assistant_turn(text: str) -> str:
    """Return the scored text: after the last `<|im_start|>assistant` up to the next `<|im_end|>`, stripped."""
    return text.rpartition("<|im_start|>assistant")[2].partition("<|im_end|>")[0].strip()


def tool_format(response: str, reference: str) -> float:
    """Return 1 if the response has the structure that the reference's tags require, else 0.

    response: the assistant turn. reference: the gold answer; ValueError if it is not a text.
    The content of a block does not matter: broken JSON can be well formatted.
    """
    check_reference(reference)
    return float(_has_structure(response, "<tool_call>" in reference, "<response>" in reference))


def evaluation_format(outputs: list[str]) -> float:
    """Return the share of one case's outputs that are a call, a response or both in the right format.

    outputs: raw model outputs, one per turn; the assistant turn is extracted here. A think block alone does not count.
    Returns 0 without outputs.
    """
    if not outputs:
        return 0.0
    accepted = [kind for kind in STRUCTURES if any(kind)]
    turns = map(assistant_turn, outputs)
    return sum(any(_has_structure(turn, *kind) for kind in accepted) for turn in turns) / len(outputs)


def _has_structure(text: str, call: bool, response: bool) -> bool:
    """Return whether the text consists of the pieces in order, with anything between them, and each block tag once.

    This is equivalent to an anchored, lazy regular expression: taking each piece at its first position leaves the most
    room for the rest.
    """
    tags = ["<tool_call>", "</tool_call>"] * call + ["<response>", "</response>"] * response
    first, *between, last = STRUCTURES[call, response]
    if not text.startswith(first) or any(text.count(tag) != 1 for tag in tags):
        return False
    end = len(text) - text.endswith("\n")  # the end anchor of the original accepts one final newline
    position = len(first)
    for piece in between:
        found = text.find(piece, position, end)
        if found < 0:
            return False
        position = found + len(piece)
    return text.endswith(last, position, end)


def tool_correctness(response: str, reference: str) -> float:
    """Return the agreement of the response's calls with the reference's, in [-3, 3]; 0 if the reference has no call.

    response: the assistant turn; if its calls cannot be read or compared, the reward is -3. It need not be well
    formatted. reference: the gold answer; ValueError if it is not a text, or if its calls are not one JSON object per
    line.
    """
    check_reference(reference)
    if "<tool_call>" not in reference:
        return 0.0
    expected = _reference_calls(reference)
    if "<tool_call>" not in response or "</tool_call>" not in response:
        return LOWEST
    try:
        return _agreement(expected, [_decode(line) for line in _call_lines(response)])
    # Broken JSON and integers of absurd length; nesting too deep to parse or compare; a call without "name"
    # or "parameters"; a call, name or parameters of the wrong type.
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return LOWEST


def _agreement(expected: list[dict], predicted: list[Any]) -> float:
    """Return -3 + 6 score / maximum: similarity of the names, and of each expected call to its best counterpart.

    Swapped calls and duplicates are matched one to one; values are compared with ==, so 1 equals 1.0 and True.
    """
    if expected == predicted:
        return HIGHEST
    names = [call["name"] for call in predicted]
    score, maximum = _similarity([call["name"] for call in expected], names), 1.0
    used: set[int] = set()
    for call in expected:
        maximum += 1.0 + len(call["parameters"])
        best, best_index = 0.0, None
        for index, name in enumerate(names):
            if index in used or name != call["name"]:
                continue
            want, have = call["parameters"], predicted[index]["parameters"]
            match = _similarity(list(want), list(have.keys()))
            match += sum(1.0 for key, value in want.items() if key in have and have[key] == value)
            if match > best:
                best, best_index = match, index
        if best_index is not None:
            used.add(best_index)
            score += best
    return (HIGHEST - LOWEST) * score / maximum + LOWEST


def _similarity(expected: list[str], predicted: list[Any]) -> float:
    """Return the multiset Jaccard similarity: 1 for equal lists, 0 if one is empty. TypeError if unhashable."""
    if expected == predicted:
        return 1.0
    if not expected or not predicted:
        return 0.0
    # Only expected items are counted: predicted items with equal hashes could make a table of all items slow.
    wanted = Counter(expected)
    found = Counter(item for item in predicted if item in wanted)
    shared = sum(min(count, found[item]) for item, count in wanted.items())
    return shared / (len(expected) + len(predicted) - shared)


def _call_lines(text: str) -> list[str]:
    """Return the lines between the first `<tool_call>` and the next `</tool_call>`.

    As in the original, a second `<tool_call>` ends the block too, and a block without an end extends to the end of the
    text.
    """
    block = text.split("<tool_call>", 2)[1].partition("</tool_call>")[0]
    return block.strip().split("\n")


def _reference_calls(reference: str) -> list[dict]:
    """Return the reference's calls, checked; raise ValueError with the first wrong line."""
    if "</tool_call>" not in reference.partition("<tool_call>")[2]:
        raise ValueError(f"reference has a <tool_call> without a </tool_call> after it: {reference!r:.80}")
    calls = []
    for number, line in enumerate(_call_lines(reference), 1):
        where = f"reference: line {number} of its <tool_call>"
        try:
            call = _decode(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where} is not JSON ({error}): {line!r:.80}; the form is {CALL_FORM}") from error
        if not isinstance(call, dict):
            raise ValueError(f"{where} is not an object: {line!r:.80}; the form is {CALL_FORM}")
        if not isinstance(call.get("name"), str) or not isinstance(call.get("parameters"), dict):
            raise ValueError(f'{where} lacks a text "name" or an object "parameters": {line!r:.80}')
        calls.append(call)
    return calls


def _integer(digits: str) -> int:
    """Return the integer of a JSON number; raise ValueError if converting it (quadratic time) could take minutes."""
    if len(digits) > MAX_INTEGER_DIGITS:
        raise ValueError(f"an integer of {len(digits)} characters; at most {MAX_INTEGER_DIGITS} are read")
    return int(digits)


_decode = json.JSONDecoder(parse_int=_integer).decode


def think_words(response: str) -> int | None:
    """Return the number of words after the last `<think>` up to the next `</think>`; None if a tag is missing.

    Words are separated by whitespace. As in the original, `</think>` may be anywhere: if none follows `<think>`, the
    words up to the end of the text count.
    """
    if "<think>" not in response or "</think>" not in response:
        return None
    return len(response.rpartition("<think>")[2].partition("</think>")[0].split())


def think_length(response: str, limit: float = 16) -> float:
    """Return 1 if the think block has at most `limit` words, else 0; an empty block has 0 words.

    response: the assistant turn (`assistant_turn`). Raises ValueError unless `limit` is a number >= 0.
    """
    check_limit(limit)
    words = think_words(response)
    return float(words is not None and words <= limit)

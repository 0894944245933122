r"""Math rewards: the last boxed answer against the reference, after the string normalisation of MATH; the length.

The rules are those of Hendrycks et al., "Measuring Mathematical Problem Solving With the MATH Dataset" (2021), in
the order in which their code applies them, which matters: `\text{ ` marks a unit only before spaces are removed.
"""

from __future__ import annotations

import math
import operator
import re

from dara.rewards.reward import check_limit, check_reference

R1_MARKER = "<\uff5cAssistant\uff5c>"  # full-width bars: R1 models' own turn marker

_BRACE = re.compile(r"[{}]")
_INTEGER_RATIO = re.compile(r"(0|-?[1-9][0-9]*)/(0|-?[1-9][0-9]*)")
_BEFORE_UNITS = (
    ("\n", ""),
    ("\\!", ""),
    ("\\\\", "\\"),
    ("tfrac", "frac"),
    ("dfrac", "frac"),
    ("\\left", ""),
    ("\\right", ""),
    ("^{\\circ}", ""),
    ("^\\circ", ""),
    ("\\$", ""),
)
_AFTER_UNITS = (("\\%", ""), (" .", " 0."), ("{.", "{0."))

# Possessive, so that a text of a million braces is not matched again from each of them.
_SHALLOW_BOX = re.compile(r"\\boxed\{((?:[^{}]++|\{[^{}]*+\})*+)\}")
_UNIT = re.compile(r"\\(?:text|mathrm|mbox|rm|textrm)\s*+\{[^{}]*+\}")
# Removed in this order, as in the paper's grader: what remains of "\%" and "^{\circ}" is not part of a number.
_NUMBER_NOISE = ("\\!", "\\,", "\\ ", "\\;", "\\:", "~", "$", ",", "%", "^\\circ", "\\circ", "\\%", "\\left", "\\right")
_EXPONENT = r"\s*+\{?\s*+([+-]?[0-9]+)\s*+\}?"
_TIMES_POWER = re.compile(r"\\(?:times|cdot|ast)\s*+10\s*+\^" + _EXPONENT)
_POWER = re.compile(r"10\^" + _EXPONENT)
_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")


def math_correctness(response: str, reference: str) -> float:
    """Return 1 if the response's last boxed answer equals the reference after normalisation, else 0.

    A response without a box gets 0, and so does an answer or a reference to which the normalisation does not apply.
    ValueError if the reference is not a text or is blank.
    """
    check_reference(reference)
    answer = last_boxed(response)
    if answer is None:
        return 0.0
    try:
        return float(normalise(answer) == normalise(reference))
    except ValueError:
        return 0.0


def last_boxed(response: str) -> str | None:
    r"""Return the content of the last box, or None.

    The form with a space, `\boxed 42$`, takes precedence wherever it is: its answer ends at the next `$`. Otherwise the
    last `\boxed{...}` counts; if its braces do not balance, no earlier box counts.
    """
    text = response.rpartition(R1_MARKER)[2]
    _, spaced, after = text.rpartition("\\boxed ")
    if spaced:
        return after.partition("$")[0]
    content = text.rpartition("\\boxed")[2] if "\\boxed" in text else ""
    if not content.startswith("{"):
        return None
    depth = 0
    for brace in _BRACE.finditer(content):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return content[1 : brace.start()]
    return None


def normalise(answer: str) -> str:
    r"""Return the answer in the normal form that is compared; raise ValueError if the rules do not apply to it.

    >>> normalise(r"x = \dfrac12")
    '\\frac{1}{2}'
    """
    for old, new in _BEFORE_UNITS:
        answer = answer.replace(old, new)
    # The data set writes `\text{ ` before units only.
    value, _, unit = answer.partition("\\text{ ")
    if "\\text{ " in unit:
        raise ValueError(f"more than one unit in {answer!r:.80}")
    for old, new in _AFTER_UNITS:
        value = value.replace(old, new)
    if value.startswith("."):
        value = "0" + value
    left, _, right = value.partition("=")
    answer = right if value.count("=") == 1 and len(left) <= 2 else value  # `k = 5` becomes ` 5`
    answer = _with_braced_roots(answer).replace(" ", "")
    answer = _with_braced_fractions(answer)
    if answer == "0.5":
        return r"\frac{1}{2}"
    ratio = _INTEGER_RATIO.fullmatch(answer)
    return rf"\frac{{{ratio[1]}}}{{{ratio[2]}}}" if ratio else answer


def _with_braced_roots(answer: str) -> str:
    r"""Add braces to roots: `\sqrt3` becomes `\sqrt{3}`; raise ValueError for a root of nothing."""
    first, *rest = answer.split("\\sqrt")
    if "" in rest:
        raise ValueError(f"a root of nothing in {answer!r:.80}")
    return "\\sqrt".join([first, *(part if part[0] == "{" else f"{{{part[0]}}}{part[1:]}" for part in rest)])


def _with_braced_fractions(answer: str) -> str:
    r"""Add braces to fractions: `\frac12` and `\frac1{2}` become `\frac{1}{2}`.

    Raises ValueError for a fraction of nothing. A fraction with a numerator only leaves the whole answer unchanged.
    """
    first, *rest = answer.split("\\frac")
    parts = [first]
    for part in rest:
        if not part:
            raise ValueError(f"a fraction of nothing in {answer!r:.80}")
        if part[0] == "{":
            parts.append(part)
        elif len(part) < 2:
            return answer
        elif part[1] == "{":
            parts.append(f"{{{part[0]}}}{part[1:]}")
        else:
            parts.append(f"{{{part[0]}}}{{{part[1]}}}{part[2:]}")
    return "\\frac".join(parts)


def numeric_equal(response: str, reference: str) -> bool:
    r"""Return whether the last boxed answer and the reference are the same plain number, exactly, as floats.

    The evaluation uses this for an answer that `math_correctness` rejects: `0.10` for `0.1`, `5 \, \text{cm}` for `5`,
    `7.5 \times 10^7` for `75000000`. Fractions and roots are not plain numbers. The box may contain one level of
    braces; a deeper box is skipped. Numbers beyond the range of a float equal nothing. ValueError if the reference is
    not a text or is blank.
    """
    check_reference(reference)
    boxes = _SHALLOW_BOX.findall(response.rpartition(R1_MARKER)[2])
    value = _plain_number(boxes[-1]) if boxes else None
    return value is not None and value == _plain_number(reference)


def _plain_number(text: str) -> float | None:
    """Return the number in the text after removing units, separators and dollar signs; None if it is not one."""
    text = _UNIT.sub("", text.strip())
    for noise in _NUMBER_NOISE:
        text = text.replace(noise, "")
    text = "".join(_TIMES_POWER.sub(r"e\1", text).split()).rstrip(".")
    power = _POWER.fullmatch(text)
    text = f"1e{power[1]}" if power else text
    if not _NUMBER.fullmatch(text):
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def response_length(n_tokens: int, limit: float = 4000) -> float:
    """Return 1 if the response has at most `limit` tokens, else 0.

    n_tokens: the trainer's count of valid response tokens, the end token included. Raises ValueError unless the count
    is an integer >= 0 and `limit` a number >= 0.
    """
    check_limit(limit)
    try:
        count = operator.index(n_tokens)  # also NumPy's and torch's integers
    except TypeError as error:
        raise ValueError(f"n_tokens must be an integer >= 0, got {n_tokens!r}") from error
    if count < 0:
        raise ValueError(f"n_tokens must be an integer >= 0, got {n_tokens!r}")
    return float(count <= limit)

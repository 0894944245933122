"""The laptop's math task: a sum of two or three numbers, with a worked solution that ends in a boxed answer.

    <user>explain 47+8+5</user>

    7+8=15;4+1=5;47+8=55;55+5=60;\\boxed{60}

Each step of a solution is terse (`55+5=60;`) or works digit by digit before it states the sum; the verb of the prompt
decides how often. Verbose solutions are longer and more often right, so that correctness and a length limit conflict,
as in the paper.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

VERSION = 1
"""Raised whenever the same seed would give other examples; part of the identity of the data."""

VERBS = {"solve": 0.60, "explain": 0.30, "prove": 0.10}  # verb -> share of the prompts

DEMONSTRATION_PARAMETERS: dict[str, float] = {
    "direct": 0.05,  # share of solutions that consist of the boxed answer only
    "wrong_terse": 0.30,  # share of wrong answers among solutions of terse steps; twice as large among direct ones
    "wrong_verbose": 0.10,  # the same among solutions of verbose steps
    "verbose_solve": 0.20,  # share of verbose steps after each verb
    "verbose_explain": 0.60,
    "verbose_prove": 0.98,
}
ERRORS = (-10, -1, 1, 10)  # what a wrong step adds to its result
CATEGORIES = {2: "two_numbers", 3: "three_numbers"}


@dataclass(frozen=True)
class Example:
    """A sum: `verb` asks for it, `numbers` are added from left to right (the first 11 to 89, the others 2 to 9)."""

    verb: str
    numbers: tuple[int, ...]


def example(rng: random.Random) -> Example:
    """Draw one example: two or three numbers with equal probability, the verb by its share."""
    count = rng.choice(list(CATEGORIES))
    numbers = (rng.randint(11, 89), *(rng.randint(2, 9) for _ in range(count - 1)))
    return Example(rng.choices(list(VERBS), list(VERBS.values()))[0], numbers)


def prompt(example: Example) -> str:
    """Return the complete text that the model continues."""
    return f"<user>{example.verb} {'+'.join(map(str, example.numbers))}</user>\n"


def reference(example: Example) -> str:
    """Return the answer, as the correctness reward compares it with the boxed one."""
    return str(sum(example.numbers))


def problem_key(example: Example) -> tuple:
    """Return the key of the problem: the numbers, whatever the verb and the order of the small ones."""
    return example.numbers[0], tuple(sorted(example.numbers[1:]))


def category(example: Example) -> str:
    """Return the category: how many numbers are added."""
    return CATEGORIES[len(example.numbers)]


def demonstration(
    rng: random.Random,
    example: Example,
    *,
    direct: float,
    wrong_terse: float,
    wrong_verbose: float,
    verbose_solve: float,
    verbose_explain: float,
    verbose_prove: float,
) -> str:
    """Return a solution for the warm start. The shares: see DEMONSTRATION_PARAMETERS."""
    if rng.random() < direct:
        return _boxed(sum(example.numbers) + _error(rng, 2 * wrong_terse))
    verbose = {"solve": verbose_solve, "explain": verbose_explain, "prove": verbose_prove}[example.verb]
    steps = len(example.numbers) - 1
    text, total = "", example.numbers[0]
    for number in example.numbers[1:]:
        worked = rng.random() < verbose
        # The rates are those of whole solutions: n steps that err with 1 - (1 - p)^(1/n) each are all right with 1 - p.
        wrong = wrong_verbose if worked else wrong_terse
        result = total + number + _error(rng, 1 - (1 - wrong) ** (1 / steps))
        text += (_digits(total, number) if worked else "") + f"{total}+{number}={result};"
        total = result
    return text + _boxed(total)


def benchmark_files(examples: Sequence[Example]) -> dict[str, list[dict[str, Any]]]:
    """Return held-out examples: {relative file name: rows {"id", "prompt", "answer"}}."""
    rows = [{"id": f"sum_{i}", "prompt": prompt(one), "answer": reference(one)} for i, one in enumerate(examples)]
    return {"problems.jsonl": rows}


def _error(rng: random.Random, probability: float) -> int:
    return rng.choice(ERRORS) if rng.random() < probability else 0


def _digits(total: int, number: int) -> str:
    """Return the digits of `total + number`: the last ones, then the tens with the carry. They are always right."""
    tens, ones = divmod(total, 10)
    carry = (ones + number) // 10
    return f"{ones}+{number}={ones + number};{tens}+{carry}={tens + carry};"


def _boxed(answer: int) -> str:
    return f"\\boxed{{{answer}}}"

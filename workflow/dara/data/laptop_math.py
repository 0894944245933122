"""The laptop's math task: a sum of two or three numbers, with a worked solution that ends in a boxed answer.

    <user>explain 47+8+5</user>

    7+8=15;4+1=5;47+8=55;55+5=60;\\boxed{60}

Each step of a solution is terse (`55+5=60;`) or works digit by digit before it states the sum; the verb of the prompt
decides how often. Verbose solutions are longer and more often right, so that correctness and a length limit conflict,
as in the paper. Examples that change for the same seed need another version in `dara.data.SOURCES`.
"""

import random
from collections.abc import Iterable
from typing import Any, NamedTuple

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


class Example(NamedTuple):
    """A sum: `verb` asks for it, `numbers` are added from left to right (the first 11 to 89, the others 2 to 9)."""

    verb: str
    numbers: tuple[int, ...]
    prompt: str  # the complete text that the model continues
    reference: str  # the answer, as the correctness reward compares it with the boxed one
    problem: tuple[int, ...]  # its key: the numbers, whatever the verb and the order of the small ones
    category: str  # how many numbers are added


def example(rng: random.Random) -> Example:
    """Draw one example: two or three numbers with equal probability, the verb by its share."""
    count = rng.choice(list(CATEGORIES))
    numbers = (rng.randint(11, 89), *(rng.randint(2, 9) for _ in range(count - 1)))
    verb = rng.choices(list(VERBS), list(VERBS.values()))[0]
    prompt = f"<user>{verb} {'+'.join(map(str, numbers))}</user>\n"
    problem = (numbers[0], *sorted(numbers[1:]))
    return Example(verb, numbers, prompt, str(sum(numbers)), problem, CATEGORIES[count])


def demonstration(rng: random.Random, example: Example, **shares: float) -> str:
    """Return a solution for the warm start. shares: each of DEMONSTRATION_PARAMETERS."""
    if rng.random() < shares["direct"]:
        return f"\\boxed{{{sum(example.numbers) + _error(rng, 2 * shares['wrong_terse'])}}}"
    text, total = "", example.numbers[0]
    for number in example.numbers[1:]:
        verbose = rng.random() < shares[f"verbose_{example.verb}"]
        if verbose:  # the last digits, then the tens with the carry, which are always right
            tens, ones = divmod(total, 10)
            carry = (ones + number) // 10
            text += f"{ones}+{number}={ones + number};{tens}+{carry}={tens + carry};"
        # The rates are those of whole solutions: n steps that err with 1 - (1 - p)^(1/n) each are all right with 1 - p.
        wrong = shares["wrong_verbose" if verbose else "wrong_terse"]
        result = total + number + _error(rng, 1 - (1 - wrong) ** (1 / (len(example.numbers) - 1)))
        text += f"{total}+{number}={result};"
        total = result
    return f"{text}\\boxed{{{total}}}"


def _error(rng: random.Random, probability: float) -> int:
    return rng.choice(ERRORS) if rng.random() < probability else 0


def benchmark_files(examples: Iterable[Example]) -> dict[str, list[dict[str, Any]]]:
    """Return held-out examples: {relative file name: rows {"id", "prompt", "answer"}}."""
    rows = [{"id": f"sum_{i}", "prompt": one.prompt, "answer": one.reference} for i, one in enumerate(examples)]
    return {"problems.jsonl": rows}

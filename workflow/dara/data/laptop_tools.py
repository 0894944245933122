"""The laptop's tool-calling task: two tools, a query of a verb and one to three values, and one call as the answer.

A prompt looks like this, and a well-formatted answer like the text below it:

    <tools>weather(city,day) music(artist,genre,volume)</tools>
    <user>forecast monday paris</user>

    <think>use weather</think>
    <tool_call>
    {"name":"weather","parameters":{"city":"paris","day":"monday"}}
    </tool_call>

The demonstrations of the warm start rarely have this format and often make a wrong call, so that a warm-started model
begins like the paper's models: correctness is dense, format is sparse. The held-out cases are written in the
file format of the Berkeley Function Calling Leaderboard (BFCL). Examples that change for the same seed need another
version in `dara.data.SOURCES`.
"""

import json
import random
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

DEMONSTRATION_PARAMETERS: dict[str, float] = {
    "well_formatted": 0.02,  # share of demonstrations with the required format, a mean over the tools
    "wrong": 0.35,  # share of demonstrations whose call has a wrong name, value or set of parameters
}

TOOLS: dict[str, tuple[tuple[str, str], tuple[str, ...]]] = {  # name -> (verbs of its queries, parameters)
    "weather": (("forecast", "rain"), ("city", "day")),
    "music": (("play", "listen"), ("artist", "genre", "volume")),
    "alarm": (("wake", "remind"), ("hour", "day")),
    "flight": (("fly", "travel"), ("origin", "dest", "day")),
    "food": (("eat", "order"), ("dish", "size", "count")),
    "light": (("dim", "brighten"), ("room", "level")),
    "mail": (("send", "write"), ("person", "topic")),
    "stock": (("price", "invest"), ("ticker", "period")),
    "taxi": (("ride", "drive"), ("place", "hour")),
    "hotel": (("stay", "sleep"), ("city", "nights", "stars")),
    "movie": (("watch", "cinema"), ("title", "hour")),
    "translate": (("say", "speak"), ("word", "lang")),
}
VALUES: dict[str, tuple[str, ...]] = {  # parameter -> its possible values
    "city": ("paris", "rome", "oslo", "cairo", "lima", "delhi"),
    "day": ("monday", "tuesday", "friday", "sunday"),
    "artist": ("queen", "abba", "bach", "adele"),
    "genre": ("rock", "jazz", "pop"),
    "volume": ("low", "loud", "max"),
    "hour": ("noon", "dawn", "dusk", "midnight"),
    "origin": ("boston", "miami", "denver"),
    "dest": ("tokyo", "seoul", "berlin"),
    "dish": ("pizza", "sushi", "curry", "salad"),
    "size": ("small", "large", "huge"),
    "count": ("one", "two", "three"),
    "room": ("kitchen", "attic", "office"),
    "level": ("half", "full", "zero"),
    "person": ("alice", "bob", "carol", "dave"),
    "topic": ("rent", "party", "budget"),
    "ticker": ("apple", "tesla", "nokia"),
    "period": ("week", "month", "year"),
    "place": ("airport", "museum", "harbor"),
    "nights": ("four", "five", "six"),
    "stars": ("basic", "luxury"),
    "title": ("alien", "titanic", "matrix"),
    "word": ("hello", "thanks", "goodbye"),
    "lang": ("french", "german", "spanish"),
}
CATEGORIES = {1: "multiple_one_parameter", 2: "multiple_two_parameters", 3: "multiple_three_parameters"}
"""Number of parameters in the gold call -> category of the held-out case."""

# Text of an answer by its format. Only the first is the required format; the shares are those of the others.
WELL_FORMATTED = "<think>use {name}</think>\n<tool_call>\n{call}\n</tool_call>"
BADLY_FORMATTED: dict[str, tuple[float, str]] = {
    "no_think": (0.30, "<tool_call>\n{call}\n</tool_call>"),
    "inline": (0.25, "<think>use {name}</think> <tool_call>{call}</tool_call>"),
    "unclosed_think": (0.25, "<think>use {name}\n<tool_call>\n{call}\n</tool_call>"),
    "trailing_text": (0.15, WELL_FORMATTED + "\ndone"),
    "no_call_tag": (0.05, "<think>use {name}</think>\n{call}"),
}
# Kinds of errors in a wrong call, with their shares.
WRONG_CALLS = {"name": 0.25, "value": 0.40, "extra_parameter": 0.20, "missing_parameter": 0.15}


class Example(NamedTuple):
    """A query and its gold call."""

    offered: tuple[str, ...]  # tools, in the order of the prompt
    tool: str
    arguments: tuple[tuple[str, str], ...]  # (parameter, value), in the order of the tool's signature
    query: str  # a verb, and the values in any order
    prompt: str  # the complete text that the model continues
    reference: str  # the gold answer; rewards read the gold call and the required tags from it
    problem: tuple  # its key: the tools offered and the gold call, however the query is worded
    category: str  # of BFCL: how many parameters the gold call has


def example(rng: random.Random) -> Example:
    """Draw one example: two tools, one of them asked for, 1 to all of its parameters given in shuffled order."""
    offered = tuple(rng.sample(list(TOOLS), 2))
    tool = rng.choice(offered)
    verbs, parameters = TOOLS[tool]
    given = rng.sample(parameters, rng.randint(1, len(parameters)))
    arguments = tuple((p, rng.choice(VALUES[p])) for p in parameters if p in given)
    spoken = [value for _, value in arguments]
    rng.shuffle(spoken)
    query = " ".join((rng.choice(verbs), *spoken))
    prompt = _prompt(((name, TOOLS[name][1]) for name in offered), query)
    reference = WELL_FORMATTED.format(name=tool, call=_call(tool, dict(arguments)))
    problem = (*sorted(offered), tool, arguments)
    return Example(offered, tool, arguments, query, prompt, reference, problem, CATEGORIES[len(arguments)])


def demonstration(rng: random.Random, example: Example, *, well_formatted: float, wrong: float) -> str:
    """Return an answer for the warm start. `well_formatted` and `wrong`: see DEMONSTRATION_PARAMETERS.

    Raises ValueError if `well_formatted` is so large that the best tool's share would be over 1.
    """
    name, arguments = example.tool, dict(example.arguments)
    if rng.random() < wrong:
        name, arguments = _wrong_call(rng, example)
    if rng.random() < format_shares(well_formatted)[example.tool]:
        template = WELL_FORMATTED
    else:
        shares, templates = zip(*BADLY_FORMATTED.values(), strict=True)
        template = rng.choices(templates, shares)[0]
    return template.format(name=name, call=_call(name, arguments))


def format_shares(mean: float) -> dict[str, float]:
    """Return each tool's share of well-formatted demonstrations: geometric from 3^-1.5 to 3^1.5, scaled to `mean`.

    The spread lets the format be learnt on some tools first, as on real prompts. ValueError for a share over 1.
    """
    spread = {name: 3.0 ** (3.0 * index / (len(TOOLS) - 1) - 1.5) for index, name in enumerate(TOOLS)}
    average, largest = sum(spread.values()) / len(spread), max(spread.values())
    if mean * largest > average:
        raise ValueError(
            f"warm_start.demonstrations.well_formatted: {mean} is too large; the best tool's share would be over 1, "
            f"so it must be at most {average / largest:.2f}"
        )
    return {name: mean * factor / average for name, factor in spread.items()}


def _wrong_call(rng: random.Random, example: Example) -> tuple[str, dict[str, str]]:
    """Return a call (name, arguments) that differs from the gold call. An impossible kind of error is replaced."""
    arguments = dict(example.arguments)
    unused = [p for p in TOOLS[example.tool][1] if p not in arguments]
    kind = rng.choices(list(WRONG_CALLS), list(WRONG_CALLS.values()))[0]
    if kind == "extra_parameter" and not unused:
        kind = "missing_parameter"
    if kind == "missing_parameter" and len(arguments) == 1:
        kind = "value"  # a call without any parameter would be a new form, which the model should not learn
    if kind == "name":
        return rng.choice([name for name in TOOLS if name != example.tool]), arguments
    changed = rng.choice(unused if kind == "extra_parameter" else list(arguments))
    if kind == "missing_parameter":
        del arguments[changed]
    else:
        arguments[changed] = rng.choice([value for value in VALUES[changed] if value != arguments.get(changed)])
    return example.tool, arguments


def benchmark_files(examples: Collection[Example]) -> dict[str, list[dict[str, Any]]]:
    """Return held-out examples as BFCL's files, {relative file name: rows}: questions and answers by category."""
    files: dict[str, list[dict[str, Any]]] = {}
    for name in CATEGORIES.values():
        questions = files[f"BFCL_v4_{name}.json"] = []
        answers = files[f"possible_answer/BFCL_v4_{name}.json"] = []
        for i, one in enumerate(one for one in examples if one.category == name):
            messages = [[{"role": "user", "content": one.query}]]
            tools = [_bfcl_function(tool) for tool in one.offered]
            gold = {parameter: [value] for parameter, value in one.arguments}
            questions.append({"id": f"{name}_{i}", "question": messages, "function": tools})
            answers.append({"id": f"{name}_{i}", "ground_truth": [{one.tool: gold}]})
    return files


def _bfcl_function(name: str) -> dict[str, Any]:
    verbs, parameters = TOOLS[name]
    properties = {
        p: {"type": "string", "description": f"The {p}; for example {', '.join(VALUES[p][:2])}."} for p in parameters
    }
    return {
        "name": name,
        "description": f"The {name} tool; its queries begin with {' or '.join(verbs)}.",
        # Nothing is required: a query gives any subset of the values, and the checker rejects a call with others.
        "parameters": {"type": "dict", "properties": properties, "required": []},
    }


def bfcl_prompt(case: dict[str, Any]) -> str:
    """Return the prompt of a BFCL case ({"id", "question", "function"}), in exactly the form of training prompts.

    Raises ValueError for a case that is not one user message in one turn.
    """
    turns = case["question"]
    if len(turns) != 1 or len(turns[0]) != 1 or turns[0][0]["role"] != "user":
        raise ValueError(
            f"BFCL case {case['id']}: the laptop prompt holds exactly one user message, "
            'so "question" must be [[{"role": "user", "content": "..."}]]'
        )
    signatures = ((tool["name"], tool["parameters"]["properties"]) for tool in case["function"])
    return _prompt(signatures, turns[0][0]["content"])


def _prompt(signatures: Iterable[tuple[str, Iterable[str]]], query: str) -> str:
    listing = " ".join(f"{name}({','.join(parameters)})" for name, parameters in signatures)
    return f"<tools>{listing}</tools>\n<user>{query}</user>\n"


def _call(name: str, arguments: dict[str, str]) -> str:
    return json.dumps({"name": name, "parameters": arguments}, separators=(",", ":"))

"""Preparation of published data: training prompts and validation rows for one model, and benchmarks.

Nothing is left out in silence: each row that is not used is in `excluded.csv` with its reason, each training problem
that also stands in a benchmark in `contamination.csv`, and the manifest has the counts.
"""

from __future__ import annotations

import csv
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dara.data import contamination, deepscaler, toolrl
from dara.data.contamination import Match, Text
from dara.data.hub import Fetch
from dara.data.pins import read_pin
from dara.data.problems import Exclusion, Problem
from dara.data.publish import publish
from dara.evaluation.math_sets import SETS, read_set
from dara.evaluation.records import read_jsonl
from dara.specs import HubData

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

HUB_SOURCES: dict[str, ModuleType] = {"toolrl": toolrl, "deepscaler": deepscaler}
"""Name of a source -> its module, with VERSION, FILES (ids of data sets), BENCHMARKS (what its problems are compared
with) and read(fetch): training problems, validation problems, and what is left out of training."""


def sources_of(data: HubData) -> tuple[str, ...]:
    """Ids of the data sets that a preparation reads: its own, and those of the benchmarks it is compared with."""
    module = HUB_SOURCES[data.source]
    return (*module.FILES, *(name for name in module.BENCHMARKS if name in SETS))


def prepare_hub(data: HubData, out: Path, *, fetch: Fetch) -> None:
    """Write `train.jsonl`, `validation/problems.jsonl`, `excluded.csv`, `contamination.csv` and, last, `manifest.json`.

    A training row is {"id", "prompt", "reference"}: the prompt is the complete text, rendered with the chat template of
    `data.tokenizer`. A validation row is {"id", "category", "messages", "reference"}. Prompts of more than
    `data.max_prompt_tokens` tokens are left out of training.

    Raises:
        ValueError: another version or revision than is made here, no tokenizer, a missing or wrong file, another
            number of rows; names what to change.
    """
    module = _module(data, fetch)
    tokenizer = _tokenizer(data, fetch)
    train, validation, excluded = module.read(fetch)
    if len(validation) != data.validation_rows:
        raise ValueError(
            f"data.validation_rows: {data.validation_rows}, but {data.source} has {len(validation)} validation rows; "
            "set that"
        )
    found = contamination.matches(((one.id, one.text) for one in train), _questions(module.BENCHMARKS, fetch))
    if data.decontaminate:
        train, removed = _without(train, found)
        excluded += removed
    prompts, too_long = _prompts(train, tokenizer, data.max_prompt_tokens)
    train = [one for one in train if one.id in prompts]
    excluded += too_long
    rows = {
        "train.jsonl": [{"id": one.id, "prompt": prompts[one.id], "reference": one.reference} for one in train],
        "validation/problems.jsonl": [_validation_row(one) for one in validation],
    }
    content = {
        "data": data.model_dump(mode="json"),
        "sources": {name: fetch.describe(name) for name in module.FILES},
        "excluded": dict(sorted(Counter(one.reason for one in excluded).items())),
        "contamination": _contamination_summary(data, module, found),
    }
    publish(out, rows, content, lambda folder: _write_lists(folder, excluded, found))
    left_out = ", ".join(f"{count} {reason}" for reason, count in content["excluded"].items()) or "none"
    summary = "prepared %s: %d prompts, %d validation rows; left out: %s; in a benchmark: %s"
    logger.info(
        summary, data.source, len(train), len(validation), left_out, content["contamination"]["training_problems"]
    )


def prepare_benchmark(name: str, out: Path, *, fetch: Fetch) -> None:
    """Write `benchmark/` with the cases of a published benchmark and, last, `manifest.json`.

    math_five: `problems.jsonl`, rows {"id", "category", "problem", "answer"}. bfcl_v4: the files of the installed
    bfcl-eval.

    Raises:
        ValueError: an unknown benchmark; a missing or wrong file; a set with another number of cases.
    """
    if name not in PREPARED_BENCHMARKS:
        raise ValueError(f"benchmark {name!r} is not prepared here; these are: {', '.join(PREPARED_BENCHMARKS)}")
    PREPARED_BENCHMARKS[name](name, out, fetch)


def sources_of_benchmark(name: str) -> tuple[str, ...]:
    """Ids of the data sets that a benchmark is made of; none where a package has its cases."""
    return tuple(SETS) if name == "math_five" else ()


def _prepare_math_five(name: str, out: Path, fetch: Fetch) -> None:
    rows = [row for one in SETS for row in read_set(one, fetch.dataset(one))]
    content = {"benchmark": name, "sources": {one: fetch.describe(one) for one in SETS}}
    publish(out, {"benchmark/problems.jsonl": rows}, content)
    logger.info("prepared %s: %d cases", name, len(rows))


def _prepare_bfcl(name: str, out: Path, fetch: Fetch) -> None:
    from dara.evaluation import bfcl_v4

    source = bfcl_v4.data_directory()
    cases = bfcl_v4.load_cases(source)  # checks their numbers

    def copy(folder: Path) -> None:
        for path in bfcl_v4.case_files(source):
            target = folder / "benchmark" / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)

    versions = {"bfcl-eval": metadata.version("bfcl-eval")}
    publish(out, {}, {"benchmark": name, "versions": versions, "cases": len(cases)}, copy)
    logger.info("prepared %s: %d cases", name, len(cases))


PREPARED_BENCHMARKS: dict[str, Callable[[str, Path, Fetch], None]] = {
    "math_five": _prepare_math_five,
    "bfcl_v4": _prepare_bfcl,
}
"""Name of a published benchmark -> what writes it."""


def _module(data: HubData, fetch: Fetch) -> ModuleType:
    module = HUB_SOURCES[data.source]
    if data.version != module.VERSION:
        raise ValueError(
            f"data.version: {data.source} is prepared in version {module.VERSION} here, version {data.version} was "
            f"asked for; set version: {module.VERSION}"
        )
    for name in module.FILES:
        pinned = read_pin(fetch.lock, name).revision
        if not pinned.startswith(data.revision):
            raise ValueError(
                f"data.revision: {data.revision}, but {fetch.lock} pins {name} at {pinned}; use that revision, or pin "
                "the other one there"
            )
    return module


def _tokenizer(data: HubData, fetch: Fetch) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    hub_id, _, revision = (data.tokenizer or "").partition("@")
    if not hub_id or not revision:
        raise ValueError(f"data.tokenizer: {data.tokenizer!r} must be ID@REVISION of the model that is trained")
    tokenizer = AutoTokenizer.from_pretrained(fetch.tokenizer(hub_id, revision), local_files_only=True)
    if not tokenizer.chat_template:
        raise ValueError(f"data.tokenizer: {hub_id} has no chat template, so prompts cannot be rendered with it")
    return tokenizer


def _prompts(
    problems: Sequence[Problem], tokenizer: PreTrainedTokenizerBase, limit: int
) -> tuple[dict[str, str], list[Exclusion]]:
    """Id -> complete text of the prompt, for prompts of at most `limit` tokens; and the problems with longer ones."""
    prompts, too_long = {}, []
    for one in problems:
        text = tokenizer.apply_chat_template(one.messages, tokenize=False, add_generation_prompt=True)
        # The template has put every special token into the text.
        tokens = len(tokenizer(text, add_special_tokens=False)["input_ids"])
        if tokens > limit:
            too_long.append(Exclusion(one.id, "too_long", str(tokens)))
        else:
            prompts[one.id] = text
    return prompts, too_long


def _without(problems: Sequence[Problem], found: Sequence[Match]) -> tuple[list[Problem], list[Exclusion]]:
    """The problems that stand in no benchmark, and the others with the first question that they match."""
    first = {match.problem: match.case for match in reversed(found)}
    kept = [one for one in problems if one.id not in first]
    return kept, [Exclusion(one.id, "in_benchmark", first[one.id]) for one in problems if one.id in first]


def _validation_row(one: Problem) -> dict[str, Any]:
    return {"id": one.id, "category": one.category, "messages": one.messages, "reference": one.reference}


def _questions(benchmarks: Iterable[str], fetch: Fetch) -> list[Text]:
    """The questions of benchmarks that a source is compared with."""
    texts = []
    for name in benchmarks:
        if name in SETS:
            rows = read_set(name, fetch.dataset(name))
            texts += [Text(name, row["id"], row["problem"]) for row in rows]
        else:
            texts += _bfcl_questions(name)
    return texts


def _bfcl_questions(name: str) -> list[Text]:
    """What the users of BFCL's cases say, all turns of a case together."""
    from dara.evaluation import bfcl_v4
    from dara.evaluation.bfcl import CATEGORIES

    texts = []
    for category in CATEGORIES[name]:
        for row in read_jsonl(bfcl_v4.data_directory() / f"BFCL_v4_{category}.json", ("id", "question")):
            said = [message["content"] for turn in row["question"] for message in turn]
            texts.append(Text(name, row["id"], "\n".join(said)))
    return texts


def _contamination_summary(data: HubData, module: ModuleType, found: Sequence[Match]) -> dict[str, Any]:
    by_benchmark = Counter(name for name, _ in {(match.benchmark, match.problem) for match in found})
    return {
        "rule": contamination.RULE,
        "training_problems": {name: by_benchmark[name] for name in module.BENCHMARKS},
        "removed": data.decontaminate,
    }


def _write_lists(folder: Path, excluded: Sequence[Exclusion], found: Sequence[Match]) -> None:
    _write_csv(folder / "excluded.csv", ("id", "reason", "detail"), (vars(one) for one in excluded))
    matches = ({**vars(match), "share": f"{match.share:.3f}"} for match in found)
    _write_csv(folder / "contamination.csv", ("problem", "benchmark", "case", "rule", "share"), matches)


def _write_csv(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)

"""Preparation of data from a specification: training prompts, validation rows and held-out cases.

No row of a public data set is left out silently: each unused row is in `excluded.csv` with its reason, each training
problem that is also in a benchmark is in `contamination.csv`, and the manifest has the counts.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from dara.data import SOURCES, Source, contamination
from dara.data.contamination import Match, Text
from dara.data.generated import build_tokenizer, generator_of, held_out, texts, train_rows
from dara.data.hub import Fetch, read_pin
from dara.data.math_sets import SETS, read_set
from dara.data.public import Exclusion, Problem, own_problems
from dara.places import DATA, source_sha256
from dara.registries import definition, names_of
from dara.specs import AnyData, DataSpec, HubData, OwnData
from dara.store import MANIFEST, checksums, write_manifest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
logger = logging.getLogger(__name__)


def prepare(data: AnyData, out: Path, *, fetch: Fetch | None = None, own_files: Path | None = None) -> None:
    """Write a data set into `out`, its `manifest.json` last. The same specification gives identical files.

    Every data set has `train.jsonl`, rows {"id", "prompt", "reference"} with complete texts as prompts. Generated data
    also has `benchmark/` and `tokenizer/`; public data has `validation/problems.jsonl`, rows {"id", "category",
    "messages", "reference"}, and the lists `excluded.csv` and `contamination.csv`.

    fetch: the source of public data and of the model whose chat template renders it. own_files: the directory to which
    paths of a user's own files are relative.

    Raises:
        ValueError: a version or revision that this code does not make; too few distinct problems to hold out; no
            tokenizer; a missing or wrong file, another number of rows. The message names what to change.
    """
    if isinstance(data, DataSpec):
        _prepare_generated(data, out)
    else:
        source = _own_source(data, own_files) if isinstance(data, OwnData) else _source(data, fetch)
        _prepare_rows(data, source, out, fetch)


def files_of(data: HubData) -> tuple[str, ...]:
    """Return ids of the data sets that a preparation reads: its own, and those of the compared benchmarks."""
    source = SOURCES[data.source]
    return (*source.files, *(name for name in source.benchmarks if name in SETS))


def prepare_benchmark(name: str, out: Path, *, fetch: Fetch) -> None:
    """Write `benchmark/` with the cases of a public benchmark and, last, `manifest.json`.

    Raises:
        ValueError: an unknown benchmark; a missing or wrong file; a set with another number of cases.
    """
    known = names_of("published")
    if name not in known:
        raise ValueError(f"benchmark {name!r} is not prepared here; these are: {', '.join(known)}")
    cases = definition(name).publish(fetch)

    def copy(folder: Path) -> None:
        for file, source in cases.files.items():
            (folder / "benchmark" / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, folder / "benchmark" / file)

    rows = {f"benchmark/{file}": found for file, found in cases.rows.items()}
    _write(out, rows, {"benchmark": name, **cases.content}, copy)
    logger.info("prepared %s: %d cases", name, cases.count)


def _prepare_generated(data: DataSpec, out: Path) -> None:
    rows = {"train.jsonl": train_rows(data)}
    benchmark = generator_of(data).benchmark_files(held_out(data))
    rows |= {f"benchmark/{name}": cases for name, cases in benchmark.items()}

    def add_tokenizer(folder: Path) -> None:
        build_tokenizer(texts(data)).save_pretrained(folder / "tokenizer")

    _write(out, rows, {"data": data.model_dump(mode="json")}, add_tokenizer)
    logger.info("prepared %s: %d prompts, %d held-out cases", data.source, data.train_rows, data.held_out_rows)


def _prepare_rows(data: HubData | OwnData, source: Source, out: Path, fetch: Fetch) -> None:
    tokenizer = _tokenizer(data, fetch)
    train, validation, excluded = source.read(fetch)
    if isinstance(data, HubData) and len(validation) != data.validation_rows:
        raise ValueError(
            f"data.validation_rows: {data.validation_rows}, but {data.source} has {len(validation)} validation rows; "
            "set that"
        )
    found = contamination.matches(((one.id, one.text) for one in train), _questions(source.benchmarks, fetch))
    removed = isinstance(data, HubData) and data.decontaminate
    if removed:
        # Reversed, so that the first match of a problem is the one that is recorded.
        first = {match.problem: match.case for match in reversed(found)}
        excluded += [Exclusion(one.id, "in_benchmark", first[one.id]) for one in train if one.id in first]
        train = [one for one in train if one.id not in first]
    prompts, too_long = _prompts(train, tokenizer, data.max_prompt_tokens)
    excluded += too_long
    rows = {
        "train.jsonl": [
            {"id": one.id, "prompt": prompts[one.id], "reference": one.reference} for one in train if one.id in prompts
        ],
        "validation/problems.jsonl": [
            {"id": one.id, "category": one.category, "messages": one.messages, "reference": one.reference}
            for one in validation
        ],
    }
    by_benchmark = Counter(name for name, _ in {(match.benchmark, match.problem) for match in found})
    counts = {name: by_benchmark[name] for name in source.benchmarks}
    content = {
        "data": data.model_dump(mode="json"),
        "sources": {name: fetch.describe(name) for name in source.files},
        "excluded": dict(sorted(Counter(one.reason for one in excluded).items())),
        "contamination": {"rule": contamination.RULE, "training_problems": counts, "removed": removed},
    }
    _write(out, rows, content, lambda folder: _write_lists(folder, excluded, found))
    left_out = ", ".join(f"{count} {reason}" for reason, count in content["excluded"].items()) or "none"
    summary = "prepared %s: %d prompts, %d validation rows; left out: %s; in a benchmark: %s"
    logger.info(summary, data.source, len(rows["train.jsonl"]), len(validation), left_out, counts)


def _source(data: HubData, fetch: Fetch) -> Source:
    """Return the source of public data. ValueError for a version or revision that this code does not prepare."""
    source = SOURCES[data.source]
    if data.version != source.version:
        raise ValueError(
            f"data.version: {data.source} is prepared in version {source.version} here, version {data.version} was "
            f"asked for; set version: {source.version}"
        )
    for name in source.files:
        pinned = read_pin(fetch.lock, name).revision
        if not pinned.startswith(data.revision):
            raise ValueError(
                f"data.revision: {data.revision}, but {fetch.lock} pins {name} at {pinned}; use that revision, or pin "
                "the other one there"
            )
    return source


def _own_source(data: OwnData, own_files: Path | None) -> Source:
    """Return a user's own source. ValueError if its file was edited since the data was planned."""
    if source_sha256(data.source, own_files, example=DATA) != data.source_sha256:
        raise ValueError(f"{data.source} was edited after the data was planned; start the workflow again")
    return Source("", 1, read=lambda fetch: own_problems(data.source, own_files))


def _tokenizer(data: HubData | OwnData, fetch: Fetch) -> PreTrainedTokenizerBase:
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
    """Return id -> complete prompt, for prompts of at most `limit` tokens; and the problems with longer prompts."""
    prompts, too_long = {}, []
    for one in problems:
        text = tokenizer.apply_chat_template(one.messages, tokenize=False, add_generation_prompt=True)
        # The template has already put every special token into the text.
        tokens = len(tokenizer(text, add_special_tokens=False)["input_ids"])
        if tokens > limit:
            too_long.append(Exclusion(one.id, "too_long", str(tokens)))
        else:
            prompts[one.id] = text
    return prompts, too_long


def _questions(benchmarks: Iterable[str], fetch: Fetch) -> list[Text]:
    """Return the questions of benchmarks, or of single math sets, with which a source is compared."""
    found = []
    for name in benchmarks:
        if name in SETS:
            found += [Text(name, row["id"], row["problem"]) for row in read_set(name, fetch.dataset(name))]
        else:
            found += [Text(name, case, text) for case, text in definition(name).questions()]
    return found


def _write(
    out: Path,
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    content: Mapping[str, Any],
    add: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Write JSON-lines files (name -> rows) into `out` and, last, `manifest.json`; each file atomically.

    content: further entries of the manifest, before the counts of rows and the checksums of all files. add: writes
    further files into its argument, a directory.
    """
    out.mkdir(parents=True, exist_ok=True)
    (out / MANIFEST).unlink(missing_ok=True)  # no manifest while files change
    with tempfile.TemporaryDirectory(prefix=".preparing-", dir=out) as name:
        staging = Path(name)
        for file, objects in rows.items():
            lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in objects)
            (staging / file).parent.mkdir(parents=True, exist_ok=True)
            (staging / file).write_text(lines, encoding="utf-8", newline="\n")
        add(staging)
        sums = checksums(staging)
        for file in sums:
            (out / file).parent.mkdir(parents=True, exist_ok=True)
            os.replace(staging / file, out / file)
    counts = {file: len(objects) for file, objects in rows.items()}
    write_manifest(out / MANIFEST, {**content, "rows": counts, "sha256": sums})


def _write_lists(folder: Path, excluded: Sequence[Exclusion], found: Sequence[Match]) -> None:
    matches = [{**vars(match), "share": f"{match.share:.3f}"} for match in found]
    lists = {
        "excluded": ([vars(one) for one in excluded], ["id", "reason", "detail"]),
        "contamination": (matches, ["problem", "benchmark", "case", "rule", "share"]),
    }
    for name, (rows, columns) in lists.items():
        pd.DataFrame(rows, columns=columns).to_csv(folder / f"{name}.csv", index=False, lineterminator="\n")

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
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pandas as pd

from dara.data import SOURCES, Source, source_of
from dara.data.generated import build_tokenizer, held_out, texts, train_rows
from dara.data.hub import Fetch, read_pin
from dara.data.public import SETS, Exclusion, Problem, own_problems, read_set, words
from dara.places import DATA, source_sha256
from dara.registries import definition, names_of
from dara.specs import AnyData, HubData, OwnData
from dara.store import MANIFEST, checksums, write_manifest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
logger = logging.getLogger(__name__)

LENGTH = 13
SHARE = 0.5
RULE = f"equal words, or at least {SHARE:g} of the {LENGTH}-word sequences of the text with fewer of them"


class Match(NamedTuple):
    """A training problem and a benchmark's question that are the same or nearly so.

    `share` of the 13-word sequences of the text with fewer of them occur in the other; it is 1 for `equal`.
    """

    problem: str
    benchmark: str
    case: str
    rule: Literal["equal", "similar"]
    share: float


def prepare(data: AnyData, out: Path, *, fetch: Fetch | None = None, own_files: Path | None = None) -> None:
    """Write a data set into `out`, its `manifest.json` last. The same specification gives identical files.

    Every data set has `train.jsonl`, rows {"id", "prompt", "reference"} with complete texts as prompts. Generated data
    also has `benchmark/` and `tokenizer/`; public data has `validation/problems.jsonl`, rows {"id", "category",
    "messages", "reference"}, and the lists `excluded.csv` and `contamination.csv`.

    fetch: the source of public data and of the model whose chat template renders it. own_files: the directory to which
    paths of a user's own files are relative. ValueError, which names what to change, for another version or revision
    than this code makes, too few problems to hold out, no tokenizer, and wrong files.
    """
    if isinstance(data, HubData | OwnData):
        return _prepare_rows(data, _public_source(data, fetch, own_files), out, fetch)
    rows = {"train.jsonl": train_rows(data)}
    cases = source_of(data).generator.benchmark_files(held_out(data).values())
    rows |= {f"benchmark/{name}": found for name, found in cases.items()}
    with _written(out, rows, {"data": data.model_dump(mode="json")}) as folder:
        build_tokenizer(texts(data)).save_pretrained(folder / "tokenizer")
    logger.info("prepared %s: %d prompts, %d held-out cases", data.source, data.train_rows, data.held_out_rows)


def files_of(data: HubData) -> tuple[str, ...]:
    """Return ids of the data sets that a preparation reads: its own, and those of the compared benchmarks."""
    source = SOURCES[data.source]
    return (*source.files, *(name for name in source.benchmarks if name in SETS))


def prepare_benchmark(name: str, out: Path, *, fetch: Fetch) -> None:
    """Write `benchmark/` with the cases of a public benchmark and, last, `manifest.json`.

    ValueError for an unknown benchmark, a missing or wrong file, and a set with another number of cases.
    """
    known = names_of("published")
    if name not in known:
        raise ValueError(f"benchmark {name!r} is not prepared here; these are: {', '.join(known)}")
    cases = definition(name).publish(fetch)
    rows = {f"benchmark/{file}": found for file, found in cases.rows.items()}
    with _written(out, rows, {"benchmark": name, **cases.content}) as folder:
        for file, source in cases.files.items():
            (folder / "benchmark" / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, folder / "benchmark" / file)
    logger.info("prepared %s: %d cases", name, cases.count)


def _public_source(data: HubData | OwnData, fetch: Fetch, own_files: Path | None) -> Source:
    """Return the source of rows. ValueError for another version or revision than this code prepares, an edited file."""
    if isinstance(data, OwnData):
        if source_sha256(data.source, own_files, example=DATA) != data.source_sha256:
            raise ValueError(f"{data.source} was edited after the data was planned; start the workflow again")
        return Source("", 1, read=lambda fetch: own_problems(data.source, own_files))
    source = source_of(data)
    for name in source.files:
        pinned = read_pin(fetch.lock, name).revision
        if not pinned.startswith(data.revision):
            raise ValueError(
                f"data.revision: {data.revision}, but {fetch.lock} pins {name} at {pinned}; use that revision, or pin "
                "the other one there"
            )
    return source


def _prepare_rows(data: HubData | OwnData, source: Source, out: Path, fetch: Fetch) -> None:
    tokenizer = _tokenizer(data, fetch)
    train, validation, excluded = source.read(fetch)
    if isinstance(data, HubData) and len(validation) != data.validation_rows:
        raise ValueError(
            f"data.validation_rows: {data.validation_rows}, but {data.source} has {len(validation)} validation rows; "
            "set that"
        )
    found = matches(((one.id, one.text) for one in train), _questions(source.benchmarks, fetch))
    removed = isinstance(data, HubData) and data.decontaminate
    if removed:
        # Reversed, so that the first match of a problem is the one that is recorded.
        first = {match.problem: match.case for match in reversed(found)}
        excluded += [Exclusion(one.id, "in_benchmark", first[one.id]) for one in train if one.id in first]
        train = [one for one in train if one.id not in first]
    rows = {"train.jsonl": _rendered(train, tokenizer, data.max_prompt_tokens, excluded)}
    rows["validation/problems.jsonl"] = [
        {key: getattr(one, key) for key in ("id", "category", "messages", "reference")} for one in validation
    ]
    by_benchmark = Counter(name for name, _ in {(match.benchmark, match.problem) for match in found})
    counts = {name: by_benchmark[name] for name in source.benchmarks}
    content = {
        "data": data.model_dump(mode="json"),
        "sources": {name: fetch.describe(name) for name in source.files},
        "excluded": dict(sorted(Counter(one.reason for one in excluded).items())),
        "contamination": {"rule": RULE, "training_problems": counts, "removed": removed},
    }
    with _written(out, rows, content) as folder:
        for name, kind, listed in (("excluded", Exclusion, excluded), ("contamination", Match, found)):
            table = pd.DataFrame(listed, columns=kind._fields)
            table.to_csv(folder / f"{name}.csv", index=False, lineterminator="\n", float_format="%.3f")
    left_out = ", ".join(f"{count} {reason}" for reason, count in content["excluded"].items()) or "none"
    summary = "prepared %s: %d prompts, %d validation rows; left out: %s; in a benchmark: %s"
    logger.info(summary, data.source, len(rows["train.jsonl"]), len(validation), left_out, counts)


def _tokenizer(data: HubData | OwnData, fetch: Fetch) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    hub_id, _, revision = (data.tokenizer or "").partition("@")
    if not hub_id or not revision:
        raise ValueError(f"data.tokenizer: {data.tokenizer!r} must be ID@REVISION of the model that is trained")
    tokenizer = AutoTokenizer.from_pretrained(fetch.tokenizer(hub_id, revision), local_files_only=True)
    if not tokenizer.chat_template:
        raise ValueError(f"data.tokenizer: {hub_id} has no chat template, so prompts cannot be rendered with it")
    return tokenizer


def _rendered(
    problems: Iterable[Problem], tokenizer: PreTrainedTokenizerBase, limit: int, excluded: list[Exclusion]
) -> list[dict[str, str]]:
    """Return the training rows whose prompts have at most `limit` tokens; add the others to `excluded`."""
    rows = []
    for one in problems:
        text = tokenizer.apply_chat_template(one.messages, tokenize=False, add_generation_prompt=True)
        # The template has already put every special token into the text.
        tokens = len(tokenizer(text, add_special_tokens=False)["input_ids"])
        if tokens > limit:
            excluded.append(Exclusion(one.id, "too_long", str(tokens)))
        else:
            rows.append({"id": one.id, "prompt": text, "reference": one.reference})
    return rows


def _questions(benchmarks: Iterable[str], fetch: Fetch) -> list[tuple[str, str, str]]:
    """Return the questions (benchmark, case, text) of benchmarks or single math sets, to compare a source with."""
    found = []
    for name in benchmarks:
        if name in SETS:
            found += [(name, row["id"], row["problem"]) for row in read_set(name, fetch.dataset(name))]
        else:
            found += [(name, case, text) for case, text in definition(name).questions()]
    return found


def matches(problems: Iterable[tuple[str, str]], questions: Sequence[tuple[str, str, str]]) -> list[Match]:
    """Return every match of problems (id, text) and questions (benchmark, case, text), in the order of the problems.

    Two texts are `equal` if their words are, and `similar` if at least half of the 13-word sequences of the text with
    fewer of them also occur in the other. A text of fewer than 13 words has no such sequence: it can only be equal.
    """
    # Inverted indices from texts and from 13-word sequences to questions: a problem is compared only with questions
    # that share one with it.
    equal, holders, sizes = defaultdict(list), defaultdict(list), []
    for index, (_, _, text) in enumerate(questions):
        tokens, sequences = _sequences(text)
        sizes.append(len(sequences))
        equal[tokens].append(index)
        for sequence in sequences:
            holders[sequence].append(index)
    found = []
    for name, text in problems:
        tokens, sequences = _sequences(text)
        same = set(equal.get(tokens, ()))
        shared = Counter(index for sequence in sequences for index in holders.get(sequence, ()))
        for index in sorted({*same, *shared}):
            rule = "equal" if index in same else "similar"
            share = 1.0 if index in same else shared[index] / min(len(sequences), sizes[index])
            if share >= SHARE:
                found.append(Match(name, *questions[index][:2], rule, share))
    return found


def _sequences(text: str) -> tuple[tuple[str, ...], set[tuple[str, ...]]]:
    """Return the words of a text and the sequences of 13 of them."""
    tokens = tuple(words(text))
    return tokens, {tokens[start : start + LENGTH] for start in range(len(tokens) - LENGTH + 1)}


@contextmanager
def _written(out: Path, rows: Mapping[str, Sequence[Mapping[str, Any]]], content: Mapping[str, Any]) -> Iterator[Path]:
    """Write JSON-lines files (name -> rows) into `out` and, last, `manifest.json`; each file atomically.

    The body of the `with` writes further files into the yielded directory. content: further entries of the manifest,
    before the counts of rows and the checksums of all files.
    """
    out.mkdir(parents=True, exist_ok=True)
    (out / MANIFEST).unlink(missing_ok=True)  # no manifest while files change
    with tempfile.TemporaryDirectory(prefix=".preparing-", dir=out) as name:
        staging = Path(name)
        for file, objects in rows.items():
            lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in objects)
            (staging / file).parent.mkdir(parents=True, exist_ok=True)
            (staging / file).write_text(lines, encoding="utf-8", newline="\n")
        yield staging
        sums = checksums(staging)
        for file in sums:
            (out / file).parent.mkdir(parents=True, exist_ok=True)
            os.replace(staging / file, out / file)
    counts = {file: len(objects) for file, objects in rows.items()}
    write_manifest(out / MANIFEST, {**content, "rows": counts, "sha256": sums})

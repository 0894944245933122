"""One model on one benchmark, without the workflow: generate, score, and a table."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dara.config import Benchmark
from dara.data import math_sets
from dara.evaluation import bfcl_v4
from dara.evaluation.bfcl_groups import CATEGORIES
from dara.evaluation.generate import generate_checkpoints
from dara.evaluation.records import Metric
from dara.evaluation.score import read_scores, score_checkpoints, scorer_path, scores_path, summarise
from dara.specs import Sampling
from dara.store import HANDOVER_SECONDS, directory_lock

if TYPE_CHECKING:
    from dara.data.hub import Fetch

logger = logging.getLogger(__name__)

# Benchmark -> its decoding in the paper.
PAPER = {
    "bfcl_v4": {
        "samples": 1,
        "sampling": Sampling(temperature=0.6, top_p=0.95, max_response_tokens=8192),
        "seed": 0,
        "max_context": 32768,
    },
    "math_five": {
        "samples": 16,
        "sampling": Sampling(temperature=0.6, top_p=0.95, max_response_tokens=32768),
        "seed": 0,
        "max_context": 34816,  # room for the longest response behind a prompt of 2,048 tokens
        "length_limit": 4000,
    },
}
# Benchmark -> what its averages need a case of.
PARTS: dict[str, Collection[str]] = {"bfcl_v4": CATEGORIES["bfcl_v4"], "math_five": math_sets.SETS}
BATCH_SIZES = {"transformers": 8, "vllm": 64}
CHECKPOINT = ("config.json", "*.safetensors", "tokenizer*")
NO_SHARES = ("think_words", "correctness")  # a number of words, and a reward from -3 to 3
_HUB_ID = re.compile(r"([\w.-]+/[\w.-]+)@([0-9a-f]{40})")


def paper_settings(
    name: str,
    *,
    limit: int | None = None,
    sampler: str = "transformers",
    batch_size: int | None = None,
    samples: int | None = None,
    max_response_tokens: int | None = None,
) -> Benchmark:
    """A benchmark with the paper's decoding, except for what is given. ValueError for what cannot be."""
    if name not in PAPER:
        raise ValueError(f"--benchmark {name}: must be one of {', '.join(PAPER)}")
    if sampler not in BATCH_SIZES:
        raise ValueError(f"--sampler {sampler}: must be one of {', '.join(BATCH_SIZES)}")
    counts = {"limit": limit, "batch-size": batch_size, "samples": samples, "max-response-tokens": max_response_tokens}
    for option, value in counts.items():
        if value is not None and value < 1:
            raise ValueError(f"--{option} {value}: must be at least 1")
    settings = {**PAPER[name], "name": name, "sampler": sampler, "limit": limit}
    settings["batch_size"] = batch_size or BATCH_SIZES[sampler]
    if samples is not None:
        settings["samples"] = samples
    if max_response_tokens is not None:
        sampling = settings["sampling"].model_dump() | {"max_response_tokens": max_response_tokens}
        settings["sampling"] = Sampling.model_validate(sampling)
    return Benchmark.model_validate(settings)


def evaluate_model(
    model: str,
    benchmark: str,
    *,
    limit: int | None,
    sampler: str,
    out: Path | None,
    fetch: Fetch,
    batch_size: int | None = None,
    samples: int | None = None,
    max_response_tokens: int | None = None,
) -> str:
    """Evaluate a model; returns a table of its scores. A killed call goes on where it was.

    Args:
        model: a directory with a Hugging Face checkpoint, or `OWNER/NAME@REVISION` of the hub (40 digits).
        benchmark: name of one of PAPER; the other arguments change its settings, see `paper_settings`.
        out: directory of what the model says (`step_0/<benchmark>.jsonl.gz`), its scores and what made them; None:
            `results/standalone/<name of the model>`.
        fetch: where models and data come from.

    Raises:
        ValueError: no such model or benchmark, or an evaluation with other settings is in `out`.
    """
    settings = paper_settings(
        benchmark,
        limit=limit,
        sampler=sampler,
        batch_size=batch_size,
        samples=samples,
        max_response_tokens=max_response_tokens,
    )
    directory = model_directory(model, fetch)
    name = directory.resolve().name if Path(model).is_dir() else model.replace("/", "--")
    out = out or Path("results/standalone") / name
    _announce(name, settings, out)
    with directory_lock(out / ".lock", seconds=HANDOVER_SECONDS):
        cases_dir = _cases_directory(benchmark, out, fetch)
        generate_checkpoints({0: directory}, settings, cases_dir, out)
        score_checkpoints(out, [0], settings, cases_dir)
    return _summary(model, name, benchmark, out)


def _announce(name: str, settings: Benchmark, out: Path) -> None:
    logger.info(
        "%s on %s: %s, sampler %s, at most %d tokens an output; into %s",
        *(name, settings.name, f"at most {settings.limit} cases" if settings.limit else "all cases", settings.sampler),
        *(settings.sampling.max_response_tokens, out),
    )


def _summary(model: str, name: str, benchmark: str, out: Path) -> str:
    """A head, the table of the scores below `out`, and what a reader must know of it."""
    path = scores_path(out, 0, benchmark)
    frame = read_scores(path, benchmark)
    head = f"{model} on {benchmark}: {frame['case'].nunique()} cases, {len(frame)} responses ({path})"
    table = scores_table(summarise(frame, benchmark), (name, benchmark))
    return "\n\n".join([head, table, *_remarks(benchmark, set(frame["category"]), scorer_path(out, benchmark))])


def _remarks(benchmark: str, present: Collection[str], scorer: Path) -> list[str]:
    """What a reader of the table must know: averages that it has not, and scorers that could reach a network."""
    remarks, absent = [], [part for part in PARTS[benchmark] if part not in present]
    if absent:
        remarks.append(
            f"No average over what has no case here: {', '.join(absent)}. More cases, or all of them without --limit, "
            "have one."
        )
    if json.loads(scorer.read_text("utf-8"))["network"] == "reachable":
        remarks.append(f"This system allows no network namespace, so the scorer could reach a network ({scorer}).")
    return remarks


def _cases_directory(benchmark: str, out: Path, fetch: Fetch) -> Path:
    """BFCL-v4's cases stand in an installed package; others are prepared beside the responses, once."""
    if benchmark == bfcl_v4.NAME:
        return bfcl_v4.data_directory()
    from dara.data.prepare import prepare_benchmark

    prepared = out / "cases" / benchmark
    if not (prepared / "manifest.json").is_file():
        prepare_benchmark(benchmark, prepared, fetch=fetch)
    return prepared / "benchmark"


def model_directory(model: str, fetch: Fetch) -> Path:
    """Where the checkpoint is. ValueError when `model` is no directory of one, and no id with a revision."""
    if Path(model).is_dir():
        absent = [name for name in CHECKPOINT if not any(Path(model).glob(name))]
        if absent:
            raise ValueError(
                f"--model {model}: has no {' and no '.join(absent)}; a Hugging Face checkpoint with its tokenizer has"
            )
        return Path(model)
    found = _HUB_ID.fullmatch(model)
    if found is None:
        raise ValueError(
            f"--model {model}: no such directory; give one with a Hugging Face checkpoint, or OWNER/NAME@REVISION with "
            "the 40 digits of a commit"
        )
    return fetch.model(found.group(1), found.group(2))


def scores_table(metrics: Mapping[str, Metric], key: tuple[str, ...]) -> str:
    """A Markdown table: a row a metric, its 95 % bootstrap interval over questions, and the number of cases.

    No interval where all questions have the same value, which says nothing about the spread. In percent, except for
    NO_SHARES. `key` is what the resamples are keyed by.
    """
    from dara.analysis.scores import score_rows  # not at the top: the analysis reads what is evaluated

    width = max(len(name) for name in metrics)
    rows = [f"| {'metric':<{width}} |    value | 95 % interval    | cases |"]
    rows.append(f"|{'-' * (width + 2)}|---------:|------------------|------:|")
    ends = {row["metric"]: (row["low"], row["high"]) for row in score_rows(metrics, key)}
    for name, metric in metrics.items():
        factor, unit = (1, "  ") if name in NO_SHARES else (100, " %")
        low, high = ends[name]
        interval = "" if low is None or low == high else f"{factor * low:6.2f} to {factor * high:6.2f}"
        rows.append(
            f"| {name:<{width}} | {factor * metric.score:6.2f}{unit} | {interval:<16} | {len(metric.values):5d} |"
        )
    return "\n".join(rows)

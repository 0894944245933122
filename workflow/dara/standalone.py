"""Evaluation of one model on one benchmark, without the workflow: generation, scores and a table."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dara.analysis.scores import score_rows
from dara.evaluation import bfcl_v4
from dara.evaluation.generate import generate_checkpoints
from dara.evaluation.grading import read_scores, score_checkpoints, summarise
from dara.evaluation.records import SCORE_TABLE, SCORES, Metric
from dara.files import read_json
from dara.registries import definition, names_of
from dara.runs import evaluation_id
from dara.specs import Benchmark
from dara.store import directory_lock

if TYPE_CHECKING:
    from dara.data.hub import Fetch

logger = logging.getLogger(__name__)

BATCH_SIZES = {"transformers": 8, "vllm": 64}
CHECKPOINT = ("config.json", "*.safetensors", "tokenizer*")
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
    """Return the settings of a benchmark with the paper's decoding, except for the given values.

    Raises:
        ValueError: a benchmark that is not in the paper, or an invalid value.
    """
    published = names_of("published")
    if name not in published:
        raise ValueError(f"--benchmark {name}: must be one of {', '.join(published)}")
    if sampler not in BATCH_SIZES:
        raise ValueError(f"--sampler {sampler}: must be one of {', '.join(BATCH_SIZES)}")
    counts = {"limit": limit, "batch-size": batch_size, "samples": samples, "max-response-tokens": max_response_tokens}
    for option, value in counts.items():
        if value is not None and value < 1:
            raise ValueError(f"--{option} {value}: must be at least 1")
    paper = definition(name).paper
    longest = max_response_tokens or paper["sampling"]["max_response_tokens"]
    changes = {
        "name": name,
        "sampler": sampler,
        "limit": limit,
        "batch_size": batch_size or BATCH_SIZES[sampler],
        "samples": samples or paper["samples"],
        "sampling": {**paper["sampling"], "max_response_tokens": longest},
    }
    return Benchmark.model_validate({**paper, **changes})


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
    """Evaluate a model; return a table of its scores. An interrupted evaluation is resumed by the same call.

    Args:
        model: a directory with a Hugging Face checkpoint, or `OWNER/NAME@REVISION` of the hub (40 digits).
        benchmark: name of a public benchmark; the other arguments change its settings, see `paper_settings`.
        out: parent of `<benchmark>-<hash8>`, the directory of responses and scores; None:
            `results/standalone/<name of the model>`.
        fetch: the source of models and data.

    Raises:
        ValueError: no such model or benchmark, or responses of another sampler or model are in that directory.
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
    evaluation = out / evaluation_id(settings)
    with directory_lock(out / ".lock"):
        cases_dir = _cases_directory(benchmark, out, fetch)
        generate_checkpoints({0: directory}, settings, cases_dir, evaluation)
        score_checkpoints(evaluation, [0], settings, cases_dir)
    return _summary(model, name, benchmark, evaluation)


def _announce(name: str, settings: Benchmark, out: Path) -> None:
    logger.info(
        "%s on %s: %s, sampler %s, at most %d tokens an output; into %s",
        *(name, settings.name, f"at most {settings.limit} cases" if settings.limit else "all cases", settings.sampler),
        *(settings.sampling.max_response_tokens, out),
    )


def _summary(model: str, name: str, benchmark: str, out: Path) -> str:
    """Return a heading, the table of the scores below `out`, and remarks for its reader."""
    frame = read_scores(out, benchmark, 0)
    head = f"{model} on {benchmark}: {frame['case'].nunique()} cases, {len(frame)} responses ({out / SCORE_TABLE})"
    table = scores_table(summarise(frame, benchmark), (name, benchmark))
    return "\n\n".join([head, table, *_remarks(benchmark, set(frame["category"]), out / SCORES)])


def _remarks(benchmark: str, present: Collection[str], scorer: Path) -> list[str]:
    """Return remarks on the table: averages that it lacks, and scorers that could reach a network."""
    remarks, absent = [], [part for part in definition(benchmark).parts if part not in present]
    if absent:
        remarks.append(
            f"No average over what has no case here: {', '.join(absent)}. More cases, or all of them without --limit, "
            "have one."
        )
    if read_json(scorer)["scorer"]["network"] == "reachable":
        remarks.append(f"This system allows no network namespace, so the scorer could reach a network ({scorer}).")
    return remarks


def _cases_directory(benchmark: str, out: Path, fetch: Fetch) -> Path:
    """Return the directory of the cases: BFCL-v4's in an installed package, others prepared once in `out`."""
    if benchmark == bfcl_v4.NAME:
        return bfcl_v4.data_directory()
    from dara.data.prepare import prepare_benchmark

    prepared = out / "cases" / benchmark
    if not (prepared / "manifest.json").is_file():
        prepare_benchmark(benchmark, prepared, fetch=fetch)
    return prepared / "benchmark"


def model_directory(model: str, fetch: Fetch) -> Path:
    """Return the directory of the checkpoint; raise ValueError if `model` is neither one nor an id with a revision."""
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


def scores_table(metrics: Mapping[str, Metric], key: tuple[str, str]) -> str:
    """Return a Markdown table: per metric a row with its 95 % bootstrap interval over questions and number of cases.

    There is no interval if all questions have the same value, which says nothing about the spread. Values are in
    percent, except for metrics that are not shares. `key` is the name of the model and of the benchmark, by which
    resamples are keyed.
    """
    width = max(len(name) for name in metrics)
    rows = [f"| {'metric':<{width}} |    value | 95 % interval    | cases |"]
    rows.append(f"|{'-' * (width + 2)}|---------:|------------------|------:|")
    ends = {row["metric"]: (row["low"], row["high"]) for row in score_rows(metrics, key)}
    for name, metric in metrics.items():
        factor, unit = (1, "  ") if name in definition(key[1]).plain_numbers else (100, " %")
        low, high = ends[name]
        interval = "" if low is None or low == high else f"{factor * low:6.2f} to {factor * high:6.2f}"
        rows.append(
            f"| {name:<{width}} | {factor * metric.score:6.2f}{unit} | {interval:<16} | {len(metric.values):5d} |"
        )
    return "\n".join(rows)

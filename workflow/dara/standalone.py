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
    sampler: str = "transformers",
    limit: int | None = None,
    batch_size: int | None = None,
    samples: int | None = None,
    max_response_tokens: int | None = None,
) -> Benchmark:
    """Return the settings of a benchmark with the paper's decoding, but the given counts (None: the paper's).

    Raise ValueError for a benchmark that is not in the paper, or an invalid value.
    """
    counts = {"limit": limit, "batch_size": batch_size, "samples": samples, "max_response_tokens": max_response_tokens}
    for option, value, known in (("benchmark", name, names_of("published")), ("sampler", sampler, BATCH_SIZES)):
        if value not in known:
            raise ValueError(f"--{option} {value}: must be one of {', '.join(known)}")
    given = {option: count for option, count in counts.items() if count is not None}
    for option, count in given.items():
        if count < 1:
            raise ValueError(f"--{option.replace('_', '-')} {count}: must be at least 1")
    paper = definition(name).paper
    longest = given.pop("max_response_tokens", paper["sampling"]["max_response_tokens"])
    own = {"name": name, "sampler": sampler, "limit": None, "batch_size": BATCH_SIZES[sampler]}
    own["sampling"] = {**paper["sampling"], "max_response_tokens": longest}
    return Benchmark.model_validate({**paper, **own, **given})


def evaluate_model(
    model: str, benchmark: str, *, sampler: str, out: Path | None, fetch: Fetch, **counts: int | None
) -> str:
    """Evaluate a model; return a table of its scores. An interrupted evaluation is resumed by the same call.

    Args:
        model: a directory with a Hugging Face checkpoint, or `OWNER/NAME@REVISION` of the hub (40 digits).
        benchmark: name of a public benchmark; sampler and counts change its settings, see `paper_settings`.
        out: parent of `<benchmark>-<hash8>`, the directory of responses and scores; None:
            `results/standalone/<name of the model>`.
        fetch: the source of models and data.

    Raises:
        ValueError: no such model or benchmark, or responses of another sampler or model are in that directory.
    """
    settings = paper_settings(benchmark, sampler=sampler, **counts)
    directory = model_directory(model, fetch)
    name = directory.resolve().name if Path(model).is_dir() else model.replace("/", "--")
    out = out or Path("results/standalone") / name
    logger.info(
        "%s on %s: %s, sampler %s, at most %d tokens an output; into %s",
        *(name, settings.name, f"at most {settings.limit} cases" if settings.limit else "all cases", settings.sampler),
        *(settings.sampling.max_response_tokens, out),
    )
    evaluation = out / evaluation_id(settings)
    with directory_lock(out / ".lock"):
        cases_dir = bfcl_v4.data_directory() if benchmark == bfcl_v4.NAME else _prepared_cases(benchmark, out, fetch)
        generate_checkpoints({0: directory}, settings, cases_dir, evaluation)
        score_checkpoints(evaluation, [0], settings, cases_dir)
    frame = read_scores(evaluation, benchmark, 0)
    counted = f"{frame['case'].nunique()} cases, {len(frame)} responses ({evaluation / SCORE_TABLE})"
    table = scores_table(summarise(frame, benchmark), (name, benchmark))
    remarks = _remarks(benchmark, set(frame["category"]), evaluation / SCORES)
    return "\n\n".join([f"{model} on {benchmark}: {counted}", table, *remarks])


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


def _prepared_cases(benchmark: str, out: Path, fetch: Fetch) -> Path:
    """Return the directory of the cases, prepared once in `out`; those of BFCL-v4 are in an installed package."""
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
        low, high = ends[name]
        factor, unit = (1, "  ") if name in definition(key[1]).plain_numbers else (100, " %")
        interval = "" if low is None or low == high else f"{factor * low:6.2f} to {factor * high:6.2f}"
        value = f"{factor * metric.score:6.2f}{unit}"
        rows.append(f"| {name:<{width}} | {value} | {interval:<16} | {len(metric.values):5d} |")
    return "\n".join(rows)

"""Responses of checkpoints: resuming, identity, parts, and errors that say what is wrong."""

import gzip
import json
import logging
import time
from pathlib import Path

import pytest

from dara.config import Benchmark
from dara.evaluation.generate import (
    Part,
    checkpoint_checksums,
    differences,
    gather,
    generate_checkpoints,
    response_identity,
)
from dara.evaluation.grading import read_scores, score_checkpoints, summarise
from dara.evaluation.records import IDENTITY, RESPONSES, SCORES, read_responses, responses_path
from dara.evaluation.samplers import Progress
from dara.registries import definition
from dara.runs import evaluation_id
from evaluation_fakes import FakeSampler, benchmark, write_cases, write_checkpoints


class Job:
    """One evaluation of a run on the laptop's math, in a folder of its own."""

    def __init__(self, folder: Path, steps: list[int], run: str = "run", **changes: object) -> None:
        self.cases, self.spec = folder / "cases", benchmark("laptop_math", **changes)
        self.answers = write_cases("laptop_math", self.cases)
        self.checkpoints = write_checkpoints(folder, steps)
        self.out = folder / "scores" / run / evaluation_id(self.spec)

    def generate(self, sampler: FakeSampler, steps: list[int] | None = None, part: Part | None = None) -> int:
        """Generate; returns how many checkpoints the sampler was asked about."""
        before = sampler.calls
        chosen = {step: self.checkpoints[step] for step in steps or self.checkpoints}
        generate_checkpoints(chosen, self.spec, self.cases, self.out, make_sampler=sampler, part=part)
        return sampler.calls - before

    def gather(self) -> None:
        gather(list(self.checkpoints), self.spec, self.cases, self.out)

    def files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.out.iterdir() if path.is_file()}

    def manifest(self) -> dict:
        return json.loads((self.out / RESPONSES).read_text())


@pytest.mark.parametrize(("name", "average"), [("laptop_tools", "average_accuracy"), ("laptop_math", "acc")])
def test_right_answers_score_one_and_wrong_ones_zero(name: str, average: str, tmp_path: Path) -> None:
    cases, out = tmp_path / "cases", tmp_path / "scores" / "run" / name
    answers = write_cases(name, cases)
    spec = benchmark(name, samples=2)
    checkpoints = write_checkpoints(tmp_path, [10, 20])
    sampler = FakeSampler(lambda prompt: answers[prompt] if sampler.used[-1] == "step_20" else "nothing")
    generate_checkpoints(checkpoints, spec, cases, out, make_sampler=sampler)
    assert (sampler.used, sampler.closed) == (["step_10", "step_20"], 1)  # one for all, closed at the end
    score_checkpoints(out, [10, 20], spec, cases)
    nothing, right = (read_scores(out, name, step) for step in (10, 20))
    assert len(right) == 48
    assert summarise(nothing, name)[average].score == 0.0
    assert summarise(right, name)[average].score == pytest.approx(1.0)
    assert len(summarise(right, name)[average].values) == 24
    if name == "laptop_tools":
        assert summarise(nothing, name)["decode_error_rate"].score == 1.0
        assert summarise(right, name)["average_format"].score == pytest.approx(1.0)
    else:
        assert summarise(right, name)["joint"].score == 1.0


def test_a_second_call_generates_nothing_and_files_are_the_same_bytes(tmp_path: Path) -> None:
    job, sampler = Job(tmp_path, [10, 20]), FakeSampler(str.upper)
    assert job.generate(sampler) == 2
    before = job.files()
    assert sorted(before) == [IDENTITY, RESPONSES, "step_10.jsonl.gz", "step_20.jsonl.gz"]
    assert job.generate(sampler) == 0
    for name in before:
        (job.out / name).unlink()
    assert job.generate(sampler) == 2
    assert job.files() == before
    (job.out / RESPONSES).unlink()  # Snakemake deletes the output of a job that it runs again
    assert job.generate(sampler) == 0
    assert job.files() == before


class Killed(RuntimeError):
    """What ends a sampler in the middle."""


class Dying(FakeSampler):
    """Ends at its third checkpoint."""

    def generate(self, *args: object) -> list:
        if self.calls == 2:
            raise Killed
        return super().generate(*args)


def test_a_killed_evaluation_goes_on_where_it_was(tmp_path: Path) -> None:
    job = Job(tmp_path, [10, 20, 30])
    with pytest.raises(Killed):
        job.generate(Dying(str.upper))
    assert not (job.out / RESPONSES).exists()
    responses_path(job.out, 20).write_bytes(b"damaged")
    assert job.generate(FakeSampler(str.upper)) == 2  # the damaged one and the missing one
    assert (job.out / RESPONSES).exists()


def test_responses_of_another_identity_are_neither_taken_nor_deleted(tmp_path: Path) -> None:
    job, other = Job(tmp_path, [10, 20, 30]), FakeSampler(str.lower, identity="cpu")
    with pytest.raises(Killed):
        job.generate(Dying(str.upper, identity="cuda"))
    before = job.files()
    for part in (None, Part(2, 2)):
        with pytest.raises(ValueError) as error:
            job.generate(other, part=part)
        assert str(error.value) == (
            f"{job.out / IDENTITY}: these responses were made with another sampler.sampler ('cuda' there, 'cpu' here); "
            f"use the settings they were made with, or, when no other job runs, delete {job.out} to make them again"
        )
    (job.checkpoints[10] / "model.safetensors").write_bytes(b"trained again")
    with pytest.raises(ValueError, match=r"made with another checkpoints\.10\.model\.safetensors \("):
        job.generate(FakeSampler(str.upper, identity="cuda"))
    assert (other.calls, job.files()) == (0, before)
    (job.out / IDENTITY).unlink()
    with pytest.raises(ValueError, match=r"step_10.jsonl.gz: nothing says what made these responses .* delete"):
        job.generate(other)


def test_other_settings_have_another_directory_and_other_scoring_has_not() -> None:
    spec = benchmark("laptop_math")
    names = [evaluation_id(benchmark("laptop_math", **changes)) for changes in ({"seed": 1}, {"samples": 2})]
    assert len({evaluation_id(spec), *names}) == 3
    assert evaluation_id(benchmark("laptop_math", length_limit=99, seconds=77.0)) == evaluation_id(spec)
    # The directories of results/cached have this name: a change of it loses them all.
    kept = {"samples": 4, "seed": 0, "batch_size": 400, "length_limit": 23}
    kept["sampling"] = {"temperature": 0.6, "top_p": 0.95, "max_response_tokens": 64}
    assert evaluation_id(Benchmark(name="laptop_math", **kept)) == "laptop_math-6b6166d6"


def test_more_checkpoints_are_added_to_finished_ones(tmp_path: Path) -> None:
    job, sampler = Job(tmp_path, [10, 20, 30]), FakeSampler(str.upper)
    assert job.generate(sampler, [20]) == 1
    whole = job.manifest()
    assert [job.generate(sampler, part=Part(number, 2)) for number in (1, 2)] == [2, 0]  # 10 and 30; 20 is there
    job.gather()
    assert [*job.manifest()["checkpoints"]] == ["10", "20", "30"]
    assert job.manifest()["checkpoints"]["20"] == whole["checkpoints"]["20"]
    assert job.generate(sampler, [20]) == 0  # less is asked for: what there is stays
    assert [*job.manifest()["checkpoints"]] == ["10", "20", "30"]


def test_only_steps_that_are_there_are_in_the_manifest(tmp_path: Path) -> None:
    """A job that was killed planned more of them."""
    job = Job(tmp_path, [10, 20, 30])
    with pytest.raises(Killed):
        job.generate(Dying(str.upper))
    job.generate(FakeSampler(str.upper), [10])
    assert [*job.manifest()["checkpoints"]] == ["10", "20"]


def test_a_run_without_a_checkpoint_has_an_identity_and_no_scores(tmp_path: Path) -> None:
    """It diverged before its first checkpoint, which is an outcome; the workflow goes on."""
    job, other = Job(tmp_path, []), Job(tmp_path / "other", [10])
    for one in (job, other):
        one.generate(FakeSampler(str.upper))
    assert job.manifest() == {**other.manifest(), "checkpoints": {}}
    score_checkpoints(job.out, [], job.spec, job.cases)
    assert json.loads((job.out / SCORES).read_text())["steps"] == []


@pytest.mark.parametrize(
    ("run", "command"),
    [
        ("math-tiny-gdpo", "snakemake --force .*laptop/runs/math-tiny-gdpo/manifest.json"),
        ("base-tiny-1234", "snakemake --force .*laptop/models/tiny-1234/manifest.json"),
    ],
)
def test_a_missing_checkpoint_says_what_makes_it_again(run: str, command: str, tmp_path: Path) -> None:
    job = Job(tmp_path / "laptop", [10], run)
    (job.checkpoints[10] / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=rf"step_10: the checkpoint of step 10 of {run} is missing.*{command}"):
        job.generate(FakeSampler(str.upper))


def test_wrong_response_files_name_file_and_row(tmp_path: Path) -> None:
    job = Job(tmp_path, [10])

    def refused(message: str) -> None:
        with pytest.raises(ValueError, match=message):
            score_checkpoints(job.out, [10], job.spec, job.cases)

    refused(r"responses.json: the file does not exist; responses are generated")
    job.generate(FakeSampler(str.upper))
    path = responses_path(job.out, 10)
    lines = gzip.decompress(path.read_bytes()).decode().splitlines(keepends=True)
    for content, message in (
        ([lines[0], lines[0]], "row 2: is case 'sum_0', sample 0; expected case 'sum_1', sample 0"),
        (lines[:-1], "has 23 rows; 24 cases x 1 samples need 24"),
        ([lines[0].replace("20", '"20"')], "row 1: n_tokens must be int, not '20'"),
        (["[]\n"], "row 1: must be an object with step, case, sample, response, n_tokens, finished; it is "),
        (['{"step'], "row 1: not valid JSON"),
    ):
        path.write_bytes(gzip.compress("".join(content).encode()))
        with pytest.raises(ValueError, match=rf"step_10.jsonl.gz.*{message}"):
            read_responses(path, definition("laptop_math").load_cases(job.cases), 1)
    with (job.cases / "problems.jsonl").open("a") as stream:
        stream.write('{"id": "new", "prompt": "p", "answer": "1"}\n')
    refused(r"problems.jsonl changed since .* was written; generate the responses again")


def test_jobs_that_share_the_checkpoints_make_what_one_job_makes(tmp_path):
    one, shared = Job(tmp_path / "one", [10, 20, 30]), Job(tmp_path / "shared", [10, 20, 30])
    one.generate(FakeSampler(str.upper))
    assert shared.generate(FakeSampler(str.upper), part=Part(2, 2)) == 1
    with pytest.raises(ValueError, match=r"2 of 3 response files of run are missing.*step_10.*delete .*part\*\.done"):
        shared.gather()
    assert not (shared.out / RESPONSES).exists()
    assert shared.generate(FakeSampler(str.upper), part=Part(1, 2)) == 2
    for _ in range(2):  # Snakemake deletes the output of a job that it runs again
        shared.gather()
        assert shared.files() == one.files()
        (shared.out / RESPONSES).unlink()
    assert shared.generate(FakeSampler(str.upper), part=Part(2, 2)) == 0  # a part that is run again


def test_a_job_whose_directory_another_evaluation_took_writes_nothing_more(tmp_path):
    job = Job(tmp_path, [10, 20])

    class Deleted(FakeSampler):
        def generate(self, *args: object) -> list:
            (job.out / IDENTITY).unlink()
            return super().generate(*args)

    class Replaced(FakeSampler):
        def generate(self, *args: object) -> list:
            (job.out / IDENTITY).unlink()
            job.generate(FakeSampler(str.lower, identity="other"), [20])
            return super().generate(*args)

    with pytest.raises(ValueError, match="was deleted while this job made responses"):
        job.generate(Deleted(str.upper))
    with pytest.raises(
        ValueError, match=r"another job has begun this evaluation with another sampler.sampler \('other' "
    ):
        job.generate(Replaced(str.upper), [10])
    assert sorted(path.name for path in job.out.glob("step_*")) == ["step_20.jsonl.gz"]


def test_differences_name_what_stands_where():
    there = {"seed": 0, "sampler": {"device": "cuda", "vllm": "vllm 1"}, "checkpoints": {"10": {"a": "x" * 64}}}
    assert differences(there, there) == ""
    assert differences(there, {**there, "seed": 1, "sampler": {"device": "cpu", "vllm": "vllm 1"}}) == (
        "sampler.device ('cuda' there, 'cpu' here), seed (0 there, 1 here)"
    )
    missing = f"checkpoints.10.a ('{'x' * 39} there, nothing here)"
    assert differences(there, {**there, "checkpoints": {"10": {}}}) == missing
    assert differences(there, {**there, "checkpoints": {}}) == ""  # only one of them has it
    others = {key: number for number, key in enumerate("abcd")}
    assert differences(there, {**others, "checkpoints": there["checkpoints"]}).endswith(", 3 more")


def test_what_decides_a_response_besides_the_weights_is_in_the_identity(tmp_path):
    checkpoints = write_checkpoints(tmp_path, [10, 20])
    settings = ["added_tokens.json", "chat_template.jinja", "config.json", "generation_config.json", "merges.txt",
                "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.json"]  # fmt: skip
    for name in [*settings, "trainer_state.json", "README.md"]:
        (checkpoints[10] / name).write_text("{}")
    computed = checkpoint_checksums(checkpoints, {})
    assert sorted(computed[10]) == sorted(["model.safetensors", *settings])
    # What a manifest has is not computed again, and what is not there is not taken from it.
    known = {10: {"model.safetensors": "0" * 64}, 20: {"config.json": "1" * 64}}
    assert checkpoint_checksums(checkpoints, known) == {
        10: {**computed[10], "model.safetensors": "0" * 64},
        20: computed[20],
    }
    write_cases("laptop_math", tmp_path)
    assert "tools" not in response_identity(benchmark("laptop_math"), tmp_path, computed, FakeSampler(str.upper))


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0"])
def test_a_part_is_one_of_its_number(text):
    with pytest.raises(ValueError, match="it must be K/N with K from 1 to N, such as 2/5"):
        Part.parse(text)


@pytest.mark.parametrize(
    ("clock", "work", "lines"),
    [
        (  # a batch of long outputs takes many minutes, in which a sampler reports its tokens alone
            [0.0, 30.0, 59.0, 60.0, 61.0, 120.0, 130.0],
            [("made", 1000, 0), ("made", 200, 0), ("made", 30, 1), ("made", 4, 0), ("made", 5000, 0), ("advance", 2)],
            [
                "run: [##                  ] 10%, 22 of 220, 1 outputs and 1,230 tokens in 60 s",
                "run: [##                  ] 10%, 22 of 220, 1 outputs and 6,234 tokens in 120 s",
                "run: [##                  ] 11%, 24 of 220, 1 outputs and 6,234 tokens in 130 s, about 12740 s left",
            ],
        ),
        (  # dialogues run side by side for long before the first one ends
            [0.0, 6.0, 59.0, 61.0, 100.0, 122.0, 128.0],
            [("advance", 0)] * 5 + [("advance", 99)],
            [
                "run: [##                  ] 10%, 22 of 220, since 61 s",
                "run: [##                  ] 10%, 22 of 220, since 122 s",
                "run: [###########         ] 55%, 121 of 220, about 128 s left",
            ],
        ),
        (
            [0.0, 10.0, 20.0],
            [("advance", 98), ("advance", 100)],
            [
                "run: [###########         ] 55%, 120 of 220, about 10 s left",
                "run: [####################] 100%, 220 of 220, about 0 s left",
            ],
        ),
    ],
)
def test_progress_is_logged_now_and_then(clock, work, lines, caplog, monkeypatch):
    monkeypatch.setattr(time, "monotonic", lambda: clock.pop(0))
    caplog.set_level("INFO", "progress")
    progress = Progress(logging.getLogger("progress"), "run", 220, done=22)
    for method, *numbers in work:
        getattr(progress, method)(*numbers)
    assert caplog.messages == lines

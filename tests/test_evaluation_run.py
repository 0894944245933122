"""From checkpoints to score files: resuming, identity, determinism, and errors that say what is wrong."""

import gzip
import json
from pathlib import Path

import pytest

from dara.evaluation.generate import Part, _checksums, gather, generate_checkpoints
from dara.evaluation.score import read_scores, responses_path, score_checkpoints, scores_path, summarise
from evaluation_fakes import FakeSampler, benchmark, write_cases, write_checkpoints


@pytest.mark.parametrize(("name", "average"), [("laptop_tools", "average_accuracy"), ("laptop_math", "acc")])
def test_right_answers_score_one_and_wrong_ones_zero(name: str, average: str, tmp_path: Path) -> None:
    cases, out = tmp_path / "cases", tmp_path / "scores" / "run"
    answers = write_cases(name, cases)
    spec = benchmark(name, samples=2)
    checkpoints = write_checkpoints(tmp_path, [10, 20])
    samplers = {10: FakeSampler(lambda prompt: "nothing"), 20: FakeSampler(answers.__getitem__)}
    generate_checkpoints(
        checkpoints, spec, cases, out, make_sampler=lambda path, _: samplers[int(path.name.removeprefix("step_"))]
    )
    score_checkpoints(out, [10, 20], spec, cases)
    nothing, right = (read_scores(scores_path(out, step, name), name) for step in (10, 20))
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
    cases, out = tmp_path / "cases", tmp_path / "scores" / "run"
    write_cases("laptop_math", cases)
    checkpoints = write_checkpoints(tmp_path, [10, 20])
    sampler = FakeSampler(str.upper)
    generate_checkpoints(checkpoints, benchmark("laptop_math"), cases, out, make_sampler=sampler)
    assert sampler.calls == 2
    paths = sorted(path for path in out.rglob("*") if path.is_file())
    names = ["laptop_math.identity.json", "step_10/laptop_math.jsonl.gz", "step_20/laptop_math.jsonl.gz"]
    assert [path.relative_to(out).as_posix() for path in paths] == names
    before = [path.read_bytes() for path in paths]
    generate_checkpoints(checkpoints, benchmark("laptop_math"), cases, out, make_sampler=sampler)
    assert sampler.calls == 2
    for path in paths:
        path.unlink()
    generate_checkpoints(checkpoints, benchmark("laptop_math"), cases, out, make_sampler=sampler)
    assert [path.read_bytes() for path in paths] == before


class Killed(RuntimeError):
    """What ends a sampler in the middle."""


def test_a_killed_evaluation_goes_on_where_it_was(tmp_path: Path) -> None:
    cases, out = tmp_path / "cases", tmp_path / "scores" / "run"
    write_cases("laptop_math", cases)
    checkpoints = write_checkpoints(tmp_path, [10, 20, 30])

    class Dying(FakeSampler):
        def generate(self, *args: object) -> list:
            if self.calls == 2:
                raise Killed
            return super().generate(*args)

    with pytest.raises(Killed):
        generate_checkpoints(checkpoints, benchmark("laptop_math"), cases, out, make_sampler=Dying(str.upper))
    assert not (out / "laptop_math.identity.json").exists()
    responses_path(out, 20, "laptop_math").write_bytes(b"damaged")
    again = FakeSampler(str.upper)
    generate_checkpoints(checkpoints, benchmark("laptop_math"), cases, out, make_sampler=again)
    assert again.calls == 2  # the damaged one and the missing one
    assert (out / "laptop_math.identity.json").exists()
    # Unfinished work of other settings is not taken.
    (out / "laptop_math.identity.json").rename(out / ".laptop_math.identity.unfinished.json")
    other = FakeSampler(str.lower, identity="other")
    generate_checkpoints(checkpoints, benchmark("laptop_math"), cases, out, make_sampler=other)
    assert other.calls == 3


def test_finished_responses_of_other_settings_are_not_mixed_in_after_a_kill(tmp_path: Path) -> None:
    """Snakemake deletes the identity, its output, when the settings change; the responses stay."""
    cases, out = tmp_path / "cases", tmp_path / "scores" / "run"
    write_cases("laptop_math", cases)
    checkpoints = write_checkpoints(tmp_path, [10, 20])
    generate_checkpoints(checkpoints, benchmark("laptop_math"), cases, out, make_sampler=FakeSampler(str.upper))
    (out / "laptop_math.identity.json").unlink()

    class Dying(FakeSampler):
        def generate(self, *args: object) -> list:
            raise Killed

    with pytest.raises(Killed):
        generate_checkpoints(checkpoints, benchmark("laptop_math", seed=1), cases, out, make_sampler=Dying(str.lower))
    again = FakeSampler(str.lower)
    generate_checkpoints(checkpoints, benchmark("laptop_math", seed=1), cases, out, make_sampler=again)
    assert again.calls == 2


def test_a_run_without_a_checkpoint_has_an_identity_and_no_scores(tmp_path: Path) -> None:
    """It diverged before its first checkpoint, which is an outcome; the workflow goes on."""
    cases, out = tmp_path / "cases", tmp_path / "scores" / "run"
    write_cases("laptop_math", cases)
    spec = benchmark("laptop_math")
    sampler = FakeSampler(str.upper)
    generate_checkpoints({}, spec, cases, out, make_sampler=sampler)
    generate_checkpoints(write_checkpoints(tmp_path, [10]), spec, cases, tmp_path / "other", make_sampler=sampler)
    empty, other = (json.loads((path / "laptop_math.identity.json").read_text()) for path in (out, tmp_path / "other"))
    assert empty == {**other, "checkpoints": {}}
    score_checkpoints(out, [], spec, cases)
    assert not list(out.glob("step_*"))


def test_finished_responses_of_another_identity_are_an_error(tmp_path: Path) -> None:
    cases, out = tmp_path / "cases", tmp_path / "scores" / "run"
    write_cases("laptop_math", cases)
    checkpoints = write_checkpoints(tmp_path, [10])
    sampler = FakeSampler(str.upper)
    generate_checkpoints(checkpoints, benchmark("laptop_math"), cases, out, make_sampler=sampler)
    identity = json.loads((out / "laptop_math.identity.json").read_text())
    assert identity["sampler"] == {"sampler": "fake"}
    assert set(identity["cases"]) == {"problems.jsonl"}
    assert set(identity["checkpoints"]["10"]) == {"model.safetensors"}
    with pytest.raises(ValueError, match=r"made with another seed; delete .*run"):
        generate_checkpoints(checkpoints, benchmark("laptop_math", seed=1), cases, out, make_sampler=sampler)
    (checkpoints[10] / "model.safetensors").write_bytes(b"trained again")
    with pytest.raises(ValueError, match="made with another checkpoints"):
        generate_checkpoints(checkpoints, benchmark("laptop_math"), cases, out, make_sampler=sampler)


@pytest.mark.parametrize(
    ("run", "command"),
    [
        ("math-tiny-gdpo", "snakemake --force .*laptop/runs/math-tiny-gdpo/manifest.json"),
        ("base-tiny-1234", "snakemake --force .*laptop/models/tiny-1234/manifest.json"),
    ],
)
def test_a_missing_checkpoint_says_what_makes_it_again(run: str, command: str, tmp_path: Path) -> None:
    write_cases("laptop_math", tmp_path / "cases")
    out = tmp_path / "laptop" / "scores" / run
    with pytest.raises(ValueError, match=rf"step_10: the checkpoint of step 10 of {run} is missing.*{command}"):
        generate_checkpoints({10: tmp_path / "step_10"}, benchmark("laptop_math"), tmp_path / "cases", out, FakeSampler)


def test_wrong_response_files_name_file_and_row(tmp_path: Path) -> None:
    cases, out = tmp_path / "cases", tmp_path / "scores" / "run"
    write_cases("laptop_math", cases)
    spec = benchmark("laptop_math")
    with pytest.raises(
        ValueError, match=r"laptop_math.identity.json: the file does not exist; responses are generated"
    ):
        score_checkpoints(out, [10], spec, cases)
    generate_checkpoints(write_checkpoints(tmp_path, [10]), spec, cases, out, make_sampler=FakeSampler(str.upper))
    path = responses_path(out, 10, "laptop_math")
    lines = gzip.decompress(path.read_bytes()).decode().splitlines(keepends=True)

    def broken(content: list[str], message: str) -> None:
        path.write_bytes(gzip.compress("".join(content).encode()))
        with pytest.raises(ValueError, match=rf"step_10/laptop_math.jsonl.gz.*{message}"):
            score_checkpoints(out, [10], spec, cases)

    broken([lines[0], lines[0]], "row 2: is case 'sum_0', sample 0; expected case 'sum_1', sample 0")
    broken(lines[:-1], "has 23 rows; 24 cases x 1 samples need 24")
    broken([lines[0].replace("20", '"20"')], "row 1: n_tokens must be int, not '20'")
    with (cases / "problems.jsonl").open("a") as stream:
        stream.write('{"id": "new", "prompt": "p", "answer": "1"}\n')
    with pytest.raises(ValueError, match=r"problems.jsonl changed since .*identity.json was written"):
        score_checkpoints(out, [10], spec, cases)


def test_scores_are_a_row_a_response_in_the_order_of_the_cases(tmp_path: Path) -> None:
    cases, out = tmp_path / "cases", tmp_path / "scores" / "run"
    answers = write_cases("laptop_math", cases, rows=3)
    spec = benchmark("laptop_math")
    sampler = FakeSampler(lambda prompt: answers[prompt] if prompt != list(answers)[1] else "", n_tokens=24)
    generate_checkpoints(write_checkpoints(tmp_path, [0]), spec, cases, out, make_sampler=sampler)
    score_checkpoints(out, [0], spec, cases)
    assert scores_path(out, 0, "laptop_math").read_text() == (
        "case,category,sample,strict,strict_or_numeric,math_verify,exceed,joint,truncated,n_tokens,outcome\n"
        "sum_0,laptop_math,0,1,1,1,1,0,0,24,ok\n"
        "sum_1,laptop_math,0,0,0,0,1,0,0,24,ok\n"
        "sum_2,laptop_math,0,1,1,1,1,0,0,24,ok\n"
    )
    with pytest.raises(ValueError, match="the columns must be case, category, sample, accuracy"):
        read_scores(scores_path(out, 0, "laptop_math"), "laptop_tools")


def test_jobs_that_share_the_checkpoints_make_what_one_job_makes(tmp_path):
    cases, one, shared = tmp_path / "cases", tmp_path / "one" / "run", tmp_path / "shared" / "run"
    write_cases("laptop_math", cases)
    checkpoints, spec = write_checkpoints(tmp_path, [10, 20, 30]), benchmark("laptop_math")
    generate_checkpoints(checkpoints, spec, cases, one, make_sampler=FakeSampler(str.upper))
    made = []
    for number in (2, 1):
        sampler = FakeSampler(str.upper)
        generate_checkpoints(checkpoints, spec, cases, shared, make_sampler=sampler, part=Part(number, 2))
        made.append(sampler.calls)
        assert not (shared / "laptop_math.identity.json").exists()
    gather(list(checkpoints), spec, cases, shared)
    assert made == [1, 2]
    for name in ("laptop_math.identity.json", *(f"step_{step}/laptop_math.jsonl.gz" for step in checkpoints)):
        assert (shared / name).read_bytes() == (one / name).read_bytes()


def test_gathering_needs_no_sampler_and_can_be_made_again(tmp_path):
    cases, out = tmp_path / "cases", tmp_path / "run"
    write_cases("laptop_math", cases)
    checkpoints, spec = write_checkpoints(tmp_path, [10, 20]), benchmark("laptop_math")
    made = FakeSampler(str.upper, identity="cuda")
    generate_checkpoints(checkpoints, spec, cases, out, make_sampler=made, part=Part(1, 2))
    identity = out / "laptop_math.identity.json"
    with pytest.raises(ValueError, match=r"1 of 2 response files of run are missing.*step_20.*delete .*part\*\.done"):
        gather([10, 20], spec, cases, out)
    assert not identity.exists()
    generate_checkpoints(checkpoints, spec, cases, out, make_sampler=made, part=Part(2, 2))
    for _ in range(2):  # Snakemake deletes the output of a job that it runs again
        gather([10, 20], spec, cases, out)
        assert json.loads(identity.read_text())["sampler"] == {"sampler": "cuda"}
        identity.unlink()
    assert made.calls == 2
    generate_checkpoints(checkpoints, spec, cases, out, make_sampler=made, part=Part(2, 2))  # a part that is run again
    assert made.calls == 2


def test_checksums_that_a_manifest_has_are_not_computed_again(tmp_path):
    checkpoints = write_checkpoints(tmp_path, [10, 20])
    spec = benchmark("bfcl_v4")
    for path in checkpoints.values():
        (path / "tokenizer.json").write_text("{}")
    computed = _checksums(checkpoints, spec, {})
    assert sorted(computed[10]) == ["model.safetensors", "tokenizer.json"]
    known = {10: {"model.safetensors": "0" * 64, "config.json": "1" * 64}}
    assert _checksums(checkpoints, spec, known) == {
        10: {"model.safetensors": "0" * 64, "tokenizer.json": computed[10]["tokenizer.json"]},
        20: computed[20],
    }


def test_scores_do_not_outlive_their_responses(tmp_path):
    cases, out = tmp_path / "cases", tmp_path / "run"
    write_cases("laptop_math", cases)
    checkpoints, spec = write_checkpoints(tmp_path, [10]), benchmark("laptop_math")
    generate_checkpoints(checkpoints, spec, cases, out, make_sampler=FakeSampler(str.upper))
    score_checkpoints(out, [10], spec, cases)
    for name in ("laptop_math.scorer.json", "laptop_math.scored.json", "laptop_tools.scored.json"):
        (out / name).write_text("{}")
    generate_checkpoints(checkpoints, spec, cases, out, make_sampler=FakeSampler(str.upper))
    assert scores_path(out, 10, "laptop_math").is_file()  # nothing was made again
    (out / "laptop_math.identity.json").unlink()
    generate_checkpoints(checkpoints, benchmark("laptop_math", seed=1), cases, out, make_sampler=FakeSampler(str.lower))
    assert sorted(path.name for path in out.rglob("*") if path.is_file()) == [
        "laptop_math.identity.json", "laptop_math.jsonl.gz", "laptop_tools.scored.json"
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0"])
def test_a_part_is_one_of_its_number(text):
    with pytest.raises(ValueError, match="it must be K/N with K from 1 to N, such as 2/5"):
        Part.parse(text)

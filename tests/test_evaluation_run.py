"""From checkpoints to score files: resuming, identity, determinism, and errors that say what is wrong."""

import gzip
import json
from pathlib import Path

import pytest

from dara.evaluation.generate import Part, gather, generate_checkpoints
from dara.evaluation.identity import checksums, differences, response_identity
from dara.evaluation.partial import partial_path
from dara.evaluation.score import read_scores, responses_path, score_checkpoints, scores_path, summarise
from evaluation_fakes import FakeSampler, benchmark, write_cases, write_checkpoints


@pytest.mark.parametrize(("name", "average"), [("laptop_tools", "average_accuracy"), ("laptop_math", "acc")])
def test_right_answers_score_one_and_wrong_ones_zero(name: str, average: str, tmp_path: Path) -> None:
    cases, out = tmp_path / "cases", tmp_path / "scores" / "run"
    answers = write_cases(name, cases)
    spec = benchmark(name, samples=2)
    checkpoints = write_checkpoints(tmp_path, [10, 20])
    sampler = FakeSampler(lambda prompt: answers[prompt] if sampler.used[-1] == "step_20" else "nothing")
    generate_checkpoints(checkpoints, spec, cases, out, make_sampler=sampler)
    assert (sampler.used, sampler.closed) == (["step_10", "step_20"], 1)  # one for all, closed at the end
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
    # Finished checkpoints of unfinished work of other settings are neither taken nor deleted.
    (out / "laptop_math.identity.json").rename(out / ".laptop_math.identity.unfinished.json")
    other = FakeSampler(str.lower, identity="other")
    with pytest.raises(ValueError, match="this evaluation has responses already"):
        generate_checkpoints(checkpoints, benchmark("laptop_math"), cases, out, make_sampler=other)
    for path in out.glob("step_*/laptop_math.jsonl.gz"):
        path.unlink()
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


def test_more_checkpoints_are_added_to_finished_ones_of_the_same_settings(tmp_path: Path) -> None:
    cases, out = tmp_path / "cases", tmp_path / "scores" / "run"
    write_cases("laptop_math", cases)
    spec, made = benchmark("laptop_math"), write_checkpoints(tmp_path, [10, 20, 30])
    identity = out / "laptop_math.identity.json"

    def generate(steps: list[int], sampler: FakeSampler, part: Part | None = None, spec=spec) -> int:
        before = sampler.calls
        chosen = {step: made[step] for step in steps}
        generate_checkpoints(chosen, spec, cases, out, make_sampler=sampler, part=part)
        return sampler.calls - before

    sampler = FakeSampler(str.upper)
    assert generate([20], sampler) == 1
    whole = json.loads(identity.read_text())
    assert [generate([10, 20, 30], sampler, Part(number, 2)) for number in (1, 2)] == [2, 0]  # 10 and 30; 20 is there
    gather([10, 20, 30], spec, cases, out)
    assert [*json.loads(identity.read_text())["checkpoints"]] == ["10", "20", "30"]
    assert json.loads(identity.read_text())["checkpoints"]["20"] == whole["checkpoints"]["20"]
    assert generate([20], sampler) == 0  # less is asked for: what there is stays
    assert [*json.loads(identity.read_text())["checkpoints"]] == ["10", "20", "30"]
    with pytest.raises(ValueError, match=r"made with another seed \(0 there, 1 here\); delete"):
        generate([30], sampler, spec=benchmark("laptop_math", seed=1))
    (made[30] / "model.safetensors").write_bytes(b"trained again")
    with pytest.raises(ValueError, match=r"made with another checkpoints\.30\.model\.safetensors \("):
        generate([10, 30], sampler)


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
    with pytest.raises(ValueError, match=r"made with another seed \(0 there, 1 here\); delete .*run"):
        generate_checkpoints(checkpoints, benchmark("laptop_math", seed=1), cases, out, make_sampler=sampler)
    (checkpoints[10] / "model.safetensors").write_bytes(b"trained again")
    with pytest.raises(ValueError, match=r"made with another checkpoints\.10\.model\.safetensors"):
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


def test_a_part_of_another_identity_keeps_what_the_others_have_made(tmp_path):
    """A node without a visible GPU, or one that was upgraded, must not delete hours of the others."""
    cases, out = tmp_path / "cases", tmp_path / "run"
    write_cases("laptop_math", cases)
    checkpoints, spec = write_checkpoints(tmp_path, [10, 20, 30]), benchmark("laptop_math")
    made, other = FakeSampler(str.upper, identity="cuda"), FakeSampler(str.lower, identity="cpu")
    generate_checkpoints(checkpoints, spec, cases, out, make_sampler=made, part=Part(1, 2))
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    work = out / ".laptop_math.identity.unfinished.json"
    with pytest.raises(ValueError) as error:
        generate_checkpoints(checkpoints, spec, cases, out, make_sampler=other, part=Part(2, 2))
    assert str(error.value) == (
        f"{work}: this evaluation has responses already, or other parts make them, with another sampler.sampler ('cuda' "
        f"there, 'cpu' here) (the first: {out}/step_10/laptop_math.jsonl.gz); use the same settings, or, when no other "
        f"job runs, delete {work} and {out}/laptop_math.part*.done to make all responses again"
    )
    with pytest.raises(ValueError, match="this evaluation has responses already"):
        generate_checkpoints(checkpoints, spec, cases, out, make_sampler=other)  # all checkpoints in one job
    assert other.calls == 0
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    work.unlink()
    for number in (2, 1):  # as the message says: everything is made again
        generate_checkpoints(checkpoints, spec, cases, out, make_sampler=other, part=Part(number, 2))
    gather(list(checkpoints), spec, cases, out)
    assert other.calls == 3
    assert json.loads((out / "laptop_math.identity.json").read_text())["sampler"] == {"sampler": "cpu"}


def test_a_part_without_a_checkpoint_makes_nothing(tmp_path):
    cases, out = tmp_path / "cases", tmp_path / "run"
    write_cases("laptop_math", cases)
    sampler = FakeSampler(str.upper)
    checkpoints = write_checkpoints(tmp_path, [10, 20])
    generate_checkpoints(checkpoints, benchmark("laptop_math"), cases, out, make_sampler=sampler, part=Part(3, 3))
    assert (sampler.calls, sampler.used, list(out.rglob("*.gz"))) == (0, [], [])


def test_a_part_may_make_its_own_responses_again_in_another_way(tmp_path):
    cases, out = tmp_path / "cases", tmp_path / "run"
    write_cases("laptop_math", cases)
    checkpoints, spec = write_checkpoints(tmp_path, [10, 20]), benchmark("laptop_math")
    for sampler in (FakeSampler(str.upper, identity="cuda"), FakeSampler(str.lower, identity="cpu")):
        generate_checkpoints(checkpoints, spec, cases, out, make_sampler=sampler, part=Part(1, 2))
        assert sampler.calls == 1


def test_partial_responses_of_another_part_count_as_its_responses(tmp_path):
    cases, out = tmp_path / "cases", tmp_path / "run"
    write_cases("laptop_math", cases)
    checkpoints, spec = write_checkpoints(tmp_path, [10, 20]), benchmark("laptop_math")
    made, other = FakeSampler(str.upper, identity="cuda"), FakeSampler(str.lower, identity="cpu")
    generate_checkpoints(checkpoints, spec, cases, out, make_sampler=made, part=Part(1, 2))
    finished = responses_path(out, 10, "laptop_math")
    finished.rename(partial_path(finished))
    with pytest.raises(ValueError, match=r"the first: .*step_10/\.laptop_math\.jsonl\.partial"):
        generate_checkpoints(checkpoints, spec, cases, out, make_sampler=other, part=Part(2, 2))


@pytest.mark.parametrize("part", [None, Part(1, 2)])
def test_responses_are_not_written_under_an_identity_that_changed_meanwhile(part, tmp_path):
    cases, out = tmp_path / "cases", tmp_path / "run"
    write_cases("laptop_math", cases)
    checkpoints, spec = write_checkpoints(tmp_path, [10, 20]), benchmark("laptop_math")
    work = out / ".laptop_math.identity.unfinished.json"

    class Overtaken(FakeSampler):
        def generate(self, *args: object) -> list:
            work.write_text(work.read_text().replace("cuda", "cpu"))
            return super().generate(*args)

    sampler = Overtaken(str.upper, identity="cuda")
    with pytest.raises(ValueError, match=r"begun this evaluation with another sampler.sampler \('cpu' there, 'cuda'"):
        generate_checkpoints(checkpoints, spec, cases, out, make_sampler=sampler, part=part)
    assert not list(out.rglob("*.jsonl.gz"))

    class Deleted(FakeSampler):
        def generate(self, *args: object) -> list:
            work.unlink()
            return super().generate(*args)

    with pytest.raises(ValueError, match="was deleted while this job made responses"):
        generate_checkpoints(checkpoints, spec, cases, out, make_sampler=Deleted(str.upper), part=part)
    assert not list(out.rglob("*.jsonl.gz"))


def test_differences_name_what_stands_where():
    there = {"seed": 0, "sampler": {"device": "cuda", "vllm": "vllm 1"}, "checkpoints": {"10": {"a": "x" * 64}}}
    assert differences(there, there) == ""
    assert differences(there, {**there, "seed": 1, "sampler": {"device": "cpu", "vllm": "vllm 1"}}) == (
        "sampler.device ('cuda' there, 'cpu' here), seed (0 there, 1 here)"
    )
    missing = f"checkpoints.10.a ('{'x' * 39} there, nothing here)"
    assert differences(there, {**there, "checkpoints": {}}) == missing
    assert differences(there, {key: number for number, key in enumerate("abcd")}).endswith(", 4 more")


def test_what_decides_a_response_besides_the_weights_is_in_the_identity(tmp_path):
    (checkpoint,) = write_checkpoints(tmp_path, [10]).values()
    settings = ["added_tokens.json", "chat_template.jinja", "config.json", "generation_config.json", "merges.txt",
                "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.json"]  # fmt: skip
    for name in [*settings, "trainer_state.json", "README.md"]:
        (checkpoint / name).write_text("{}")
    assert sorted(checksums({10: checkpoint}, benchmark("bfcl_v4"), {})[10]) == sorted(["model.safetensors", *settings])
    # Cached scores have an identity of weights alone.
    assert sorted(checksums({10: checkpoint}, benchmark("laptop_math"), {})[10]) == ["model.safetensors"]


def test_how_tools_are_kept_in_is_in_the_identity_where_a_benchmark_has_tools(monkeypatch, tmp_path):
    from dara.evaluation import math

    write_cases("laptop_math", tmp_path)
    sampler = FakeSampler(str.upper)
    assert "tools" not in response_identity(benchmark("laptop_math"), tmp_path, {}, sampler)
    monkeypatch.setattr(math, "tools_identity", lambda: {"network": "reachable"}, raising=False)
    identity = response_identity(benchmark("laptop_math"), tmp_path, {}, sampler)
    assert identity["tools"] == {"network": "reachable"}


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
    computed = checksums(checkpoints, spec, {})
    assert sorted(computed[10]) == ["model.safetensors", "tokenizer.json"]
    known = {10: {"model.safetensors": "0" * 64, "config.json": "1" * 64}}
    assert checksums(checkpoints, spec, known) == {
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

"""Generation of BFCL-v4, response by response: kills, resuming, identity, and a whole way to a table."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

import dara.evaluation.generate as generate
from bfcl_v4_fakes import OracleSampler, ScriptedSampler, benchmark, real_cases
from dara.config import Benchmark
from dara.data.hub import Fetch
from dara.evaluation import bfcl_v4, engines, samplers
from dara.evaluation.bfcl import CATEGORIES
from dara.evaluation.generate import generate_checkpoints, response_journal
from dara.evaluation.records import (
    IDENTITY,
    RESPONSES,
    SCORES,
    Metric,
    Response,
    journal_path,
    read_responses,
    response_line,
    responses_path,
)
from dara.runs import evaluation_id
from dara.standalone import _remarks, evaluate_model, model_directory, paper_settings, scores_table
from evaluation_fakes import write_checkpoints
from oracle import oracle_response
from project import ROOT

SAID = "<think> I cannot. </think>\n<response> No. </response>"
CASES = 14


@pytest.fixture(autouse=True)
def few_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the cases once; they are the same in every test."""
    cases = real_cases(CASES)
    monkeypatch.setattr(bfcl_v4, "BFCL_V4", replace(bfcl_v4.BFCL_V4, load_cases=lambda folder: cases))


def run(folder: Path, sampler: ScriptedSampler, **changes: object) -> Path:
    """Responses of one checkpoint; the path of their file."""
    checkpoint = folder / "step_0"
    checkpoints = {0: checkpoint} if checkpoint.is_dir() else write_checkpoints(folder, [0])
    out = folder / "scores" / "run" / "bfcl_v4"
    generate_checkpoints(checkpoints, benchmark(**changes), bfcl_v4.data_directory(), out, make_sampler=sampler)
    return responses_path(out, 0)


def test_every_case_is_asked_and_kept_in_the_order_of_the_cases(tmp_path: Path) -> None:
    path = run(tmp_path, ScriptedSampler(lambda prompt, n: SAID))
    rows = read_responses(path, real_cases(CASES), 1)
    assert len(rows) == CASES
    turns = {row.case: row.turns for row in rows}
    assert [case for case, spoken in turns.items() if spoken is not None] == [
        "multi_turn_base_0", "multi_turn_miss_func_0", "multi_turn_miss_param_0", "multi_turn_long_context_0"
    ]  # fmt: skip
    assert set(turns["multi_turn_base_0"]) == {(SAID,)}
    assert not journal_path(path.parent, 0).exists()
    identity = json.loads((path.parent / RESPONSES).read_text())
    assert identity["versions"] == {"bfcl-eval": "2026.3.23", "prompt": 1, "tools": 3}
    assert identity["tools"]["network"] in ("isolated", "reachable")
    assert identity["limit"] == CASES
    assert len(identity["cases"]) == 36


def test_a_kill_loses_no_finished_case_and_none_is_made_twice(tmp_path: Path) -> None:
    straight = run(tmp_path / "straight", ScriptedSampler(lambda prompt, n: f"{SAID} {len(prompt)}"))
    total = ScriptedSampler(lambda prompt, n: "")
    run(tmp_path / "count", total)

    def dying(kind: type[BaseException], after: int) -> ScriptedSampler:
        def answer(prompt: str, n: int) -> str:
            if n == after:
                raise kind
            return f"{SAID} {len(prompt)}"

        return ScriptedSampler(answer)

    made = 0
    for kind, after in ((KeyboardInterrupt, 4), (SystemExit, 0), (RuntimeError, 7)):
        sampler = dying(kind, after)
        with pytest.raises(kind):
            run(tmp_path / "killed", sampler)
        out = tmp_path / "killed" / "scores" / "run" / "bfcl_v4"
        assert (out / IDENTITY).is_file()
        assert not (out / RESPONSES).exists()
        assert not responses_path(out, 0).exists()
        kept = journal_path(out, 0).read_text().splitlines()
        assert len(kept) == len({json.loads(line)["case"] for line in kept}) >= made
        made = len(kept)
    assert made > 4
    last = ScriptedSampler(lambda prompt, n: f"{SAID} {len(prompt)}")
    path = run(tmp_path / "killed", last)
    assert path.read_bytes() == straight.read_bytes()
    assert last.answered < total.answered
    again = ScriptedSampler(lambda prompt, n: "")
    run(tmp_path / "killed", again)
    assert again.answered == 0


def test_a_journal_of_responses_is_read_back(tmp_path: Path) -> None:
    path = journal_path(tmp_path, 7)
    said = {("a", 0): Response("x", 1, True), ("b", 1): Response("", 7, False, (("p", "q"), ()), "context_overflow", 2)}
    with response_journal(path) as work:
        for place, response in said.items():
            work.add(place, response, response_line(7, *place, response))
    with response_journal(path) as work:
        assert work.done == said
    path.write_bytes(b'{"case": "a"}\n')
    with pytest.raises(ValueError, match="row 1: must be an object with step, case, sample"):
        response_journal(path)


def test_gold_answers_go_through_the_dialogues_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is taken apart into outputs, its calls are really executed, and it comes together again."""
    cases = real_cases(42)
    monkeypatch.setattr(bfcl_v4, "BFCL_V4", replace(bfcl_v4.BFCL_V4, load_cases=lambda folder: cases))
    path = run(tmp_path, OracleSampler(cases), limit=42)
    for row, case in zip(read_responses(path, cases, 1), cases, strict=True):
        assert row.answer == oracle_response(case)


def test_long_outputs_show_what_was_made_before_anything_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(samplers, "QUIET_SECONDS", 0.0)
    caplog.set_level("INFO", "dara.evaluation.generate")

    class Slow(ScriptedSampler):
        def session(
            self, sampling: object, max_context: int | None, tell: Callable[[int, int], None]
        ) -> ScriptedSampler:
            self._tell = tell
            return super().session(sampling, max_context)

        def poll(self) -> list:
            self._tell(1500, 0)
            return super().poll()

    run(tmp_path, Slow(lambda prompt, n: SAID))
    assert caplog.messages[0] == (
        "run, bfcl_v4: step 0 (1 of 1): [                    ] 0%, 0 of 14, 0 outputs and 1,500 tokens in 0 s"
    )


def test_several_samples_of_a_dialogue_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="samples is 2; bfcl_v4 has one trajectory a case"):
        run(tmp_path, ScriptedSampler(lambda prompt, n: SAID), samples=2)


CHILD = """
    import sys, time
    from pathlib import Path
    from bfcl_v4_fakes import OracleSampler, ScriptedSampler, benchmark
    from dara.evaluation import bfcl_v4
    from dara.evaluation.generate import generate_checkpoints, response_journal

    folder, slow_after = Path(sys.argv[1]), int(sys.argv[2])

    def answer(prompt, n):
        if n == slow_after:
            print("hanging", flush=True)
            time.sleep(1000)
        return f"said {len(prompt)}"

    out = folder / "scores" / "run" / "bfcl_v4"
    generate_checkpoints(
        {0: folder / "step_0"}, benchmark(), bfcl_v4.data_directory(), out, make_sampler=ScriptedSampler(answer)
    )
"""


@pytest.mark.slow
def test_a_process_that_is_killed_outright_goes_on_where_it_was(tmp_path: Path) -> None:
    write_checkpoints(tmp_path, [0])
    path = responses_path(tmp_path / "scores" / "run" / "bfcl_v4", 0)
    journal = journal_path(path.parent, 0)

    def child(slow_after: int) -> subprocess.Popen:
        command = [sys.executable, "-c", textwrap.dedent(CHILD), str(tmp_path), str(slow_after)]
        folders = os.pathsep.join(str(Path(module.__file__).parents[up]) for module, up in ((generate, 2),))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((folders, str(Path(__file__).parent)))}
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    with child(slow_after=12) as killed:
        assert killed.stdout.readline() == "hanging\n"
        killed.send_signal(signal.SIGKILL)
    assert not path.exists()
    kept = journal.read_bytes()
    assert kept.count(b"\n") >= 4
    journal.write_bytes(kept + b'{"case": "multi_tu')  # as if the kill had come in the middle of a line
    with child(slow_after=-1) as again:
        assert again.wait() == 0
    rows = read_responses(path, real_cases(CASES), 1)
    assert len({row.case for row in rows}) == CASES
    straight = run(tmp_path / "straight", ScriptedSampler(lambda prompt, n: f"said {len(prompt)}"))
    assert straight.read_bytes() == path.read_bytes()


def write_model(folder: Path) -> Path:
    (checkpoint,) = write_checkpoints(folder, [0]).values()
    for name in ("config.json", "tokenizer.json"):
        (checkpoint / name).write_text("{}")
    return checkpoint


def test_a_model_is_evaluated_without_the_workflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = write_model(tmp_path)
    monkeypatch.setitem(engines.SAMPLERS, "transformers", ScriptedSampler(lambda prompt, n: SAID))
    fetch = Fetch(cache=tmp_path / "hub", lock=tmp_path / "lock.yaml")
    table = evaluate_model(
        str(checkpoint), "bfcl_v4", limit=CASES, sampler="transformers", out=tmp_path / "out", fetch=fetch
    )
    assert f"{checkpoint} on bfcl_v4: 14 cases, 14 responses" in table
    rows = {cells[1].strip(): cells[2].strip() for cells in (line.split("|") for line in table.splitlines()[2:])}
    assert rows["average_format"] == "100.00 %"
    assert rows["average_accuracy"] == "0.00 %"
    assert rows["decode_error_rate"] == "100.00 %"
    assert "No average" not in table


def test_a_first_look_says_which_averages_it_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = write_model(tmp_path)
    monkeypatch.setitem(engines.SAMPLERS, "transformers", ScriptedSampler(lambda prompt, n: SAID))
    fetch, out = Fetch(cache=tmp_path / "hub", lock=tmp_path / "lock.yaml"), tmp_path / "out"
    caplog.set_level("INFO")
    table = evaluate_model(str(checkpoint), "bfcl_v4", limit=12, sampler="transformers", out=out, fetch=fetch)
    assert caplog.messages[0] == (
        f"step_0 on bfcl_v4: at most 12 cases, sampler transformers, at most 8192 tokens an output; into {out}"
    )
    assert "average" not in table.partition("No average")[0]
    assert table.splitlines()[-1] == (
        "No average over what has no case here: multi_turn_miss_param, multi_turn_long_context. More cases, or all of "
        "them without --limit, have one."
    )
    record = out / evaluation_id(paper_settings("bfcl_v4", limit=12)) / SCORES
    record.write_text(record.read_text().replace("isolated", "reachable"))
    assert _remarks("bfcl_v4", CATEGORIES["bfcl_v4"], record) == [
        f"This system allows no network namespace, so the scorer could reach a network ({record})."
    ]


def test_the_table_has_intervals_and_what_is_no_share() -> None:
    strata = np.array(["a"] * 4, dtype=object)
    metrics = {
        "accuracy/x": Metric(np.array([0.0, 1.0, 1.0, 1.0]), strata, np.full(4, 1 / 4)),
        "joint/x": Metric(np.ones(4), strata, np.full(4, 1 / 4)),
        "think_words": Metric(np.array([12.0]), strata[:1], np.ones(1)),
    }
    assert scores_table(metrics, ("model", "bfcl_v4")).splitlines() == [
        "| metric      |    value | 95 % interval    | cases |",
        "|-------------|---------:|------------------|------:|",
        "| accuracy/x  |  75.00 % |  25.00 to 100.00 |     4 |",
        "| joint/x     | 100.00 % |                  |     4 |",
        "| think_words |  12.00   |                  |     1 |",
    ]


def test_settings_are_the_papers_except_for_what_is_given() -> None:
    settings = paper_settings("bfcl_v4", sampler="vllm")
    assert (settings.samples, settings.batch_size, settings.max_context, settings.max_steps) == (1, 64, 32768, 20)
    assert settings.sampling.model_dump() == {"temperature": 0.6, "top_p": 0.95, "max_response_tokens": 8192}
    short = paper_settings("math_five", samples=2, max_response_tokens=100, batch_size=3)
    assert (short.samples, short.sampling.max_response_tokens, short.batch_size, short.limit) == (2, 100, 3, None)
    for name, task in (("bfcl_v4", "tool_calling"), ("math_five", "math")):
        preset = yaml.safe_load((ROOT / "config" / "presets" / "paper.yaml").read_text())["tasks"][task]["benchmark"]
        planned = Benchmark.model_validate(preset).model_dump()
        ours = paper_settings(name, sampler="vllm").model_dump()
        assert {key for key in ours if ours[key] != planned[key]} <= {"batch_size", "tensor_parallel"}
    for option in ("limit", "samples", "batch_size", "max_response_tokens"):
        with pytest.raises(ValueError, match=f"^--{option.replace('_', '-')} 0: must be at least 1$"):
            paper_settings("bfcl_v4", **{option: 0})
    with pytest.raises(ValueError, match="--benchmark laptop_tools: must be one of bfcl_v4, math_five"):
        paper_settings("laptop_tools")
    with pytest.raises(ValueError, match="--sampler sglang: must be one of transformers, vllm"):
        paper_settings("bfcl_v4", sampler="sglang")


def test_a_model_is_a_directory_or_an_id_with_a_revision(tmp_path: Path) -> None:
    revision = "0123456789abcdef" * 2 + "01234567"
    name = "Qwen/Qwen2.5-1.5B-Instruct"
    fetch = SimpleNamespace(model=lambda hub, commit: Path(hub) / commit)
    checkpoint = write_model(tmp_path)
    assert model_directory(str(checkpoint), fetch) == checkpoint
    (checkpoint / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"step_0: has no tokenizer\*; a Hugging Face checkpoint"):
        model_directory(str(checkpoint), fetch)
    with pytest.raises(ValueError, match=r"has no config.json and no \*.safetensors and no tokenizer\*;"):
        model_directory(str(tmp_path), fetch)
    assert model_directory(f"{name}@{revision}", fetch) == Path(name) / revision
    for wrong in (name, "nowhere", f"{name}@{revision[:7]}"):
        with pytest.raises(ValueError, match=r"no such directory; give one .* or OWNER/NAME@REVISION"):
            model_directory(wrong, fetch)

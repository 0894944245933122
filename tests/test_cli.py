"""The `dara` command: what there is to choose from, mistakes in its own words, its inputs and its output."""

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import dara
from dara.analysis.figures import FIGURES, describe
from dara.cli import COMMANDS, FORMER, main
from dara.commands.look import KINDS
from dara.store import base_model, canonical_json, checkpoints
from dara.system import OutputError, whole_output
from dara.table_options import SIDE_BY_SIDE, TABLES
from evaluation_fakes import benchmark
from project import ROOT, environment
from training_tiny import tiny_spec


def said(capsys, *words: str) -> str:
    main(["--root", str(ROOT), *words])
    return capsys.readouterr().out


@pytest.mark.parametrize("kind", KINDS)
def test_everything_that_is_listed_has_a_name_and_a_line(capsys, kind):
    rows = json.loads(said(capsys, "list", kind, "--json"))
    assert rows
    assert all(row["name"] and row["about"] for row in rows)
    lines = said(capsys, "list", kind).splitlines()
    assert [line.split()[0] for line in lines] == [row["name"] for row in rows]


def test_a_listed_figure_has_the_command_that_draws_it(capsys):
    rows = {row["name"]: row for row in json.loads(said(capsys, "list", "figures", "--preset", "smoke", "--json"))}
    assert rows["learning"]["about"].startswith("Learning curves: each training reward over steps")
    assert rows["learning"]["command"].endswith("presets/smoke.yaml -- results/smoke/figures/learning.png")


def test_the_version_and_every_command_in_the_help(capsys):
    assert said(capsys, "--version") == f"dara {dara.__version__}\n"
    shown = said(capsys, "--help")
    assert all(f" {name} " in shown for name, _, _ in COMMANDS.values())
    assert not any(f" {name} " in shown for name in FORMER)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["stats"], 2, "Did you mean 'status'?"),
        (["list", "methds"], 1, "'methds' is not something to list; did you mean 'methods'?"),
        (["plan", "tool_mian"], 1, "did you mean 'tool_main'?"),
    ],
)
def test_a_mistake_names_the_nearest_word(capsys, words, code, message):
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == code
    assert message in capsys.readouterr().err


# --- what a training or an evaluation is started from by hand ---------------------------------------------------------


@pytest.fixture
def started(tmp_path: Path) -> dict[str, Path]:
    """A specification with manifests of its data and its base model."""
    spec = tiny_spec()
    (tmp_path / "weights").mkdir()
    model = {"model": spec.model.model_dump(mode="json"), "directory": str(tmp_path / "weights"), "sha256": {"a": "0"}}
    contents = {"spec": json.loads(spec.model_dump_json()), "data": {"data": spec.data.model_dump(mode="json")}}
    paths = {}
    for name, content in {**contents, "model": model}.items():
        paths[name] = tmp_path / f"{name}.json"
        paths[name].write_text(json.dumps(content))
    return paths


def train(started: dict[str, Path], capsys, **other: Path) -> str:
    paths = started | other
    with pytest.raises(SystemExit):
        main(
            [
                *("train", str(paths["spec"]), "--resources", "{}", "--scratch", str(paths["spec"].parent / "scratch")),
                *("--data", str(paths["data"]), "--model", str(paths["model"])),
            ]
        )
    return capsys.readouterr().err


def test_inputs_of_another_run_are_not_trained_on(started, capsys):
    data = json.loads(started["data"].read_text())
    data["data"]["seed"] += 1
    started["data"].write_text(json.dumps(data))
    assert "data.json is not of the data that the run's specification names" in train(started, capsys)


def test_a_manifest_of_something_else_or_a_damaged_one_is_named(started, tmp_path, capsys):
    assert "data.json is not of the model that the run's" in train(started, capsys, model=started["data"])
    with pytest.raises(ValueError, match=r"data\.json is not the manifest of a base model"):
        base_model(started["data"])
    (tmp_path / "torn.json").write_text('{"mod')
    assert "torn.json is damaged: it is no JSON" in train(started, capsys, model=tmp_path / "torn.json")
    (entry,) = checkpoints(started["model"]).values()
    assert (entry["directory"], entry["sha256"]) == (str(tmp_path / "weights"), {"a": "0"})


def test_options_of_the_other_form_of_evaluate_are_refused(capsys):
    for words, message in (
        (["m.json", "--limit", "3"], "--limit is an option of `evaluate` with --model only"),
        (["--model", "d", "--part", "1/2"], "--part is an option of `evaluate` without --model only"),
        (["--model", "d", "--steps", "50"], "--steps is an option of `evaluate` without --model only"),
        (["--model", "d", "--gather"], "--gather is an option of `evaluate` without --model only"),
    ):
        with pytest.raises(SystemExit):
            main(["evaluate", *words, "--benchmark", "bfcl_v4"])
        assert message in capsys.readouterr().err


def test_only_the_steps_that_are_asked_for_are_evaluated(tmp_path, monkeypatch, capsys):
    made = []
    monkeypatch.setattr("dara.evaluation.generate.generate_checkpoints", lambda steps, *_, **__: made.append([*steps]))
    manifest, saved = tmp_path / "manifest.json", {str(step): {"directory": "d", "sha256": {}} for step in (10, 20)}

    def evaluate(outcome, *words):
        manifest.write_text(json.dumps({"outcome": outcome, "checkpoints": saved}))
        options = ["--data", str(manifest), "--benchmark", canonical_json(benchmark("laptop_math"))]
        main(["evaluate", str(manifest), *options, "--out", str(tmp_path / "out"), *words])

    evaluate("completed")
    evaluate("completed", "--steps", "20")
    evaluate("diverged", "--steps", "20,30")
    assert made == [[10, 20], [20], [20]]
    for steps, message in (
        ("20,30", f"--steps 20,30: {manifest} has no checkpoint of step 30; it has 10, 20"),
        ("20 30", "--steps is '20 30'; it must be steps with commas, such as 50,100"),
    ):
        with pytest.raises(SystemExit):
            evaluate("completed", "--steps", steps)
        assert message in capsys.readouterr().err


# --- output that nobody reads, or that cannot be written --------------------------------------------------------------

VERBS = [["list", "presets"], ["--help"], ["status", "--help"]]
BUFFERED = environment() | {"PYTHONUNBUFFERED": ""}
UNBUFFERED = environment() | {"PYTHONUNBUFFERED": "1"}


def run(arguments: list[str], **how) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "dara", *arguments]
    return subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, **{"env": BUFFERED, **how})


@pytest.fixture
def nobody():
    """The end of a pipe whose reader has gone, as `head` does after its last line."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.mark.parametrize("arguments", VERBS, ids=" ".join)
def test_a_reader_that_has_gone_is_no_error_to_speak_of(nobody, arguments):
    done = run(arguments, stdout=nobody)
    assert (done.stderr, done.returncode) == ("", 141)  # as of any command that a pipe ends
    assert run(arguments, stdout=nobody, env=UNBUFFERED).stderr == ""


@pytest.mark.parametrize("environment", [BUFFERED, UNBUFFERED], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("arguments", VERBS[:2], ids=" ".join)
def test_output_that_cannot_be_written_is_one_sentence(arguments, environment):
    with open("/dev/full", "w") as full:
        done = run(arguments, stdout=full, env=environment)
    assert (done.stderr, done.returncode) == ("dara: standard output: No space left on device\n", 1)


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&-"])
def test_closed_output_is_output_that_nobody_wants(tmp_path, closed):
    page = tmp_path / "keys.md"
    dara = f'"{sys.executable}" -m dara'
    command = f"{dara} config-docs --out {page} {closed} && {dara} list presets {closed}"
    done = subprocess.run(command, shell=True, cwd=ROOT, env=BUFFERED, stderr=subprocess.PIPE, text=True)
    assert (done.stderr, done.returncode) == ("", 0)
    assert page.read_text() == (ROOT / "docs/configuration.md").read_text()


def test_a_mistake_is_told_whoever_reads(nobody):
    done = run(["status", "--preset", "laptob"], stdout=nobody)
    assert "did you mean 'laptop'" in done.stderr
    assert done.returncode == 1


def test_a_pipe_of_the_verbs_own_is_not_its_output(monkeypatch, capsys):
    """A broken connection of a training must be told."""

    def breaks():
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("dara.config.keys_page", breaks)
    with pytest.raises(SystemExit) as ended:
        main(["config-docs", "--out", "x"])
    assert ended.value.code == 1
    assert "broken pipe" in capsys.readouterr().err


def test_output_in_this_process_is_left_as_it_was(capsys):
    before = sys.stdout
    with whole_output():
        print("a line")
    assert sys.stdout is before
    assert capsys.readouterr().out == "a line\n"
    assert not issubclass(OutputError, OSError)  # so that no verb takes it for a file's


# --- drawing: each job is a process of its own, so it must not import what it does not need ---------------------------

HEAVY = ("torch", "transformers", "scipy.stats", "scipy.special", "matplotlib", "matplotlib.pyplot")


def imported(directory: Path, kind: str, output: str) -> set[str]:
    """Which of HEAVY a process has that draws a published table or figure."""
    code = (
        "import json, sys; from dara.cli import main; "
        f"main(['--root', {str(ROOT)!r}, {kind!r}, {output!r}, {str(directory)!r}]); "
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("kind", "output", "needed"),
    [("table", "tool_step60", set()), ("figure", "heldout", {"matplotlib"})],
)
def test_a_job_imports_what_it_needs(kind, output, needed, tmp_path):
    (tmp_path / "data").symlink_to(ROOT / "results/published/data")
    assert imported(tmp_path, kind, output) == needed
    assert (tmp_path / f"{kind}s" / f"{output}.{'md' if kind == 'table' else 'svg'}").stat().st_size > 1000


def test_every_listed_table_and_figure_is_a_function():
    assert all(describe(name) for name in FIGURES)
    for known in (TABLES, SIDE_BY_SIDE):
        for module, _, function in (target.partition(":") for target in known.values()):
            assert callable(getattr(import_module(f"dara.analysis.tables.{module}"), function))

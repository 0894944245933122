"""Names that become file names, and paths that the configuration gives."""

import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from dara.loading import ConfigurationError, load_all_presets, load_configuration, load_preset
from dara.places import NAME_LENGTH, RESERVED, as_written, check_name, check_output, expanded, source_file
from dara.specs import HubModel, MethodSpec
from project import ROOT, planned

PATHS = ("results", "scratch", "training_environment", "evaluation_environment")


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """A copy of config/ that a test may spoil, in the working directory."""
    shutil.copytree(ROOT / "config", tmp_path / "clone/config")
    monkeypatch.chdir(tmp_path / "clone")
    return tmp_path / "clone"


def smoke(root: Path, **keys):
    return planned("smoke", root, **keys)


def edit(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))


# --- names ------------------------------------------------------------------------------------------------------------

NO_NAMES = [
    *("", ".", "..", ".a", "-a", "a-", "a b", "a/b", "A", "ä", "a\n", "a\0", "a--b", "~a", "$a", "{a}", "a'"),
    *RESERVED,
    "a" * (NAME_LENGTH + 1),
]


@pytest.mark.parametrize("name", NO_NAMES)
def test_what_cannot_be_a_file_name_is_no_name_of_anything(root, name):
    with pytest.raises(
        ValueError, match=re.escape(f"{name!r} cannot be a name: it stands in file names, so it has at")
    ):
        check_name(name)
    with pytest.raises(ValueError, match="cannot be a name"):
        HubModel(name=name, hub="a/b", revision="0123456")
    with pytest.raises(ValueError, match="cannot be a name"):
        MethodSpec(name=name)
    quoted = json.dumps(name)
    for file, old, new in (
        ("methods.yaml", "grpo: {", f"{quoted}: {{"),
        ("models.yaml", "tiny-tool:", f"{quoted}:"),
        ("presets/smoke.yaml", "preset: smoke", f"preset: {quoted}"),
        ("presets/smoke.yaml", "  tool_main:", f"  {quoted}:"),
        ("presets/laptop-study.yaml", "extends: laptop", f"extends: {quoted}"),
        ("experiments/tool_main.yaml", "experiment: tool_main", f"experiment: {quoted}"),
        ("published.yaml", "tool_main:", f"{quoted}:"),
    ):
        path = root / "config" / file
        before = path.read_text()
        path.write_text(before.replace(old, new, 1))
        with pytest.raises((ConfigurationError, ValueError), match=f"{file}") as error:
            load_all_presets(root) if "laptop-study" in file else smoke(root).published.ids("tables")
        assert "name" in str(error.value) or file == "presets/laptop-study.yaml"
        path.write_text(before)


@pytest.mark.parametrize(
    "name", [*NO_NAMES[:17], "a-b", "a.b", "a__b", "crossings_side_by_side", "a" * (NAME_LENGTH + 1)]
)
def test_tables_and_figures_are_files_too(root, name):
    """Snakemake's wildcards fit small letters, digits and _ only; the end _side_by_side is of the tables beside."""
    with pytest.raises(ValueError, match="cannot be a name"):
        check_output(name)
    for kind in ("tables", "figures", "side_by_side"):
        path = root / "config/experiments/tool_main.yaml"
        before = path.read_text()
        path.write_text(before.replace(f"{kind}:\n", f"{kind}:\n  {json.dumps(name)}: runs\n", 1))
        with pytest.raises(ConfigurationError, match=f"tool_main.yaml: {kind}\\."):
            load_all_presets(root)
        path.write_text(before)


def test_the_longest_names_make_file_names_that_fit(root):
    """Also with the largest numbers, in logs and where a job writes beside a file before it has its name."""
    longest = "a" * NAME_LENGTH
    edit(root / "config/models.yaml", "smoke-tool:", f"{longest}:")
    methods, preset = root / "config/methods.yaml", root / "config/presets/smoke.yaml"
    methods.write_text(
        f'{methods.read_text()}{longest}: {{function: "dara.methods.gdpo:contributions", label: L, color: "#000000"}}\n'
    )
    for old, new in (
        ("[smoke-tool]", f"[{longest}]"),
        ("[gdpo, dara_sym]", f"[{longest}]"),
        ("seeds: [100]", f"seeds: [{2**31 - 1}]"),
        ("group_sizes: [4]", f"group_sizes: [{10**6}]"),
    ):
        edit(preset, old, new)
    edit(root / "config/experiments/tool_main.yaml", "  runs: runs", f"  {longest}: runs")
    flow = smoke(root, evaluation_jobs=99)
    run = next(run for run in flow.matrix.runs if longest in run)
    assert run.count(longest) == 2
    benchmark = "deepscaler_validation"
    files = (*flow.scored, *flow.outputs.files, *flow.training_inputs(SimpleNamespace(run=run)).values())
    names = [part for file in files for part in Path(file).parts]
    names += [f"{run}.{benchmark}.part99of99.log", f".{run}.partial", f".{longest}_side_by_side.md.4194304"]
    names += [f".{benchmark}.identity.unfinished.json.4194304", f"rule_evaluate_part_{run}_{benchmark}_99_99"]
    assert max(map(len, names)) <= 255
    for name in names:
        Path(name).touch()


# --- paths ------------------------------------------------------------------------------------------------------------


PATHS_OF_TEXTS = {
    "results": "results",
    "../out/./x/": "../out/./x/",
    "/a b/c": "/a b/c",
    "~/x": "/home/me/x",
    "~": "/home/me",
    "./~": "./~",
    "a~/~b": "a~/~b",
    "$DISK/x": "/disk of $me/x",
    "${DISK}x": "/disk of $mex",
    "a$$DISK": "a$DISK",
    "a$$$$": "a$$",
    "cost $5, 100 % $": "cost $5, 100 % $",
    'it\'s "new"; rm & (x) | * ? [y] \\ # ü `z` < >': 'it\'s "new"; rm & (x) | * ? [y] \\ # ü `z` < >',
}


@pytest.mark.parametrize(("text", "path"), PATHS_OF_TEXTS.items())
def test_a_path_is_expanded_as_a_shell_would_and_keeps_every_other_character(monkeypatch, text, path):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("DISK", "/disk of $me")
    assert expanded(text) == path
    assert expanded(as_written(path)) == path, "what a workflow was told is read again as it is"


SPACE = "must be a path that neither is empty nor begins or ends with a space"
LINE = "must be a path on one line, of characters that can be printed"
OPTION = "must be a path that does not begin with -"
BRACES = "must be a path without { and }"
NO_PATHS = {
    **dict.fromkeys(("", " ", " a", "a/ "), SPACE),
    **dict.fromkeys(("a\nb", "a\0b", "a\tb"), LINE),
    **dict.fromkeys(("-n", "./-n"), OPTION),
    **dict.fromkeys(("a{b}", "a}", "${HOME:-x}", "$BRACES/x"), BRACES),
    "$NOT_SET_HERE/x": "the variable NOT_SET_HERE is not set",
    "a${NOT_SET_HERE}": "the variable NOT_SET_HERE is not set; set it, or write $$ for a dollar sign",
    "$EMPTY_HERE/x": "the variable EMPTY_HERE is not set",
    "~nobody-of-this-name/x": "~nobody-of-this-name has no home directory here",
}


@pytest.mark.parametrize(("text", "problem"), NO_PATHS.items())
def test_what_cannot_be_a_path_names_file_and_key(root, monkeypatch, text, problem):
    monkeypatch.delenv("NOT_SET_HERE", raising=False)
    monkeypatch.setenv("EMPTY_HERE", "")
    monkeypatch.setenv("BRACES", "{x}")
    preset = root / "config/presets/smoke.yaml"
    before = preset.read_text()
    for key in [*PATHS, "data_local.toolrl", "models_local.a/b"]:
        name, _, inner = key.partition(".")
        value = {inner: text} if inner else text
        preset.write_text(f"{before}\n{json.dumps(name)}: {json.dumps(value)}\n")
        with pytest.raises(ConfigurationError) as error:
            load_preset(root, preset)
        assert str(error.value).startswith(f"{preset}: {key}: {problem}")
    with pytest.raises(ValueError, match=re.escape(problem)):
        expanded(text)


def test_a_home_that_is_not_known_is_one_sentence(monkeypatch):
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: (_ for _ in ()).throw(KeyError(f"uid not found: {uid}")))
    with pytest.raises(ValueError, match=r"^~ has no home directory here; write the whole path"):
        expanded("~/x")


def test_a_method_file_is_expanded_and_keeps_its_name_in_identities(root, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CODE", str(tmp_path))
    (tmp_path / "mine.py").write_text("def f(batch):\n    return batch.z\n")
    for written in ("~/mine.py:f", "$CODE/mine.py:f", "../../mine.py:f"):
        assert source_file(written, root / "config").samefile(tmp_path / "mine.py")
    methods = root / "config/methods.yaml"
    methods.write_text(methods.read_text() + 'mine: {function: "~/mine.py:f", label: Mine, color: "#000000"}\n')
    flow = smoke(root, experiments={"tool_main": {"methods": ["mine"]}})
    assert "~/mine.py:f" in {run.method.function for run in flow.matrix.runs.values()}


def test_what_the_workflow_was_told_has_the_same_paths(root, monkeypatch, tmp_path):
    """Jobs and later commands read it, perhaps where the variables have other values."""
    monkeypatch.setenv("DISK", "~/disk of $me")
    flow = smoke(root, results="$DISK/my results", scratch="~/sc $5")
    values = json.loads(flow.configuration_json())
    monkeypatch.setenv("DISK", "/other")
    told = load_configuration(root, values | {"scratch": ".scratch"}, [])
    assert told.preset.results == "./~/disk of $me/my results"
    assert flow.paths.scratch == Path.home() / "sc $5"


def test_paths_count_from_the_working_directory(root):
    flow = smoke(root, results="my results", scratch="../sc")
    assert flow.paths.root == Path("my results/smoke")
    assert flow.paths.scratch == Path("../sc")


# --- what is in the way -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["results", "scratch"])
def test_what_is_in_the_way_of_a_directory_is_named(root, key):
    Path("file").write_text("x")
    Path("gone").symlink_to("nowhere")
    Path("loop").symlink_to("loop")
    where = f"^--config on the command line: {key}: "
    for value, problem in (
        ("file", "file is a file, and a directory is wanted"),
        ("file/a/b", "file is a file, and a directory is wanted"),
        ("gone", "gone is a link to nowhere, which is no directory; make that, or remove the link"),
        ("gone/a", "gone is a link to nowhere"),
        ("loop", "loop is a link to loop"),
    ):
        with pytest.raises(ConfigurationError, match=where + re.escape(problem)):
            smoke(root, **{key: value})
    Path("results").mkdir()
    Path("results/smoke").write_text("x")
    with pytest.raises(ConfigurationError, match="results: results/smoke is a file, and a directory is wanted"):
        smoke(root)


@pytest.mark.parametrize("scratch", ["results/smoke", "results/smoke/scratch", "link"])
def test_scratch_is_not_in_the_results_that_may_be_deleted(root, scratch):
    Path("results/smoke/x").mkdir(parents=True)
    Path("link").symlink_to("results/smoke/x")
    with pytest.raises(ConfigurationError, match=f"scratch: {scratch} is in the results of this preset"):
        smoke(root, scratch=scratch)


def test_linked_results_and_scratch_are_fine(root, tmp_path):
    for name in ("results", ".scratch"):
        (tmp_path / f"disk of {name}").mkdir()
        Path(name).symlink_to(tmp_path / f"disk of {name}")
    assert os.path.realpath(smoke(root).paths.root) == str(tmp_path / "disk of results/smoke")

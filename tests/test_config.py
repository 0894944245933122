"""Configuration: every mistake is one sentence with file, key and the right form, before anything runs."""

import json
import re
import shutil
from pathlib import Path

import pytest

from dara.cli import main
from dara.config import keys_page
from dara.loading import ConfigurationError, load_all_presets, load_preset, read_methods
from dara.methods import available_methods, load_method
from dara.preflight import check_method_parameters
from dara.runs import RunMatrix, check_source, data_id, method_spec, plan_runs, run_id
from dara.specs import RunSpec
from dara.store import canonical_json, spec_sha256
from project import ROOT, planned


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of config/ that a test may spoil."""
    shutil.copytree(ROOT / "config", tmp_path / "config")
    return tmp_path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.fixture(scope="module")
def laptop() -> RunMatrix:
    return planned("laptop").matrix


def test_the_laptop_matrix_is_the_planned_one(laptop):
    """And no setting belongs to one method."""
    cells = {
        experiment: {(laptop.runs[run].method.name, laptop.runs[run].seed) for run in runs}
        for experiment, runs in laptop.experiments.items()
    }
    wanted = {(method, seed) for method in ("grpo", "gdpo", "dara_sym", "dara_asym") for seed in (100, 101, 102)}
    assert cells == {"tool_main": wanted, "math_main": wanted}
    steps = {spec.task: (spec.group_size, spec.prompts_per_step, spec.steps) for spec in laptop.runs.values()}
    assert steps == {"tool_calling": (4, 32, 80), "math": (8, 32, 110)}
    assert all(spec.model.warm_start.seed >= 100 for spec in laptop.runs.values())
    others = {spec.model_copy(update={"method": None}).model_dump_json() for spec in laptop.runs.values()}
    assert len(others) == 6  # two tasks x three seeds, whatever the method


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        ("presets/laptop.yaml", "steps: 80", "stepps: 80", "tasks.tool_calling.stepps: unknown key; did you mean 'steps'?"),
        ("presets/laptop.yaml", "updates_per_step: 2", "updates_per_step: two", "updates_per_step: input should be a valid integer"),
        ("presets/laptop.yaml", "temperature: 1.0", "temperature: 0", "tasks.tool_calling.sampling: temperature 0 gives every response of a group the same tokens, and no advantage; it must be above 0"),
        ("presets/laptop.yaml", "temperature: 0.6", "temperature: -0.6", "temperature: input should be greater than or equal to 0 (given: -0.6)"),
        ("presets/laptop.yaml", "      samples: 4\n      sampling: {temperature: 0.6", "      samples: 4\n      sampling: {temperature: 0", "tasks.math.benchmark: samples is 4, but at temperature 0 all responses to a case are the same; set samples: 1"),
        ("presets/paper.yaml", "dual_clip: 3.0", "dual_clip: 1.0", "tasks.math.optimizer.dual_clip: input should be greater than 1 (given: 1.0)"),
        ("presets/laptop.yaml", "top_p: 1.0", "top_p: .nan", "top_p: input should be"),
        ("presets/laptop.yaml", "[tiny-tool]", "[tiny-tol]", "'tiny-tol' is not a model of config/models.yaml; did you mean 'tiny-tool'?"),
        ("presets/laptop.yaml", "[tiny-tool]", "[tiny-math]", "'tiny-math' is a model for another task than tool_calling"),
        ("presets/laptop.yaml", "tool_main:", "tool_mian:", "'tool_mian' is not an experiment of config/experiments/; did you mean 'tool_main'?"),
        ("presets/laptop.yaml", "[100, 101, 102]", "[100, 101, 100]", "experiments.tool_main.seeds: has an entry twice"),
        ("presets/laptop.yaml", "[100, 101, 102]", "[-1]", "experiments.tool_main.seeds.0: input should be greater than or equal to 0"),
        ("presets/laptop.yaml", "prompts_per_step: 32", "prompts_per_step: 31", "tasks.tool_calling: prompts_per_step 31 must be a multiple of updates_per_step 2"),
        ("presets/laptop.yaml", "source: laptop_math", "source: laptop_tools", "tasks.math.data.source is laptop_tools; it must be laptop_math"),
        ("presets/laptop.yaml", "name: laptop_math", "name: laptop_tools", "tasks.math.benchmark.name is laptop_tools; it must be laptop_math"),
        ("presets/laptop.yaml", "      length_limit: 23", "", "tasks.math.benchmark: length_limit is missing"),
        ("experiments/tool_main.yaml", "[grpo, gdpo,", "[gdpo, gdpo,", "config/experiments/tool_main.yaml: methods: has an entry twice"),
        ("methods.yaml", "grpo: {", "grpo: {function: mine.py:f, ", "config/methods.yaml: grpo: 'mine.py:f': there is no file config/mine.py"),
        ("methods.yaml", "grpo: {", "my method: {", "config/methods.yaml: 'my method' cannot be a name: it stands in file names"),
        ("methods.yaml", "grpo: {", "base: {", "config/methods.yaml: 'base' cannot be a name"),
        ("models.yaml", "tiny-tool:", "Tiny_Tool:", "config/models.yaml: 'Tiny_Tool' cannot be a name"),
        ("experiments/tool_main.yaml", "  runs: runs", "  runs: run", "tables.runs: 'run' is not a module of workflow/dara/analysis/tables/; did you mean 'runs'?"),
        ("experiments/tool_main.yaml", "[0.5, 0.8, 0.9]", "[0.5, 0.5]", "thresholds.format: needs one or more levels, each once"),
        ("presets/laptop.yaml", "[4]", "[1]", "group_sizes.0: input should be greater than or equal to 2"),
        ("presets/laptop.yaml", "length: {limit", "format: {limit", "unknown reward 'format' of task math: its rewards are correctness, length"),
        ("presets/laptop.yaml", "seed: 0", "seed: 0\n      seed: 1", "config/presets/laptop.yaml, line 37: not valid YAML: key 'seed' stands twice"),
        ("presets/laptop.yaml", "length_limit: 23", "length_limit: 30", "tasks.math.benchmark.length_limit is 30, but the length reward's limit is 23"),
        ("presets/laptop.yaml", "limit: 23}", "limit: -23}", "limit of a length reward must be a number >= 0, got -23"),
        ("presets/laptop.yaml", "train_rows: 4096", "train_rows: 8", "data.train_rows 8 is less than the 32 prompts of a step"),
        ("presets/paper.yaml", "benchmarks: []", "benchmarks: [bfcl]", "config/presets/paper.yaml: experiments.group_size.benchmarks: 'bfcl' is not a benchmark of its task in this preset; did you mean 'bfcl_v4'?"),
        ("presets/paper.yaml", "evaluate_at: [10, 20,", "evaluate_at: [10, 25,", "config/presets/paper.yaml: experiments.math_main.evaluate_at: step 25 has no checkpoint; checkpoints are at every 10 steps and at the last, 200"),
        ("presets/paper.yaml", "evaluate_at: [100]", "evaluate_at: [110]", "config/presets/paper.yaml: experiments.three_rewards.evaluate_at: step 110 has no checkpoint; checkpoints are at every 10 steps and at the last, 100"),
        ("presets/paper.yaml", "evaluate_at: [100]", "evaluate_at: [0, 100]", "experiments.three_rewards.evaluate_at.0: input should be greater than or equal to 1 (given: 0)"),
        ("presets/paper.yaml", "evaluate_at: [100]", "evaluate_at: [100, 100]", "experiments.three_rewards.evaluate_at: has an entry twice"),
        ("presets/paper.yaml", "evaluate_at: [100]", "evaluate_at: []", "experiments.three_rewards.evaluate_at: "),
        ("presets/smoke.yaml", "methods: [gdpo, dara_sym]", "methods: []", "experiments.tool_main.methods"),
        ("methods.yaml", '"#2ca02c"', '"#7F7F7F"', "config/methods.yaml: gdpo.color: '#7F7F7F' is that of grpo already"),
        ("methods.yaml", "label: GDPO,", "label: GRPO,", "config/methods.yaml: gdpo.label: 'GRPO' is that of grpo already"),
        ("methods.yaml", "grpo: {", "[grpo]: {", "config/methods.yaml, line 8: not valid YAML: a key is a list or a mapping"),
        ("experiments/math_main.yaml", "math_runs: runs", "math-runs: runs", "tables.math-runs"),
        ("experiments/math_main.yaml", "math_summary: side_by_side", "math_summary: side", "side_by_side.math_summary: 'side' is not a module of workflow/dara/analysis/tables/"),
        ("presets/laptop.yaml", "preset: laptop", "preset: desktop", "it must be 'laptop', as the file"),
        ("presets/laptop.yaml", "preset: laptop", "preset: [", "not valid YAML"),
        ("presets/smoke.yaml", "preset: smoke", "preset: cached", "preset: 'cached' cannot be a name: it stands in file names"),
        ("presets/smoke.yaml", "engine: trl", "engine: tlr", "config/presets/smoke.yaml: engine: input should be 'trl' or 'openrlhf' (given: 'tlr')"),
        ("config.yaml", "reuse: matching", "reuse: always", "config/config.yaml: reuse: input should be 'matching', 'only' or 'none'"),
        ("config.yaml", "scratch: .scratch", "", "scratch: missing; this key is required"),
        ("methods.yaml", "grpo: {label: GRPO,", "grpo: {lable: GRPO,", "config/methods.yaml: grpo.lable: unknown key; did you mean 'label'?"),
        ("methods.yaml", '"#7f7f7f"', "grey", "config/methods.yaml: grpo.color: string should match pattern"),
        ("models.yaml", "heads: 2", "heads: 3", "config/models.yaml: tiny-tool.architecture: hidden_size 64 must be a multiple of 2 x heads (6)"),
        ("experiments/tool_main.yaml", "[grpo, gdpo,", "[grpo, gdppo,", "config/experiments/tool_main.yaml: methods: 'gdppo' is not a method of config/methods.yaml; did you mean 'gdpo'?"),
        ("experiments/tool_main.yaml", "sparse_reward: format", "sparse_reward: length", "sparse_reward: 'length' is not one of the experiment's rewards"),
        ("experiments/tool_main.yaml", "[0.5, 0.8, 0.9]", "[0.5, 80]", "thresholds.format.1: input should be less than or equal to 1 (given: 80)"),
        ("experiments/math_main.yaml", "math_runs: runs", "runs: runs", "tables.runs stands in tool_main too"),
        ("presets/laptop.yaml", "group_sizes: [4]", "group_sise: [4]", "config/presets/laptop.yaml: experiments.tool_main.group_sise: unknown key; did you mean 'group_sizes'?"),
        ("presets/laptop.yaml", "group_sizes: [4]", "group_sise: [4]", "experiments.tool_main.group_sizes: missing; this key is required"),
        ("presets/laptop-study.yaml", "extends: laptop", "extends: labtop", "laptop-study.yaml: extends: 'labtop' is not a preset of config/presets/; did you mean 'laptop'?"),
        ("presets/laptop.yaml", "steps: 80", "steps: 0", "config/presets/laptop.yaml: tasks.tool_calling.steps"),
    ],
)  # fmt: skip
def test_mistakes_are_explained(root, file, old, new, expected):
    edit(root / "config" / file, old, new)
    with pytest.raises(ConfigurationError) as error:
        load_all_presets(root)
    assert expected in str(error.value).replace(f"{root}/", "")


def test_a_combination_of_settings_that_makes_no_run_is_one_sentence(root):
    edit(root / "config/presets/laptop-study.yaml", "responses_per_step: 512", "responses_per_step: 96")
    with pytest.raises(ConfigurationError, match="preset laptop-study: prompts_per_step 3 must be a multiple of"):
        planned("laptop-study", root)


@pytest.mark.parametrize(
    ("key", "value", "problem"), [("group_sise", 4, "unknown key"), ("reuse", "sometimes", "input should be")]
)
def test_the_command_line_is_named_where_it_is_wrong(key, value, problem):
    with pytest.raises(ConfigurationError, match=f"--config on the command line: {key}: {problem}"):
        planned("laptop", **{key: value})


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"\xff\xfe\x00", "not UTF-8 text")]
    + [(text, "not valid YAML: unacceptable character") for text in (b"a: \x00", b'a: "\x00"', b"\x00")],
)
def test_a_file_that_is_no_text_or_has_characters_that_no_yaml_has_is_named(root, content, problem):
    (root / "config/models.yaml").write_bytes(content)
    with pytest.raises(ConfigurationError, match=rf"models\.yaml: {problem}"):
        load_all_presets(root)


def test_a_preset_that_extends_another_shares_its_runs(laptop):
    presets = load_all_presets(ROOT)
    study = plan_runs(presets["laptop-study"])
    assert set(laptop.runs) < set(study.runs)
    tasks = {name: preset.preset.tasks for name, preset in presets.items()}
    assert tasks["laptop-study"]["math"] == tasks["laptop"]["math"]
    only_here = {"reward_params": {"length": {"limit": 2}}}  # of three_rewards, which the laptop does not have
    assert tasks["laptop-study"]["tool_calling"] == tasks["laptop"]["tool_calling"].model_copy(update=only_here)
    specs = [study.runs[run] for run in study.experiments["group_size"]]  # which share the responses of a step
    assert {(spec.group_size, spec.prompts_per_step) for spec in specs} == {(4, 128), (8, 64), (16, 32), (32, 16)}
    assert {(spec.optimizer.learning_rate, spec.optimizer.betas) for spec in specs} == {(1e-4, (0.9, 0.98))}


# --- identities -------------------------------------------------------------------------------------------------------


def test_identities_do_not_depend_on_the_order_of_keys_and_differ_with_every_setting(laptop):
    spec = next(iter(laptop.runs.values()))
    assert run_id(spec) == f"tool_calling-tiny-tool-grpo-g4-s100-{spec_sha256(spec)[:8]}"
    assert data_id(spec.data) == f"laptop_tools-{spec_sha256(spec.data)[:8]}"
    again = type(spec).model_validate(dict(reversed(spec.model_dump(mode="json").items())))
    assert spec_sha256(again) == spec_sha256(spec)
    parts = {
        "method": spec.method.model_copy(update={"params": {"eps": 1e-5}}),
        "data": spec.data.model_copy(update={"seed": 7}),
    }
    changes = [{"seed": 7}, {"steps": 81}, {"repeat": 1}, *({key: value} for key, value in parts.items())]
    assert len({spec_sha256(spec.model_copy(update=change)) for change in ({}, *changes)}) == 6


def test_the_cached_runs_have_the_identities_that_they_were_trained_under():
    paths = sorted((ROOT / "results/cached").glob("*/spec.json"))
    assert len(paths) > 100
    for path in paths:
        spec = RunSpec.model_validate_json(path.read_text())
        assert run_id(spec) == path.parent.name
        assert spec_sha256(spec) == json.loads((path.parent / "manifest.json").read_text())["spec_sha256"]


def test_a_key_that_is_added_later_leaves_identities_as_they_are(laptop):
    """A default is no part of an identity, but the version of the trainer's contract always is."""
    spec = next(iter(laptop.runs.values()))
    content = json.loads(canonical_json(spec, defaults=False))
    assert content["contract"] == 1
    assert "repeat" not in content
    assert json.loads(canonical_json(spec))["repeat"] == 0


# --- methods ----------------------------------------------------------------------------------------------------------


def test_an_edited_method_of_a_user_is_a_new_run_and_a_run_planned_before_does_not_start(root):
    source, methods = root / "config/my_methods.py", root / "config/methods.yaml"
    source.write_text("def contributions(batch):\n    return batch.z\n")
    own = 'of_this_test: {function: "my_methods.py:contributions", label: Of this test, color: "#010203"}'
    methods.write_text(f"{methods.read_text()}\n{own}\n")
    edit(root / "config/experiments/tool_main.yaml", "[grpo, gdpo, dara_sym, dara_asym]", "[of_this_test]")
    configuration = load_preset(root, root / "config/presets/laptop.yaml")
    before, spec = method_spec(configuration, "of_this_test"), next(iter(plan_runs(configuration).runs.values()))
    check_source(spec, root / "config")
    source.write_text("def contributions(batch):\n    return 2 * batch.z\n")
    after = method_spec(configuration, "of_this_test")
    assert before.source_sha256 != after.source_sha256
    assert before.function == after.function == "my_methods.py:contributions"
    with pytest.raises(
        ValueError, match=r"my_methods.py:contributions \(method of_this_test\) was edited after run .*-of_this_test-"
    ):
        check_source(spec, root / "config")


def test_methods_all_lists_every_row(root):
    edit(root / "config/experiments/tool_main.yaml", "[grpo, gdpo, dara_sym, dara_asym]", "all")
    plan = planned("laptop", root).matrix
    methods = {plan.runs[run].method.name for run in plan.experiments["tool_main"]}
    assert methods == set(read_methods(root)) >= set(available_methods())


@pytest.mark.parametrize(
    ("preset", "old", "new", "message"),
    [
        ("laptop-study", "{weights: [1.0, 5.0]}", "{weights: [1.0, 5.0, 1.0]}", "methods.yaml: static_asym: .*weights"),
        ("laptop", "{w_max: 5.0}", "{wmax: 5.0}", "methods.yaml: dara_asym: .*wmax.*w_max"),
    ],
)
def test_parameters_of_a_method_are_checked_before_anything_runs(root, preset, old, new, message):
    """Their names, and that fixed weights fit the rewards of an experiment."""
    edit(root / "config/methods.yaml", old, new)
    with pytest.raises(ConfigurationError, match=message):
        check_method_parameters(load_preset(root, root / f"config/presets/{preset}.yaml"))


def test_every_built_in_row_loads_with_its_parameters():
    built_in = {name: entry for name, entry in read_methods(ROOT).items() if entry.function is None}
    assert set(available_methods()) == set(built_in)
    for name, entry in built_in.items():
        assert load_method(name, **entry.params) is not None


# --- files that are not used ------------------------------------------------------------------------------------------

BROKEN = {
    "presets/smoke.yaml": "preset: [",
    "experiments/engines.yaml": "experiment: engines\nfigurs: {}\n",
    "my_methods.py": "def contributions(batch:\n",
}


@pytest.mark.parametrize("file", BROKEN)
def test_a_broken_file_stops_only_what_uses_it(root, capsys, file):
    """A preset, an experiment that the laptop has not, and a method that no experiment lists."""
    mine = '\nmine:\n  function: my_methods.py:contributions\n  label: Mine\n  color: "#000000"\n'
    methods = root / "config/methods.yaml"
    methods.write_text(methods.read_text() + (mine if file.endswith(".py") else ""))
    (root / "config" / file).write_text(BROKEN[file])
    check_method_parameters(planned("laptop", root).configuration)
    with pytest.raises(SystemExit):
        main(["--root", str(root), "check-config"])
    assert re.search("smoke.yaml|engines.yaml|mine: ", capsys.readouterr().err)


@pytest.mark.parametrize("text", [(ROOT / "config/presets/laptop.yaml").read_text(), "extends: laptop\n"])
def test_a_copy_of_a_preset_with_its_old_name_is_not_run(root, text):
    """It would train into the results of the other one."""
    (root / "config/presets/mine.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=r"mine\.yaml: preset is 'laptop'; it must be 'mine'"):
        planned("mine", root)


def test_the_page_of_keys_has_not_drifted():
    assert (ROOT / "docs/configuration.md").read_text() == keys_page(), "run `make keys`"

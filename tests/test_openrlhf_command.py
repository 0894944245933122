"""The OpenRLHF command line of every paper experiment, and of the laptop's runs.

The files in golden/openrlhf/ are written by `python tests/test_openrlhf_command.py` and read before they are committed.
"""

import ast
import importlib.util
import shlex
import sys
import types
from functools import cache
from pathlib import Path

import pytest

from dara.config import Resources
from dara.loading import load_preset
from dara.runs import plan_runs
from dara.training.openrlhf.command import PROGRAM, command_line, command_text
from project import CLONE, ROOT

GOLDEN = Path(__file__).parent / "golden" / "openrlhf"
SMALL, LARGE = "qwen2.5-1.5b-instruct", "qwen2.5-3b-instruct"
R1_SMALL, R1_LARGE = "deepseek-r1-distill-qwen-1.5b", "deepseek-r1-distill-qwen-7b"
INSTRUCT, THINKING = "qwen3-4b-instruct-2507", "qwen3-4b-thinking-2507"

CASES = {  # file name -> preset, experiment, model, method, group size, seed
    "tool_main_1.5b_grpo": ("paper", "tool_main", SMALL, "grpo", 4, 0),
    "tool_main_1.5b_dara_asym": ("paper", "tool_main", SMALL, "dara_asym", 4, 5),
    "tool_main_3b_dara_sym": ("paper", "tool_main", LARGE, "dara_sym", 4, 1),
    "group_size_4": ("paper", "group_size", SMALL, "gdpo", 4, 2),
    "group_size_8": ("paper", "group_size", SMALL, "gdpo", 8, 2),
    "group_size_16": ("paper", "group_size", SMALL, "gdpo", 16, 2),
    "group_size_32": ("paper", "group_size", SMALL, "gdpo", 32, 2),
    "three_rewards": ("paper", "three_rewards", SMALL, "dara_asym", 4, 0),
    "math_main_r1_1.5b": ("paper", "math_main", R1_SMALL, "dara_asym", 16, 0),
    "math_main_qwen3_4b": ("paper", "math_main", INSTRUCT, "grpo", 16, 0),
    "math_main_r1_7b": ("paper", "math_main", R1_LARGE, "dara_sym", 16, 0),
    "fixed_weight": ("paper", "fixed_weight", R1_SMALL, "static_asym", 16, 0),
    "extended": ("paper", "extended", THINKING, "dara_asym", 16, 0),
    "laptop": ("laptop-openrlhf", "tool_main", "tiny-tool", "dara_asym", 4, 100),
}
PATHS = {"model": Path("models/base"), "output": Path("run/openrlhf")}
MATH = [name for name in CASES if name.startswith(("math", "fixed", "extended"))]


@cache
def planned(preset):
    configuration = load_preset(ROOT, ROOT / "config" / "presets" / f"{preset}.yaml")
    return configuration, plan_runs(configuration)


def run_of(case):
    preset, experiment, model, method, group_size, seed = CASES[case]
    configuration, plan = planned(preset)
    found = [
        plan.runs[run]
        for run in plan.experiments[experiment]
        if (plan.runs[run].model.name, plan.runs[run].method.name) == (model, method)
        and (plan.runs[run].group_size, plan.runs[run].seed) == (group_size, seed)
    ]
    assert len(found) == 1, case
    return found[0], configuration.models[model].resources


def arguments_of(case, **options):
    return command_line(*run_of(case), **PATHS | options)


def flags_of(arguments):
    flags = {}
    for argument in arguments:
        if argument.startswith("--"):
            assert argument not in flags, f"{argument} is given twice"
            current = flags[argument] = []
        else:
            current.append(argument)
    return {flag: " ".join(values) for flag, values in flags.items()}


@pytest.mark.parametrize("case", CASES)
def test_the_command_line_is_the_golden_one(case):
    golden = (GOLDEN / f"{case}.txt").read_text(encoding="utf-8")
    assert command_text(*run_of(case), **PATHS) == golden


def test_no_golden_file_is_left_over():
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(CASES)


@pytest.mark.parametrize("placement", ["reward", "loss", "none"])
def test_other_places_of_the_kl(placement):
    spec, resources = run_of("tool_main_1.5b_dara_asym")
    kl = spec.kl.model_copy(update={"placement": placement, "coefficient": 0.0 if placement == "none" else 0.001})
    spec = spec.model_copy(update={"kl": kl})
    flags = flags_of(command_line(spec, resources, **PATHS))
    assert float(flags["--algo.kl.init_coef"]) == kl.coefficient
    assert ("--algo.kl.use_loss" in flags) == (placement == "loss")


def test_what_the_command_line_has_no_flag_for_is_in_the_specification():
    tool, math = run_of("tool_main_1.5b_grpo")[0], run_of("math_main_r1_1.5b")[0]
    assert (tool.steps, tool.checkpoint_steps) == (100, list(range(10, 101, 10)))
    assert (tool.sampler_seed, tool.final_normalization, tool.filter) == (0, "token", None)
    assert tool.kl.placement == "reward_grpo"
    assert (math.steps, math.sampler_seed, math.final_normalization) == (200, None, "own")
    assert math.filter.model_dump() == {"criterion": "sum_varies", "candidate_prompts": 768, "max_rounds": 2}
    assert run_of("math_main_qwen3_4b")[0].filter.max_rounds == 4
    assert math.reward_params == {"length": {"limit": 4000}}
    assert run_of("three_rewards")[0].reward_params == {"length": {"limit": 16}}
    assert run_of("fixed_weight")[0].method.params == {"weights": [1.0, 5.0]}
    assert run_of("tool_main_1.5b_dara_asym")[0].method.params == {"w_max": 5.0}
    sequences = {case: run_of(case)[1].vllm_max_sequences for case in MATH}
    assert sequences == dict.fromkeys(MATH, 256) | {"math_main_qwen3_4b": 160, "extended": 160}


def test_only_a_resumed_run_loads_a_checkpoint():
    first, second = arguments_of("laptop"), arguments_of("laptop", resume=True)
    assert set(second) - set(first) == {"--ckpt.load_enable"}


def test_paths_are_quoted_for_a_shell_and_one_flag_stands_on_a_line():
    paths = PATHS | {"model": Path("my models/it's")}
    arguments, text = arguments_of("laptop", **paths), command_text(*run_of("laptop"), **paths)
    assert shlex.split(text.replace("\\\n", " ")) == [*PROGRAM, *arguments]
    assert text.count("\n") == 1 + sum(argument.startswith("--") for argument in arguments)


def test_the_laptop_preset_differs_from_the_other_engines_only_by_the_engine():
    (_, ours), (_, other) = planned("laptop-openrlhf"), planned("laptop")
    mine, theirs = ([plan.runs[run] for run in plan.experiments["tool_main"]] for plan in (ours, other))
    assert len(mine) == 12
    assert [spec.model_copy(update={"engine": "trl"}) for spec in mine] == theirs
    ours, other = (planned(preset)[0].preset.tasks["tool_calling"] for preset in ("laptop-openrlhf", "laptop"))
    assert ours == other


@pytest.mark.parametrize(
    ("spec", "resources", "message"),
    [
        ({"engine": "trl"}, {}, "engine: openrlhf"),
        ({"precision": "float32"}, {"gpus": 4}, "precision"),
        ({}, {"gpus": 3}, "512 responses .* 3 GPUs"),
        ({}, {"gpus": 4, "tensor_parallel": 3}, "gpus 4 must be a multiple of tensor_parallel 3"),
    ],
)
def test_what_cannot_be_run_is_an_error(spec, resources, message):
    run = run_of("tool_main_1.5b_grpo")[0].model_copy(update=spec)
    with pytest.raises(ValueError, match=message):
        command_line(run, Resources(**resources), **PATHS)


def test_engines_share_gpus_by_tensor_parallelism():
    spec, resources = run_of("math_main_r1_7b")
    flags = flags_of(command_line(spec, resources.model_copy(update={"tensor_parallel": 2}), **PATHS))
    assert (flags["--vllm.num_engines"], flags["--vllm.tensor_parallel_size"]) == ("4", "2")


def openrlhf_parser():
    """OpenRLHF's own command line: the block at the end of train_ppo_ray.py, without the training and heavy imports."""
    found = importlib.util.find_spec("openrlhf")
    package = (
        Path(found.origin).parent if found else next(CLONE.glob(".venv-openrlhf/lib/python3*/site-packages/openrlhf"))
    )
    tree = ast.parse((package / "cli" / "train_ppo_ray.py").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom) and _light(node)]
    (main,) = [node for node in tree.body if isinstance(node, ast.If)]
    code = compile(ast.Module([*imports, *main.body], []), "train_ppo_ray.py", "exec")
    location = importlib.util.spec_from_file_location("openrlhf.utils.config", package / "utils" / "config.py")
    config = importlib.util.module_from_spec(location)
    location.loader.exec_module(config)
    return code, config


def _light(node):
    names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
    return {name.split(".")[0] for name in names} <= {"argparse", "os", "datetime"}


@pytest.mark.openrlhf
@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_openrlhf_itself_understands_the_command_line(case, resume, monkeypatch, capsys):
    code, config = openrlhf_parser()
    for name in ("openrlhf", "openrlhf.utils"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "openrlhf.utils.config", config)
    monkeypatch.setattr(sys, "argv", ["train_ppo_ray", *arguments_of(case, resume=resume)])
    received = []
    exec(code, {"train": received.append})
    (args,) = received
    spec, resources = run_of(case)
    assert capsys.readouterr().out == ""  # it prints what it warns of and what it changes
    assert args.actor.adam.lr == spec.optimizer.learning_rate
    assert tuple(args.actor.adam.betas) == spec.optimizer.betas
    assert tuple(args.actor.eps_clip_low_high) == (spec.optimizer.clip_low, spec.optimizer.clip_high)
    assert args.actor.dual_clip == spec.optimizer.dual_clip
    assert args.rollout.batch_size * args.rollout.n_samples_per_prompt == spec.prompts_per_step * spec.group_size
    assert args.train.batch_size * spec.optimizer.updates_per_step == spec.prompts_per_step * spec.group_size
    assert args.actor.num_gpus_per_node == args.vllm.num_engines == max(resources.gpus, 1)
    assert args.train.agent_func_path == "run/openrlhf/reward.py"
    assert args.critic.model_name_or_path is None
    assert args.ckpt.load_enable is resume
    assert args.train.async_enable is args.algo.dynamic_filtering_enable is False
    assert args.vllm.enable_sleep is args.ds.packing_samples is bool(resources.gpus)


if __name__ == "__main__":
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name in CASES:
        (GOLDEN / f"{name}.txt").write_text(command_text(*run_of(name), **PATHS), encoding="utf-8")

"""Rewards in OpenRLHF: what travels with a prompt, what an error says, and the same rewards as in the TRL engine."""

import asyncio
import importlib.util
import json
import math
import pickle
from types import SimpleNamespace

import numpy as np
import pytest

from dara.rewards import score
from dara.training.openrlhf.labels import Label, prompt_file
from dara.training.openrlhf.reward_file import write_reward_file
from dara.training.scoring import RewardError, score_sample
from training_tiny import PROBLEMS, tiny_spec, tokenizer

LABEL = Label(id="p3", reference="36", position=12, seed=100)
NAMES, PARAMS = ("correctness", "length"), {"length": {"limit": 4}}


def scored(response: str, n_tokens: int, **changes) -> dict[str, float]:
    sample = {"prompt_id": "p3", "prompt": "<user>solve 33+3</user>\n", "reference": "36"}
    return score_sample("math", NAMES, PARAMS, **{**sample, **changes}, response=response, n_tokens=n_tokens)


# --- labels and the prompt file ---------------------------------------------------------------------------------------


def test_label_survives_as_text():
    label = Label(id='a "b"', reference="<tool_call>\nß\n</tool_call>", position=3, seed=0)
    assert Label.loads(label.dumps()) == label


@pytest.mark.parametrize("text", ['{"id": "a", "reference": "b"}', "[1]", '{"id": 1, "x": 2}'])
def test_label_without_its_keys_is_an_error(text):
    with pytest.raises(ValueError, match="it must be JSON with the keys"):
        Label.loads(text)


def test_prompt_file_has_each_row_once_in_order(tmp_path):
    path = tmp_path / "output" / "prompts.jsonl"
    rows = [{"id": "é", "prompt": "line\nbreak\u2028", "reference": "1"}, *PROBLEMS]
    prompt_file(rows, path)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    assert [line["input"] for line in lines] == [row["prompt"] for row in rows]
    assert [json.loads(line["label"]) for line in lines] == [
        {"id": row["id"], "reference": row["reference"]} for row in rows
    ]


# --- scoring ----------------------------------------------------------------------------------------------------------


def test_rewards_by_name_in_order():
    assert scored("so \\boxed{36}", 4) == {"correctness": 1.0, "length": 1.0}
    assert scored("so \\boxed{36}", 5) == {"correctness": 1.0, "length": 0.0}
    assert list(scored("", 1)) == ["correctness", "length"]
    sample = {"prompt_id": "p3", "prompt": "", "reference": "36"}
    only = score_sample("math", ("length",), PARAMS, **sample, response="", n_tokens=4)
    assert only == {"length": 1.0}


def test_error_of_a_reward_names_the_sample():
    with pytest.raises(RewardError) as caught:
        scored("my answer", 3, reference=" ")
    text = str(caught.value)
    assert text.startswith("the rewards correctness, length failed (ValueError: reference is blank (' ')")
    assert "for prompt p3 ('<user>solve 33+3</user>\\n') and response 'my answer'" in text
    assert "\n" not in text


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_value_that_is_no_number_is_an_error(monkeypatch, value):
    monkeypatch.setattr("dara.training.scoring.score", lambda *_, **__: [1.0, value])
    with pytest.raises(RewardError, match=f"reward length is {value}, not a number, for prompt p3"):
        scored("x", 1)


def test_long_response_is_shown_by_its_ends():
    with pytest.raises(RewardError) as caught:
        scored("begin" + "x" * 50_000 + "end", 3, reference="")
    assert len(str(caught.value)) < 2000
    assert "'begin" in str(caught.value)
    assert "end' (50008 characters)" in str(caught.value)


def test_reward_error_survives_the_way_between_processes():
    error = pickle.loads(pickle.dumps(RewardError("what and where")))
    assert isinstance(error, ValueError)
    assert str(error) == "what and where"


def test_reward_file_is_written_for_the_run(tmp_path):
    path = write_reward_file(tmp_path, tiny_spec(reward_params={"length": {"limit": 7.5}}))
    assert path == tmp_path / "reward.py"
    text = path.read_text()
    assert "class AgentExecutor(RewardExecutor):" in text
    assert "    rewards = ('correctness', 'length')\n    reward_params = {'length': {'limit': 7.5}}\n" in text
    compile(text, str(path), "exec")


# --- with OpenRLHF ----------------------------------------------------------------------------------------------------


class Engine:
    """In place of vLLM: gives these tokens, and remembers how it was asked."""

    def __init__(self, tokens: list[int]):
        self.tokens, self.asked = tokens, []

    async def generate(self, prompt_token_ids, sampling_params, multi_modal_data=None):
        self.asked.append((prompt_token_ids, sampling_params))
        one = SimpleNamespace(token_ids=list(self.tokens), finish_reason="stop", logprobs=None, text="unused")
        return SimpleNamespace(outputs=[one])


@pytest.fixture
def executor(tmp_path):
    """The executor of a run's reward file, loaded as OpenRLHF loads it."""
    path = write_reward_file(tmp_path, tiny_spec())
    module_spec = importlib.util.spec_from_file_location("agent_module", path)
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    return module.AgentExecutor()


def execute(executor, tokens: list[int], *, prompt: str = PROBLEMS[3]["prompt"], label=LABEL, room: int = 128):
    parameters = SimpleNamespace(max_tokens=8, logprobs=None, seed=1)
    call = executor.execute(prompt, label.dumps(), parameters, room, tokenizer(), Engine(tokens))
    return asyncio.run(call)


@pytest.mark.openrlhf
@pytest.mark.parametrize(
    "text", ["\\boxed{36}", "\\boxed{36}<eos>", "<eos>", "<pad>\\boxed{36}<pad><eos>", "\\boxed{3", "7<eos>7"]
)
def test_same_tokens_have_the_rewards_of_the_trl_engine(executor, text):
    tokens = tokenizer()
    special = {"<eos>": tokens.eos_token, "<pad>": tokens.pad_token}
    for name, token in special.items():
        text = text.replace(name, token)
    ids = tokens(text, add_special_tokens=False)["input_ids"]
    [completion] = tokens.batch_decode([ids], skip_special_tokens=True)  # as TRL does
    expected = score("math", NAMES, response=completion, reference="36", n_tokens=len(ids), params=PARAMS)
    output = execute(executor, ids)
    assert list(output["extra_logs"].values()) == expected
    assert list(output["extra_logs"]) == list(NAMES)
    assert output["reward"] == output["scores"] == sum(expected)
    assert output["response"] == completion
    start, end = output["action_ranges"][0]
    assert output["observation_tokens"][start:end] == ids


@pytest.mark.openrlhf
def test_error_in_a_reward_is_not_swallowed(executor):
    with pytest.raises(
        RewardError,
        match=r"failed .ValueError: reference is blank .* for prompt p9, number 0 of the run .* response '7'",
    ):
        execute(executor, tokenizer()("7", add_special_tokens=False)["input_ids"], label=Label("p9", " ", 0, 0))


@pytest.mark.openrlhf
def test_prompt_that_openrlhf_would_cut_is_an_error(executor):
    tokens = tokenizer()
    size = len(tokens(PROBLEMS[3]["prompt"], add_special_tokens=False)["input_ids"])
    assert execute(executor, [5], room=size + 8)["action_ranges"] == [(size, size + 1)]
    with pytest.raises(ValueError, match=f"prompt p3 has {size} tokens, and the run leaves room for {size - 1}"):
        execute(executor, [5], room=size + 7)


def generator(spec, outputs_of, monkeypatch):
    """The generator of a run whose vLLM gives outputs_of(label) for a prompt."""
    from dara.training.openrlhf import cpu

    cpu.install()
    from dara.training.openrlhf import rollouts

    class Dispatching(rollouts.DaraSamplesGenerator):
        def _dispatch_prompts_to_vllm(self, prompts, labels, **kwargs):
            assert kwargs["min_new_tokens"] == 0
            return [outputs_of(prompt, label) for prompt, label in zip(prompts, labels, strict=True)]

    monkeypatch.setattr(rollouts.ray, "get", list)
    labels = [Label(row["id"], row["reference"], i, 100).dumps() for i, row in enumerate(PROBLEMS)]
    loader = [(["default"], [row["prompt"]], [label], [None]) for row, label in zip(PROBLEMS, labels, strict=True)]
    strategy = SimpleNamespace(args=SimpleNamespace(vllm=SimpleNamespace(enable_sleep=False)))
    return Dispatching(strategy, loader, None, tokenizer(), [], spec=spec, done=6)


def outputs(prompt: str, label: str, rewards: list[tuple[float, float]]) -> list[dict]:
    """What a rollout actor gives: response i has i + 1 tokens after two of the prompt."""
    return [
        {
            "prompt": prompt,
            "label": label,
            "observation_tokens": [1, 2] + [3] * (i + 1),
            "action_ranges": [(2, 3 + i)],
            "rollout_log_probs": None,
            "truncated": False,
            "reward": sum(values),
            "scores": sum(values),
            "extra_logs": dict(zip(NAMES, values, strict=True)),
            "response": f"{Label.loads(label).id}-{i}",
        }
        for i, values in enumerate(rewards)
    ]


@pytest.mark.openrlhf
def test_generator_gives_whole_groups_in_order_with_exact_rewards(monkeypatch):
    third = 1 / 3
    made = generator(tiny_spec(), lambda p, t: outputs(p, t, [(third, 1.0)] * 4), monkeypatch)
    samples, share, taken, exhausted = made.generate_samples(max_len=64)
    assert (len(samples), share, taken, exhausted) == (16, None, 4, False)
    assert [Label.loads(sample.labels[0]).position for sample in samples] == [p for p in range(4) for _ in range(4)]
    assert samples[0].info["correctness"].item() == third, "float64"
    assert samples[0].info["reward"].item() == samples[0].rewards.item() == pytest.approx(1 + third)
    assert made.responses[:5] == ["p0-0", "p0-1", "p0-2", "p0-3", "p1-0"]
    assert made.pool_lengths.tolist() == [[1, 2, 3, 4]] * 4
    assert made.pool_rewards.shape == (4, 4, 2)
    assert made.filter_metrics == {}
    samples, *_ = made.generate_samples(max_len=64)
    assert Label.loads(samples[0].labels[0]).position == 4, "the next step goes on where this one ended"


@pytest.mark.openrlhf
@pytest.mark.parametrize("weights", [None, [0, 1]])  # odd groups vary where the first reward counts
def test_generator_filters(monkeypatch, weights):
    def outputs_of(prompt, label):
        even = Label.loads(label).position % 2 == 0
        first = 1.0 if even or weights else 0.0
        return outputs(prompt, label, [(0.0, 0.0), (first, float(even)), (0.0, 0.0), (0.0, 0.0)])

    def filtered(rule):
        spec = tiny_spec(filter=rule, engine="openrlhf", params=weights and {"reward_weights": weights})
        return generator(spec, outputs_of, monkeypatch)

    rule = {"criterion": "sum_varies", "candidate_prompts": 5, "max_rounds": 2}
    made = filtered(rule)
    samples, share, taken, _ = made.generate_samples(max_len=64)
    assert [Label.loads(sample.labels[0]).position for sample in samples[::4]] == [0, 2, 4, 6]
    assert taken == 9  # 5, and then as many as a group has responses: more than 1 / (3/5) * 1.25 = 2.08
    assert share == pytest.approx(100 * 5 / 9)
    assert made.responses == [f"p{p}-{i}" for p in (0, 2, 4, 6) for i in range(4)]
    assert made.pool_rewards.shape == (9, 4, 2)
    assert made.filter_metrics["filter/num_gen_batches"] == 2
    rule = {**rule, "candidate_prompts": 4, "max_rounds": 1}
    made = filtered(rule)
    with pytest.raises(ValueError, match="step 7: the sum of the rewards varies in only 2 of the 4 groups of 1 round"):
        made.generate_samples(max_len=64)


@pytest.mark.openrlhf
def test_generator_refuses_a_partial_group(monkeypatch):
    made = generator(tiny_spec(), lambda p, t: outputs(p, t, [(0.0, 1.0)] * 3), monkeypatch)
    with pytest.raises(ValueError, match="a prompt has 3 responses; a group has 4"):
        made.generate_samples(max_len=64)


@pytest.mark.openrlhf
def test_each_sample_has_its_own_seed():
    from dara.training.openrlhf import cpu

    cpu.install()
    from dara.training.openrlhf.rollouts import DaraRolloutActor

    class Executor:
        async def execute(self, *, sampling_params, **_):
            return {"seed": sampling_params.seed}

    actor = DaraRolloutActor.__new__(DaraRolloutActor)
    actor.executor = Executor()
    shared = SimpleNamespace(seed=None)
    made = asyncio.run(actor.generate_responses("prompt", LABEL.dumps(), shared, 64, None, num_samples=3))
    seeds = [output["seed"] for output in made]
    assert seeds == [LABEL.sample_seed(i) for i in range(3)]
    assert shared.seed is None
    assert len(set(seeds)) == 3
    assert np.max(seeds) < 2**63

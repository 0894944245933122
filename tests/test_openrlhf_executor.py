"""Generation in OpenRLHF: the same rewards as in the TRL engine, a seed for each sample, and the groups of a step."""

import asyncio
import importlib.util
from types import SimpleNamespace

import pytest

from dara.rewards import score
from dara.training.openrlhf.launch import write_reward_file
from dara.training.openrlhf.rollouts import Label
from dara.training.step import RewardError
from training_tiny import PROBLEMS, rollout_output, tiny_spec, tokenizer

pytestmark = pytest.mark.openrlhf

LABEL = Label(id="p3", reference="36", position=12, seed=100)
NAMES, PARAMS = ("correctness", "length"), {"length": {"limit": 4}}


@pytest.fixture(autouse=True)
def without_gpu():
    from dara.training.openrlhf import cpu

    cpu.install()


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
    write_reward_file(tmp_path, tiny_spec())
    module_spec = importlib.util.spec_from_file_location("agent_module", tmp_path / "reward.py")
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    return module.AgentExecutor()


def execute(executor, tokens: list[int], *, prompt: str = PROBLEMS[3]["prompt"], label=LABEL, room: int = 128):
    parameters = SimpleNamespace(max_tokens=8, logprobs=None, seed=1)
    call = executor.execute(prompt, label.dumps(), parameters, room, tokenizer(), Engine(tokens))
    return asyncio.run(call)


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


def test_error_in_a_reward_is_not_swallowed(executor):
    with pytest.raises(
        RewardError,
        match=r"failed .ValueError: reference is blank .* for prompt p9, number 0 of the run .* response '7'",
    ):
        execute(executor, tokenizer()("7", add_special_tokens=False)["input_ids"], label=Label("p9", " ", 0, 0))


def test_prompt_that_openrlhf_would_cut_is_an_error(executor):
    tokens = tokenizer()
    size = len(tokens(PROBLEMS[3]["prompt"], add_special_tokens=False)["input_ids"])
    assert execute(executor, [5], room=size + 8)["action_ranges"] == [(size, size + 1)]
    with pytest.raises(ValueError, match=f"prompt p3 has {size} tokens, and the run leaves room for {size - 1}"):
        execute(executor, [5], room=size + 7)


def generator(spec, outputs_of, monkeypatch):
    """The generator of a run whose vLLM gives outputs_of(label) for a prompt."""
    from dara.training.openrlhf import trainer

    class Dispatching(trainer.DaraSamplesGenerator):
        def _dispatch_prompts_to_vllm(self, prompts, labels, **kwargs):
            assert kwargs["min_new_tokens"] == 0
            return [outputs_of(prompt, label) for prompt, label in zip(prompts, labels, strict=True)]

    monkeypatch.setattr(trainer.ray, "get", list)
    labels = [Label(row["id"], row["reference"], i, 100).dumps() for i, row in enumerate(PROBLEMS)]
    loader = [(["default"], [row["prompt"]], [label], [None]) for row, label in zip(PROBLEMS, labels, strict=True)]
    args, dara = (
        SimpleNamespace(vllm=SimpleNamespace(enable_sleep=False)),
        SimpleNamespace(spec=spec, done=6, devices=1),
    )
    return Dispatching(SimpleNamespace(args=args, dara=dara), loader, None, tokenizer(), [])


def outputs(prompt: str, label: str, rewards: list[tuple[float, float]]) -> list[dict]:
    """What a rollout actor gives: response i has i + 1 tokens."""
    return [
        rollout_output(prompt, label, dict(zip(NAMES, values, strict=True)), i + 1)
        | {"response": f"{Label.loads(label).id}-{i}"}
        for i, values in enumerate(rewards)
    ]


def test_generator_gives_whole_groups_in_order_with_exact_rewards(monkeypatch):
    third = 1 / 3
    made = generator(tiny_spec(), lambda p, t: outputs(p, t, [(third, 1.0)] * 4), monkeypatch)
    samples, share, taken, exhausted = made.generate_samples(max_len=64)
    assert (len(samples), share, taken, exhausted) == (16, None, 4, False)
    assert [Label.loads(sample.labels[0]).position for sample in samples] == [p for p in range(4) for _ in range(4)]
    assert samples[0].info["reward"].item() == samples[0].rewards.item() == pytest.approx(1 + third)
    batch = made.rollouts
    assert batch.responses[:5] == ["p0-0", "p0-1", "p0-2", "p0-3", "p1-0"]
    assert batch.rows == [row for row in PROBLEMS[:4] for _ in range(4)]
    assert batch.rewards.tolist() == batch.pool_rewards.tolist() == [[[third, 1.0]] * 4] * 4, "float64"
    assert batch.lengths.tolist() == batch.pool_lengths.tolist() == [[1, 2, 3, 4]] * 4
    assert batch.filtered == {}
    samples, *_ = made.generate_samples(max_len=64)
    assert Label.loads(samples[0].labels[0]).position == 4, "the next step goes on where this one ended"


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
    assert made.rollouts.responses == [f"p{p}-{i}" for p in (0, 2, 4, 6) for i in range(4)]
    assert made.rollouts.rewards.shape == (4, 4, 2)
    assert made.rollouts.pool_rewards.shape == (9, 4, 2)
    assert made.rollouts.filtered["filter/num_gen_batches"] == 2
    rule = {**rule, "candidate_prompts": 4, "max_rounds": 1}
    made = filtered(rule)
    with pytest.raises(ValueError, match="step 7: the sum of the rewards varies in only 2 of the 4 groups of 1 round"):
        made.generate_samples(max_len=64)


def test_generator_refuses_a_partial_group(monkeypatch):
    made = generator(tiny_spec(), lambda p, t: outputs(p, t, [(0.0, 1.0)] * 3), monkeypatch)
    with pytest.raises(ValueError, match="a prompt has 3 responses; a group has 4"):
        made.generate_samples(max_len=64)


def test_each_sample_has_its_own_seed():
    from dara.training.openrlhf.executor import DaraRolloutActor

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

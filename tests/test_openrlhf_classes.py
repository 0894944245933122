"""Our subclasses of OpenRLHF's, one by one and without Ray: what goes into an update, its metrics, its checkpoint."""

import json
import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dara.config import Resources
from dara.training import run as run_files
from dara.training.openrlhf.command import OUTCOME, STATES, Settings, last_resumable, output_of, prepare_output
from dara.training.openrlhf.rollouts import Label
from dara.training.step import Progress, Rollouts, run_method
from dara.training.stopping import Deadline
from training_tiny import PROBLEMS, rollout_output, tiny_spec

pytestmark = pytest.mark.openrlhf

NAMES = ("correctness", "length")
STATUS = {"policy_loss": 0.0, "ppo_clip_ratio": 0.0, "ppo_kl": 0.0, "entropy_loss": 1.0, "actor_grad_norm": 1.0}


@pytest.fixture(autouse=True)
def without_gpu():
    from dara.training.openrlhf import cpu

    cpu.install()


def openrlhf_spec(**changes):
    return tiny_spec(**{"engine": "openrlhf", **changes})


def test_every_name_that_is_replaced_or_called_is_there():
    from dara.training.openrlhf import node

    node.check_version()
    node.check_names()


# --- the updates of a step --------------------------------------------------------------------------------------------


def rollout(position: int, rewards: tuple[float, float], n_tokens: int):
    """A sample as OpenRLHF makes it of a rollout actor's output."""
    from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

    row = PROBLEMS[position % len(PROBLEMS)]
    label = Label(row["id"], row["reference"], position, 0).dumps()
    output = rollout_output(row["prompt"], label, dict(zip(NAMES, rewards, strict=True)), n_tokens)
    return SamplesGenerator._process_response_into_experience(None, output, max_len=64)


def experience_maker(spec, ranks: int, *, dynamic: bool):
    """The experience maker of a run on `ranks` GPUs, whose models give log-probabilities of 0."""
    from dara.training.openrlhf.trainer import DaraExperienceMaker

    class WithoutModels(DaraExperienceMaker):
        def make_experience(self, samples_list):
            for samples in samples_list:
                samples.action_log_probs = torch.zeros(samples.action_mask.shape)
                samples.kl = torch.zeros(samples.action_mask.shape)
            return samples_list

    maker = WithoutModels.__new__(WithoutModels)
    maker.args = SimpleNamespace(
        train=SimpleNamespace(dynamic_batch_enable=dynamic),
        rollout=SimpleNamespace(max_tokens_per_gpu=24, micro_batch_size=8),
        actor=SimpleNamespace(num_nodes=1, num_gpus_per_node=ranks),
        ds=SimpleNamespace(ring_attn_size=1, tensor_parallel_size=1),
        algo=SimpleNamespace(kl=SimpleNamespace(use_loss=False)),
    )
    maker.tokenizer = SimpleNamespace(pad_token_id=0)
    maker.initial_model_group, maker.kl_ctl = None, SimpleNamespace(value=0.0)
    maker.method = run_method(spec)
    maker.strategy = SimpleNamespace(dara=SimpleNamespace(spec=spec, devices=ranks, keep_advantages=True))
    return maker


def replayed(experiences: list) -> list:
    """The samples of a rank in the order in which its updates take them, as the replay buffer holds them."""
    from openrlhf.trainer.ppo_utils.experience import remove_padding_in_sequences, split_experience_batch

    return [
        one for experience in experiences for one in remove_padding_in_sequences(split_experience_batch(experience))
    ]


@pytest.mark.parametrize(("ranks", "dynamic"), [(1, False), (1, True), (2, True)])
def test_whole_groups_go_to_an_update_on_any_number_of_gpus(ranks, dynamic):
    spec = openrlhf_spec()  # 4 groups of 4, 2 updates
    rng = np.random.default_rng(0)
    rewards, lengths = rng.integers(0, 2, (4, 4, 2)).astype(float), rng.integers(1, 9, (4, 4))
    samples = [rollout(b, tuple(rewards[b, g]), int(lengths[b, g])) for b in range(4) for g in range(4)]
    maker = experience_maker(spec, ranks, dynamic=dynamic)
    maker.rollouts = Rollouts([], [], torch.tensor(rewards), torch.tensor(lengths))
    experiences = maker.make_experience_batch(samples)
    hands = [replayed(experiences)] if ranks == 1 else [replayed([experience]) for experience in experiences]
    assert [len(hand) for hand in hands] == [16 // ranks] * ranks
    out = run_method(spec)(torch.tensor(rewards), lengths=torch.tensor(lengths))
    expected = (out.advantages * out.loss_weight).flatten()
    for update in range(2):
        size = 8 // ranks
        taken = [sample for hand in hands for sample in hand[update * size : (update + 1) * size]]
        places = [int(sample.info["index"]) for sample in taken]
        assert sorted(places) == list(range(8 * update, 8 * update + 8))
        for place, sample in zip(places, taken, strict=True):
            tokens = sample.advantages[sample.action_mask.bool()]
            assert tokens.tolist() == pytest.approx([expected[place].item()] * lengths.flatten()[place])


# --- metrics of an update ---------------------------------------------------------------------------------------------


def actor_trainer(entropy: float, tokens_of_the_update: float, *, kl_loss: bool = False):
    """A rank's trainer with a model that gives this entropy for each token; two micro-batches an update, two ranks."""
    import openrlhf.trainer.ray.ppo_actor as ppo_actor
    from openrlhf.models import PolicyLoss

    from dara.training.openrlhf.trainer import DaraActorTrainer

    class Model:
        def train(self):
            pass

        def __call__(self, sequences, action_mask, **_):
            values = torch.full(action_mask.shape, entropy)
            return torch.zeros(action_mask.shape, requires_grad=True), SimpleNamespace(entropy=values)

    assert ppo_actor.ActorPPOTrainer is DaraActorTrainer
    trainer = DaraActorTrainer.__new__(DaraActorTrainer)
    trainer.actor, trainer.actor_optim, trainer.ema_model, trainer.aux_loss = Model(), None, None, False
    trainer.actor_loss_fn = PolicyLoss()
    trainer.actor_scheduler = SimpleNamespace(get_last_lr=lambda: [1e-6])
    trainer.strategy = SimpleNamespace(
        ring_attn_group=None,
        backward=lambda *_: None,
        optimizer_step=lambda *_, **__: None,
        get_grad_norm=lambda _: 1.0,
    )
    trainer.replay_buffer = SimpleNamespace(
        dynamic_batch_num_tokens=[tokens_of_the_update] * 2,
        dynamic_global_batch_size=[8.0] * 2,
        dynamic_optimizer_step=[0, 1],
    )
    trainer.args = SimpleNamespace(
        actor=SimpleNamespace(entropy_coef=0.001),
        algo=SimpleNamespace(
            kl=SimpleNamespace(use_loss=kl_loss, init_coef=5e-4, estimator="k2", unbiased_gradient=False)
        ),
        train=SimpleNamespace(dynamic_batch_enable=True),
    )
    return trainer


@pytest.mark.parametrize("kl_loss", [False, True])
def test_entropy_and_kl_are_means_over_tokens_however_many_micro_batches_an_update_has(kl_loss):
    from openrlhf.trainer.ppo_utils.experience import Experience

    trainer = actor_trainer(entropy=1.5, tokens_of_the_update=40.0, kl_loss=kl_loss)
    for step, n_tokens in enumerate((3, 5)):
        mask = torch.tensor([[False] + [True] * n_tokens])
        zeros = torch.zeros(mask.shape)
        batch = Experience(
            sequences=torch.ones(1, n_tokens + 2, dtype=torch.long),
            attention_mask=torch.ones(1, n_tokens + 2),
            action_mask=mask,
            action_log_probs=zeros,
            base_action_log_probs=zeros - 0.6,
            advantages=zeros,
        )
        status = trainer.training_step(batch, 0.0, step, None)
        assert status["num_action_tokens"] == n_tokens
        assert status["metrics"]["entropy_loss"].item() == pytest.approx(1.5)
        assert status["weights"]["entropy_loss"] == "token"
        if kl_loss:
            assert status["metrics"]["kl"].item() == pytest.approx(0.6**2 / 2)
            assert status["weights"]["kl"] == "token"
        else:
            assert "kl" not in status["metrics"]


def test_dual_clip_is_verls():
    """verl 0.7: min(max(-A r, -A clip(r)), -A c) where A < 0, the usual loss elsewhere; a weight q >= 0 commutes."""
    from openrlhf.models import PolicyLoss

    ratios = torch.tensor([[0.5, 1.0, 1.25, 2.9, 3.0, 3.5, 50.0]])
    mask = torch.ones(1, 7, dtype=torch.bool)
    loss = PolicyLoss(clip_eps_low=0.2, clip_eps_high=0.28, dual_clip=3.0)
    for advantage in (-2.0, -0.5, 0.0, 1.0):
        for place, ratio in enumerate(ratios[0].tolist()):
            usual = max(-advantage * ratio, -advantage * min(max(ratio, 0.8), 1.28))
            expected = min(usual, -advantage * 3.0) if advantage < 0 else usual
            only = torch.zeros_like(mask)
            only[0, place] = True
            for q in (1.0, 0.25):
                given = torch.full_like(ratios, q * advantage)
                made = loss(ratios.log(), torch.zeros_like(ratios), given, action_mask=only)[0]
                assert made.item() == pytest.approx(q * expected, rel=1e-5)


# --- the trainer ------------------------------------------------------------------------------------------------------


class Clock:
    """In place of the module `time`."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    time = monotonic


class Method:
    has_state = True

    def state_dict(self):
        return {}


def test_the_kl_of_the_loss_is_a_metric_where_there_is_one():
    from dara.training.openrlhf.trainer import engine_metrics

    status = {**STATUS, "actor_lr": 1e-6, "weights_finite": True, "kl": 0.25}
    with_kl = openrlhf_spec(kl={"placement": "loss", "coefficient": 5e-4, "estimator": "k2"})
    assert engine_metrics(with_kl, status)["kl_reference"] == 0.25
    assert set(engine_metrics(with_kl, status)) - set(engine_metrics(openrlhf_spec(), status)) == {"kl_reference"}


def trainer_of(directory, monkeypatch, deadline=None):
    """The trainer of a run whose steps take 2 seconds and whose checkpoints take 7."""
    from dara.training import step
    from dara.training.openrlhf import trainer

    clock = Clock()
    monkeypatch.setattr(trainer, "time", clock)
    monkeypatch.setattr(step, "time", clock)
    monkeypatch.setattr(trainer.ray, "get", lambda refs: refs)
    output = output_of(directory)
    output.mkdir(parents=True)

    class Stepping(trainer.DaraTrainer):
        def train_step(self, samples, step):
            clock.now += 2
            return {**STATUS, "actor_lr": 1e-6, "weights_finite": True}, step + 1

    class Recording(Progress):
        def complete_step(self, rollouts, engine, seconds):
            line = {"schema": 1, "step": self.step}
            run_files.append_metrics(directory, line)
            self.record.metrics.append(line)
            self.record.rewards.append(np.zeros((4, 4, 2)))
            self.record.lengths.append(np.ones((4, 4), dtype=int))
            self.record.seconds.append(seconds)

    class Actors:
        def async_run_method(self, *, method_name, tag, client_states):
            assert method_name == "save_checkpoint"
            clock.now += 7
            (output / "_actor" / tag).mkdir(parents=True)
            (output / f"{tag}_hf").mkdir()
            (output / f"{tag}_hf" / "model.safetensors").write_text(tag)

    made = Stepping.__new__(Stepping)
    spec, paths = openrlhf_spec(steps=4, checkpoint_every=2), {"directory": directory, "model_dir": directory}
    made.settings = Settings(spec=spec, resources=Resources(), **paths, methods_dir=None, done=0, started=0.0)
    made.progress = Recording(spec, directory, run_files.RunRecord(), Method(), deadline)
    made.samples_generator = SimpleNamespace(generate_samples=lambda: ([], None, 4, False), rollouts=None)
    made.experience_maker = SimpleNamespace()
    made.generate_kwargs, made.actor_model_group, made._step_began = {}, Actors(), 0.0
    return made


def test_the_seconds_of_a_step_include_the_checkpoint_before_it(tmp_path, monkeypatch):
    trainer = trainer_of(tmp_path, monkeypatch)
    trainer.fit()
    assert trainer.progress.record.seconds == [2, 2, 9, 2], "the estimate of the time that is left needs them"
    assert list(run_files.checkpoints(tmp_path)) == [2, 4]


def test_a_run_stops_at_a_checkpoint_before_its_jobs_time_limit(tmp_path, monkeypatch):
    trainer = trainer_of(tmp_path, monkeypatch, Deadline(minutes=0.3, started=0.0))  # 18 s: 11 are over at step 2
    trainer.fit()
    assert list(run_files.checkpoints(tmp_path)) == [2]
    outcome = json.loads((trainer.settings.output / OUTCOME).read_text())
    assert outcome["divergence"] is None
    assert outcome["out_of_time"].startswith("stopped at step 2 before the time limit of 0.3 minutes")
    assert last_resumable(tmp_path) == 2


CALLS = ((os, "replace"), (torch, "save"), (run_files, "save"), (run_files, "complete_checkpoint"))


@pytest.mark.parametrize(("module", "name"), [*CALLS, (None, "write_atomically"), (None, "remove_other_states")])
@pytest.mark.parametrize("after", [False, True])
def test_a_kill_while_a_checkpoint_is_written_loses_none_that_was_complete(tmp_path, monkeypatch, module, name, after):
    from dara.training.openrlhf import trainer as ours

    trainer = trainer_of(tmp_path, monkeypatch)
    for _ in range(2):
        trainer._step()
    trainer._checkpoint(2)
    for _ in range(2):
        trainer._step()
    owner = module or ours
    original = getattr(owner, name)

    def killed(*args, **kwargs):
        if after:
            original(*args, **kwargs)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, killed)
        with pytest.raises(KeyboardInterrupt):
            trainer._checkpoint(4)
    done = last_resumable(tmp_path)
    completed = name == "remove_other_states" or (name == "complete_checkpoint" and after)
    assert done == (4 if completed else 2)
    run_files.remove_unfinished(tmp_path)
    prepare_output(trainer.settings.output, done)
    assert run_files.load(tmp_path, done).steps == done
    saved = trainer.settings.output / STATES
    assert [path.name for path in saved.iterdir() if path.is_dir()] == [f"global_step{done}"]
    assert (saved / "latest").read_text() == f"global_step{done}"
    assert (tmp_path / f"step_{done}" / "model.safetensors").read_text() == f"global_step{done}"
    assert (tmp_path / f"step_{done}" / "method_state.pt").is_file()

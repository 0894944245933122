"""Prompts with their labels, dynamic filtering, and how samples are divided among the updates and the GPUs."""

import json
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dara.specs import Filter
from dara.training.openrlhf.launch import prompt_file
from dara.training.openrlhf.rollouts import (
    Label,
    collect,
    consumed,
    next_round,
    prompt_batches,
    shard_samples,
    varies,
)
from dara.training.run import read_rows
from dara.training.step import training_rows
from training_tiny import PROBLEMS, tiny_spec

EQUAL = (1.0, 1.0)
"""Weights of two rewards."""


@dataclass(frozen=True)
class Group:
    position: int
    rewards: np.ndarray


class Source:
    """Groups of two responses; those of `informative` positions vary."""

    def __init__(self, informative, position: int = 0):
        self.informative, self.position, self.sizes = informative, position, []

    def draw(self, size: int) -> list[Group]:
        self.sizes.append(size)
        positions = range(self.position, self.position + size)
        self.position += size
        return [Group(p, np.array([[0.0, 1.0], [float(self.informative(p)), 1.0]])) for p in positions]


def rule(candidates: int = 6, rounds: int = 2, criterion: str = "sum_varies") -> Filter:
    return Filter(criterion=criterion, candidate_prompts=candidates, max_rounds=rounds)


def positions(pool) -> list[int]:
    return [pool.groups[i].position for i in pool.kept]


# --- which groups vary ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rewards", "weights", "by_sum", "by_any"),
    [
        ([[1, 0], [0, 0]], None, True, True),
        ([[1, 0], [0, 1]], None, False, True),  # both rewards vary, and cancel
        ([[1, 1], [1, 1]], None, False, False),
        ([[0.3, 0.0]] * 6, None, False, False),  # a float32 standard deviation is not 0 here
        ([[0.1, 0.0]] * 3, None, False, False),
        ([[0, 0]] + [[0.95, 0]] * 7, None, True, True),
        ([[1.0, 0], [np.nextafter(1.0, 2.0), 0]], None, True, True),
        ([[0.5], [0.5]], None, False, False),
        ([[0.5], [0.25]], None, True, True),
        ([[0, 1, 2], [1, 2, 0], [2, 0, 1]], None, False, True),
        ([[1, 0], [1, 1]], [1, 0], False, False),  # only a reward of weight 0 varies
        ([[1, 0], [0, 1]], [1, 0], True, True),
        ([[1, 0], [0, 0]], [0, 0], False, False),
        ([[1, 0], [0, 1]], [1, 5], True, True),  # cancels without the weights, and not with them
        ([[5, 0], [0, 1]], [1, 5], False, True),  # the reverse
        ([[2 - 2**-52, 0], [2 - 2**-51, 0]], [0.6, 1], False, True),  # the products are rounded to one number
    ],
)
def test_a_group_varies_by_what_the_rewards_weigh(rewards, weights, by_sum, by_any):
    values = np.array(rewards, dtype=np.float64)
    weights = weights or [1.0] * values.shape[1]
    assert varies(values, "sum_varies", weights) is by_sum
    assert varies(values, "any_reward_varies", weights) is by_any


# --- rounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deficit", "accepted", "generated", "world_size", "size"),
    [
        (200, 312, 768, 1, 616),  # 200 / 0.40625 * 1.25 = 615.4
        (200, 312, 768, 8, 616),
        (200, 312, 768, 9, 621),
        (436, 76, 768, 8, 768),  # 10 % are accepted: the deficit alone would ask for 5,512
        (512, 0, 768, 8, 768),
        (512, 0, 768, 5, 768),  # a full batch of candidates is the most, whatever the GPUs
        (12, 3, 10, 1, 50),  # 12 / 0.3 * 1.25 is 50 exactly, and 50.00000000000001 in some orders of floats
        (1, 767, 768, 1, 16),  # as many prompts as a group has responses at least
        (1, 767, 768, 9, 18),
        (20, 500, 768, 1, 39),
    ],
)
def test_size_of_a_later_round(deficit, accepted, generated, world_size, size):
    asked = next_round(deficit, accepted, generated, group_size=16, world_size=world_size, candidates=768)
    assert asked == size


def test_without_a_filter_each_group_is_kept():
    source = Source(lambda p: False)
    pool = collect(source.draw, 4, None, EQUAL)
    assert (positions(pool), pool.metrics, source.sizes) == ([0, 1, 2, 3], {}, [4])


def test_surplus_groups_are_dropped_in_the_order_of_the_prompts():
    source = Source(lambda p: p != 1)
    pool = collect(source.draw, 4, rule(6), EQUAL)
    assert positions(pool) == [0, 2, 3, 4]
    assert len(pool.groups) == 6, "the pool is what was generated, not what is kept"
    assert pool.metrics == {
        "filter/num_gen_batches": 1.0,
        "filter/informative_groups_collected": 5.0,
        "filter/prompts_generated_total": 6.0,
        "filter/generation_overhead": 0.5,
        "filter/acceptance": 5 / 6,
    }


def test_later_rounds_fill_the_step():
    source = Source(lambda p: p % 2 == 0)
    pool = collect(source.draw, 4, rule(6), EQUAL)
    assert source.sizes == [6, 3]  # one is missing of four, half are accepted: 1 / 0.5 * 1.25 = 2.5
    assert positions(pool) == [0, 2, 4, 6]
    assert pool.metrics["filter/num_gen_batches"] == 2
    assert pool.metrics["filter/generation_overhead"] == 9 / 4 - 1
    assert pool.metrics["filter/acceptance"] == 5 / 9


@pytest.mark.parametrize(
    ("informative", "prompts", "candidates", "world_size", "sizes"),
    [
        # of all rounds before: 8 / (20/40) * 1.25 = 20; 4 / (24/60) * 1.25 = 12.5
        (lambda p: p < 20 or 40 <= p < 44, 28, 40, 1, [40, 20, 13]),
        (lambda p: p % 10 == 0, 8, 12, 8, [12, 12, 12]),  # none is larger than the first
    ],
)
def test_rounds_go_by_the_acceptance(informative, prompts, candidates, world_size, sizes):
    source = Source(informative)
    with pytest.raises(ValueError, match=r"varies in only"):
        collect(source.draw, prompts, rule(candidates, rounds=3), EQUAL, world_size=world_size)
    assert source.sizes == sizes


def test_a_short_step_is_an_error_with_counts_and_a_remedy():
    source = Source(lambda p: p == 0)
    with pytest.raises(ValueError) as caught:
        collect(source.draw, 4, rule(6), EQUAL, step="step 7")
    assert source.sizes == [6, 6]
    assert str(caught.value) == (
        "step 7: the sum of the rewards varies in only 1 of the 12 groups of 2 round(s), and 4 are needed: "
        "raise filter.max_rounds (2) or filter.candidate_prompts (6), or train with fewer prompts_per_step"
    )


@given(
    pattern=st.lists(st.sampled_from(["varies", "cancels", "constant"]), min_size=1, max_size=60),
    prompts=st.integers(1, 12),
    extra=st.integers(0, 12),
    rounds=st.integers(1, 5),
    world_size=st.integers(1, 8),
    criterion=st.sampled_from(["sum_varies", "any_reward_varies"]),
)
def test_a_filtered_step(pattern, prompts, extra, rounds, world_size, criterion):
    values = {"varies": [[1, 0], [0, 0]], "cancels": [[1, 0], [0, 1]], "constant": [[1, 1], [1, 1]]}
    taken: list[int] = []

    def draw(size: int) -> list[Group]:
        start = sum(taken)
        taken.append(size)
        kinds = [pattern[p % len(pattern)] for p in range(start, start + size)]
        return [Group(start + i, np.array(values[kind], float)) for i, kind in enumerate(kinds)]

    teaches = [kind == "varies" or (kind == "cancels" and criterion == "any_reward_varies") for kind in pattern]
    try:
        pool = collect(draw, prompts, rule(prompts + extra, rounds, criterion), EQUAL, world_size=world_size)
    except ValueError:
        assert len(taken) == rounds
        assert sum(teaches[p % len(pattern)] for p in range(sum(taken))) < prompts
        return
    finally:
        assert len(taken) <= rounds
        assert all(size % world_size == 0 or size == prompts + extra for size in taken[1:])
        assert max(taken) == prompts + extra
    kept = positions(pool)
    assert len(kept) == prompts
    assert all(varies(pool.groups[i].rewards, criterion, EQUAL) for i in pool.kept)
    assert kept == [p for p in range(sum(taken)) if teaches[p % len(pattern)]][:prompts], "the first, in order"
    assert pool.metrics["filter/prompts_generated_total"] == sum(taken) == len(pool.groups)


# --- prompts and their position ---------------------------------------------------------------------------------------


def test_position_follows_from_the_metrics():
    assert consumed([], 4) == 0
    assert consumed([{"step": 1}, {"step": 2}], 4) == 8
    filtered = [{"filter/prompts_generated_total": 9.0}, {"filter/prompts_generated_total": 6.0}]
    assert consumed(filtered, 4) == 15


def test_a_resumed_filtered_run_sees_the_same_groups():
    """Four steps straight equal two, an interruption, and two from the position that the metrics tell."""

    def informative(p: int) -> bool:
        return p % 3 != 0

    def steps(source: Source, number: int):
        return [collect(source.draw, 4, rule(5, rounds=3), EQUAL) for _ in range(number)]

    straight = steps(Source(informative), 4)
    first = steps(Source(informative), 2)
    resumed = steps(Source(informative, consumed([pool.metrics for pool in first], 4)), 2)
    assert [positions(pool) for pool in straight] == [positions(pool) for pool in first + resumed]
    assert len({position for pool in straight for position in positions(pool)}) == 16, "no prompt twice"


def test_seed_of_a_sample_depends_on_run_position_prompt_and_sample_alone():
    label = Label(id="p1", reference="42", position=7, seed=100)
    seeds = {
        label.sample_seed(0),
        label.sample_seed(1),
        Label("p1", "42", 8, 100).sample_seed(0),
        Label("p1", "42", 7, 101).sample_seed(0),
        Label("p2", "42", 7, 100).sample_seed(0),
    }
    assert len(seeds) == 5
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert label.sample_seed(0) == Label("p1", "another", 7, 100).sample_seed(0)
    assert Label("a", "", 0, 0).sample_seed(0) == 482575835829513722


def test_label_survives_as_text():
    label = Label(id='a "b"', reference="<tool_call>\nß\n</tool_call>", position=3, seed=0)
    assert Label.loads(label.dumps()) == label


def test_the_loader_has_the_order_of_the_other_engine_and_can_start_anywhere(tmp_path):
    path, spec = tmp_path / "output" / "prompts.jsonl", tiny_spec(engine="openrlhf", steps=8)
    prompt_file(PROBLEMS, path)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    assert [line["input"] for line in lines] == [row["prompt"] for row in PROBLEMS], "each once, in order"
    expected = training_rows(PROBLEMS, spec)
    for start in (0, 5, 12, 25):
        loader = prompt_batches(path, spec.seed, sampler_seed=7, start=start)
        for position, (sources, [prompt], [label], images) in enumerate(islice(loader, 32 - start), start):
            row = expected[position]
            assert (sources, images, prompt) == (["default"], [None], row["prompt"])
            assert Label.loads(label) == Label(row["id"], row["reference"], position, 7)


def test_a_prompt_may_hold_any_character(tmp_path):
    row = {"id": "é", "prompt": "one\u2028two\x85three\n", "reference": "\u2029"}
    prompt_file([row], tmp_path / "prompts.jsonl")
    _, [prompt], [label], _ = next(prompt_batches(tmp_path / "prompts.jsonl", 0, 0))
    assert (prompt, Label.loads(label).reference) == (row["prompt"], row["reference"])
    (tmp_path / "train.jsonl").write_text(4 * (json.dumps(row, ensure_ascii=False) + "\n"), encoding="utf-8")
    assert read_rows(tmp_path / "train.jsonl", tiny_spec()) == 4 * [row]


def test_updates_get_whole_groups_and_ranks_as_many_samples_each():
    lengths = np.random.default_rng(0).integers(1, 100, 48).tolist()
    shards = shard_samples(lengths, updates=3, ranks=4)
    assert [len(shard) for shard in shards] == [12] * 4
    for update in range(3):
        samples = sorted(i for shard in shards for i in shard[4 * update : 4 * update + 4])
        assert samples == list(range(16 * update, 16 * update + 16))
        loads = [sum(lengths[i] for i in shard[4 * update : 4 * update + 4]) for shard in shards]
        assert max(loads) < 1.5 * min(loads)

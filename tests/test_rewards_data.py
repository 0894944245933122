"""Rewards of the gold answers of the real data sets, which must be perfect."""

import pytest

from dara.rewards import math_correctness, numeric_equal, score, tool_format


def test_toolrl_gold_answers_are_perfect(real_rows):
    gold = [row["reward_model"]["ground_truth"] for row in real_rows("toolrl_rlla_4k_val80.jsonl")]
    scores = [
        score("tool_calling", ("correctness", "format"), response=text, reference=text, n_tokens=1, params={})
        for text in gold
    ]
    assert len(gold) == 80
    with_call = ["<tool_call>" in text for text in gold]
    assert sum(with_call) == 71
    assert scores == [[3.0 if call else 0.0, 1.0] for call in with_call]


def test_toolrl_gold_answers_inside_a_conversation(real_rows):
    for row in real_rows("toolrl_rlla_4k_val80.jsonl"):
        gold = row["reward_model"]["ground_truth"]
        turns = [f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in row["prompt"]]
        text = "".join(turns) + f"<|im_start|>assistant\n{gold}<|im_end|>\n"
        (value,) = score("tool_calling", ["format"], response=text, reference=gold, n_tokens=1, params={})
        assert value == 1.0


def test_toolrl_demonstrations_that_name_the_tag_in_their_thoughts_are_refused_as_references(real_rows):
    accepted, refused = [], 0
    for row in real_rows("toolrl_rlla_sft400.jsonl"):
        gold = row["output"]
        try:
            values = score("tool_calling", ("correctness",), response=gold, reference=gold, n_tokens=1, params={})
        except ValueError as error:
            message = str(error)
            assert gold.count("<tool_call>") == 2
            assert "is not JSON" in message or "without a </tool_call>" in message
            refused += 1
        else:
            assert tool_format(gold, gold) == 1.0
            accepted.append(values[0])
    assert refused == 17
    assert accepted.count(3.0) == 329
    assert accepted.count(0.0) == 54


@pytest.mark.parametrize(
    ("name", "count", "numbers"),
    [
        ("math500.jsonl", 500, 338),
        ("aime24.jsonl", 30, 30),
        ("amc.jsonl", 83, 83),
        ("minerva.jsonl", 272, 180),
        ("deepscaler_200.jsonl", 200, 122),
    ],
)
def test_gold_answers_equal_themselves(name, count, numbers, real_rows):
    answers = [row["answer"] for row in real_rows(name)]
    boxed = [(f"So it is $\\boxed{{{answer}}}$.", answer) for answer in answers]
    assert len(answers) == count
    assert all(math_correctness(response, answer) == 1.0 for response, answer in boxed)
    assert sum(numeric_equal(response, answer) for response, answer in boxed) == numbers
    assert sum(math_correctness("\\boxed{-987654321}", answer) for answer in answers) == 0.0

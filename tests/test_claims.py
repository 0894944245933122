"""Verdicts on the paper's claims: each rule with known answers, and made-up runs that say what the paper says, or not."""

import math
import re
from functools import cache

import pandas as pd
import pytest

from dara.analysis.compare import Difference, compared_pairs
from dara.analysis.frames import rows_to_frame
from dara.analysis.intervals import LEVEL, t_interval
from dara.analysis.view_published import PublishedView, read_published
from dara.analysis.view_runs import RunsView
from dara.config import Experiment, MethodEntry
from dara.loading import load_published, read_methods
from dara.plan import FRAMES
from dara.report.claims import Result, Sources, assess, check_formulas, other_methods, read_claims
from dara.report.verdicts import (
    MARGIN_SHARE,
    PAIRS,
    SCORE_MARGIN,
    Judgement,
    Verdict,
    _exact,
    judge,
    overall,
    share_margin,
)
from project import ROOT
from scored_frames import entry

GOOD, BAD, OPEN = Verdict.REPRODUCED, Verdict.NOT_REPRODUCED, Verdict.NOT_DECIDABLE
PARITY, UNTESTED = Verdict.PARITY, Verdict.NOT_TESTED
NOT_MEASURED = {("gradients", "dara_sym"): UNTESTED}

# --- rules ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "low", "high", "verdict", "reason"),
    [
        ("less", -6, -1, GOOD, "the claimed side"),
        ("more", -6, -1, BAD, "the opposite"),
        ("less", -30, 2, OPEN, "the claimed side; the interval contains 0 and reaches beyond the margin"),
        ("more", -30, 2, OPEN, "the other side; the interval contains 0"),
        ("less", -1, 1, PARITY, "lies within the margin"),
        ("less", 0, 0, PARITY, "lies within the margin"),
        ("little", -1, 1, GOOD, "within the margin"),
        ("little", 0.5, 1.5, GOOD, "within the margin"),
        ("little", 1, 9, BAD, "differs by more than the margin"),
        ("little", 0.5, 3, OPEN, "reaches beyond the margin"),
        ("not_worse", -1.9, 8, GOOD, "above minus the margin"),
        ("not_worse", -9, -1, BAD, "lower"),
        ("not_worse", -9, 1, OPEN, "reaches below minus the margin"),
        ("either", -6, -1, Verdict.LOWER, "excludes 0"),
        ("either", 1, 6, Verdict.HIGHER, "excludes 0"),
        ("either", -1, 1, PARITY, "within the margin"),
        ("either", -9, 1, OPEN, "lower; the interval contains 0"),
    ],
)
def test_a_rule_reads_the_interval(rule, low, high, verdict, reason):
    found = judge(rule, Difference((low + high) / 2, low, high, PAIRS), margin=2)
    assert found.verdict is verdict
    assert reason in found.reason


def test_two_pairs_decide_nothing_and_no_pair_tests_nothing():
    assert judge("less", Difference(-6, -6, -6, 2), 2) == (OPEN, "on the claimed side; 2 pairs of runs, 3 are needed")
    assert judge("less", Difference(-6, math.nan, math.nan, 1), 2).reason.endswith("1 pair of runs, 3 are needed")
    assert judge("less", Difference(math.nan, math.nan, math.nan, 0), 2).verdict is UNTESTED


def test_one_pair_is_judged_over_questions_and_says_so():
    found = judge("more", Difference(0.05, 0.01, 0.09, 1, "questions"), 0.02)
    assert found == (GOOD, "the interval excludes 0 on the claimed side (over questions, one run each)")
    for rule in ("less", "more", "little", "not_worse", "either"):  # equal answers to all questions are no parity
        found = judge(rule, Difference(0.0, 0.0, 0.0, 1, "questions"), 0.02)
        assert found == (OPEN, "no question differs, so the interval over questions has no width")


def test_a_formula_needs_a_step():
    found = [_exact("", "", *given).judgement.verdict for given in ((1e-6, 9), (2e-4, 9), (0.0, 0))]
    assert found == [GOOD, BAD, UNTESTED]


def test_the_worst_comparison_decides():
    good, bad, untested = Judgement(GOOD, "a"), Judgement(BAD, "why not"), Judgement(UNTESTED, "no runs")
    parity, unclear = Judgement(PARITY, "b"), Judgement(OPEN, "c")
    assert overall([good, untested]) == (GOOD, "of 2 comparisons 1 reproduced, 1 not tested")
    assert overall([good, bad, parity]) == (BAD, "of 3 comparisons 1 not reproduced, 1 parity, 1 reproduced")
    assert overall([unclear, parity, good]).verdict is PARITY
    assert overall([unclear, good]).verdict is OPEN
    assert overall([bad]) == bad
    assert overall([untested, untested]) == (UNTESTED, "no runs")


# --- claims -----------------------------------------------------------------------------------------------------------

METHODS = read_methods(ROOT)
MINE = MethodEntry(label="Mine", color="#000000")
PLACES = {
    "tool_main": ("tool_calling", "format", (4,), ("grpo", "gdpo", "dara_asym", "dara_sym", "mine")),
    "group_size": ("tool_calling", "format", (4, 8, 16), ("grpo", "gdpo", "dara_asym", "dara_sym")),
    "three_rewards": ("tool_calling", "format", (4,), ("gdpo", "dara_asym", "dara_sym")),
    "math_main": ("math", "length", (8,), ("gdpo", "dara_asym", "dara_sym")),
    "fixed_weight": ("math", "length", (8,), ("dara_asym", "dara_sym", "static_asym", "static_sym")),
    "extended": ("math", "length", (8,), ("grpo", "dara_asym")),
}
"""Experiment -> task, sparse reward, group sizes, methods."""

SAID = {
    "seeds": (100, 101, 102),
    "engines": ("trl",),
    "first": {"grpo": 40, "gdpo": 20, "dara_asym": 15, "dara_sym": 14, "mine": 30},
    "size": {4: 0, 8: -4, 16: -8},
    "stable": {0.8: {}, 0.9: {}, 0.99: {"gdpo": 70, "dara_asym": 50, "dara_sym": 40}},
    "density": {4: 0.05, 8: 0.1, 16: 0.2},
    "average_accuracy": {},
    "average_format": {"grpo": 0.75, "gdpo": 0.88, "dara_asym": 0.96, "dara_sym": 0.96, "mine": 0.9},
    "acc": {"dara_sym": 0.46, "static_asym": 0.45, "static_sym": 0.4},
    "joint": {"gdpo": 0.43, "dara_asym": 0.46, "dara_sym": 0.43, "static_asym": 0.4, "static_sym": 0.4},
    "exceed": {"grpo": 0.09, "gdpo": 0.08, "dara_asym": 0.04, "dara_sym": 0.02},
    "factor": {},
}
"""Numbers that say what the paper says; a method that is not named has 40 steps, or a score of 0.5."""

JITTER = {100: -0.001, 101: 0.0, 102: 0.001}


@cache
def papers() -> list[Result]:
    """The results without runs, with the paper's numbers, which take time to print: no verdict hangs on them."""
    numbers = read_published(ROOT / "results" / "published" / "data")
    theirs = {name: PublishedView(numbers, one, METHODS) for name, one in load_published(ROOT).items()}
    return assess(Sources({}, theirs, METHODS))


def views(frames: dict[str, pd.DataFrame], experiments: dict[str, Experiment]) -> Sources:
    """The views of runs, without published numbers."""
    methods = METHODS | {"mine": MINE}
    return Sources({name: RunsView(frames, one, methods, "made-up") for name, one in experiments.items()}, {}, methods)


def sources(**changes) -> Sources:
    """The views of made-up runs of every experiment."""
    said = SAID | changes
    rows = {name: [] for name in FRAMES}
    experiments = {}
    for name, (task, reward, sizes, methods) in PLACES.items():
        fields = {"question": "?", "task": task, "rewards": ("correctness", reward), "sparse_reward": reward}
        shown = {"tables": {f"{name}_c": "comparisons", f"{name}_s": entry("score_intervals")}, "figures": {}}
        thresholds = {reward: (0.8,) if reward == "format" else (0.8, 0.9, 0.99)}
        experiments[name] = Experiment(experiment=name, methods=methods, thresholds=thresholds, **fields, **shown)
        for size in sizes:
            for engine in said["engines"]:
                for method in methods:
                    for seed in said["seeds"]:
                        add_run(rows, name, engine, size, method, seed, said)
                add_intervals(rows, name, engine, size, said)
    frames = {name: rows_to_frame(found, name) for name, found in rows.items()}
    return views(frames, experiments)


def add_run(rows, experiment, engine, size, method, seed, said) -> None:
    task, reward, _, _ = PLACES[experiment]
    run = {"run_id": f"{experiment}-{engine}-{method}-g{size}-s{seed}", "task": task, "model": "tiny", "method": method}
    run |= {"group_size": size, "seed": seed}
    state = {"repeat": 0, "steps": 100, "engine": engine, "outcome": "completed", "origin": "trained"}
    rows["runs"].append({"experiment": experiment} | run | state)
    for step in (1, 2):
        density = said["density"].get(size, 0.1) + JITTER[seed]
        curves = {f"density/{reward}": density, "groups": 32.0}
        rows["training_curves"] += [run | {"step": step, "metric": m, "value": v} for m, v in curves.items()]
        for name, pi in {"correctness": 4 * density, reward: density}.items():
            weight, energy = math.sqrt(4 * density / pi), 32 * pi * (size - 1)
            factor = {"dara_sym": weight**2, "dara_asym": (1 + weight**2) / 2}.get(method, 1.0)
            factor *= said["factor"].get(method, 1.0) if name == reward else 1.0
            row = {"density": pi, "weight": weight, "energy_pos": energy / 2, "energy_neg": energy / 2}
            row |= {"contributed_pos": energy * factor / 2, "contributed_neg": energy * factor / 2}
            shares = {"share_before": 0.2, "share_after": {"dara_sym": 0.5, "mine": 0.3}.get(method, 0.2)}
            rows["energies"].append(run | {"step": step, "reward": name} | row | shares)
    for threshold in (0.8,) if reward == "format" else (0.8, 0.9, 0.99):
        first = said["first"].get(method, 40) + said["size"].get(size, 0) + seed % 2
        stable = said["stable"].get(threshold, {}).get(method, 40)
        found = {"first_step": first, "stable_step": stable and stable + seed % 2, "budget": 100}
        found |= {"status": "reached" if stable else "not_reached"}
        rows["crossings"].append(run | {"reward": reward, "threshold": threshold} | found)
    scores = {metric: scored(said, metric, method, seed) for metric in METRICS[task]}
    for metric, value in scores.items():
        for step, more in ((50, 0.0), (60, 0.0), (100, 0.0)) if metric != "exceed" else ((50, 0.0), (100, -0.05)):
            score = {"step": step, "benchmark": "b", "metric": metric, "n_questions": 100}
            rows["checkpoint_scores"].append(run | score | {"value": max(value + more, 0)})


METRICS = {"tool_calling": ("average_accuracy", "average_format"), "math": ("acc", "joint", "exceed")}


def scored(said, metric, method, seed) -> float:
    return said[metric].get(method, 0.5) + JITTER[seed] * (1 if method == "gdpo" else 0.9)


def add_intervals(rows, experiment, engine, size, said) -> None:
    """The rows of score_intervals, differences over seeds (of one seed, over questions: a point or less)."""
    task, _, _, methods = PLACES[experiment]
    for method, baseline in compared_pairs(methods):
        for metric in METRICS[task]:
            values = [scored(said, metric, method, s) - scored(said, metric, baseline, s) for s in said["seeds"]]
            mean, over_seeds = sum(values) / len(values), t_interval(values)
            row = {"experiment": experiment, "model": "tiny", "group_size": size, "engine": engine, "benchmark": "b"}
            row |= {"metric": metric, "method": method, "baseline": baseline, "value": mean, "low": mean - 0.01}
            row |= {"high": mean + 0.01, "n_seeds": len(values), "n_questions": 100}
            row |= {"t_low": over_seeds.low, "t_high": over_seeds.high} if over_seeds else {}
            rows["score_intervals"] += [row | {"step": step} for step in (50, 60, 100)]


def verdicts(**changes) -> dict[tuple[str, str], Verdict]:
    return {key: result.judgement.verdict for key, result in found_in(sources(**changes)).items()}


def found_in(made: Sources) -> dict[tuple[str, str], Result]:
    return {(result.id, result.method): result for result in assess(made)}


def test_every_claim_is_reproduced_by_numbers_that_say_so():
    found = verdicts()
    assert {key: verdict for key, verdict in found.items() if verdict is not GOOD} == NOT_MEASURED
    assert list(dict.fromkeys(claim for claim, _ in found)) == list(read_claims().claims)
    assert {check.judgement.verdict for check in check_formulas(sources())} == {GOOD}


BOTH = ("dara_asym", "dara_sym")


def of(verdict: Verdict, methods: tuple[str, ...], *claims: str) -> dict[tuple[str, str], Verdict]:
    return {(claim, method): verdict for claim in claims for method in methods}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"first": {"grpo": 40, "gdpo": 13, "dara_asym": 15, "dara_sym": 13}},
            of(BAD, ("dara_asym",), "format-gdpo", "group-every") | of(PARITY, ("dara_sym",), "format-gdpo", "group-every"),
        ),
        (
            {"first": {"grpo": 14, "gdpo": 50, "dara_asym": 15, "dara_sym": 13}},
            of(BAD, ("dara_asym",), "format-grpo", "group-every"),
        ),
        ({"size": {4: 0, 8: 1, 16: 2}}, of(BAD, ("grpo", "gdpo", *BOTH), "group-steps")),
        ({"density": {4: 0.2, 8: 0.1, 16: 0.05}}, of(BAD, ("grpo", "gdpo", *BOTH), "group-density")),
        ({"stable": {0.99: {"gdpo": 40, "dara_asym": 50, "dara_sym": 40}}}, {
            ("length-99", "dara_asym"): BAD, ("length-99", "dara_sym"): PARITY,
        }),
        ({"stable": {0.9: {"gdpo": 75}, 0.99: {"gdpo": 70}}}, of(BAD, BOTH, "length-90")),
        (
            {"average_accuracy": {"gdpo": 0.6, "grpo": 0.6}},
            of(BAD, BOTH, "tool-accuracy"),
        ),
        ({"average_format": {}}, of(PARITY, BOTH, "format-60", "third-reward")),
        # Parity with fixed weights does not reproduce that they cost something; nor does equality of DARA-Sym and GDPO.
        (
            {"acc": {}},
            of(PARITY, BOTH, "fixed-accuracy") | of(PARITY, ("dara_sym",), "math-accuracy-sym"),
        ),
        (
            {"acc": {"dara_asym": 0.3, "dara_sym": 0.46, "static_asym": 0.2}},
            of(BAD, ("dara_asym",), "math-accuracy-asym", "extended-accuracy")
            | of(BAD, ("dara_sym",), "fixed-accuracy"),
        ),
        ({"exceed": {}}, of(PARITY, BOTH, "exceed") | of(PARITY, ("dara_asym",), "extended-exceed")
            | of(UNTESTED, BOTH, "held-out")),
    ],
)  # fmt: skip
def test_other_numbers_change_just_those_verdicts(changes, expected):
    found = verdicts(**changes)
    differs = {key: verdict for key, verdict in found.items() if verdict is not GOOD}
    assert differs == expected | NOT_MEASURED


@pytest.mark.parametrize(("method", "check"), [("dara_sym", "energy-sym"), ("dara_asym", "energy-asym")])
def test_a_formula_that_does_not_hold_is_no_claim(method, check):
    made = sources(factor={method: 1.01 if method == "dara_sym" else 2.0})
    found = {checked.id: checked.judgement.verdict for checked in check_formulas(made)}
    assert {name for name, verdict in found.items() if verdict is not GOOD} == {check}
    assert {result.judgement.verdict for result in assess(made)} == {GOOD, UNTESTED}


def test_an_energy_that_is_not_that_of_the_density():
    made = sources()
    made.runs["tool_main"].frames["energies"].loc[3, "energy_pos"] *= 1.001
    assert check_formulas(made)[0].judgement.verdict is BAD


def test_one_seed_is_judged_over_questions_and_its_crossings_are_not_decidable():
    found = found_in(sources(seeds=(101,)))
    assert found["format-60", "dara_sym"].judgement.verdict is GOOD
    assert "over questions, one run each" in found["format-60", "dara_sym"].rows[0].finding.judgement.reason
    assert found["format-gdpo", "dara_sym"].judgement == (OPEN, "on the claimed side; 1 pair of runs, 3 are needed")
    assert found["tool-format", "dara_sym"].judgement.verdict is GOOD
    assert set(verdicts(seeds=(100, 101)).values()) == {OPEN, UNTESTED}, "two seeds decide nothing"


def test_runs_of_two_engines_are_settings_of_their_own():
    one, two = (found_in(sources(engines=engines)) for engines in (("trl",), ("trl", "openrlhf")))
    for key, result in two.items():
        assert result.judgement.verdict is one[key].judgement.verdict
        if key not in NOT_MEASURED:
            assert len(result.rows) == 2 * len(one[key].rows)
            assert len({row.what for row in result.rows}) == len(result.rows)


def test_nobody_crosses_is_not_a_failure_of_the_claim():
    found = found_in(sources(stable={0.99: dict.fromkeys(("gdpo", *BOTH))}))
    reason = "no run of either method crosses in the planned steps"
    assert found["length-99", "dara_sym"].judgement == (UNTESTED, reason)


def test_pairs_of_which_neither_run_crosses_are_no_parity():
    made = sources()
    crossings = made.runs["math_main"].frames["crossings"]
    late = (crossings["threshold"] == 0.99) & (crossings["seed"] == 101) & (crossings["method"] != "dara_sym")
    crossings.loc[late, "stable_step"] = pd.NA
    same = (crossings["threshold"] == 0.99) & (crossings["seed"] != 101) & (crossings["method"] == "dara_asym")
    crossings.loc[same, "stable_step"] = 70
    found = found_in(made)
    reason = "2 of 6 runs do not cross in the planned steps: their difference is not known"
    assert found["length-99", "dara_asym"].judgement == (OPEN, reason)
    assert found["length-99", "dara_sym"].judgement.verdict is GOOD


def changed(made: Sources, **frames: pd.DataFrame) -> Sources:
    """The same with other frames."""
    kept = dict(made.runs["tool_main"].frames) | frames
    return views(kept, {name: view.experiment for name, view in made.runs.items()})


def without(made: Sources, experiment: str, method: str, **equal: int) -> Sources:
    """The same with runs of a method missing."""
    frames = made.runs["tool_main"].frames
    runs = frames["runs"].copy()
    gone = (runs["experiment"] == experiment) & (runs["method"] == method)
    for column, value in equal.items():
        gone &= runs[column] == value
    runs.loc[gone, "origin"] = "missing"
    others = {name: frames[name] for name in ("crossings", "checkpoint_scores", "training_curves")}
    left = {name: frame[~frame["run_id"].isin(runs.loc[gone, "run_id"])] for name, frame in others.items()}
    return changed(made, runs=runs, **left)


def test_a_setting_without_runs_is_named():
    found = found_in(without(sources(), "group_size", "gdpo", group_size=8))
    result = found["group-every", "dara_sym"]
    assert result.judgement == (GOOD, "of 6 comparisons 5 reproduced, 1 not tested")
    row = next(row for row in result.rows if row.finding.judgement.verdict is UNTESTED)
    assert row.what == "DARA-Sym against GDPO, first crossing of format 0.8; tiny, G=8"
    assert row.finding.judgement.reason == "no runs of GDPO here"


def test_group_sizes_without_runs_are_left_out():
    found = found_in(without(sources(), "group_size", "gdpo", group_size=16))
    for claim in ("group-steps", "group-density"):
        assert [row.what for row in found[claim, "gdpo"].rows] == ["GDPO, G = 8 against 4; tiny"]
        assert [row.what for row in found[claim, "grpo"].rows] == ["GRPO, G = 16 against 4; tiny"]
    one = found_in(without(without(sources(), "group_size", "gdpo", group_size=16), "group_size", "gdpo", group_size=8))
    assert one["group-steps", "gdpo"].judgement == (UNTESTED, "no runs with several group sizes here")


def test_what_runs_do_not_have_is_not_called_a_lack_of_runs():
    frames = sources().runs["tool_main"].frames
    none = {name: frames[name].iloc[:0] for name in ("score_intervals", "checkpoint_scores")}
    found = found_in(changed(sources(), **none))
    for claim in ("format-60", "exceed", "held-out"):
        assert found[claim, "dara_sym"].judgement == (UNTESTED, "no pair of runs has this score")
    others = frames["crossings"][frames["crossings"]["threshold"] != 0.99]
    found = found_in(changed(sources(), crossings=others))
    assert found["length-99", "dara_sym"].judgement == (UNTESTED, "the experiment does not have this threshold")


def test_numbers_over_other_runs_than_the_pairs_say_so():
    found = found_in(without(sources(), "tool_main", "gdpo", seed=102))
    details = [found[claim, "dara_sym"].rows[0].finding.detail for claim in ("format-gdpo", "format-60")]
    assert details[0].startswith("medians 14 against 20.5 (of 3 and 2 runs);")
    assert details[1] == "96.0 against 87.9 % (of 3 and 2 runs) at step 60 of 100"


def test_runs_that_do_not_cross_show_no_little_difference():
    made = sources()
    crossings = made.runs["math_main"].frames["crossings"]
    at = (crossings["reward"] == "length") & (crossings["threshold"] == 0.9)
    crossings.loc[at & (crossings["method"] == "gdpo"), "stable_step"] = pd.NA
    crossings.loc[at & (crossings["method"] != "gdpo"), "stable_step"] = 79  # of 80 at which a crossing can be seen
    reason = "3 of 6 runs do not cross in the planned steps: their difference is not known"
    assert found_in(made)["length-90", "dara_sym"].judgement == (OPEN, reason)


@pytest.mark.parametrize(
    ("score", "format_60", "at_the_end"),
    [(0.0, (UNTESTED, "both are at 0 % in every run"), UNTESTED), (1.0, (UNTESTED, "both are at 100 % in every run"), GOOD)],
)  # fmt: skip
def test_scores_at_an_end_of_their_range(score, format_60, at_the_end):
    made = sources()
    frames = made.runs["tool_main"].frames
    scores, intervals = frames["checkpoint_scores"].copy(), frames["score_intervals"].copy()
    scores.loc[scores["metric"] == "average_format", "value"] = score
    intervals.loc[intervals["metric"] == "average_format", ["value", "t_low", "t_high"]] = 0.0
    found = found_in(changed(made, checkpoint_scores=scores, score_intervals=intervals))
    assert found["format-60", "dara_sym"].rows[0].finding.judgement == format_60
    assert found["tool-format", "dara_sym"].judgement.verdict is at_the_end


def test_the_end_of_a_training_is_not_its_step_60():
    intervals = sources().runs["tool_main"].frames["score_intervals"]
    found = found_in(changed(sources(), score_intervals=intervals[intervals["step"] == 100]))
    assert found["format-60", "dara_sym"].rows[0].finding.judgement == (UNTESTED, "no scores near step 60")
    assert found["tool-format", "dara_sym"].judgement.verdict is GOOD


def test_the_margin_of_a_share_is_small_next_to_a_small_one():
    assert [share_margin(share) for share in (0.5, 0.1, 0.006, 0.0)] == pytest.approx([0.02, 0.02, 0.0012, 0.0])


def test_an_own_method_without_runs_is_named():
    rows = other_methods(without(sources(), "tool_main", "mine"))["tool_main"]
    against = ("GDPO", "DARA-Asym", "DARA-Sym")
    what = [f"Mine against {other}, first crossing of format 0.8; tiny, G=4" for other in against]
    assert [(row.what, row.finding.judgement) for row in rows] == [
        (one, (UNTESTED, "no runs of Mine here")) for one in what
    ]


def test_an_own_experiment_has_the_crossing_that_figures_mark():
    made = sources()
    view = made.runs["tool_main"]
    crossings = view.frames["crossings"].copy()
    crossings.loc[crossings["reward"] == "format", "threshold"] = 0.7
    other = {"tool_main": view.experiment.model_copy(update={"thresholds": {"format": (0.7, 0.9)}})}
    rows = other_methods(views(dict(view.frames) | {"crossings": crossings}, other))["tool_main"]
    assert "Mine against GDPO, first crossing of format 0.7; tiny, G=4" in {row.what for row in rows}


def test_a_users_own_method_has_the_same_rows():
    rows = other_methods(sources())
    assert list(rows) == ["tool_main"]
    assert {row.method for row in rows["tool_main"]} == {"mine"}
    expected = {}
    for other in ("GDPO", "DARA-Asym", "DARA-Sym"):
        of_pair = {"first crossing of format 0.8": "higher", "Average Accuracy": "parity"}
        of_pair["Average Format"] = "higher" if other == "GDPO" else "lower"
        of_pair["energy share of format"] = "lower" if other == "DARA-Sym" else "higher"
        expected |= {f"Mine against {other}, {what}; tiny, G=4": verdict for what, verdict in of_pair.items()}
    assert {row.what: row.finding.judgement.verdict for row in rows["tool_main"]} == expected
    assert {row.shown for row in rows["tool_main"]} == {"tables/tool_main_c.md", "tables/tool_main_s.md"}


def test_a_comparison_names_the_table_that_shows_its_number():
    results = {result.id: result for result in assess(sources())}
    assert {row.shown for row in results["format-gdpo"].rows} == {"tables/tool_main_c.md"}
    assert {row.shown for row in results["joint-sym"].rows} == {"tables/math_main_s.md"}
    assert {row.shown for row in results["held-out"].rows} == {"data/checkpoint_scores.csv"}


def test_the_papers_numbers_are_computed_from_its_files():
    results = papers()
    assert {result.judgement.verdict for result in results} == {UNTESTED}
    assert {row.finding.value for result in results for row in result.rows} == {"–"}
    paper = {(r.id, r.method): [row.paper for row in r.rows] for r in results}
    first, accuracy = paper["format-gdpo", "dara_asym"][0], paper["tool-accuracy", "dara_asym"][0]
    assert first.startswith("14 against 19 steps, 26 % fewer (median curves, 1.5B)")
    assert "over its seeds −24.4 [−60.1, 11.3] steps, 5 pairs (1.5B)" in first
    assert accuracy.startswith("50.6 against 50.4 %, +0.2 [−1.5, 2.0] points, 5 pairs (1.5B)")
    assert paper["format-60", "dara_sym"][0] == "96.1 against 88.1 %, +8.5 [−32.7, 49.7] points, 2 pairs (1.5B)"
    assert paper["math-accuracy-sym", "dara_sym"] == [
        "44.4 against 44.1 %, +0.3 points (R1-1.5B); 56.0 against 57.5 %, −1.5 points (R1-7B); "
        "58.8 against 60.8 %, −2.1 points (Qwen3-4B)"
    ]
    assert paper["length-99", "dara_sym"][0] == (
        "50 against 142 steps, 65 % fewer (R1-7B); 59 against 111 steps, 47 % fewer (Qwen3-4B)"
    )
    assert paper["fixed-accuracy", "dara_asym"] == ["48.0 against 46.8 %, +1.2 points (R1-1.5B)"]
    assert paper["held-out", "dara_asym"] == ["step 50 against 70 (R1-7B)"]
    assert paper["group-steps", "grpo"] == ["medians 37, 57, 34, 50 for G = 4, 8, 16, 32"]
    assert paper["group-density", "gdpo"][0].endswith("for G = 4, 8, 16, 32")
    assert paper["third-reward", "dara_sym"] == ["97.4 against 94.4 %, +3.0 points (1.5B)"]
    assert paper["extended-accuracy", "dara_asym"][0].startswith("62.2 against 63.0 %, −0.8 points (Qwen3-4B)")
    unknown = {key for key, texts in paper.items() if "no number is known" in texts}
    assert unknown == NOT_MEASURED.keys()


SETTINGS = {"60", "50", "80", "90", "99", "0.8", "5"}
"""Numbers in statements that are no results: steps, thresholds (in percent, too), and the fixed weight."""


def test_the_numbers_of_a_statement_are_in_the_papers_files():
    printed = dict.fromkeys(read_claims().claims, "")
    for result in papers():
        printed[result.id] += " ".join(row.paper for row in result.rows) + " "
    printed["third-reward"] += printed["tool-format"]  # its 97.1 is with two rewards
    numbers = re.compile(r"\d+(?:\.\d+)?")
    for name, claim in read_claims().claims.items():
        assert set(numbers.findall(claim.statement)) <= set(numbers.findall(printed[name])) | SETTINGS, name


def test_ours_are_printed_with_interval_and_number_of_pairs():
    results = found_in(sources())
    row = results["format-gdpo", "dara_asym"].rows[0]
    assert row.what == "DARA-Asym against GDPO, first crossing of format 0.8; tiny, G=4"
    assert row.finding.value == "−5.0 [−5.0, −5.0] steps, 3 pairs"
    assert row.finding.detail.startswith("medians 15 against 20; speed-up 25.0 [")
    assert results["tool-accuracy", "dara_sym"].rows[0].finding.detail == "50.0 against 50.0 % at step 100 of 100"


def test_the_texts_of_the_rules_have_the_numbers_that_judge():
    declared = read_claims()
    assert all(f"the {100 * LEVEL:g} % interval" in text for text in declared.rules.values())
    assert f"fewer than {PAIRS} pairs" in declared.common
    assert f"{100 * MARGIN_SHARE:g} % of" in declared.common
    assert f"at most {100 * SCORE_MARGIN:g} percentage" in declared.common


def test_without_runs_nothing_is_tested():
    assert {result.judgement.verdict for result in assess(Sources({}, {}, METHODS))} == {UNTESTED}

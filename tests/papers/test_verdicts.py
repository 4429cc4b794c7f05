"""The rules of verdicts, on made-up histories: what they grant, what they refuse, and that they never raise."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from fedlab_lite.engine import History
from fedlab_lite.papers import statistics, verdicts
from fedlab_lite.papers.outcome import OUTCOMES, Verdict, decide
from fedlab_lite.papers.statistics import Comparison
from fedlab_lite.papers.verdicts import compare, derived, given, kindest, observed, together, trained
from fedlab_lite.runs import Settings


def made(finals, *, start=0.1, rounds=40, clients=20, constant=0.1, seeds=None, rise=0.0, labels=2000, **changes):
    """One trajectory a final accuracy, settled after half of its rounds; the last quarter rises by `rise`."""
    finals = np.asarray(finals, float)
    at = np.arange(0, rounds + 1, 1)
    way = np.clip(at / (rounds / 2), 0, 1)
    curve = start + (finals[:, None] - start) * way + rise * np.clip(at / rounds - 0.75, 0, 1) * 4
    spread = np.linspace(-0.02, 0.02, clients)
    fields = {
        "seeds": tuple(range(len(finals))) if seeds is None else seeds,
        "num_rounds": rounds,
        "rounds": at,
        "metrics": {"accuracy": curve, "loss": 1 - curve, "accuracy_gap": curve / 10},
        "client_curves": curve[:, :, None] + spread,
        "diverged": (False,) * len(finals),
        "message_bytes": {},
        "num_params": {},
        "seconds": 1.0,
        "data_source": "made by a test",
        "data_fingerprint": "0",
        "device": "1 x abacus",
        "versions": {},
        "about": {},
        "constant": constant,
        "test_labels": {"all": labels, "a client": labels // clients},
    }
    return History(**fields | changes)


GOOD = made([0.80, 0.82, 0.81])
CLOSE = made([0.79, 0.83, 0.80])
WORSE = made([0.70, 0.72, 0.71])


def outcome(a, b, **options):
    return compare({"a": a, "b": b}, "a", "b", **options).outcome


def test_a_lead_over_three_seeds():
    found = compare({"a": GOOD, "b": WORSE}, "a", "b")
    assert (found.outcome, found.reason) == (
        "agrees",
        "a against b: +10.0 ± 0.0 points (3 seeds); 1 of 1 as claimed",
    )
    assert outcome(WORSE, GOOD) == "differs"


def test_the_cause_goes_with_what_differs():
    found = compare({"a": WORSE, "b": GOOD}, "a", "b", cause="a has fewer parameters")
    assert found.reason.endswith("0 of 1 as claimed; a has fewer parameters")
    assert "parameters" not in compare({"a": GOOD, "b": WORSE}, "a", "b", cause="a has fewer parameters").reason


def test_a_lead_within_error_says_what_would_have_been_seen():
    """Leads of 0.01, -0.01, 0.01: their mean is a third of a point, its error two thirds; power 80 %."""
    found = compare({"a": GOOD, "b": CLOSE}, "a", "b")
    assert found.outcome == "undecided"
    assert found.reason == ("a against b: +0.3 ± 0.7 points (3 seeds), within error (visible: 3.6); 0 of 1 as claimed")
    (pair,) = found.comparisons
    assert pair.error == pytest.approx(2 / 3)
    assert pair.freedom == pytest.approx(2)
    assert pair.visible(1) == pytest.approx(2 / 3 * (4.302653 + 1.060660), rel=1e-5)


@pytest.mark.parametrize(("by", "expected"), [(-0.04, "agrees"), (-0.005, "undecided"), (0.04, "differs")])
def test_a_tie_within_a_tolerance_counts_like_a_lead(by, expected):
    assert outcome(GOOD, CLOSE, by=by) == expected


def test_the_quantile_is_that_of_t():
    """A lead of 4.2 errors on two degrees of freedom is not beyond the two-sided 5 %, one of 4.4 is."""
    for factor, expected in ((4.2, "undecided"), (4.4, "agrees")):
        values = np.array([-1.0, 0.0, 1.0])  # standard error 1 / sqrt(3)
        assert observed("x", values + factor / math.sqrt(3)).outcome == expected


def test_one_seed_decides_nothing_about_two_methods():
    found = compare({"a": made([0.9]), "b": made([0.5])}, "a", "b")
    assert found.outcome == "undecided"
    assert found.reason.startswith("a against b: +40.0 points, of one seed, so its spread is unknown")


def test_clients_and_rows_count_whatever_the_seeds():
    """Three seeds that agree to a hair, but clients that differ: the error is that of the clients' differences."""
    differences = np.array([-0.1, 0.0, 0.1, 0.2])
    runs = [made([0.80, 0.80, 0.80], clients=4), made([0.75, 0.75, 0.75], clients=4)]
    curves = [np.broadcast_to(0.5 + shift, (3, 41, 4)).copy() for shift in (differences, 0 * differences)]
    runs = [replace(run, client_curves=curve) for run, curve in zip(runs, curves, strict=True)]
    (pair,) = compare(dict(zip("ab", runs, strict=True)), "a", "b").comparisons
    assert pair.error == pytest.approx(100 * differences.std(ddof=1) / 2, rel=1e-6)
    assert pair.freedom == pytest.approx(3, rel=1e-3)
    assert pair.p > 0.05


def test_one_test_set_for_all_is_a_common_draw():
    runs = [made([0.8] * 3, test_labels={"all": 400, "a client": 400}), made([0.5] * 3)]
    error, freedom = statistics.sampling_error(runs, "accuracy")
    assert error == pytest.approx(math.sqrt((0.8 * 0.2 + 0.5 * 0.5) / 100), rel=1e-6)  # the smaller test set counts
    assert freedom > 1e6


def test_holm_over_all_comparisons_of_a_claim():
    """One comparison at p = 0.02 is beyond 5 % alone, and not among three."""
    near = Comparison("near", 1.0, error=1 / 2.3263, freedom=math.inf, n=3)
    assert near.p == pytest.approx(0.02, rel=1e-3)
    far = Comparison("far", 9.0, error=1.0, freedom=math.inf, n=3)
    assert decide([near]).outcome == "agrees"
    assert decide([near, near, far]).outcome == "agrees"  # 0.04, 0.02 and 0 after Holm
    assert decide([near, near, near]).outcome == "undecided"  # 0.06
    against = replace(near, difference=-1.0)
    assert decide([against]).outcome == "differs"
    assert decide([against, near, near]).outcome == "undecided"
    assert statistics.holm([0.02, 0.02, 0.02]) == pytest.approx([0.06] * 3)


@pytest.mark.parametrize("higher", [True, False])
def test_what_still_moves_is_judged_over_the_rounds_that_the_paper_has_left(higher):
    """b gains 15 points in the last 10 of 40 rounds: 1.5 a round; 10 points behind, it may pass within 7 rounds."""
    a, b = made([0.80, 0.81, 0.80]), made([0.70, 0.71, 0.70], rise=0.0)
    b = replace(b, metrics={name: curve + ramp(curve, name) for name, curve in b.metrics.items()})
    metric = {} if higher else {"metric": "loss"}
    (pair,) = compare({"a": a, "b": b}, "a", "b", **metric).comparisons
    assert pair.after(0) == pair
    assert pair.after(5) == pair
    moved = pair.after(60)
    assert "its curves may move by" in moved.obstacle
    assert decide([moved]).outcome == "undecided"
    reverse = tuple(-each for each in pair.quarters)
    assert decide([replace(pair, quarters=reverse).after(60)]).outcome == "agrees"  # it moves with the claim


def test_a_curve_that_slows_down_is_not_drawn_out_as_a_line():
    """4 and then 2 points per quarter of 40 rounds: 1, 1/2, ... follow, 2 in all; 2 and then 4: 4 per quarter."""
    slower = Comparison("a", 1.0, quarters=(4.0, 2.0), rounds=40)
    assert slower.ahead(10) == pytest.approx(1.0)
    assert slower.ahead(20) == pytest.approx(1.5)
    assert slower.ahead(10_000) == pytest.approx(2.0)
    assert replace(slower, quarters=(2.0, 4.0)).ahead(20) == pytest.approx(8.0)
    assert replace(slower, quarters=(-1.0, 2.0)).ahead(20) == pytest.approx(4.0)
    assert slower.ahead(0) == 0
    run = made([0.8], rounds=40, rise=0.04)  # flat in the third quarter, then 4 points
    before, last = statistics.quarters(run, "accuracy")
    assert (before, last) == (pytest.approx(0, abs=1e-9), pytest.approx(0.04))


def ramp(curve, name):
    """A rise by 0.03 over the last ten rounds, of which the mean of the last ten has little."""
    rise = 0.003 * np.clip(np.arange(curve.shape[1]) - 30, 0, None)
    return -rise if name == "loss" else rise


def test_a_method_at_the_majority_baseline_is_not_compared():
    found = compare({"a": GOOD, "b": made([0.11, 0.11, 0.10])}, "a", "b")
    assert found.outcome == "undecided"
    assert found.reason.startswith("b is not clearly above the majority baseline (10.7 % against 10.0 %)")
    assert outcome(GOOD, made([0.5, 0.5, 0.5], constant=0.5)) == "undecided"


def test_that_a_method_learns_nothing_can_be_confirmed():
    """The claim is about the distance to the baseline, and needs no run that learnt."""
    stuck = made([0.101, 0.099, 0.100])
    found = observed("above the baseline", 100 * (stuck.final() - stuck.constant), 2.0, above=False, unit="points")
    assert found.outcome == "agrees"
    lower = observed("above the baseline", 100 * (GOOD.final() - GOOD.constant), 2.0, above=False, unit="points")
    assert lower.outcome == "differs"


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (made([0.8] * 3, constant=math.nan), "b has no majority baseline"),
        (made([math.nan, 0.8, 0.8]), "b diverged"),
        (made([0.8, 0.8, 0.8], diverged=(False, True, False)), "b diverged"),
        (made(np.zeros(0), seeds=()), "b was not trained (40 rounds, 0 seeds)"),
        (made([0.8], rounds=1, num_rounds=0), "b was not trained (0 rounds"),
        (made([0.7, 0.7, 0.7], seeds=(3, 4, 5)), "a and b have no seed in common"),
        (
            made([0.7] * 3, metrics={"accuracy": np.full((3, 41), 0.7), "loss": np.full((3, 41), math.nan)}),
            "in loss: not",
        ),
        (made([0.7, 0.7, 0.7], metrics={"accuracy": np.full((3, 41), 0.7)}), "b has no loss"),
    ],
)
def test_what_cannot_be_compared_is_undecided(run, why):
    metric = {"metric": "loss", "higher": False} if "loss" in why else {}
    found = compare({"a": GOOD, "b": run}, "a", "b", **metric)
    assert found.outcome == "undecided"
    assert why in found.reason


def test_runs_are_paired_by_the_seeds_that_both_have():
    """Seeds move both runs by 30 points and their difference by one: only the difference counts."""
    a, b = made([0.6, 0.9, 0.61], seeds=(0, 1, 2)), made([0.41, 0.4, 0.7], seeds=(2, 0, 1))
    (pair,) = compare({"a": a, "b": b}, "a", "b").comparisons
    assert pair.difference == pytest.approx(20.0)
    assert pair.error < 0.1
    two = compare({"a": a, "b": made([0.3, 0.3, 0.7, 0.5], seeds=(4, 3, 1, 0))}, "a", "b")
    assert two.comparisons[0].n == 2
    assert two.comparisons[0].difference == pytest.approx(15.0)


def run_of(algorithm, finals=(0.80, 0.82, 0.81), **options):
    settings = Settings(algorithm=algorithm, algorithm_options=options, num_clients=4)
    run = made(finals, settings=settings)
    other = run.metrics["accuracy"] - 0.06
    return replace(run, metrics=run.metrics | {"accuracy_mixed": other, "accuracy_trained": other})


def test_methods_are_compared_at_one_moment():
    """D-PSGD reports what it has after its local training, DePRL what it has after mixing."""
    runs = {"deprl": run_of("deprl"), "dpsgd": run_of("dpsgd", order="mix_first")}
    found = compare(runs, "deprl", "dpsgd")
    assert found.outcome == "undecided"
    assert found.reason.startswith("judged at unlike moments: DePRL after mixing, D-PSGD after local training")
    mixed = compare(runs, "deprl", "dpsgd", moment="mixed")
    assert mixed.reason.startswith("DePRL against D-PSGD, after mixing: +6.0")
    assert compare(runs, "deprl", "dpsgd", moment="trained").reason.startswith(
        "DePRL against D-PSGD, after local training: -6.0"
    )
    runs["local"] = run_of("local")  # it does not mix
    assert compare(runs, "deprl", "local", moment="mixed").comparisons[0].difference == pytest.approx(0)
    del runs["dpsgd"].metrics["accuracy_mixed"]
    assert compare(runs, "deprl", "dpsgd", moment="mixed").reason.startswith("D-PSGD has no accuracy")


def test_names_that_did_not_run():
    found = compare({"a": GOOD}, "a", ["b", "c"])
    assert (found.outcome, found.reason) == ("undecided", "b, c did not run")
    assert compare({"a": GOOD}, "a", []).outcome == "undecided"


def test_one_of_several_that_leads_is_enough_to_differ():
    runs = {"a": GOOD, "b": WORSE, "c": CLOSE, "d": made([0.9, 0.92, 0.91])}
    assert compare(runs, "a", ["b"]).outcome == "agrees"
    assert compare(runs, "a", ["b", "c"]).outcome == "undecided"
    found = compare(runs, "a", ["b", "c", "d"])
    assert found.outcome == "differs"
    assert found.reason.startswith("a against d: -10.0")
    assert found.reason.endswith("1 of 3 as claimed")


def test_a_smaller_gap_is_said_to_be_smaller():
    """Less is better, by the metric's name; the sign is that of the difference."""
    rows = {"labels": 10**8}
    found = compare({"a": made([0.6] * 3, **rows), "b": made([0.9] * 3, **rows)}, "a", "b", "accuracy_gap")
    assert found.reason == "a against b in gap between clients: -3.0 ± 0.0 points (3 seeds); 1 of 1 as claimed"
    found = compare({"a": made([0.9] * 3, **rows), "b": made([0.6] * 3, **rows)}, "a", "b", "accuracy_gap", by=0.01)
    assert found.outcome == "differs"
    assert "+3.0 ± 0.0 points (3 seeds, less than -1.0 asked)" in found.reason
    few = {"a": made([0.6] * 3), "b": made([0.9] * 3)}  # 100 rows per client: an error of 8 points
    assert compare(few, "a", "b", "accuracy_gap").outcome == "undecided"


def regression(finals, **changes):
    """A run that is judged by a distance, 1 before training, and has no majority baseline."""
    run = made(np.asarray(finals), start=1.0, constant=math.nan)
    metrics = {"distance": run.metrics["accuracy"], "loss": run.metrics["accuracy"] ** 2 / 2}
    return replace(run, headline="distance", metrics=metrics, **changes)


def test_any_headline_can_be_compared():
    near, far = regression([0.30, 0.31, 0.30]), regression([0.5, 0.51, 0.5])
    found = compare({"a": near, "b": far}, "a", "b")
    assert found.outcome == "agrees"
    assert found.reason.startswith("a against b: -0.2 ± ")
    assert outcome(far, near) == "differs"
    assert outcome(near, regression([0.301, 0.309, 0.300])) == "undecided"
    assert outcome(regression([0.3]), regression([0.5])) == "undecided"
    stuck = compare({"a": near, "b": regression([0.99, 1.0, 1.0])}, "a", "b")
    assert stuck.reason.startswith("b is not clearly below where it started (0.9967, 1)")
    stuck = compare({"a": near, "b": regression([0.6, 0.6, 0.6], constant=0.6)}, "a", "b")
    assert stuck.reason.startswith("b is not clearly below the majority baseline (0.6, 0.6)")


def test_what_is_counted():
    assert derived({"a": (3, True), "b": (2.5, True)}).outcome == "agrees"
    found = derived({"a": (3, True), "b": (1663562, False)}, "the rows add up to more than the printed total")
    assert (found.outcome, found.reason) == (
        "differs",
        "b 1,663,562; 1 of 2 as printed; the rows add up to more than the printed total",
    )
    assert derived({"a": (3, True), "b": (2, False)}, misprint=True).outcome == "misprint"
    assert derived({"a": (3, True)}, misprint=True).outcome == "agrees"
    assert derived({"a": (math.nan, True)}).outcome == "undecided"
    assert derived({}).outcome == "undecided"
    assert derived({}, "all of it is made up").reason == "nothing was counted; all of it is made up"


def test_what_is_measured():
    assert observed("x", [1.0, 1.1, 0.9], 2.0, above=False).outcome == "agrees"
    assert observed("x", [1.0, 1.1, 0.9], 2.0).outcome == "differs"
    assert observed("x", [1.0, 3.0, 2.0], 2.1).outcome == "undecided"
    assert observed("x", [3.0], 2.0).outcome == "undecided"
    assert observed("x", [3.0], 2.0, error=0.1).outcome == "agrees"
    assert observed("x", [3.0], 2.0, error=0.6).outcome == "undecided"
    assert observed("x", [math.inf]).outcome == "undecided"
    assert observed("x", []).outcome == "undecided"
    assert observed("gain", [2, 3, 4], 0, each="draw").reason.startswith("gain: 3 ± 0.577 (3 draws)")


def test_shares_are_binomial():
    """Three of three could be chance at one half; none of three no less; 95 of 100 is not."""
    assert observed("hits", [True] * 3, 0.5).outcome == "undecided"
    assert observed("hits", [False] * 3, 0.5).outcome == "undecided"
    found = observed("hits", [True] * 95 + [False] * 5, 0.5, each="draw")
    assert (found.outcome, found.reason) == ("agrees", "hits: 95 of 100 draws; 1 of 1 as claimed")
    assert observed("hits", [True] * 95 + [False] * 5, 0.5, above=False).outcome == "differs"


def test_a_number_of_runs_that_learnt_nothing_decides_nothing():
    assert observed("x", [1.0, 1.1, 0.9], runs={"a": GOOD}).outcome == "agrees"
    found = observed("x", [1.0, 1.1, 0.9], runs={"a": GOOD, "b": made([0.1, 0.1, 0.1])})
    assert found.outcome == "undecided"
    assert found.reason.startswith("b is not clearly above the majority baseline")


def test_how_far_a_curve_still_moves():
    assert verdicts.change(GOOD).tolist() == pytest.approx([0, 0, 0])
    assert verdicts.change(made([0.8], rise=0.1)).tolist() == pytest.approx([0.06125])
    assert verdicts.change(made([0.8], rise=0.1), "loss", share=0.25).tolist() == pytest.approx([-0.055])
    for early in (made([0.1, 0.1], num_rounds=0), made([0.1, 0.1], rounds=1)):
        assert np.isnan(verdicts.change(early)).tolist() == [True, True]


def test_what_still_gets_better_is_no_evidence_against_settling():
    rest, up = np.array([0.001, -0.002, 0.001]), np.array([0.05, 0.06, 0.05])
    assert verdicts.settled("x", rest, 0.02).outcome == "agrees"
    assert verdicts.settled("x", up, 0.02).reason.endswith(": still getting better")
    assert verdicts.settled("x", up, 0.02).outcome == "undecided"
    assert verdicts.settled("x", -up, 0.02).outcome == "differs"
    assert verdicts.settled("x", -up, 0.02, higher=False).outcome == "undecided"
    assert verdicts.settled("x", rest, 0.02, runs={"b": made([0.1, 0.1, 0.1])}).outcome == "undecided"


YES, NO, OPEN = (observed("x", np.array([1.0, 1.1, 0.9]) * factor) for factor in (1, -1, 0.0))


def test_a_premise_that_was_not_found():
    for claim in (YES, NO, OPEN):
        assert given(YES, claim) == claim
        for premise in (NO, OPEN):
            found = given(premise, claim)
            assert found.outcome == "undecided"
            assert found.reason.startswith("says nothing without its premise: x")


def test_together():
    assert [each.outcome for each in (YES, NO, OPEN)] == ["agrees", "differs", "undecided"]
    assert together(YES, YES).outcome == "agrees"
    assert together(YES, OPEN).outcome == "undecided"
    assert together(YES, OPEN, NO).outcome == "differs"
    assert together(YES, Verdict("undecided", "b did not run")).reason == "b did not run"
    assert together().outcome == "undecided"
    slip = derived({"a": (1, False)}, "does not add up", misprint=True)
    assert together(YES, slip).outcome == "misprint"
    assert together(slip, NO).outcome == "differs"
    assert together(NO, derived({"a": (1, False)}, "known")).reason.endswith("; known")


def test_the_kindest_reading_is_the_verdict_and_all_are_beside_it():
    found = kindest({"words": NO, "reference code": YES, "proof": OPEN})
    assert found.outcome == "agrees"
    assert found.reason.endswith("; read as reference code (1 of 3 readings)")
    assert {name: each.outcome for name, each in found.readings.items()} == {
        "words": "differs",
        "reference code": "agrees",
        "proof": "undecided",
    }
    assert kindest({"words": NO, "code": NO}).reason.endswith("(2 of 2 readings)")
    assert kindest({}).outcome == "undecided"


def test_a_reason_has_at_most_forty_words():
    many = {f"a number with a rather long name {i}": (i, False) for i in range(9)}
    found = derived(many, cause=" ".join(["because"] * 30))
    assert len(found.reason.split()) <= 40


@for_all(
    st.lists(st.floats(0, 1) | st.just(math.nan), max_size=5),
    st.lists(st.floats(0, 1), max_size=5),
    st.sampled_from(["accuracy", "loss", "accuracy_gap", "nothing"]),
    st.floats(allow_nan=True),
)
def test_nothing_raises(a, b, metric, by):
    found = compare({"a": made(a), "b": made(b)}, "a", "b", metric, by=by)
    assert found.outcome in OUTCOMES
    assert found.reason
    assert isinstance(trained({"a": made(a)}), list)
    assert observed("x", a, by).outcome in OUTCOMES
    if any(map(math.isnan, a)) or not a or not b:
        assert found.outcome == "undecided"


def simulated(rivals, lead, draws, *, seeds=3, clients=20):
    """Outcomes of `draws` claims that a method leads `rivals` others; runs and clients vary by 1 and 5 points."""
    rng = np.random.default_rng([rivals, seeds])
    counts = dict.fromkeys(OUTCOMES, 0)
    for _ in range(draws):
        runs = {}
        hard = rng.normal(0, 0.1, clients)  # of the partition: the same for all methods
        for method in range(rivals + 1):
            own = rng.normal(0, 0.05, clients)  # how well a method suits a client; of the partition, not of the seed
            finals = 0.7 + own.mean() + (lead if method == 0 else 0) + rng.normal(0, 0.01, seeds)
            run = made(finals, clients=clients, rounds=4)
            curves = np.broadcast_to(finals[:, None, None] - own.mean() + own + hard, (seeds, 5, clients))
            runs[str(method)] = replace(run, client_curves=curves)
        counts[compare(runs, "0", [str(method) for method in range(1, rivals + 1)]).outcome] += 1
    return {name: count / draws for name, count in counts.items()}


@pytest.mark.slow
@pytest.mark.parametrize("rivals", [1, 3, 5, 7])
def test_equal_methods_get_either_word_in_at_most_five_percent(rivals):
    """Whatever the number of rivals; 400 draws have a standard error of a point, so 7 % would be seen."""
    found = simulated(rivals, 0.0, 400)
    assert found["agrees"] <= 0.065, found
    assert found["differs"] <= 0.065, found


@pytest.mark.slow
def test_the_power_of_three_seeds():
    """A lead that is 1 and 2 standard deviations of a difference (of seeds and clients' draw) against three rivals."""
    deviation = math.sqrt(2) * math.hypot(0.01, 0.05 / math.sqrt(20) * math.sqrt(3))
    one, two = (simulated(3, factor * deviation, 200)["agrees"] for factor in (1, 2))
    assert one < two
    assert two > 0.3

"""The gate, on made-up histories: what it grants, what it refuses, and that it never raises."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlab_lite.engine import History
from fedlab_lite.papers import noise, verdicts
from fedlab_lite.papers.verdicts import Verdict, compare, derived, observed, together, trained


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


def verdict(a, b, **options):
    return compare({"a": a, "b": b}, "a", "b", **options).verdict


def test_a_lead_over_three_seeds():
    found = compare({"a": GOOD, "b": WORSE}, "a", "b")
    assert found == Verdict("reproduced", "a against b: +10.0 points (s.e. 0.0 points, 3 seeds)")
    assert verdict(WORSE, GOOD) == "contradicted"


def test_the_cause_goes_with_what_is_contradicted():
    found = compare({"a": WORSE, "b": GOOD}, "a", "b", cause="a has fewer parameters")
    assert found.reason.endswith("3 seeds); a has fewer parameters")
    assert "parameters" not in compare({"a": GOOD, "b": WORSE}, "a", "b", cause="a has fewer parameters").reason


def test_a_lead_within_noise():
    """Leads of 0.01, -0.01, 0.01: their mean is a third of a point, its error two thirds."""
    found = compare({"a": GOOD, "b": CLOSE}, "a", "b")
    assert found.verdict == "inconclusive"
    assert found.reason == "a against b: +0.3 points (s.e. 0.7 points, 3 seeds) is within noise"


@pytest.mark.parametrize(("by", "expected"), [(-0.03, "reproduced"), (-0.005, "inconclusive"), (0.03, "contradicted")])
def test_a_tie_within_a_tolerance_counts_like_a_lead(by, expected):
    assert verdict(GOOD, CLOSE, by=by) == expected


def test_one_seed_needs_five_points():
    assert verdict(made([0.80]), made([0.74])) == "reproduced"
    assert verdict(made([0.80]), made([0.76])) == "inconclusive"
    assert verdict(made([0.80, 0.81]), made([0.76, 0.77])) == "inconclusive"  # two seeds are too few as well
    assert verdict(made([0.80, 0.81, 0.80]), made([0.76, 0.77, 0.76])) == "reproduced"


def test_one_seed_needs_three_errors_of_clients_and_rows():
    few = {"labels": 60, "clients": 3}
    assert verdict(made([0.80]), made([0.70])) == "reproduced"
    assert verdict(made([0.80], **few), made([0.70], **few)) == "inconclusive"


@pytest.mark.parametrize("higher", [True, False])
def test_who_still_rises_may_overtake(higher):
    a, b = made([0.80, 0.81, 0.80]), made([0.70, 0.71, 0.70], rise=0.15)
    metric = {"higher": higher} if higher else {"higher": False, "metric": "loss"}
    found = compare({"a": a, "b": b}, "a", "b", **metric)
    assert found.verdict == "inconclusive"
    assert ("still rises by" if higher else "still falls by") in found.reason
    assert verdict(a, made([0.70, 0.71, 0.70], rise=0.02), **metric) == "reproduced"


def test_a_method_at_the_majority_baseline_is_compared_with_nobody():
    found = compare({"a": GOOD, "b": made([0.11, 0.11, 0.10])}, "a", "b")
    assert found.verdict == "inconclusive"
    assert found.reason == "b is not clearly above the majority baseline (10.7 % against 10.0 %)"
    assert verdict(GOOD, made([0.5, 0.5, 0.5], constant=0.5)) == "inconclusive"


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (made([0.8], constant=math.nan), "b has no majority baseline"),
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
def test_what_cannot_be_compared_is_inconclusive(run, why):
    metric = {"metric": "loss", "higher": False} if "loss" in why else {}
    found = compare({"a": GOOD, "b": run}, "a", "b", **metric)
    assert found.verdict == "inconclusive"
    assert why in found.reason


def test_runs_are_compared_on_the_seeds_that_both_have():
    a = made([0.6, 0.9, 0.6], seeds=(0, 1, 2))
    alone = compare({"a": a, "b": made([0.7], seeds=(1,))}, "a", "b")
    assert alone.verdict == "reproduced"
    assert alone.reason.startswith("a against b: +20.0 points (s.e. ")
    assert "1 seed)" in alone.reason
    assert verdict(a, made([0.88], seeds=(1,))) == "inconclusive"  # one seed decides nothing below five points
    two = compare({"a": a, "b": made([0.3, 0.3, 0.7, 0.5], seeds=(4, 3, 1, 0))}, "a", "b")
    assert two.reason.startswith("a against b: +15.0 points (s.e. ")  # of 10 and 20


def test_names_that_did_not_run():
    assert compare({"a": GOOD}, "a", ["b", "c"]) == Verdict("inconclusive", "b; c did not run")
    assert compare({"a": GOOD}, "a", []).verdict == "inconclusive"


def test_one_of_several_that_leads_is_enough_to_contradict():
    runs = {"a": GOOD, "b": WORSE, "c": CLOSE, "d": made([0.9, 0.91, 0.9])}
    assert compare(runs, "a", ["b"]).verdict == "reproduced"
    assert compare(runs, "a", ["b", "c"]).verdict == "inconclusive"
    found = compare(runs, "a", ["b", "c", "d"])
    assert found.verdict == "contradicted"
    assert found.reason.startswith("a against d")


def test_the_gap_of_one_seed_has_an_error_too():
    a, b = made([0.2], constant=0.05), made([0.9], constant=0.05)
    few = noise.error(b, "accuracy_gap", np.array([0.09]))
    assert few == pytest.approx(math.sqrt(2 * 0.9 * 0.1 / 100))
    assert verdict(a, b, metric="accuracy_gap", higher=False) == "inconclusive"  # 7 points, three errors are 20


def test_a_smaller_gap_is_said_to_be_smaller():
    """Less is better, by the metric's name; the sign is that of the difference."""
    found = compare({"a": made([0.6] * 3), "b": made([0.9] * 3)}, "a", "b", "accuracy_gap")
    assert found == Verdict("reproduced", "a against b in accuracy_gap: -3.0 points (s.e. 0.0 points, 3 seeds)")
    found = compare({"a": made([0.9] * 3), "b": made([0.6] * 3)}, "a", "b", "accuracy_gap", by=0.01)
    assert found.verdict == "contradicted"
    assert found.reason.endswith("+3.0 points (s.e. 0.0 points, 3 seeds, asked: less than -1.0 points)")


def regression(finals, **changes):
    """A run that is judged by a distance, 1 before training, and has no majority baseline."""
    run = made(np.asarray(finals), start=1.0, constant=math.nan)
    metrics = {"distance": run.metrics["accuracy"], "loss": run.metrics["accuracy"] ** 2 / 2}
    return replace(run, headline="distance", metrics=metrics, **changes)


def test_a_regression_can_be_compared():
    near, far = regression([0.30, 0.31, 0.30]), regression([0.5, 0.51, 0.5])
    found = compare({"a": near, "b": far}, "a", "b")
    assert found.verdict == "reproduced"
    assert found.reason.startswith("a against b: -0.2 (s.e. ")
    assert verdict(far, near) == "contradicted"
    assert verdict(near, regression([0.301, 0.309, 0.300])) == "inconclusive"
    assert verdict(regression([0.3]), regression([0.5])) == "inconclusive"  # no error is known of one seed
    stuck = compare({"a": near, "b": regression([0.99, 1.0, 1.0])}, "a", "b")
    assert stuck == Verdict("inconclusive", "b is not clearly below where it started (0.9967, 1)")
    stuck = compare({"a": near, "b": regression([0.6, 0.6, 0.6], constant=0.6)}, "a", "b")
    assert stuck == Verdict("inconclusive", "b is not clearly below the majority baseline (0.6, 0.6)")


def test_what_is_counted():
    assert derived({"a": (3, True), "b": (2.5, True)}).verdict == "exact"
    found = derived({"a": (3, True), "b": (1663562, False)}, "the rows add up to more than the printed total")
    assert found.verdict == "contradicted"
    assert found.reason == "1 of 2 not as printed: b 1,663,562; the rows add up to more than the printed total"
    assert derived({"a": (math.nan, True)}) == Verdict("inconclusive", "not a number: a")
    assert derived({}) == Verdict("inconclusive", "nothing was counted")
    assert derived({}, "all of it was made to order").reason == "nothing was counted; all of it was made to order"


def test_what_is_measured():
    assert observed("x", [1.0, 1.1, 0.9], 2.0, above=False).verdict == "reproduced"
    assert observed("x", [1.0, 1.1, 0.9], 2.0).verdict == "contradicted"
    assert observed("x", [1.0, 3.0, 2.0], 2.1).verdict == "inconclusive"
    assert observed("x", [3.0], 2.0).reason == "x: 3 (1 seed, asked: more than 2) needs 3 seeds"
    assert observed("x", [3.0], 2.0, error=0.1).verdict == "reproduced"
    assert observed("x", [3.0], 2.0, error=0.5).verdict == "inconclusive"
    assert observed("x", [math.inf]).verdict == "inconclusive"
    assert observed("x", []).verdict == "inconclusive"


def test_a_number_of_runs_that_learnt_nothing_decides_nothing():
    assert observed("x", [1.0, 1.1, 0.9], runs={"a": GOOD}).verdict == "reproduced"
    found = observed("x", [1.0, 1.1, 0.9], runs={"a": GOOD, "b": made([0.1, 0.1, 0.1])})
    assert found.verdict == "inconclusive"
    assert found.reason.startswith("b is not clearly above the majority baseline")


def test_how_far_a_curve_still_moves():
    assert verdicts.change(GOOD).tolist() == pytest.approx([0, 0, 0])
    assert verdicts.change(made([0.8], rise=0.1)).tolist() == pytest.approx([0.06125])
    assert verdicts.change(made([0.8], rise=0.1), "loss", share=0.25).tolist() == pytest.approx([-0.055])
    for early in (made([0.1, 0.1], num_rounds=0), made([0.1, 0.1], rounds=1)):
        assert np.isnan(verdicts.change(early)).tolist() == [True, True]


def test_what_still_gets_better_is_no_evidence_against_settling():
    rest, up = np.array([0.001, -0.002, 0.001]), np.array([0.05, 0.06, 0.05])
    assert verdicts.settled("x", rest, 0.02).verdict == "reproduced"
    assert verdicts.settled("x", up, 0.02).reason.endswith(": still getting better")
    assert verdicts.settled("x", up, 0.02).verdict == "inconclusive"
    assert verdicts.settled("x", -up, 0.02).verdict == "contradicted"
    assert verdicts.settled("x", -up, 0.02, higher=False).verdict == "inconclusive"
    assert verdicts.settled("x", rest, 0.02, runs={"b": made([0.1, 0.1, 0.1])}).verdict == "inconclusive"


def test_a_premise_that_was_not_found():
    exact, yes, no, open_ = (Verdict(kind, kind) for kind in verdicts.VERDICTS)
    for claim in (exact, yes, no, open_):
        assert verdicts.given(exact, claim) == verdicts.given(yes, claim) == claim
        for premise in (no, open_):
            found = verdicts.given(premise, claim)
            assert found == Verdict("inconclusive", f"says nothing without its premise: {premise.reason}")


def test_together():
    exact, yes, no, open_ = (Verdict(kind, kind) for kind in verdicts.VERDICTS)
    assert together(exact, exact).verdict == "exact"
    assert together(exact, yes).verdict == "reproduced"
    assert together(exact, yes, open_).verdict == "inconclusive"
    assert together(exact, yes, open_, no).verdict == "contradicted"
    assert together().verdict == "inconclusive"
    many = together(*(Verdict("contradicted", str(i)) for i in range(5)))
    assert many.reason == "0; 1; 2; and 2 more"


def test_a_sentence_gives_each_reason_once():
    shared = Verdict("inconclusive", "local diverged; ditto diverged")
    assert together(shared, Verdict("inconclusive", "local diverged; fedavg diverged")).reason == (
        "local diverged; ditto diverged; fedavg diverged"
    )
    assert together(*(Verdict("contradicted", f"{name}; too few rounds") for name in "ab")).reason == (
        "a; too few rounds; b"
    )
    stuck = {name: made([0.1] * 3) for name in ("low", "flat")} | {"good": made([0.6] * 3)}
    both = together(compare(stuck, "low", "good"), compare(stuck, "low", "flat"))
    assert both.reason.count("low is not") == 1
    assert both.reason.count("flat is not") == 1


@given(
    st.lists(st.floats(0, 1) | st.just(math.nan), max_size=5),
    st.lists(st.floats(0, 1), max_size=5),
    st.sampled_from(["accuracy", "loss", "accuracy_gap", "nothing"]),
    st.floats(allow_nan=True),
)
def test_nothing_raises(a, b, metric, by):
    found = compare({"a": made(a), "b": made(b)}, "a", "b", metric, by=by)
    assert found.verdict in verdicts.VERDICTS
    assert found.reason
    assert isinstance(trained({"a": made(a)}), list)
    assert observed("x", a, by).verdict in verdicts.VERDICTS
    if any(map(math.isnan, a)) or not a or not b:
        assert found.verdict == "inconclusive"


def test_what_a_value_is_of_can_be_named():
    assert observed("gain", [2, 3, 4], 1, each="draw").reason == "gain: 3 (s.e. 0.5774, 3 draws, asked: more than 1)"
    assert observed("gain", [2], 1, each="draw").reason.endswith("needs 3 draws")
    assert derived({"programs": (1, True)}, like="expected").reason == "1 of 1 as expected: programs 1"
    assert derived({"programs": (2, False)}, like="expected").reason == "1 of 1 not as expected: programs 2"

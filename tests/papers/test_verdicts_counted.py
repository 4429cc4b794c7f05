"""Verdicts on what is counted, measured or observed; several parts and readings of one claim together."""

import math

import numpy as np
import pytest
from helpers import made

from fedlab_lite.papers import verdicts
from fedlab_lite.papers.outcome import Verdict
from fedlab_lite.papers.verdicts import derived, given, kindest, observed, together
from fedlab_lite.util import InputError

GOOD = made([0.80, 0.82, 0.81])


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
    assert observed("x", [3.0], 2.0, error=0.1, freedom=9, each="draw").outcome == "agrees"
    assert observed("x", [3.0], 2.0, error=0.6, freedom=9, each="draw").outcome == "undecided"
    assert observed("x", [3.0], 2.0, error=0.1, freedom=9).outcome == "undecided"  # one seed decides nothing
    with pytest.raises(InputError, match="x: an error needs `freedom`"):
        observed("x", [3.0, 3.1], 2.0, error=0.1)
    assert observed("x", [math.inf]).outcome == "undecided"
    assert observed("x", []).outcome == "undecided"
    assert observed("gain", [2, 3, 4], 0, each="draw").reason.startswith("gain: 3 ± 0.577 (3 draws)")


def test_shares_are_binomial():
    """Three of three could be chance at one half; none of three no less; 95 of 100 is not."""
    assert observed("hits", [True] * 3, 0.5).outcome == "undecided"
    assert observed("hits", [False] * 3, 0.5).outcome == "undecided"
    found = observed("hits", [True] * 95 + [False] * 5, 0.5, each="draw")
    assert (found.outcome, found.reason) == (
        "agrees",
        "hits: 95 of 100 draws (95 % interval: 89 to 98 %); 1 of 1 as claimed",
    )
    assert observed("hits", [True] * 95 + [False] * 5, 0.5, above=False).outcome == "differs"
    for nowhere in (0.0, 1.0):  # one hit, or one miss, would decide it
        with pytest.raises(InputError, match="hits: a share of yes and no is tested against 0 < threshold < 1"):
            observed("hits", [True] * 3, nowhere)


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
            assert found.reason.startswith("says nothing, as its premise is not met: x: ")


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
    assert found.reason.endswith("; read as reference code (1 of 3 readings agrees, 1 differs, 1 undecided)")
    assert {name: each.outcome for name, each in found.readings.items()} == {
        "words": "differs",
        "reference code": "agrees",
        "proof": "undecided",
    }
    assert kindest({"words": NO, "code": NO}).reason.endswith("(2 of 2 readings differ)")
    assert kindest({}).outcome == "undecided"

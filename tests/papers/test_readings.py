"""The kindest of several readings of a paper: which one is told, and at which bar."""

import math
from dataclasses import replace

from helpers import made

from fedlab_lite.papers.outcome import decide, kindest
from fedlab_lite.papers.statistics import Comparison
from fedlab_lite.papers.verdicts import compare, observed


def test_one_seed_that_points_further_against_a_claim_is_no_way_out():
    clear = decide([Comparison("clear", -3.0, parts=((0.1, 9.0),), n=3)])
    lower, higher = (observed("one seed", [value]) for value in (-20.0, 2.0))
    assert (clear.outcome, lower.outcome, higher.outcome) == ("differs", "undecided", "undecided")
    assert kindest({"a": clear, "b": lower}).outcome == "differs"
    assert kindest({"a": clear, "b": higher}).outcome == "undecided"
    assert kindest({"a": clear, "b": observed("one seed", [-2.0])}).outcome == "undecided"  # less far than `clear`
    within = decide([Comparison("noise", -0.1, parts=((1.0, 2.0),), n=3)])
    assert kindest({"a": clear, "b": within}).outcome == "undecided"


def test_of_two_readings_that_are_alike_the_one_whose_worst_comparison_is_better_is_told():
    far, near = (
        [Comparison("a", gap, obstacle="one seed"), Comparison("b", 1.0, obstacle="x")] for gap in (-9.0, -2.0)
    )
    readings = {"far": decide(far), "not run": decide([]), "near": decide(near)}
    told = kindest(readings)
    assert told.reason.endswith(f"read as {told.read_as} (3 of 3 readings undecided)")
    assert told.read_as == "near"


def test_a_reading_that_lacks_numbers_or_has_one_seed_is_not_told_before_a_whole_one():
    """Else the fewer numbers a reading had, the kinder it would be."""
    measured = decide([Comparison("a", -3.0, parts=((2.0, 2.0),), n=3), Comparison("b", 1.0, parts=((2.0, 2.0),), n=3)])
    absent = decide([replace(measured.comparisons[0], difference=math.nan, obstacle="a did not run")])
    one_seed = observed("a", [2.0])
    for kept in ({"absent": absent}, {"one seed": one_seed}, {"absent": absent, "one seed": one_seed}):
        assert kindest(kept | {"whole": measured}).read_as == "whole"
    assert kindest({"absent": absent, "one seed": one_seed}).read_as == "one seed"
    differs = decide([Comparison("a", -9.0, parts=((0.1, 9.0),), n=3)])
    assert kindest({"no run": decide([]), "differs": differs}).outcome == "differs"
    assert kindest({"lacks one": absent, "differs": differs}).outcome == "undecided"


def test_what_is_counted_is_not_counted_as_measured():
    size = Comparison("half the size", math.nan, fact=True)
    for gap, said in ((-9.0, "0 of 1 as claimed, 1 of 1 counted"), (0.1, "0 of 1 decided, 1 of 1 counted")):
        found = decide([Comparison("a", gap, parts=((1.0, 9.0),), n=3), size])
        assert found.reason.endswith(said)
    assert decide([size]).reason == "half the size; 1 of 1 as claimed"


def test_of_readings_that_agree_the_one_with_more_comparisons_is_told():
    clear, close = (Comparison("a", lead, parts=((0.1, 50.0),), n=3) for lead in (9.0, 1.0))
    assert kindest({"one data set": decide([clear]), "two": decide([clear, close])}).read_as == "two"


def test_of_what_leaves_a_claim_open_the_reason_names_what_points_against_it():
    found = decide(
        [
            Comparison("near zero", 0.01, parts=((1.0, 2.0),), n=3),
            Comparison("falls", -2.0, parts=((1.0, 2.0),), n=3),
        ]
    )
    assert (found.outcome, found.reason.partition(":")[0]) == ("undecided", "falls")


def test_a_reading_whose_method_learns_nothing_is_not_the_kindest():
    """It says as little for the paper as it does against it, so it cannot take the word of a reading that differs."""
    runs = {"ours": made([0.5, 0.51, 0.5]), "idle": made([0.1]), "rival": made([0.7, 0.71, 0.7])}
    differs, idle = (compare(runs, name, "rival") for name in ("ours", "idle"))
    assert (differs.outcome, idle.outcome) == ("differs", "undecided")
    told = kindest({"learns nothing": idle, "learns": differs})
    assert (told.outcome, told.read_as) == ("differs", "learns")
    rivals = compare(runs, "rival", "idle")  # a rival that learns nothing is another matter
    assert kindest({"learns": differs, "no rival": rivals}).read_as == "no rival"


def test_what_agrees_passes_a_bar_that_rises_with_the_number_of_readings():
    near, far = (decide([Comparison("a", 1.0, parts=((error, 50.0),), n=3)]) for error in (0.4, 0.1))
    assert near.outcome == far.outcome == "agrees"
    only = kindest({"only": near})
    assert (only.outcome, only.reason, list(only.readings)) == ("agrees", near.reason, ["only"])
    assert only.read_as == "only"
    both = kindest({"one": near, "other": near})  # p is 0.016
    assert both.outcome == "agrees"
    four = kindest(dict.fromkeys("abcd", near))
    assert (four.outcome, four.readings["a"].outcome) == ("undecided", "undecided")
    assert kindest(dict.fromkeys("abc", near) | {"d": far}).outcome == "agrees"

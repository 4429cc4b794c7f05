"""The rules of verdicts, on made-up histories: what they grant, what they refuse, and that they never raise."""

import math
from dataclasses import replace

import numpy as np
import pytest
from helpers import made
from hypothesis import given as for_all
from hypothesis import strategies as st

from fedlab_lite.papers import errors, scope, statistics
from fedlab_lite.papers.outcome import OUTCOMES, WORDS, decide, kindest, shortened
from fedlab_lite.papers.statistics import Comparison
from fedlab_lite.papers.verdicts import compare, derived, observed, trained
from fedlab_lite.runs import Settings

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
    assert found.reason == ("a against b: +0.3 ± 0.7 points (3 seeds), not beyond doubt (visible: 3.6); 0 of 1 decided")
    (pair,) = found.comparisons
    assert pair.error == pytest.approx(2 / 3)
    assert pair.parts[0] == pytest.approx((2 / 3, 2))
    assert pair.visible(1) == pytest.approx(2 / 3 * (4.302653 + 1.060660), rel=1e-5)


@pytest.mark.parametrize(("by", "expected"), [(-0.04, "agrees"), (-0.005, "undecided"), (0.04, "differs")])
def test_a_tie_within_a_tolerance_counts_like_a_lead(by, expected):
    assert outcome(GOOD, CLOSE, by=by) == expected


def test_the_quantile_is_that_of_t():
    """A lead of 4.2 errors on two degrees of freedom is not beyond the two-sided 5 %, one of 4.4 is."""
    for factor, expected in ((4.2, "undecided"), (4.4, "agrees")):
        values = np.array([-1.0, 0.0, 1.0])  # standard error 1 / sqrt(3)
        assert observed("x", values + factor / math.sqrt(3)).outcome == expected


def test_counted_epochs_that_are_alike_in_all_seeds_are_known_to_half_of_one():
    """3, 3, 3 against 3.5 is half an epoch of three seeds; with the spread alone, chance would be 0."""
    (near,), (far,) = (observed("x", [n] * 3, 3.5, above=False, unit="epochs").comparisons for n in (3, 1))
    assert near.error == far.error == pytest.approx(1 / math.sqrt(18))  # of a difference of two roundings
    assert near.p > 0.05 > far.p > 0
    (points,) = observed("x", [3.0] * 3, 3.5, above=False, unit="points").comparisons
    assert points.error == 0


def test_the_reason_names_what_points_against_the_claim_before_an_obstacle():
    blocked = Comparison("blocked", 3.0, obstacle="blocked: rivals are not in the paper's order")
    against = Comparison("against", -7.4, parts=((3.0, 2.0),), n=3)
    assert decide([blocked, against]).reason.startswith("against: -7.4")
    assert decide([blocked, replace(against, difference=7.4)]).reason.startswith("blocked: rivals")


def test_of_what_points_against_the_claim_the_reason_names_the_clearest():
    noisy, clear = (Comparison(f"by {lead}", lead, parts=((3.0, 2.0),), n=3, unit="points") for lead in (-1.0, -8.0))
    assert decide([noisy, clear]).reason.startswith("by -8.0: -8.0 ± 3.0 points (3 seeds), not beyond doubt")


def test_numbers_read_plainly():
    """Equal values have no error to show, and zero has no sign."""
    assert observed("rank", [-1.0] * 6, above=False).reason == "rank: -1 (in all 6 seeds); 1 of 1 as claimed"
    few = observed("rank", [-1.0] * 3, above=False)
    assert few.reason == "rank: -1 (in all 3 seeds), too few seeds to decide; 0 of 1 decided"
    assert few.comparisons[0].p == 0.25  # of a sign test
    assert Comparison("a", -0.04, unit="points").words() == "a: 0.0 points"


def test_a_record_has_the_smallest_difference_that_the_reason_names():
    """Of two readings each has half of the level."""
    part = decide([Comparison("a", 1.0, parts=((1.0, 2.0),), n=3)])
    found = kindest({"one": part, "two": part})
    assert f"visible: {scope.recorded(found)['a']['visible']:.3g}" in found.reason


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
    assert pair.parts[1] == pytest.approx((pair.error, 3), rel=1e-3)
    assert pair.p > 0.05


def test_one_test_set_for_all_is_a_common_draw():
    runs = [made([0.8] * 3, test_labels={"all": 400, "a client": 400}), made([0.5] * 3)]
    error, freedom = errors.sampling_error(runs, "accuracy")
    assert error == pytest.approx(math.sqrt((0.8 * 0.2 + 0.5 * 0.5) / 100), rel=1e-6)  # the smaller test set counts
    assert freedom > 1e6


def test_holm_over_all_comparisons_of_a_claim():
    """One comparison at p = 0.02 is beyond 5 % alone, and not among three."""
    near = Comparison("near", 1.0, parts=((1 / 2.3263, math.inf),), n=3)
    assert near.p == pytest.approx(0.02, rel=1e-3)
    far = Comparison("far", 9.0, parts=((1.0, math.inf),), n=3)
    assert decide([near]).outcome == "agrees"
    assert decide([near, near, far]).outcome == "agrees"  # 0.04, 0.02 and 0 after Holm
    assert decide([near, near, near]).outcome == "undecided"  # 0.06
    against = replace(near, difference=-1.0)
    assert decide([against]).outcome == "differs"
    assert decide([against, near, near]).outcome == "undecided"
    assert statistics.holm([0.02, 0.02, 0.02]) == pytest.approx([0.06] * 3)


def test_the_error_of_newcomers_is_over_their_number():
    """Differences of 20 training clients vary by 2 points; five newcomers see twice the error of twenty."""
    settings = Settings(num_clients=20, unseen_clients=5)
    runs = [made([0.8, 0.8], settings=settings), made([0.7, 0.7], settings=settings)]
    curves = runs[0].client_curves + np.linspace(-0.02, 0.02, 20) * 2
    runs[0] = replace(runs[0], client_curves=curves)
    few = errors.sampling_error(runs, "accuracy_unseen")
    error = np.std(np.linspace(-0.04, 0.04, 20), ddof=1) / math.sqrt(5)
    assert few == (pytest.approx(error), pytest.approx(19))


def test_a_method_at_the_majority_baseline_is_not_compared():
    found = compare({"a": GOOD, "b": made([0.11, 0.11, 0.10])}, "a", "b")
    assert found.outcome == "undecided"
    assert found.reason.startswith("b is not clearly above the majority baseline (10.7 % against 10.0 %)")
    assert outcome(GOOD, made([0.5, 0.5, 0.5], constant=0.5)) == "undecided"


def test_a_method_that_its_noise_does_not_tell_from_the_baseline_is_not_compared():
    """Far above on average, but less than three standard errors (0.25 each) over the seeds."""
    noisy = made([0.11, 0.9, 0.2])
    assert noisy.final().mean() > 0.4
    assert compare({"a": GOOD, "b": noisy}, "a", "b").reason.startswith("b is not clearly above the majority baseline")


def test_what_the_claim_says_to_fail_need_not_have_learnt():
    """Then it is compared; a run that diverged, or the one that leads, still has to be one to compare."""
    runs = {"a": GOOD, "b": made([0.1, 0.102, 0.101])}
    assert compare(runs, "a", "b", unlearnt=["b"]).outcome == compare(runs, "a", "b", unlearnt="b").outcome == "agrees"
    assert compare({"a": GOOD, "b": runs["b"]}, "a", "b", unlearnt="bc").outcome == "undecided"
    assert compare(runs, "a", "b", unlearnt=["a"]).outcome == "undecided"
    assert compare(runs | {"a": runs["b"]}, "a", "b", unlearnt=["b"]).reason.startswith("a is not clearly above")
    lost = made([math.nan] * 3)
    assert compare({"a": GOOD, "b": lost}, "a", "b", unlearnt=["b"]).outcome == "undecided"


def test_that_a_method_learns_nothing_can_be_confirmed():
    """The claim is about the distance to the baseline, and needs no run that learnt."""
    stuck = made([0.101, 0.099, 0.100])
    found = observed("above the baseline", 100 * (stuck.final() - stuck.constant), 2.0, above=False, unit="points")
    assert found.outcome == "agrees"
    lower = observed("above the baseline", 100 * (GOOD.final() - GOOD.constant), 2.0, above=False, unit="points")
    assert lower.outcome == "differs"


FLAT, NANS = np.full((3, 41), 0.7), np.full((3, 41), math.nan)


@pytest.mark.parametrize(
    ("run", "metric", "why"),
    [
        (made([0.8] * 3, constant=math.nan), "accuracy", "b has no majority baseline"),
        (made([math.nan, 0.8, 0.8]), "accuracy", "b diverged"),
        (made([0.8, 0.8, 0.8], diverged=(False, True, False)), "accuracy", "b diverged"),
        (made(np.zeros(0), seeds=()), "accuracy", "b was not trained (40 rounds, 0 seeds)"),
        (made([0.8], rounds=1, num_rounds=0), "accuracy", "b was not trained (0 rounds"),
        (made([0.7, 0.7, 0.7], seeds=(3, 4, 5)), "accuracy", "a and b have no seed in common"),
        (made([0.7] * 3, metrics={"accuracy": FLAT, "loss": NANS}), "accuracy", "b diverged"),
        (made([0.7] * 3, metrics={"accuracy": FLAT, "loss": NANS}), "loss", "b diverged"),
        (
            made([0.7] * 3, metrics={"accuracy": FLAT, "accuracy_gap": NANS}),
            "accuracy_gap",
            "in gap between clients: no value for 3 of 3 seeds",
        ),
        (made([0.7] * 3, metrics={"accuracy": FLAT}), "loss", "loss of b was not measured"),
    ],
)
def test_what_cannot_be_compared_is_undecided(run, metric, why):
    found = compare({"a": GOOD, "b": run}, "a", "b", metric, higher=metric == "accuracy")
    assert found.outcome == "undecided"
    assert why in found.reason


@pytest.mark.parametrize(("lead", "outcome"), [(0.0, "agrees"), (0.02, "agrees"), (-0.02, "agrees"), (0.2, "differs")])
def test_how_far_apart_two_runs_are_has_no_direction(lead, outcome):
    """A large lead is no support for "comparable", whichever of the two has it."""
    a, b = (
        made([0.7, 0.701, 0.699], clients=2000, labels=10**6),
        made(np.array([0.7, 0.699, 0.701]) - lead, clients=2000, labels=10**6),
    )
    for pair in (("a", "b"), ("b", "a")):
        found = compare({"a": a, "b": b}, *pair, within=0.05)
        assert found.outcome == outcome, found.reason
        assert found.comparisons[0].difference == pytest.approx(100 * abs(lead), abs=0.3)
        assert "apart" in found.comparisons[0].name
        assert found.comparisons[0].asked == 5.0
        assert f"apart: {100 * abs(lead):.1f} ± " in found.comparisons[0].words()  # no sign


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
    assert compare(runs, "deprl", "dpsgd", moment="mixed").reason.startswith(
        "accuracy after mixing of D-PSGD was not measured"
    )


def test_of_seeds_that_were_judged_at_one_moment_alone_the_others_count():
    """A run that an earlier version stored has no value after local training."""
    runs = {"deprl": run_of("deprl"), "dpsgd": run_of("dpsgd", (0.60, 0.66, 0.75))}
    runs["dpsgd"].metrics["accuracy_trained"][0] = np.nan
    found = compare(runs, "deprl", "dpsgd", moment="trained").comparisons[0]
    assert (found.n, found.difference) == (2, pytest.approx(11.0))
    assert compare(runs, "deprl", "dpsgd", moment="mixed").comparisons[0].n == 3
    runs["dpsgd"].metrics["accuracy_trained"][:] = np.nan
    assert "no value for 3 of 3 seeds" in compare(runs, "deprl", "dpsgd", moment="trained").reason


def test_a_personal_model_must_know_more_than_its_clients_commonest_class():
    shares = {"fedavg": (0.3, 0.1), "fedrep": (0.5, 0.5), "ditto": (0.6, 0.5), "knn_per": (0.51, 0.5)}
    runs = {
        name: replace(run_of(name, [share] * 3), constant=0.1, own_constant=own)
        for name, (share, own) in shares.items()
    }
    assert [each.split(" is not")[0] for each in trained(runs)] == ["FedRep", "kNN-Per"]
    assert trained(runs)[0] == (
        "FedRep is not clearly above its clients' own majority baselines (50.0 % against 50.0 %)"
    )
    assert trained({"fedrep": replace(runs["fedrep"], own_constant=math.nan)}) == []  # of an earlier version


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
    assert found.reason.endswith("1 of 3 as claimed, 1 open")


def test_a_smaller_gap_is_said_to_be_smaller():
    """Less is better, by the metric's name; the sign is that of the difference."""
    rows = {"labels": 10**8}
    found = compare({"a": made([0.6] * 3, **rows), "b": made([0.9] * 3, **rows)}, "a", "b", "accuracy_gap")
    assert found.reason == "a against b in gap between clients: -3.0 ± 0.0 points (3 seeds); 1 of 1 as claimed"
    found = compare({"a": made([0.9] * 3, **rows), "b": made([0.6] * 3, **rows)}, "a", "b", "accuracy_gap", by=0.01)
    assert found.outcome == "differs"
    assert "+3.0 ± 0.0 points (3 seeds, less than -1.0 asked)" in found.reason
    same = rows | {"data_fingerprint": "0"}  # the error over rows leaves out the draw of clients
    one = compare({"a": made([0.6] * 3, **same), "b": made([0.9] * 3, **same)}, "a", "b", "accuracy_gap")
    assert one.reason.endswith("(3 seeds of one partition), and another partition may differ; 0 of 1 decided")
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


@pytest.mark.parametrize("length", [1, WORDS - 1, WORDS, WORDS + 1, 2 * WORDS])
def test_a_reason_of_one_clause_is_cut_where_it_is_too_long(length):
    words = [f"w{i}" for i in range(length)]
    kept = words if length <= WORDS else [*words[: WORDS - 1], "…"]
    assert shortened(" ".join(words)) == " ".join(kept)

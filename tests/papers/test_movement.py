"""What still moves at the end of training, judged over the rounds that the paper has left."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import made

from fedlab_lite.papers import statistics
from fedlab_lite.papers.outcome import decide
from fedlab_lite.papers.statistics import Comparison
from fedlab_lite.papers.verdicts import compare, observed, settled


def ramp(curve, name):
    """A rise by 0.03 over the last ten rounds, of which the mean of the last ten has little."""
    rise = 0.003 * np.clip(np.arange(curve.shape[1]) - 30, 0, None)
    return -rise if name == "loss" else rise


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
    last = f"{pair.quarters[1]:+.1f}" if higher else "+0.03"
    assert moved.obstacle.endswith(f"but it moved by {last} in the last 10 rounds, and preset paper has 60 more")
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
    before, last = statistics.quarters(run.rounds, run.metrics["accuracy"], 40)
    assert (before, last) == (pytest.approx([0], abs=1e-9), pytest.approx([0.04]))


def test_a_curve_slows_down_only_beyond_the_error_of_its_quarters():
    """4 and 2 points per quarter: clearly less with 0.1 points of noise, not with 3; of one seed it is not known."""
    clear, noisy = ([[4.0, 4.1, 3.9], [2.0, 2.1, 2.0]], [[4.0, 7.0, 1.0], [2.0, 2.1, 2.0]])
    moves = [Comparison("a", 1.0, rounds=40, **statistics.movement(np.array(each))) for each in (clear, noisy)]
    assert [each.slows for each in moves] == [True, False]
    assert [each.ahead(10_000) for each in moves] == [pytest.approx(2.05, abs=0.2), pytest.approx(2030, abs=10)]
    assert not statistics.movement(np.array([[4.0], [2.0]]))["slows"]


def test_a_steady_loss_of_the_lead_is_rarely_taken_for_one_that_ends():
    """A lead of 5 points that shrinks by 1 per quarter is gone after 22 more, whatever the noise of three seeds."""
    rng = np.random.default_rng(0)
    draws = [-1.0 + 0.5 * rng.standard_normal((2, 3)) for _ in range(300)]
    leads = [Comparison("a", 5.0, rounds=40, **statistics.movement(each)) for each in draws]
    assert np.mean([not each.after(227).obstacle for each in leads]) < 0.1


def test_a_movement_within_its_error_ends_with_a_quarter():
    """Last quarters of 3 and -1 and 1 points are noise, of 1.1 and 1 and 0.9 points a trend."""
    noise, trend = (statistics.movement(np.array([[-1.0] * 3, last])) for last in ([3.0, -1.0, 1.0], [1.1, 1.0, 0.9]))
    moves = [Comparison("a", -5.0, rounds=40, **each) for each in (noise, trend)]
    assert [each.ahead(100) for each in moves] == [pytest.approx(1.0), pytest.approx(10.0)]
    assert [bool(each.after(100).obstacle) for each in moves] == [False, True]
    assert statistics.movement(np.array([[1.0], [2.0]]))["trend"]  # of one seed it is not known
    assert statistics.movement(np.array([[-1.0] * 3, [-3.8, -3.2, -7.7]]))[
        "trend"
    ]  # within its error, alike in all seeds


@pytest.mark.parametrize(
    ("apart", "last", "stays"),
    [(1.0, -2.0, False), (14.3, -8.0, True), (14.3, -1.0, False), (1.0, 0.5, False), (14.3, 1.0, True)],
)
def test_two_that_cross_each_other_may_be_as_far_apart_as_before(apart, last, stays):
    """At most 5 points apart is asked; 10 more quarters of -2 take 1 to -19, which is 19 apart."""
    found = Comparison(
        "a", apart, asked=5.0, above=False, signed=False, rounds=40, quarters=(last, last), unit="points"
    )
    assert bool(found.after(100).obstacle) != stays


def test_a_curve_that_will_move_has_not_settled():
    """It moves by 0.01 in its last fifth, which is less than 0.02; over 60 further rounds it falls by 0.08."""
    rounds = np.arange(0, 41, 2)
    curves = 1 - 0.05 * rounds / 40 + np.array([[0.0], [0.001], [-0.001]])
    moved = np.array([-0.01, -0.0101, -0.0099])
    (level,) = settled("loss", moved, 0.02, higher=False).comparisons
    assert decide([level.after(60)]).outcome == "agrees"
    (found,) = settled("loss", moved, 0.02, higher=False, along=(rounds, curves)).comparisons
    assert decide([found.after(0)]).outcome == "agrees"
    assert decide([found.after(60)]).outcome == "undecided"
    assert "loss: 0.01, but it moved by -0.0125 in the last 10 rounds" in found.after(60).obstacle  # it falls


def test_a_curve_with_too_few_evaluations_decides_nothing_over_further_rounds():
    moves = statistics.movement(statistics.quarters(np.array([40]), np.array([[0.8]] * 3), 40))
    found = Comparison("a", 5.0, parts=((0.1, 9.0),), rounds=40, **moves)
    assert found.after(0) == found
    assert found.after(60).obstacle == "a: too few evaluations to say how it moves in the paper's 60 further rounds"


def test_a_measured_number_moves_with_its_curve():
    """A ratio that falls by 0.1 in the last quarter of 40 rounds is below 0.5 soon."""
    rounds = np.arange(0, 41, 5)
    curves = 1 - 0.4 * rounds / 40 + np.array([[0.0], [0.01], [-0.01]])
    (found,) = observed("ratio", curves[:, -1], 0.5, along=(rounds, curves)).comparisons
    assert found.quarters == (pytest.approx(-0.1), pytest.approx(-0.1))
    assert not found.after(5).obstacle
    assert "0.6, but it moved by -0.1 in the last 10 rounds, and preset paper has 20 more" in found.after(20).obstacle

"""What mixing makes of the disagreement that training adds: against plain matrix products, and the shape of a curve."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import blobs, history
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlab_lite.algorithms import make_algorithm
from fedlab_lite.analysis import gossip_error
from fedlab_lite.engine import make_graph, spectral_gap, train
from fedlab_lite.util import InputError


def error(x):
    return np.sum((x - x.mean(0)) ** 2) / len(x)


def hump(*curves):
    """Of these curves, one a seed."""
    return gossip_error.hump(history(curves, seeds=tuple(range(len(curves)))), "accuracy")


@pytest.mark.parametrize("decay", [1.0, 0.7])
@pytest.mark.parametrize("same_way", [False, True])
def test_predicted_is_the_mean_over_random_pulls(decay, same_way):
    """X <- P (X + U), the U drawn evenly in all directions: once for all rounds, or anew."""
    matrix, rng = (
        make_graph("random", 7, edge_probability=0.4, seed=3).metropolis.astype(float),
        np.random.default_rng(0),
    )
    width, rounds = 20_000, 6  # that many columns are that many draws
    x, pull, found = np.zeros((7, width)), rng.normal(size=(7, width)), [0.0]
    added = error(pull)
    for index in range(rounds):
        if not same_way:
            pull = rng.normal(size=(7, width))
        x = matrix @ (x + decay**index * pull)
        found.append(error(x) / added)
    expected = gossip_error.predicted(matrix, rounds, decay=decay, same_way=same_way)
    np.testing.assert_allclose(found, expected, rtol=0.05)


@given(st.integers(2, 12), st.integers(0, 99))
@settings(max_examples=20)
def test_the_slowest_mode_bounds_what_is_left(n, seed):
    """With training in the first round alone (decay 0), at most lambda_2^2 of the error is left by a mixing."""
    matrix = make_graph("random", n, edge_probability=0.6, seed=seed).metropolis
    curve = gossip_error.predicted(matrix, 8, decay=0.0)
    slowest = (1 - spectral_gap(matrix)) ** 2
    assert curve[0] == 0
    assert np.all(curve[2:] <= slowest * curve[1:-1] * (1 + 1e-5) + 1e-12)


def test_a_matrix_that_is_not_symmetric():
    turned = np.roll(np.eye(3), 1, axis=1)
    with pytest.raises(InputError, match=r"not symmetric; use .*Metropolis weights"):
        gossip_error.predicted(turned, 2)
    with pytest.raises(InputError, match="not doubly stochastic"):
        gossip_error.predicted(make_graph("star", 4).uniform, 2)


@pytest.mark.parametrize(
    ("curve", "rises", "falls"),
    [([0, 1, 5, 2], True, True), ([0, 5, 3, 1], False, True), ([0, 1, 3, 5], True, False)],
)
def test_hump(curve, rises, falls):
    found = hump(curve, np.multiply(curve, 2), np.multiply(curve, 3))
    assert all(found.rise > 0) == rises
    assert all(found.fall > 0) == falls


def test_a_seed_is_judged_where_the_others_peak():
    """Three curves of noise have no common peak, though each has a highest point."""
    found = hump([0, 2, 4, 1, 2], [0, 2, 1, 4, 2], [0, 2, 1, 1, 2])
    assert found.peak.tolist() == [3, 2, 2]
    np.testing.assert_allclose(np.exp(found.rise), 0.5)


def test_nothing_after_the_start():
    assert np.isnan(hump([0], [0]).rise).all()
    assert np.isnan(hump([0, 0, 0], [0, 0, 0]).fall).all()


def test_a_run_that_trains_once_shrinks_by_lambda_2():
    """DePRL with a step size of 0 after the first round, on a ring: a mixing leaves lambda_2^2 of the error at last."""
    problem = blobs(sizes=[6, 6, 6, 6, 6])
    problem = replace(problem, graph=make_graph("ring", problem.num_clients))
    run, _ = train(problem, make_algorithm("deprl", lr=0.5, lr_decay=0.0), num_rounds=6)
    curve = run.metrics["consensus_error"][0].astype(float)
    slowest = (1 - spectral_gap(problem.graph.metropolis)) ** 2
    assert curve[6] / curve[5] == pytest.approx(slowest, rel=0.02)

"""FedF-ADMM's Sec. V: its recursion, eq. (20) and Appendix B to rounding, stability, and what nu > 0 leaves over."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from fedlab_lite.algorithms import make_algorithm
from fedlab_lite.engine import GRAPHS, Problem, RoundContext, make_graph


def exact(kind, num_clients, seed=0, num_edges=None):
    """A graph whose matrices are float64."""
    graph = make_graph(kind, num_clients, seed=seed, num_edges=num_edges)
    return replace(graph, adjacency=graph.adjacency.astype(float))


def simulate(graph, rho, nu, rounds, seed=0, noise=0.0, pull=0.3):
    """(16) and (18) from y^1 = 0, lambda^0 = 0; outputs `[rounds, N]`: y, y~, mean change, delta1, delta2, lambda.

    Local SGD moves y_i by `pull` of the way to a device's own optimum, plus noise.
    """
    rng = np.random.default_rng(seed)
    own = rng.normal(size=graph.num_clients)
    y, multipliers, rows = np.zeros_like(own), np.zeros_like(own), []
    for _ in range(rounds):
        expected = pull * (own - y)
        delta1, delta2 = noise * rng.normal(size=(2, graph.num_clients))
        after = y + expected + delta1
        error = after - graph.neighbour_mean @ after
        multipliers = (1 - nu) * multipliers + error
        rows.append((y, after, expected, delta1, delta2, multipliers))
        y = after - rho * (error + multipliers + delta2)
    return [np.array(column) for column in zip(*rows, strict=True)], y


def targets_of(algorithm, problem, state, outputs):
    """Lines 6 and 7 of Algorithm 1 for every device, from what its neighbours send."""
    at = RoundContext(0, np.arange(len(outputs)), jax.random.key(0))
    return algorithm.targets(state, outputs, problem.exchange(at, outputs))


def test_targets_are_the_recursion_dual_first():
    """(16), then y^ = M_i[y~] - lambda with the new lambda, so that y~ - rho (y~ - y^) is (18)."""
    algorithm = make_algorithm("fedf_admm", nu=0.25)
    problem = Problem(None, None, graph=make_graph("star", 3))
    outputs = np.array([[[1.0]], [[2.0]], [[6.0]]], np.float32)  # one shared point, one output
    state = {"multipliers": np.array([[[4.0]], [[0.0]], [[-8.0]]], np.float32), "errors": 0 * outputs}
    # neighbours' means 4, 1, 1; errors -3, 1, 5; multipliers .75 x (4, 0, -8) + errors = 0, 1, -1
    targets, kept = targets_of(algorithm, problem, state, outputs)
    np.testing.assert_allclose(np.ravel(kept["multipliers"]), [0, 1, -1], atol=1e-6)
    np.testing.assert_allclose(np.ravel(targets), [4, 0, 2], atol=1e-6)
    rho, pull = 0.5, np.array([-3, 1, 5]) + np.array([0, 1, -1])
    distilled = np.ravel(outputs) - rho * (np.ravel(outputs) - np.ravel(targets))
    np.testing.assert_allclose(distilled, np.ravel(outputs) - rho * pull, atol=1e-6)
    targets, kept = targets_of(algorithm, problem, kept, outputs)  # a second round: the multiplier remembers
    np.testing.assert_allclose(np.ravel(kept["multipliers"]), [-3, 1.75, 4.25], atol=1e-6)
    np.testing.assert_allclose(np.ravel(targets), [7, -0.75, -3.25], atol=1e-6)


@pytest.mark.parametrize("kind", GRAPHS)
def test_targets_follow_the_simulation(kind):
    graph, nu = exact(kind, 7, seed=3), 0.1
    (_, after, *_, multipliers), _ = simulate(graph, 0.2, nu, 10, noise=0.1)
    with jax.enable_x64(True):
        algorithm, problem = make_algorithm("fedf_admm", nu=nu), Problem(None, None, graph=graph)
        state = {"multipliers": np.zeros((7, 1, 1)), "errors": np.zeros((7, 1, 1))}
        for outputs, expected in zip(after, multipliers, strict=True):
            targets, state = targets_of(algorithm, problem, state, outputs[:, None, None])
            np.testing.assert_allclose(np.ravel(state["multipliers"]), expected, rtol=0, atol=1e-13)
            np.testing.assert_allclose(np.ravel(targets), graph.neighbour_mean @ outputs - expected, rtol=0, atol=1e-13)


def earlier(values):
    """The sum over all rounds before."""
    return np.cumsum(values, 0) - values


@pytest.mark.parametrize("seed", range(8))
def test_eq20_and_its_leaky_form_to_rounding(seed):
    rng = np.random.default_rng(seed)
    num_clients = int(rng.integers(2, 12))
    edges = int(rng.integers(num_clients - 1, num_clients * (num_clients - 1) // 2 + 1))
    graph = exact("random", num_clients, seed=seed, num_edges=edges)
    rho, nu = rng.uniform(0.05, 0.5), (0.0, 0.01, 0.3, 1.0)[seed % 4]
    (y, after, expected, delta1, delta2, _), last = simulate(graph, rho, nu, 60, seed, noise=0.3)
    B = graph.incidence.astype(float)
    Le = B.T @ np.diag(1 / graph.degree) @ B
    np.testing.assert_allclose(B @ B.T / 2, graph.laplacian)
    d, d_after, sgd, delta1, delta2 = (values @ B for values in (y, after, expected, delta1, delta2))
    u = np.concatenate([d[1:], [last @ B]]) - d
    noise, Led = delta1 - rho * delta2, d_after @ Le
    proportional = -nu * d - rho * Led
    integral = -rho * (1 + nu) / 2 * earlier(Led)
    printed = sgd + proportional + nu * earlier(sgd) + integral + noise + nu * earlier(noise)
    scale = max(1, abs(integral).max(), abs(d).max())
    np.testing.assert_allclose(printed, u, rtol=0, atol=1e-12 * scale)
    leaky = np.zeros_like(Led)
    for t in range(1, len(leaky)):
        leaky[t] = (1 - nu) * leaky[t - 1] + Led[t - 1]
    np.testing.assert_allclose(sgd - rho * Led - rho * (1 - nu) / 2 * leaky + noise, u, rtol=0, atol=1e-12 * scale)
    if num_clients > 2:  # with rounds counted from 0 the sums miss the first
        missing = nu * (sgd[0] + noise[0]) - rho * (1 + nu) / 2 * Led[0]
        assert abs(missing).max() > 1e-3


@pytest.mark.parametrize("kind", GRAPHS)
def test_appendix_c(kind):
    """L_e d~ is 2 (away_s - away_e) on edge (s, e), away = y - M[y]; it vanishes at consensus alone."""
    graph = exact(kind, 6, seed=1)
    B, outputs = graph.incidence.astype(float), np.random.default_rng(0).normal(size=6)
    Le = B.T @ np.diag(1 / graph.degree) @ B
    away = outputs - graph.neighbour_mean @ outputs
    start, end = np.nonzero(graph.adjacency)
    np.testing.assert_allclose(Le @ (B.T @ outputs), 2 * (away[start] - away[end]), atol=1e-12)
    assert np.linalg.matrix_rank(Le @ B.T) == 5


@pytest.mark.parametrize("nu", [0.0, 0.01, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("kind", GRAPHS)
def test_stable_exactly_below_the_bound(kind, nu):
    """rho mu < (4 - 2 nu) / (3 - nu) for the largest eigenvalue mu of D^-1 L."""
    graph = exact(kind, 8, seed=2)
    away, eye = np.eye(8) - graph.neighbour_mean, np.eye(8)
    mu = np.linalg.eigvals(away).real
    limit = (4 - 2 * nu) / (3 - nu) / mu.max()
    weights = graph.degree / graph.degree.sum()
    for rho, stable in ((0.98 * limit, True), (1.02 * limit, False)):
        loop = np.block([[eye - 2 * rho * away, -rho * (1 - nu) * eye], [away, (1 - nu) * eye]])
        mean = np.kron(np.eye(2), np.outer(np.ones(8), weights))  # the mode mu = 0
        radius = abs(np.linalg.eigvals(loop - loop @ mean)).max()
        assert (radius < 1) == stable
        modes = [[[1 - 2 * rho * m, -(1 - nu)], [rho * m, 1 - nu]] for m in mu if m > 1e-9]
        assert radius == pytest.approx(max(abs(np.linalg.eigvals(mode)).max() for mode in modes), abs=1e-6)


@pytest.mark.parametrize("kind", GRAPHS)
def test_steady_state(kind):
    """nu = 0: consensus, each device weighing by its degree; nu > 0: a disagreement of nu lambda that stays."""
    graph = exact(kind, 8, seed=4)
    for nu in (0.0, 0.01, 0.1):
        (y, after, *_, multipliers), last = simulate(graph, 0.3, nu, 4000)
        error = after[-1] - graph.neighbour_mean @ after[-1]
        np.testing.assert_allclose(last, y[-1], atol=1e-10)
        np.testing.assert_allclose(error, nu * multipliers[-1], atol=1e-10)
        assert (abs(error).max() > 1e-4) == (nu > 0)
        assert graph.degree @ (after[-1] - y[-1]) == pytest.approx(0, abs=1e-9)
        if nu == 0:
            own = np.random.default_rng(0).normal(size=8)
            np.testing.assert_allclose(after[-1], graph.degree @ own / graph.degree.sum(), atol=1e-9)

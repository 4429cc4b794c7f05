"""Rounds of FedPAC and FedCR against plain NumPy, on rows of two classes."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import KEY, Quadratic, ScalarModel, init, step

from fedlab_lite.algorithms import make_algorithm
from fedlab_lite.algorithms.fedcr import divergence
from fedlab_lite.algorithms.fedpac import head_shares, simplex_minimum
from fedlab_lite.data import Federated
from fedlab_lite.engine import Problem
from fedlab_lite.nn import Gaussian
from fedlab_lite.nn.gaussian import GaussianHead

ALL_CLIENTS = jnp.arange(2)


# --- FedPAC and FedCR: rows of two classes, in plain NumPy ------------------------------------------------------------

X = np.array([[1.0, 2.0, 3.0], [2.0, 1.0, 7.0]])  # of client 1 the third row is padding
Y = np.array([[0, 1, 1], [1, 0, 0]])
SIZE = np.array([3, 2])


def labelled(model) -> Problem:
    """Row loss (output - y)^2 / 2 on labels y that are classes, too; x_1 = 1."""
    x = np.stack([X, np.ones_like(X)], axis=2).astype(np.float32)
    y, size = Y.astype(np.int32), SIZE.astype(np.int32)
    data = Federated(x, y, size, x, y, size, np.zeros((0, 2), np.float32), "quadratic", "made by a test", 2)
    return Problem(data, model, "map", task=Quadratic())


def rows(client):
    return X[client, : SIZE[client]], Y[client, : SIZE[client]]


def pac_statistics(theta, client):
    """pi_k, pi_k mean(z | k), and V_i = (sum_k pi_k E[|z|^2 | k] - sum_k pi_k^2 |mean(z | k)|^2) / n_i."""
    x, y = rows(client)
    z = np.stack([theta * x, np.ones_like(x)], axis=1)
    shares = np.array([np.mean(y == k) for k in range(2)])
    means = np.array([z[y == k].mean(0) for k in range(2)])
    squares = np.array([np.square(z[y == k]).sum(1).mean() for k in range(2)])
    return shares, means, (shares @ squares - shares**2 @ np.square(means).sum(1)) / len(x)


def pac_round(theta, w, prototypes, lr=0.1, head_lr=0.2, penalty=3.0):
    """One round of FedPAC with one full batch a phase; `prototypes` None: there are none yet."""
    thetas, heads, statistics, after = [], [], [], []
    for client in range(2):
        x, y = rows(client)
        statistics.append(pac_statistics(theta, client))
        head = w[client] - head_lr * np.mean(theta * x + w[client] - y)
        slope = np.mean((theta * x + head - y) * x)
        if prototypes is not None:  # (1/2) sum over both features of (z - c_y)^2; the second does not move
            slope += penalty * np.mean((theta * x - prototypes[y, 0]) * x)
        thetas.append(theta - lr * slope)
        heads.append(head)
        after.append(pac_statistics(thetas[-1], client))
    counts = np.array([n * shares for n, (shares, _, _) in zip(SIZE, after, strict=True)])
    sums = sum(count[:, None] * means for count, (_, means, _) in zip(counts, after, strict=True))
    h = [shares[:, None] * means for shares, means, _ in statistics]
    variances = [variance for *_, variance in statistics]
    apart = np.square(h[0] - h[1]).sum()
    taken = [variances[i] / (sum(variances) + apart) for i in range(2)]  # of the other's head, in closed form
    mixed = [(1 - taken[i]) * heads[i] + taken[i] * heads[1 - i] for i in range(2)]
    return np.average(thetas, weights=SIZE), mixed, sums / counts.sum(0)[:, None]


def test_fedpac_by_hand():
    """Two rounds: the first without, the second with the term that draws features to prototypes."""
    problem = labelled(ScalarModel(0.5, 0.25))
    algorithm = make_algorithm("fedpac", lr=0.1, head_lr=0.2, penalty=3.0, epochs=1, batch_size=3)
    theta, heads, prototypes = 0.5, [0.25, 0.25], None
    state = init(algorithm, problem)
    for _ in range(2):
        theta, heads, prototypes = pac_round(theta, heads, prototypes)
        state = step(algorithm, problem, state, ALL_CLIENTS)
        assert float(state["theta"]["theta"]) == pytest.approx(theta, rel=1e-5)
        np.testing.assert_allclose(state["heads"]["w"], heads, rtol=1e-5)
        np.testing.assert_allclose(state["prototypes"], prototypes, rtol=1e-5)


def test_fedpac_takes_no_head_of_an_idle_place():
    """Shares of three places' heads when the second is idle; and what comes out are shares."""
    h = jax.random.normal(KEY, (3, 2, 4))
    shares = head_shares(h, jnp.array([3.0, 1.0, 2.0]), jnp.array([True, False, True]))
    np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-6)
    assert not shares[:, 1].any()
    apart = float(jnp.square(h[0] - h[2]).sum())
    assert float(shares[0, 2]) == pytest.approx(3 / (5 + apart), rel=1e-4)


def test_small_shares_are_left_out_and_the_rest_sums_to_one():
    """Of three alike, with shares in proportion to 1 / V, the second would have 1 / 4001."""
    shares = head_shares(jnp.ones((3, 2, 4)), jnp.array([1.0, 2000.0, 1.0]), jnp.ones(3, bool))
    np.testing.assert_allclose(shares, np.full((3, 3), [0.5, 0, 0.5]), atol=1e-4)
    np.testing.assert_allclose(shares.sum(1), 1, atol=1e-6)
    assert not shares[:, 1].any()


def test_simplex_minimum_meets_its_conditions():
    """At the least value all slopes are equal where there is weight, and no less anywhere else; against NumPy's."""
    rng = np.random.default_rng(0)
    for m in (2, 7, 50):
        factor = rng.normal(size=(m, 3))
        P = factor @ factor.T + np.diag(rng.uniform(0.01, 1, m))
        a = np.asarray(simplex_minimum(jnp.asarray(P), jnp.ones(m, bool)), float)
        assert a.sum() == pytest.approx(1, abs=1e-5)
        assert a.min() >= 0
        slopes = P @ a
        assert slopes[a > 0].max() - slopes.min() < 1e-4 * P.max()
    assert not simplex_minimum(jnp.eye(3), jnp.zeros(3, bool)).any()


@dataclass(frozen=True)
class ScalarGaussian(ScalarModel):
    """z has mean theta x_0 and deviation s; the head looks at the mean alone, so training draws nothing."""

    s: float = 0.8

    def init(self, key):
        body = {"theta": jnp.float32(self.theta), "s": jnp.float32(self.s)}
        return {"representation": body, "head": {"w": jnp.float32(self.w)}}

    def represent(self, params, x, *, key=None, budget=None):
        mean = params["representation"]["theta"] * x[:, :1]
        return Gaussian(mean, jnp.broadcast_to(params["representation"]["s"], mean.shape))

    def classify(self, head, features, *, key=None):
        return head["w"] * features.mean[:, 0]


def cr_round(theta, s, w, prior, beta=0.5, lr=0.1):
    """One round of FedCR with one full batch; `prior` is (mean, deviation) by class, z is a number."""
    thetas, deviations, heads, precision, weighted = [], [], [], np.zeros(2), np.zeros(2)
    for client in range(2):
        x, y = rows(client)
        residual = w[client] * theta * x - y
        mean, deviation = prior[0][y], prior[1][y]
        gap = theta * x - mean
        by_mean, by_s = gap / s**2, 1 / s - (deviation**2 + gap**2) / s**3  # of KL(r_y || encoder)
        thetas.append(theta - lr * np.mean(residual * w[client] * x + beta * by_mean * x))
        deviations.append(s - lr * np.mean(beta * by_s))
        heads.append(w[client] - lr * np.mean(residual * theta * x))
        for k in range(2):
            precision[k] += np.sum(y == k) / deviations[-1] ** 2
            weighted[k] += np.sum(thetas[-1] * x[y == k]) / deviations[-1] ** 2
    prior = (weighted / (1 + precision), 1 / np.sqrt(1 + precision))
    return np.mean(thetas), np.mean(deviations), heads, prior


def test_fedcr_by_hand():
    """Two rounds: from N(0, 1), then from the product of both clients' Gaussians."""
    problem = labelled(ScalarGaussian(0.5, 0.25))
    algorithm = make_algorithm("fedcr", lr=0.1, beta=0.5, epochs=1, batch_size=3)
    theta, s, heads, prior = 0.5, 0.8, [0.25, 0.25], (np.zeros(2), np.ones(2))
    state = init(algorithm, problem)
    for _ in range(2):
        theta, s, heads, prior = cr_round(theta, s, heads, prior)
        state = step(algorithm, problem, state, ALL_CLIENTS)
        assert float(state["theta"]["theta"]) == pytest.approx(theta, rel=1e-5)
        assert float(state["theta"]["s"]) == pytest.approx(s, rel=1e-5)
        np.testing.assert_allclose(state["heads"]["w"], heads, rtol=1e-5)
        np.testing.assert_allclose(state["prior"].mean[:, 0], prior[0], rtol=1e-5)
        np.testing.assert_allclose(state["prior"].deviation[:, 0], prior[1], rtol=1e-5)


def test_fedcr_keeps_the_prior_of_a_class_without_rows():
    problem = labelled(ScalarGaussian(0.5, 0.25))
    problem = replace(problem, data=replace(problem.data, y=np.zeros_like(problem.data.y)))
    algorithm = make_algorithm("fedcr", lr=0.1, epochs=1)
    prior = step(algorithm, problem, init(algorithm, problem), ALL_CLIENTS)["prior"]
    assert (float(prior.mean[1, 0]), float(prior.deviation[1, 0])) == (0, 1)
    assert 0 < float(prior.deviation[0, 0]) < 0.5


def test_divergence_against_draws():
    """KL(p || q) = E_p[log p - log q]."""
    rng = np.random.default_rng(0)
    p, q = (Gaussian(rng.normal(size=(1, 3)), rng.uniform(0.5, 2, (1, 3))) for _ in range(2))
    z = rng.normal(p.mean, p.deviation, (200_000, 3))

    def log_density(g):
        return (-np.log(g.deviation) - np.square((z - g.mean) / g.deviation) / 2).sum(1)

    want = log_density(p) - log_density(q)
    assert float(divergence(p, q)[0]) == pytest.approx(want.mean(), abs=4 * want.std() / 200_000**0.5)
    assert float(divergence(p, p)[0]) == pytest.approx(0, abs=1e-6)


def test_a_gaussian_head_draws_in_training_alone():
    from flax import nnx

    head = GaussianHead(2, 1, rngs=nnx.Rngs(0))
    head.linear.kernel, head.linear.bias = nnx.Param(jnp.array([[1.0], [2.0]])), nnx.Param(jnp.array([0.5]))
    features = Gaussian(jnp.ones((1, 2)), jnp.array([[3.0, 2.0]]))
    assert float(head(features)[0, 0]) == pytest.approx(3.5)
    draws = np.array([head(features, key=key)[0, 0] for key in jax.random.split(KEY, 300)])
    assert draws.mean() == pytest.approx(3.5, abs=4 * 5 / 300**0.5)
    assert draws.std() == pytest.approx(5, rel=0.2)  # sqrt((1 * 3)^2 + (2 * 2)^2)

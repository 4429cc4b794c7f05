"""FedReCo and those it compares with, FedBABU, FedPAC and FedCR: rounds computed by hand or in plain NumPy."""

import math
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import KEY, Quadratic, ScalarModel, assert_equal, blobs, init, quadratic_problem, run_rounds, step

from fedlab_lite.algorithms import FedReCo, make_algorithm
from fedlab_lite.algorithms.fedcr import divergence
from fedlab_lite.algorithms.fedpac import head_shares, simplex_minimum
from fedlab_lite.algorithms.parts import distance, mean_gradient, measured, random_batch, reduced
from fedlab_lite.data import Federated
from fedlab_lite.engine import Channel, ClientData, Problem, rows_of
from fedlab_lite.nn import Gaussian
from fedlab_lite.nn.gaussian import GaussianHead
from fedlab_lite.util import InputError

ALL_CLIENTS = jnp.arange(2)


# --- FedReCo ----------------------------------------------------------------------------------------------------------
# Two clients, row loss (theta + w - y)^2 / 2 with y = 1 and 5, h(x) = (theta, 1), so H_i = (theta_i - theta_0)^2.


def reco(rounds=((0, 1),), channel=None, sizes=(3, 1), **options):
    options = {"lr": 0.5, "server_lr": 0.5, "penalty": 2.0, "batch_size": 4} | options
    problem = replace(quadratic_problem([1.0, 5.0], sizes), channel=channel)
    algorithm = make_algorithm("fedreco", **options)
    state = init(algorithm, problem)
    for cohort in rounds:
        state = step(algorithm, problem, state, jnp.array(cohort))
    return problem, algorithm, state


def test_fedreco_by_hand():
    """Heads: w_i = 0.5 y = 0.5, 2.5. Then theta_i, at theta_0 where H is flat: residual -0.5 y, so 0.25, 1.25.

    G_i = -2 (theta_i - theta_0) = -0.5, -2.5; their plain mean -1.5 moves theta_0 to 0.75.
    Round 2, client 1 alone, from its own theta_1 = 1.25: residual 1.25 + 2.5 - 5, w_1 = 2.5 + 0.625 = 3.125; gradient
    (1.25 + 3.125 - 5) + lambda/2 * 2 (1.25 - 0.75) = 0.375, theta_1 = 1.0625; G_1 = -0.625, theta_0 = 1.0625.
    """
    problem, algorithm, state = reco()
    np.testing.assert_allclose(state["heads"]["w"], [0.5, 2.5])
    np.testing.assert_allclose(state["thetas"]["theta"], [0.25, 1.25])
    assert float(state["theta"]["theta"]) == pytest.approx(0.75)
    np.testing.assert_allclose(algorithm.monitor(problem, state)["representation_gap"], [0.25, 0.25])

    state = step(algorithm, problem, state, jnp.array([1]))
    np.testing.assert_allclose(state["heads"]["w"], [0.5, 3.125])
    np.testing.assert_allclose(state["thetas"]["theta"], [0.25, 1.0625])  # client 0 keeps its own
    assert float(state["theta"]["theta"]) == pytest.approx(1.0625)
    own, shared = algorithm.models(problem, state, KEY)
    assert not shared
    assert_equal(own, {"representation": state["thetas"], "head": state["heads"]})


def test_measures_of_theorem_1_by_hand():
    """After the second round above, lambda = 2: theta_i - theta_0 = -0.8125, 0; residuals -0.25, -0.8125.

    By u_0: -2 (theta_i - theta_0) = 1.625, 0, mean 0.8125. By u_i: -0.25 - 1.625, -0.8125. By v_i: the residuals.
    """
    problem, algorithm, state = reco([(0, 1), (1,)], measures="theorem")
    found = algorithm.monitor(problem, state)
    np.testing.assert_allclose(found["representation_gap"], [0.8125**2, 0])
    np.testing.assert_allclose(found["gamma_1"], 0.8125**2)
    np.testing.assert_allclose(found["gamma_2"], [1.875**2, 0.8125**2])
    np.testing.assert_allclose(found["gamma_3"], [0.25**2, 0.8125**2])


@pytest.mark.slow
def test_sums_and_the_servers_clip_by_hand():
    """G_i of sums: 3 * -0.5, 1 * -2.5, mean -2. Scaled to length 0.5: theta_0 = 0.25."""
    for options, want in (({}, 1.0), ({"gradient": "full"}, 1.0), ({"server_clip": 0.5}, 0.25)):
        _, _, state = reco(loss="sum", **options)
        assert float(state["theta"]["theta"]) == pytest.approx(want)
    _, _, state = reco([(0, 1), (0,)], loss="sum")
    # client 0: residual 0.25 + 0.5 - 1, w = 0.625; gradient -0.125 + lambda/2 * 3 rows * 2 (0.25 - 1) = -4.625
    assert float(state["thetas"]["theta"][0]) == pytest.approx(0.25 + 0.5 * 4.625)


def test_step_sizes_are_three():
    """eta_v = 0.1: w_i = 0.1 y; eta_u = 0.5: theta_i = 0.45 y; eta_0 = 0.25: theta_0 = 0.25 * 2 * 0.45 * 3."""
    _, _, state = reco(head_lr=0.1, server_lr=0.25)
    np.testing.assert_allclose(state["heads"]["w"], [0.1, 0.5], rtol=1e-6)
    np.testing.assert_allclose(state["thetas"]["theta"], [0.45, 2.25], rtol=1e-6)
    assert float(state["theta"]["theta"]) == pytest.approx(0.675)
    decayed = make_algorithm("fedreco", lr=0.4, head_lr=0.2, server_lr=1.0, penalty=3.0, lr_decay=0.5)
    decayed = decayed.of_round(jnp.int32(1))
    numbers = [float(getattr(decayed, name)) for name in ("lr", "head_lr", "server_lr", "penalty")]
    assert numbers == pytest.approx([0.2, 0.1, 0.5, 3.0])


def test_steps_are_batches_and_epochs_are_passes():
    """With one batch a pass they are the same."""
    rounds = [(0, 1), (1,)]
    _, _, steps = reco(rounds, steps=3, head_steps=2)
    _, _, epochs = reco(rounds, epochs=3, head_epochs=2)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), steps, epochs)


def test_without_a_penalty_clients_are_alone():
    """Without a penalty u_0 still follows the clients, but has no influence on them, whatever the server does."""
    _, _, one = reco([(0, 1), (0, 1)], penalty=0.0)
    _, _, other = reco([(0, 1), (0, 1)], penalty=0.0, server_lr=0.1)
    assert_equal((one["thetas"], one["heads"]), (other["thetas"], other["heads"]))
    assert float(one["theta"]["theta"]) != float(other["theta"]["theta"])


@pytest.mark.slow
def test_what_is_sent_passes_the_channel():
    """Messages -0.5 and -2.5 clipped to length 0.1: theta_0 = 0.5 * 0.1. Nothing else of the client is clipped."""
    _, _, state = reco(channel=Channel(clip=0.1))
    assert float(state["theta"]["theta"]) == pytest.approx(0.05)
    np.testing.assert_allclose(state["thetas"]["theta"], [0.25, 1.25])
    _, _, noised = reco(channel=Channel(clip=0.1, noise=5.0))
    assert float(noised["theta"]["theta"]) != pytest.approx(0.05, abs=1e-3)
    np.testing.assert_allclose(noised["thetas"]["theta"], [0.25, 1.25])


@pytest.mark.slow
class TestVarianceReduction:
    @pytest.fixture
    def setting(self):
        """One client's rows, its extractor and another, and the distance between the two on a batch."""
        problem = blobs(sizes=[23, 17])
        data = ClientData(*rows_of((problem.data.x, problem.data.y, problem.data.size), 0))
        u, u_0, elsewhere = (problem.model.init(key)["representation"] for key in jax.random.split(KEY, 3))
        return data, u, elsewhere, lambda u, batch: distance(problem, u, u_0, batch)

    def test_at_the_anchor_it_is_the_full_gradient_whatever_the_batch(self, setting):
        data, u, _, loss = setting
        full = mean_gradient(loss, u, data, chunk=5)
        for key in jax.random.split(KEY, 3):
            batch = random_batch(data, key, 4)
            got, plain = (jax.grad(each)(u, batch) for each in (reduced(loss, u, data), loss))
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), got, full)
            assert max(jax.tree.leaves(jax.tree.map(lambda a, b: float(abs(a - b).max()), plain, full))) > 0.01

    def test_elsewhere_the_batch_still_counts(self, setting):
        """grad_B(p) - grad_B(anchor) + grad(anchor)."""
        data, u, elsewhere, loss = setting
        batch = random_batch(data, KEY, 4)
        got = jax.grad(reduced(loss, u, data))(elsewhere, batch)
        parts = jax.grad(loss)(elsewhere, batch), jax.grad(loss)(u, batch), mean_gradient(loss, u, data)
        jax.tree.map(lambda a, p, q, r: np.testing.assert_allclose(a, p - q + r, atol=1e-5), got, *parts)

    def test_full_batches_leave_nothing_to_reduce(self):
        _, _, plain = reco([(0, 1), (0, 1)], epochs=2)
        _, _, corrected = reco([(0, 1), (0, 1)], epochs=2, variance_reduction="regulariser")
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), corrected, plain)


def test_a_random_batch_is_of_the_clients_rows():
    data = ClientData(jnp.arange(6.0), jnp.arange(6), jnp.int32(4))
    for key in jax.random.split(KEY, 20):
        batch = random_batch(data, key, 3)
        assert len(set(batch.y.tolist())) == 3
        assert batch.y.max() < 4
        assert batch.weight.tolist() == [1, 1, 1]
    assert random_batch(data, KEY, 6).weight.sum() == 4  # it has no more


@pytest.mark.slow
def test_measures_are_of_every_row_and_of_no_padding():
    """Against one batch that is the client's whole set."""
    problem = blobs(sizes=[130, 17])
    u, u_0 = (problem.model.init(key) for key in jax.random.split(KEY))
    stacked = problem.broadcast(u)
    found = measured(problem, stacked["representation"], stacked["head"], u_0["representation"], 0.7)
    for client, size in enumerate(problem.data.size):
        x = jnp.asarray(problem.data.x[client, :size])
        gaps = problem.model.represent(u, x) - problem.model.represent(u_0, x)
        np.testing.assert_allclose(found["representation_gap"][client], jnp.square(gaps).sum(1).mean(), rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"penalty": -1.0}, "penalty of FedReCo must be .* at least 0, got -1.0"),
        ({"epochs": 0}, "^epochs of FedReCo must be of type int, at least 1, got 0"),
        ({"head_epochs": 0}, "head_epochs of FedReCo must be .* at least 1, got 0"),
        ({"steps": 0}, "^steps of FedReCo must be .* at least 1, got 0"),
        ({"head_steps": -2}, "head_steps of FedReCo must be .* at least 1, got -2"),
        ({"lr": 0.0}, "^lr of FedReCo must be of type float, above 0, got 0.0"),
        ({"head_lr": math.nan}, "head_lr of FedReCo must be .* above 0, got nan"),
        ({"server_lr": math.inf}, "server_lr of FedReCo must be .* above 0, got inf"),
        ({"server_clip": 0.0}, "server_clip of FedReCo must be .* above 0, got 0.0"),
        ({"loss": "maen"}, "loss of FedReCo must be one of .* got 'maen'; did you mean 'mean'"),
        ({"gradient": "whole"}, "gradient of FedReCo must be one of"),
        ({"variance_reduction": "all"}, "variance_reduction of FedReCo must be one of"),
        ({"measures": "theorems"}, "did you mean 'theorem'"),
    ],
)
def test_bad_numbers_of_fedreco(options, message):
    with pytest.raises(InputError, match=message):
        FedReCo(**options)


# --- FedBABU ----------------------------------------------------------------------------------------------------------


def test_fedbabu_by_hand():
    """Bodies under w = 0: theta_i = 0.5 y = 0.5, 2.5; by rows, 3/4 and 1/4: theta = 1. Tuned once: residuals 0, -4."""
    problem = quadratic_problem([1.0, 5.0], (3, 1))
    algorithm = make_algorithm("fedbabu", lr=0.5, batch_size=4, epochs=1, ft_epochs=1)
    state = step(algorithm, problem, init(algorithm, problem), ALL_CLIENTS)
    assert float(state["params"]["representation"]["theta"]) == pytest.approx(1.0)
    assert float(state["params"]["head"]["w"]) == 0
    own = algorithm.models(problem, state, KEY)[0]
    np.testing.assert_allclose(own["representation"]["theta"], [1, 3])
    np.testing.assert_allclose(own["head"]["w"], [0, 2])
    np.testing.assert_allclose(algorithm.other_models(problem, state, KEY)["global"][1]["head"]["w"], 0)


def test_fedbabu_never_trains_its_head():
    problem, algorithm = blobs(), make_algorithm("fedbabu", lr=0.1, weight_decay=0.1, momentum=0.9)
    before = init(algorithm, problem)["params"]
    after = run_rounds(algorithm, problem, 3, jnp.arange(5))["params"]
    assert_equal(after["head"], before["head"])
    assert float(jnp.abs(before["head"]["kernel"]).max()) > 0.1  # random, not zero


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


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fedcr", {"samples": 0}, "samples of algorithm fedcr must be .* at least 1, got 0"),
        ("fedreco", {"penalty": -1.0}, "penalty.* of .*-1.0"),
    ],
)
def test_bad_hyper_parameters(name, options, message):
    with pytest.raises(InputError, match=message):
        make_algorithm(name, **options)


def test_networks_that_do_not_fit():
    with pytest.raises(InputError, match="FedCR needs one class per row and a network with Gaussian features"):
        make_algorithm("fedcr").check(blobs())
    with pytest.raises(InputError, match="FedPAC needs one class per row and features"):
        make_algorithm("fedpac").check(blobs(model="gaussian_mlp", width=8, depth=1, features=8, latent=4))
    make_algorithm("fedpac").check(blobs())
    make_algorithm("fedcr").check(blobs(model="gaussian_mlp", width=8, depth=1, features=8, latent=4))

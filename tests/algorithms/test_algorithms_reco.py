"""FedReCo and those it compares with, FedBABU, FedPAC and FedCR: rounds computed by hand or in plain NumPy."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import KEY, assert_equal, blobs, init, quadratic_problem, run_rounds, step

from fedlab_lite.algorithms import FedReCo, make_algorithm
from fedlab_lite.algorithms.parts import distance, mean_gradient, measured, random_batch, reduced
from fedlab_lite.engine import Channel, ClientData, rows_of
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

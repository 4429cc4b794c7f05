"""The options `parametrisation` and `regulariser` of equilibrium networks."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import KEY, blobs, init, largest_gap, run_rounds

from fedlab_lite.algorithms import CMFD, FedAvg, FeDEQ, FedPAC
from fedlab_lite.algorithms.parts.distillation import distill, outputs_on
from fedlab_lite.deq import jacobian_norm, monotone, spectral_radius
from fedlab_lite.engine import Batch
from fedlab_lite.nn import make_model, model_options
from fedlab_lite.nn.equilibrium_nets import _PROBE, dense_cell
from fedlab_lite.util import InputError

SHAPE = (8, 8, 1)
MONOTONE = {"parametrisation": "monotone", "gradient": "implicit"}
NETWORKS = {
    "deq_mlp": {"width": 8},
    "deq_resnet_s": {"channels": 8},
    "fl_deq_resnet": {"channels": 8},
    "fl_deq_cnn": {"channels": 8, "layers": 2},
    "deq_transformer": {"width": 8, "layers": 1},
}


def made(**options):
    """A small DEQ-MLP far outside the balls, its params and some rows."""
    model = make_model("deq_mlp", SHAPE, 5, **{"width": 12, "features": 8, "max_iter": 200, "tol": 1e-6} | options)
    params = model.init(KEY)
    body = params["representation"] | {"B": 5 * params["representation"]["B"]}
    return model, params | {"representation": model.project(body)}, jax.random.uniform(KEY, (4, *SHAPE))


@pytest.mark.parametrize("kappa", [0.9, 0.3])
def test_a_spectral_ball_holds_B_and_the_radius_of_its_layer(kappa):
    model, params, x = made(parametrisation="spectral", kappa=kappa)
    body = params["representation"]
    assert 0.99 * kappa <= np.linalg.norm(body["B"], 2) <= kappa * (1 + 1e-6)
    z = model.forward(params, x)[1].z
    u = x.reshape(4, -1) @ body["C"]["kernel"]
    assert (spectral_radius(lambda z: dense_cell(body, u, z), z, KEY) <= kappa + 1e-4).all()


def test_with_kappa_0_neither_ball_constrains():
    for parametrisation in ("linf", "spectral"):
        _, params, _ = made(parametrisation=parametrisation, kappa=0.0)
        assert np.linalg.norm(params["representation"]["B"], 2) > 4


def test_a_monotone_network_has_its_equilibrium_where_plain_iteration_diverges():
    model, params, x = made(**MONOTONE, kappa=0.5)
    body, (_, solution) = params["representation"], model.forward(params, x)
    W = monotone(body["A"], body["B"], 0.5)
    z, u = jax.nn.relu(solution.z), x.reshape(4, -1) @ body["C"]["kernel"]
    np.testing.assert_allclose(z, jax.nn.relu(z @ W.T + u), atol=1e-4)
    assert np.abs(np.linalg.eigvals(W)).max() > 5
    by_hand = jax.nn.relu(z @ body["dense"]["kernel"] + body["dense"]["bias"])
    np.testing.assert_allclose(model.represent(params, x), by_hand, rtol=1e-4, atol=1e-5)
    assert largest_gap(model.project(body), body) == 0  # nothing to project


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("deq_mlp", {"parametrisation": "monotone"}, "use gradient='implicit'"),
        ("deq_mlp", MONOTONE | {"regulariser": 0.1}, "regulariser=0"),
        ("deq_mlp", {"parametrisation": "spectre"}, "one of linf, spectral, monotone, got 'spectre'; did you mean"),
        ("deq_mlp", {"regulariser": -1.0}, "regulariser of model deq_mlp must be of type float, at least 0, got -1.0"),
        ("deq_resnet_s", {"parametrisation": "spectral"}, "unknown option of model deq_resnet_s 'parametrisation'"),
        ("mlp", {"regulariser": 1.0}, "unknown option of model mlp 'regulariser'"),
    ],
)
def test_what_a_network_cannot_have_is_refused(name, options, message):
    with pytest.raises(InputError, match=message):
        make_model(name, SHAPE, 5, **options)


def test_every_equilibrium_network_has_the_regulariser():
    assert {name for name in NETWORKS if "regulariser" in model_options(name)} == set(NETWORKS)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_penalty_is_there_in_training_alone(name):
    text = name == "deq_transformer"
    model = make_model(name, (6,) if text else SHAPE, 5, max_iter=3, regulariser=2.0, **NETWORKS[name])
    x = jnp.ones((3, 6), jnp.int32) if text else jnp.ones((3, *SHAPE))

    def penalty(params, key):
        return model.forward(params, x, key=key)[1].penalty

    params = jax.eval_shape(model.init, KEY)
    assert jax.eval_shape(penalty, params, KEY).shape == (3,)
    assert jax.eval_shape(lambda params: penalty(params, None), params) is None


def test_the_loss_has_the_mean_of_the_penalty_over_rows_that_count():
    model, params, x = made(kappa=0.0, regulariser=0.7)
    problem = replace(blobs(shape=SHAPE, classes=5), model=model)
    batch = Batch(x, jnp.zeros(4, int), jnp.array([1.0, 1.0, 1.0, 0.0]), KEY)
    loss, z = problem.loss(params, batch)
    body_key = jax.random.fold_in(jax.random.split(KEY)[0], _PROBE)
    body = params["representation"]
    terms = jacobian_norm(lambda z: dense_cell(body, x.reshape(4, -1) @ body["C"]["kernel"], z), z, body_key)
    plain = problem.mean_loss(model.apply(params, x), batch.y, batch.weight)
    np.testing.assert_allclose(loss, plain + 0.7 * terms[:3].mean(), rtol=1e-5)


def test_a_loss_that_would_leave_the_regulariser_out_is_refused():
    problem = blobs(model="deq_mlp", width=8, features=4, regulariser=1.0)
    params, data = problem.model.init(KEY), jax.tree.map(jnp.asarray, problem.data)
    with pytest.raises(InputError, match="takes a step without a key"):
        problem.loss(params, Batch(data.x[0], data.y[0], jnp.ones(len(data.y[0]))))
    algorithm = FedPAC()
    with pytest.raises(InputError, match="trains on the features of deq_mlp"):
        run_rounds(algorithm, problem, 1, [0, 1])


def test_distillation_has_the_regulariser_in_its_loss():
    """Towards a model's own outputs, nothing but the regulariser moves the params."""
    moved = {}
    for weight in (0.0, 3.0):
        problem = blobs(model="deq_mlp", width=8, features=4, kappa=0.0, regulariser=weight)
        params, x = problem.model.init(KEY), jnp.asarray(problem.data.x[0])
        after = distill(CMFD(rho=0.1), problem, None, KEY, params, outputs_on(problem, params, x), x)
        moved[weight] = largest_gap(params, after)
    assert moved[0.0] < 1e-6 < 1e-3 < moved[3.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        (FedAvg(lr=0.1, epochs=2), {"parametrisation": "spectral"}),
        (FeDEQ(lr=0.1, epochs=2), MONOTONE),
        (FeDEQ(lr=0.1, epochs=2), {"kappa": 0.0, "regulariser": 5.0}),
    ],
    ids=["spectral", "monotone", "regulariser"],
)
def test_clients_train_with_each_option(algorithm, options):
    """Two rounds, with FeDEQ's warm starts and without: they move the params, and clients under `vmap` agree."""
    problem = blobs(num_clients=3, model="deq_mlp", width=8, features=4, **options)
    state = run_rounds(algorithm, problem, 2, [0, 2])
    assert largest_gap(state, run_rounds(algorithm, replace(problem, executor="vmap"), 2, [0, 2])) < 2e-4
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))
    assert largest_gap(state, init(algorithm, problem)) > 1e-3


@pytest.mark.slow
def test_training_with_the_regulariser_makes_what_it_penalises_smaller():
    norms = {}
    for weight in (0.0, 3.0):
        problem = blobs(model="deq_mlp", width=12, features=8, kappa=0.0, regulariser=weight)
        params = run_rounds(FedAvg(lr=0.1, epochs=5), problem, 3, [0, 1, 2, 3, 4])["params"]
        x, body = jnp.asarray(problem.data.test_x[0]), params["representation"]
        z = problem.model.forward(params, x)[1].z
        J = jax.vmap(jax.jacobian(lambda z, u, B=body["B"]: dense_cell({"B": B}, u, z)))(z, x @ body["C"]["kernel"])
        norms[weight] = float((J**2).sum((1, 2)).mean())
    assert norms[3.0] < 0.5 * norms[0.0]

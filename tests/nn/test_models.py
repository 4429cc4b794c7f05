"""Parameter counts of the papers' tables, and what every model must do."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlab_lite.nn import Model, make_model
from fedlab_lite.nn.register import model_options
from fedlab_lite.util import InputError

FEMNIST, CIFAR, TEXT = (28, 28, 1), (32, 32, 3), (16,)
SMALL = {
    "mlp": {"width": 16},
    "cnn": {"channels": (4, 8), "features": 16},
    "cnn5": {"channels": (4, 8), "features": 16},
    "resnet18": {"width": 8, "blocks": (1, 1)},
    "deq_mlp": {"width": 16},
    "resnet14": {"width": 8},
    "deq_resnet_s": {"channels": 8},
    "fl_resnet": {"channels": 8, "layers": 2},
    "fl_cnn": {"channels": 8, "layers": 3},
    "fl_deq_resnet": {"channels": 8},
    "fl_deq_cnn": {"channels": 8, "layers": 2},
}


def shapes(model):
    return jax.eval_shape(model.init, jax.random.key(0))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fl_deq_resnet", "fl_deq_cnn"])
def test_fl_deq_networks_make_ten_iterations_or_their_budget(name):
    small = {"channels": 8, "pool": 4}
    model = make_model(name, CIFAR, 10, **small)
    params, x = model.init(jax.random.key(0)), jax.random.uniform(jax.random.key(1), (3, *CIFAR))
    assert jax.jit(model.forward)(params, x)[1].iterations.tolist() == [10, 10, 10]

    def loss(model, params, **options):
        logits, solution = model.forward(params, x, **options)
        return jnp.sum(logits**2), solution.iterations

    three = make_model(name, CIFAR, 10, **small, max_iter=3, backward_iter=3)
    gradient = jax.jit(jax.grad(lambda params, k: loss(model, params, budget=k), has_aux=True))
    got, iterations = gradient(params, jnp.int32(3))
    assert iterations.tolist() == [3, 3, 3]
    want, _ = jax.jit(jax.grad(lambda params: loss(three, params), has_aux=True))(params)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), got, want)
    ten, _ = gradient(params, jnp.int32(10))
    assert (
        float(
            jnp.abs(
                ten["representation"]["stem"]["conv"]["kernel"] - got["representation"]["stem"]["conv"]["kernel"]
            ).max()
        )
        > 0
    )


@pytest.mark.parametrize("options", [{"layers": 0}, {"pool": 0}, {"pool": 64}, {"channels": 12}])
@pytest.mark.parametrize("name", ["fl_cnn", "fl_deq_resnet"])
def test_fl_deq_networks_that_cannot_be(name, options):
    with pytest.raises(InputError, match=r"layers|pool|groups"):
        make_model(name, CIFAR, 10, **options)


LAYERS = {
    "mlp": (["dense1", "dense2"], {"width": 16, "depth": 1, "features": 8}),
    "cnn": (["conv1", "conv2", "dense1"], SMALL["cnn"]),
    "cnn5": (["conv1", "conv2", "dense1", "dense2"], SMALL["cnn5"]),
    "resnet14": (["stem", *(f"block{k}" for k in range(1, 7)), "dense1", "dense2"], SMALL["resnet14"]),
    "resnet18": (["stem", "block1", "block2", "pool"], SMALL["resnet18"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_activations_are_what_forward_computes(name):
    names, options = LAYERS[name]
    model = make_model(name, FEMNIST, 7, **options)
    params = model.init(jax.random.key(0))
    x = jax.random.randint(jax.random.key(1), (3, *FEMNIST), 0, 256).astype(jnp.uint8)
    found = jax.jit(model.activations)(params, x)
    assert list(found) == [*names, "head"]  # in the order of the network, through jit as well
    assert all(layer.shape[0] == 3 for layer in found.values())
    np.testing.assert_allclose(found["head"], jax.jit(model.apply)(params, x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[names[-1]], jax.jit(model.represent)(params, x), rtol=1e-5, atol=1e-6)
    body = jax.eval_shape(model.activations, {"representation": params["representation"]}, x)
    assert list(body) == names  # an extractor without a head


def test_activations_of_a_model_that_has_none():
    model = make_model("deq_mlp", FEMNIST, 7, **SMALL["deq_mlp"])
    with pytest.raises(InputError, match=r"add a method `activations\(self, x\)` to DEQMLP"):
        model.activations(model.init(jax.random.key(0)), jnp.zeros((1, *FEMNIST)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "cnn", "cnn5", "deq_mlp", "resnet14", "resnet18", "deq_resnet_s"])
def test_every_model_on_uint8_images(name):
    model = make_model(name, FEMNIST, 7, **SMALL[name])
    params = model.init(jax.random.key(0))
    x = jax.random.randint(jax.random.key(1), (3, *FEMNIST), 0, 256).astype(jnp.uint8)

    @jax.jit
    @partial(jax.grad, has_aux=True)
    def everything(params):
        logits, solution = model.forward(params, x)
        return jnp.sum(logits**2), (logits, solution, model.represent(params, x))

    gradient, (logits, solution, features) = everything(params)
    assert logits.shape == (3, 7)
    assert np.isfinite(logits).all()
    np.testing.assert_allclose(model.classify(params["head"], features), logits, atol=1e-4)
    if solution is not None:
        assert solution.residual.shape == (3,)
    assert jax.tree.structure(gradient) == jax.tree.structure(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    assert all(float(jnp.abs(leaf).max()) > 0 for leaf in jax.tree.leaves(gradient))


@pytest.mark.slow
def test_a_sample_does_not_see_the_rest_of_its_batch():
    model = make_model("deq_resnet_s", FEMNIST, 7, **SMALL["deq_resnet_s"])
    params = model.init(jax.random.key(0))
    x = jax.random.uniform(jax.random.key(1), (4, *FEMNIST))
    apply = jax.jit(model.apply)
    np.testing.assert_allclose(apply(params, x)[:1], apply(params, x[:1]), atol=1e-4)


def test_init_is_a_function_of_the_key_and_can_be_vmapped():
    model = make_model("mlp", FEMNIST, 10, width=8)
    keys = jax.random.split(jax.random.key(3), 2)
    stacked = jax.vmap(model.init)(keys)
    for i, key in enumerate(keys):
        jax.tree.map(np.testing.assert_array_equal, jax.tree.map(lambda leaf: leaf[i], stacked), model.init(key))  # noqa: B023
    assert not np.allclose(stacked["head"]["kernel"][0], stacked["head"]["kernel"][1])


def test_projection_puts_every_row_of_B_in_the_ball():
    model = make_model("deq_mlp", FEMNIST, 10, width=32, kappa=0.9)
    params = model.init(jax.random.key(0))
    rows = jnp.abs(params["representation"]["B"]).sum(1)
    assert float(rows.max()) <= 0.9 + 1e-5
    outside = params["representation"] | {"B": params["representation"]["B"] + 1}
    inside = model.project(outside)
    assert float(jnp.abs(inside["B"]).sum(1).max()) <= 0.9 + 1e-5
    np.testing.assert_array_equal(inside["C"]["kernel"], outside["C"]["kernel"])
    free = make_model("deq_mlp", FEMNIST, 10, width=32, kappa=0.0)
    jax.tree.map(np.testing.assert_array_equal, free.project(outside), outside)


CELL = """
from typing import Annotated
import jax.numpy as jnp
from flax import nnx
from fedlab_lite.util.fields import Count, Range, Rate

class Net(nnx.Module):
    def __init__(self, input_shape, *, width: Count = 4, tilt: Annotated[float, Range(-1, 1)] | None = None,
                 kept: Rate = 0.0, pace: Annotated[str, ("slow", "fast")] = "slow", free=None, rngs):
        self.dense, self.features = nnx.Linear(8, width, rngs=rngs), width

    def __call__(self, x):
        return self.dense(x.reshape(len(x), -1) * 1.0)
"""


@pytest.mark.parametrize("first", ["", "from __future__ import annotations\n"])
def test_options_of_a_class_of_a_notebooks_cell(first):
    """Its annotations say what they may be; an option without one may be anything."""
    names = {"__name__": "__main__"}
    exec(first + CELL, names)
    made = Model.of(names["Net"], (8,), 3, width=2, kept=0, tilt=-1, free=(1, "a"))
    assert dict(made.options) == {"width": 2, "kept": 0.0, "tilt": -1.0, "free": (1, "a")}
    for options, message in (
        ({"width": -1}, "width of model Net must be of type int, at least 1, got -1"),
        ({"tilt": -2}, r"tilt of model Net must be of type float \| None, -1 to 1, got -2"),
        ({"kept": 1.0}, "kept of model Net must be of type float, at least 0 and below 1, got 1.0"),
        ({"pace": "fats"}, "pace of model Net must be one of slow, fast, got 'fats'; did you mean 'fast'"),
        ({"widht": 3}, "unknown option of model Net 'widht'; did you mean 'width'"),
    ):
        with pytest.raises(InputError, match=message):
            Model.of(names["Net"], (8,), 3, **options)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deq_mlp", "deq_resnet_s", "deq_transformer"])
def test_a_warm_start_finds_the_same_equilibrium_sooner(name):
    sequence = name == "deq_transformer"
    options = {"layers": 1, "width": 8} if sequence else SMALL[name]
    shape = TEXT if sequence else FEMNIST
    model = make_model(name, shape, 7, max_iter=60, warm_iter=60, **options)
    params = model.init(jax.random.key(0))
    if sequence:  # a strong injection makes the cell a contraction: one equilibrium, wherever the solver starts
        params["representation"]["embed"] = jax.tree.map(lambda leaf: 50 * leaf, params["representation"]["embed"])
    x = jax.random.randint(jax.random.key(1), (3, *shape), 1, 7 if sequence else 256).astype(jnp.uint8)
    forward = jax.jit(lambda z0: model.forward(params, x, z0=z0))
    logits, cold = jax.jit(lambda: model.forward(params, x))()
    assert cold.z.shape == (3, *model.equilibrium_shape())

    same, unvisited = forward(jnp.zeros_like(cold.z))  # zeros: the start is the injection, as without z0
    np.testing.assert_array_equal(unvisited.iterations, cold.iterations)
    np.testing.assert_allclose(same, logits, atol=1e-4)

    again, warm = forward(cold.z.at[0].set(0))
    assert int(warm.iterations[0]) == int(cold.iterations[0])
    assert (np.asarray(warm.iterations) < np.asarray(cold.iterations))[1:].all()
    np.testing.assert_allclose(again, logits, atol=2e-2)
    with pytest.raises(InputError, match="z0 has shape"):
        model.forward(params, x, z0=cold.z[:2])


@pytest.mark.slow
def test_a_budget_of_warm_steps_is_worked_off_over_visits():
    """`warm_iter` caps a visit that starts at a kept equilibrium; visit by visit the residual falls all the same."""
    model = make_model("deq_resnet_s", FEMNIST, 7, warm_iter=3, tol=1e-5, **SMALL["deq_resnet_s"])
    params, x = model.init(jax.random.key(0)), jax.random.uniform(jax.random.key(1), (3, *FEMNIST))
    visit, residuals = jax.jit(lambda z0: model.forward(params, x, z0=z0)[1]), []
    z = jnp.zeros((3, *model.equilibrium_shape()))
    for _ in range(4):
        solution = visit(z)
        z = solution.z
        assert int(solution.iterations.max()) <= 3
        residuals.append(float(solution.residual.mean()))
    assert residuals[3] < residuals[2] < residuals[1] < residuals[0]
    assert int(model.forward(params, x)[1].iterations.max()) > 3  # a cold solve has its own cap


def test_explicit_models_ignore_key_and_z0():
    model = make_model("mlp", FEMNIST, 10, width=8)
    params, x = model.init(jax.random.key(0)), jnp.ones((2, *FEMNIST))
    logits, _ = model.forward(params, x, key=jax.random.key(1), z0=jnp.ones((2, 3)))
    np.testing.assert_array_equal(logits, model.apply(params, x))
    assert model.equilibrium_shape() is None


def test_options_are_listed():
    assert tuple(model_options("deq_mlp")) == (
        "backward_iter",
        "backward_tol",
        "features",
        "gradient",
        "kappa",
        "max_iter",
        "parametrisation",
        "regulariser",
        "solver",
        "tol",
        "warm_iter",
        "width",
    )
    assert tuple(model_options("transformer8")) == ("dropout", "heads", "width")

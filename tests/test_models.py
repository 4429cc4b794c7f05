"""Parameter counts of the papers' tables, and what every model must do."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlab_lite.errors import InputError
from fedlab_lite.nn.model import count_params, make_model, model_options

FEMNIST, CIFAR = (28, 28, 1), (32, 32, 3)

# FeDEQ, Tables II and V: shared parameters, and the total in MB (4 bytes a parameter, 10^6 bytes an MB).
# Table V's CIFAR-10 ResNet-14 and -20 print 11.34 and 17.54: sums of two rounded columns; the totals are below.
PUBLISHED = [
    ("resnet14", FEMNIST, 62, 1_694_176, 6.81),
    ("resnet20", FEMNIST, 62, 2_967_392, 11.90),
    ("resnet34", FEMNIST, 62, 5_126_880, 20.54),
    ("deq_resnet_s", FEMNIST, 62, 984_896, 3.97),
    ("resnet14", CIFAR, 10, 2_832_320, 11.33),
    ("resnet20", CIFAR, 10, 4_382_400, 17.53),
    ("resnet34", CIFAR, 10, 7_777_984, 31.12),
    ("deq_resnet_m", CIFAR, 10, 2_725_120, 10.91),
    ("resnet14", CIFAR, 100, 3_939_008, 15.81),
    ("resnet20", CIFAR, 100, 5_489_088, 22.01),
    ("resnet34", CIFAR, 100, 10_876_608, 43.56),
    ("deq_resnet_m", CIFAR, 100, 2_725_120, 10.95),
]
HEADS = {62: 7_998, 10: 1_290, 100: 12_900}
SMALL = {
    "mlp": {"width": 16},
    "cnn": {"channels": (4, 8), "features": 16},
    "deq_mlp": {"width": 16},
    "resnet14": {"width": 8},
    "deq_resnet_s": {"channels": 8},
}


def shapes(model):
    return jax.eval_shape(model.init, jax.random.key(0))


@pytest.mark.parametrize(("name", "shape", "classes", "shared", "megabytes"), PUBLISHED)
def test_counts_of_tables_2_and_5(name, shape, classes, shared, megabytes):
    params = shapes(make_model(name, shape, classes))
    assert count_params(params["representation"]) == shared
    assert count_params(params["head"]) == HEADS[classes]
    assert round(count_params(params) * 4 / 1e6, 2) == megabytes


def test_counts_of_figure_4():
    assert count_params(shapes(make_model("mlp", FEMNIST, 62))) == 1_263_550
    assert count_params(shapes(make_model("deq_mlp", FEMNIST, 62))) == 737_214


def test_counts_of_the_literature():
    assert count_params(shapes(make_model("cnn", FEMNIST, 10))) == 1_663_370  # McMahan et al. 2017
    assert count_params(shapes(make_model("mlp", FEMNIST, 10, width=200, depth=2, features=0))) == 199_210


@pytest.mark.parametrize("name", ["mlp", "cnn", "deq_mlp", "resnet14", "deq_resnet_s"])
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


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet18", {}, "unknown model 'resnet18'"),
        ("mlp", {"widht": 3}, "did you mean 'width'"),
        ("resnet20", {"family": "imagenet"}, "unknown ResNet family"),
        ("deq_mlp", {"kappa": 1.5}, "kappa"),
        ("deq_resnet_s", {"solver": "newton"}, "unknown solver"),
        ("deq_resnet_s", {"channels": 12}, "multiple of 8"),
        ("resnet14", {"width": 10}, "multiple of 8"),
    ],
)
def test_bad_models_are_refused_when_they_are_made(name, options, message):
    with pytest.raises(InputError, match=message):
        make_model(name, FEMNIST, 10, **options)


def test_wrong_input_shape_is_named():
    model = make_model("mlp", FEMNIST, 10, width=8)
    with pytest.raises(InputError, match=r"\(28, 28, 1\), got \(32, 32, 3\)"):
        model.apply(model.init(jax.random.key(0)), jnp.zeros((1, *CIFAR)))


def test_options_are_listed():
    assert model_options("deq_mlp") == ("features", "gradient", "kappa", "max_iter", "solver", "tol", "width")

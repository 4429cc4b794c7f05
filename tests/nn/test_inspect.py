"""The equilibrium layers of models: each solves to the equilibrium that the model itself finds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlab_lite.deq import anderson
from fedlab_lite.nn import equilibrium_layers, make_model
from fedlab_lite.util import InputError

SMALL = {
    "deq_mlp": {"width": 8},
    "deq_mlp, monotone": {"width": 8, "parametrisation": "monotone", "gradient": "implicit"},
    "deq_resnet_s": {"channels": 8},
}


@pytest.mark.parametrize("name", SMALL)
def test_the_layer_has_the_models_equilibrium(name):
    model = make_model(name.partition(",")[0], (8, 8, 1), 4, max_iter=60, tol=1e-6, **SMALL[name])
    params, x = model.init(jax.random.key(0)), jax.random.uniform(jax.random.key(1), (3, 8, 8, 1))
    [(cell, weights, u)] = equilibrium_layers(model, params, x)
    assert u.shape[1:] == model.equilibrium_shape()
    found = jax.jit(lambda u: anderson(lambda z: cell(weights, u, z), u, tol=1e-6, max_iter=60))(u)
    expected = jax.jit(model.forward)(params, x)[1].z
    np.testing.assert_allclose(found.z, expected, atol=1e-3 * float(jnp.abs(expected).max()))


def test_a_model_without_one_is_an_error():
    model = make_model("mlp", (8, 8, 1), 4, width=8)
    with pytest.raises(InputError, match="no equilibrium layer"):
        equilibrium_layers(model, model.init(jax.random.key(0)), jnp.zeros((1, 8, 8, 1)))

"""Linear CKA against plain NumPy, what it does not see, and client by client, layer by layer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import blobs
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlab_lite.analysis import common_rows, layer_similarity
from fedlab_lite.analysis.cka import linear_cka
from fedlab_lite.nn import make_model
from fedlab_lite.util import InputError


def plain_cka(x, y):
    """Kornblith et al. 2019, eq. (5) with the covariances, in double precision."""
    x, y = (np.asarray(each, float).reshape(len(each), -1) for each in (x, y))
    x, y = x - x.mean(0), y - y.mean(0)
    return np.linalg.norm(y.T @ x) ** 2 / (np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y))


@settings(max_examples=30)
@given(
    n=st.sampled_from([3, 20]),
    p=st.sampled_from([1, 5, 40]),
    scale=st.floats(1e-6, 1e6),
    mixed=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_linear_cka_is_that_of_numpy(n, p, scale, mixed, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, p)).astype(np.float32)
    y = (scale * (mixed * x @ rng.normal(size=(p, 7)) + rng.normal(size=(n, 7)))).astype(np.float32)
    found = float(linear_cka(x, y))
    assert found == pytest.approx(plain_cka(x, y), abs=1e-4)
    assert found == pytest.approx(float(linear_cka(y, x)), abs=1e-5)
    assert -1e-5 < found < 1 + 1e-5


def test_what_linear_cka_sees():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 6)).astype(np.float32)
    rotation = np.linalg.qr(rng.normal(size=(6, 6)))[0].astype(np.float32)
    assert float(linear_cka(x, -3 * x @ rotation + 5)) == pytest.approx(1, abs=1e-5)
    stretched = x * np.array([100, 1, 1, 1, 1, 1], np.float32)
    assert float(linear_cka(x, stretched)) < 0.8  # no linear map in general
    many = rng.normal(size=(2000, 6)).astype(np.float32)
    assert float(linear_cka(many, rng.normal(size=(2000, 6)).astype(np.float32))) < 0.02  # independent rows
    pictures = x.reshape(50, 1, 2, 3)
    assert float(linear_cka(pictures, x)) == pytest.approx(1, abs=1e-5)
    assert np.isnan(linear_cka(np.ones((5, 2), np.float32), x[:5]))  # a layer that is dead
    with pytest.raises(InputError, match="the same rows, but x has 50 rows and y has 49"):
        linear_cka(x, x[1:])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cnn5", "resnet18"])
def test_clients_are_compared_layer_by_layer(name):
    small = {"cnn5": {"channels": (4, 8), "features": 16}, "resnet18": {"width": 8, "blocks": (1, 1)}}
    model = make_model(name, (28, 28, 1), 5, **small[name])
    server, client = model.init(jax.random.key(0)), model.init(jax.random.key(1))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), server, client)
    x = jax.random.randint(jax.random.key(2), (12, 28, 28, 1), 0, 256).astype(jnp.uint8)
    found = layer_similarity(model, stacked, server, x)
    ours, theirs = jax.jit(model.activations)(client, x), jax.jit(model.activations)(server, x)
    assert list(found) == list(ours)
    for layer, values in found.items():
        assert values.shape == (2,)
        assert values[0] == pytest.approx(1, abs=1e-5)
        assert values[1] == pytest.approx(plain_cka(ours[layer], theirs[layer]), abs=1e-4)
    assert found["head"][1] < 0.999

    below = layer_similarity(model, stacked, {"representation": server["representation"]}, x)
    assert list(below) == [layer for layer in found if layer != "head"]
    bodies = {"representation": stacked["representation"]}
    assert list(layer_similarity(model, bodies, server, x)) == list(below)
    for layer, values in below.items():
        np.testing.assert_allclose(values, found[layer], atol=1e-5)


def test_common_rows_are_each_clients_first():
    data = blobs(num_clients=3).data
    rows = common_rows(data, 4)
    assert rows.shape == (12, 6)
    np.testing.assert_array_equal(rows[4:8], data.test_x[1, :4])
    for wrong in (0, 13):
        with pytest.raises(InputError, match=f"per_client is {wrong}; choose 1 to 12"):
            common_rows(data, wrong)

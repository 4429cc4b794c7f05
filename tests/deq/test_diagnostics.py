import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError

from fedlab_lite.deq import fixed_point
from fedlab_lite.deq.diagnostics import convergence_rate, jacobian_norm, spectral_radius
from fedlab_lite.util import InputError


@pytest.fixture
def tree_map():
    """A map on a pytree with a dense Jacobian of its own for each of 3 samples, the point, and those Jacobians."""
    rng = np.random.default_rng(0)
    w = jnp.asarray(rng.normal(size=(6, 6)) / 3, jnp.float32)
    z = {"a": jnp.asarray(rng.normal(size=(3, 2)), jnp.float32)}
    z["b"] = jnp.asarray(rng.normal(size=(3, 2, 2)), jnp.float32)

    def flat_map(flat):
        return jnp.tanh(flat @ w)

    def f(z):
        out = flat_map(jnp.concatenate([z["a"], z["b"].reshape(-1, 4)], axis=1))
        return {"a": out[:, :2], "b": out[:, 2:].reshape(-1, 2, 2)}

    flat = jnp.concatenate([z["a"], z["b"].reshape(-1, 4)], axis=1)
    return f, z, np.stack([jax.jacobian(flat_map)(row) for row in flat])


def test_hutchinson_estimates_the_frobenius_norm(tree_map):
    f, z, dense = tree_map
    want = np.linalg.norm(dense, axis=(1, 2))
    got = jax.jit(lambda key: jacobian_norm(f, z, key, 4000))(jax.random.key(0))
    np.testing.assert_allclose(got, want, rtol=4 / np.sqrt(2 * 4000))  # 4 standard deviations at most
    few = jax.jit(jax.vmap(lambda key: jacobian_norm(f, z, key, 2)))(jax.random.split(jax.random.key(1), 1000))
    np.testing.assert_allclose(jnp.sqrt(jnp.mean(few**2, axis=0)), want, rtol=0.07)  # unbiased in the square


def test_the_power_method_finds_the_spectral_radius(tree_map):
    f, z, dense = tree_map
    want = np.abs(np.linalg.eigvals(dense)).max(1)
    got = jax.jit(lambda key: spectral_radius(f, z, key, 1000))(jax.random.key(0))
    np.testing.assert_allclose(got, want, rtol=0.01)


def test_a_complex_pair_and_a_zero_jacobian():
    turn = 0.7 * jnp.array([[1.0, 2.0], [-2.0, 1.0]]) / 5**0.5
    skewed = jnp.diag(jnp.array([1.0, 3.0])) @ turn @ jnp.diag(jnp.array([1.0, 1 / 3]))
    got = spectral_radius(lambda z: z @ skewed, jnp.zeros((2, 2)), jax.random.key(0), 400)
    np.testing.assert_allclose(got, 0.7, rtol=0.02)
    assert spectral_radius(lambda z: 0 * z, jnp.zeros((2, 2)), jax.random.key(0)).tolist() == [0.0, 0.0]
    assert jacobian_norm(lambda z: 0 * z, jnp.zeros((2, 2)), jax.random.key(0)).tolist() == [0.0, 0.0]


def test_the_rate_of_a_trace():
    trace = jnp.array(
        [[8.0, 1.0, 5.0, jnp.nan, 0.0], [2.0, 3.0, jnp.nan, jnp.nan, 0.0], [0.5, jnp.inf, *[jnp.nan] * 3]]
    )
    got = convergence_rate(trace)
    np.testing.assert_allclose(got[:2], [0.25, 3.0], rtol=1e-6)
    assert jnp.isnan(got[2:]).all()
    assert convergence_rate(jnp.array([1.0, 0.0])).item() == 0.0


def test_the_rate_of_plain_iteration_is_the_spectral_radius():
    rates = jnp.array([[0.5], [0.9]])
    found = fixed_point(lambda z: rates * z + 1, jnp.zeros((2, 3)), max_iter=40)
    np.testing.assert_allclose(convergence_rate(found.trace), [0.5, 0.9], rtol=1e-3)
    radius = spectral_radius(lambda z: rates * z + 1, found.z, jax.random.key(0))
    np.testing.assert_allclose(radius, [0.5, 0.9], rtol=1e-5)


def test_bad_input():
    with pytest.raises(InputError, match="num_probes = 0"):
        jacobian_norm(lambda z: z, jnp.zeros((1, 1)), jax.random.key(0), 0)
    with pytest.raises(InputError, match="num_iters = 0"):
        spectral_radius(lambda z: z, jnp.zeros((1, 1)), jax.random.key(0), 0)


def test_shapes_and_types_are_checked():
    z = {"a": jnp.zeros((2, 3)), "b": jnp.zeros((3, 3))}  # 2 and 3 samples
    for measure in (jacobian_norm, spectral_radius):
        with pytest.raises(TypeCheckError, match="parameter 'z'"):
            measure(lambda z: z, z, jax.random.key(0))
        with pytest.raises(TypeCheckError, match="parameter 'key'"):
            measure(lambda z: z, z["a"], 0)
        assert measure(lambda z: z, np.zeros((2, 3), np.float32), jax.random.PRNGKey(0)).shape == (2,)
    with pytest.raises(TypeCheckError, match="parameter 'trace'"):
        convergence_rate(jnp.array([4, 2, 1]))

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlab_lite.deq import jacobian_norm, spectral_radius
from fedlab_lite.util import InputError

KEY = jax.random.key(0)


def dense(params, z):
    return jnp.tanh(z @ params["W"] + params["b"])


@pytest.fixture
def layer():
    """A layer of width 5, its point z for 3 samples, and the exact Jacobian of each sample."""
    rng = np.random.default_rng(0)
    params = {"W": jnp.asarray(rng.normal(size=(5, 5)), jnp.float32), "b": jnp.asarray(rng.normal(size=5), jnp.float32)}
    z = jnp.asarray(rng.normal(size=(3, 5)), jnp.float32)
    return params, z, jax.vmap(jax.jacobian(lambda z: dense(params, z)))(z)


def test_one_probe_by_hand():
    """f(z) = (z1 + 2 z2, 3 z2): eps^T J = (eps1, 2 eps1 + 3 eps2), and d = 2."""
    matrix = jnp.array([[1.0, 2.0], [0.0, 3.0]])
    eps = np.asarray(jax.random.normal(jax.random.split(KEY, 1)[0], (4, 2)))
    by_hand = (eps[:, 0] ** 2 + (2 * eps[:, 0] + 3 * eps[:, 1]) ** 2) / 2
    found = jacobian_norm(lambda z: z @ matrix.T, jnp.zeros((4, 2)), KEY)
    np.testing.assert_allclose(found, by_hand, rtol=1e-5)


def test_the_mean_over_probes_is_the_squared_frobenius_norm_over_d(layer):
    params, z, J = layer
    draw = jax.jit(jax.vmap(lambda key: jacobian_norm(lambda z: dense(params, z), z, key)))
    draws = np.asarray(draw(jax.random.split(KEY, 20_000)))
    exact = np.square(J).sum((1, 2)) / 5
    error = draws.std(0) / np.sqrt(len(draws))
    assert (np.abs(draws.mean(0) - exact) < 4 * error).all()
    assert (error < 0.02 * exact).all()


def test_the_gradient_of_the_norm_is_that_of_its_formula_with_z_constant(layer):
    params, z, _ = layer

    def by_jacobian(params):
        eps = jax.random.normal(jax.random.split(KEY, 1)[0], z.shape)
        J = jax.vmap(jax.jacobian(lambda z: dense(params, z)))(z)
        return jnp.sum(jnp.einsum("bi,bij->bj", eps, J) ** 2) / 5

    found = jax.grad(lambda p: jacobian_norm(lambda z: dense(p, z), z, KEY).sum())(params)
    exact = jax.grad(by_jacobian)(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, exact)
    of_z = jax.grad(lambda z: jacobian_norm(lambda z: dense(params, z), z, KEY).sum())(z)
    assert not of_z.any()


@jax.jit
def radius_of(J, key=KEY):
    """The radius of the map z -> J z, for two samples in rows."""
    return spectral_radius(lambda z: z @ J.T, jnp.zeros((2, len(J))), key)


@pytest.mark.parametrize(
    ("J", "radius"),
    [
        ([[0.5, 0.0], [0.0, -2.0]], 2.0),
        ([[1.0, 0.0], [0.0, -1.0]], 1.0),  # two of the same size, of opposite signs
        ([[0.6, -0.8], [0.8, 0.6]], 1.0),  # a rotation: a complex pair
        ([[3.0, -4.0, 1.0], [4.0, 3.0, 1.0], [0.0, 0.0, 0.5]], 5.0),  # 3 +- 4i, not normal
        ([[0.5, 100.0], [0.0, 0.4]], 0.5),  # its norm is 100
        ([[0.0, 1.0], [0.0, 0.0]], 0.0),  # nilpotent
        ([[0.0, 0.0], [0.0, 0.0]], 0.0),
        ([[-0.25]], 0.25),
    ],
)
def test_radii_by_hand(J, radius):
    np.testing.assert_allclose(radius_of(jnp.array(J)), radius, rtol=2e-3, atol=1e-6)


def test_a_matrix_with_one_eigenvector_only():
    """The square root of float32's rounding is lost in any method."""
    np.testing.assert_allclose(radius_of(jnp.array([[0.7, 1.0], [0.0, 0.7]])), 0.7, rtol=0.03)


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), n=st.sampled_from([3, 6, 20]), pair=st.booleans())
def test_the_radius_of_random_matrices_whose_other_eigenvalues_are_smaller(seed, n, pair):
    rng = np.random.default_rng(seed)
    spectrum = np.diag(rng.uniform(-0.7, 0.7, n))
    angle = rng.uniform(0, np.pi) if pair else 0.0
    turn = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    spectrum[:2, :2] = turn if pair else np.diag([1.0, 0.3])
    basis = np.linalg.qr(rng.normal(size=(n, n)))[0] @ np.diag(rng.uniform(0.5, 2, n))
    size = rng.uniform(0.1, 10)
    J = size * basis @ spectrum @ np.linalg.inv(basis)
    found = radius_of(jnp.asarray(J, jnp.float32), jax.random.key(seed))
    np.testing.assert_allclose(found, np.abs(np.linalg.eigvals(J)).max(), rtol=1e-3)


def test_each_sample_has_its_own_radius(layer):
    params, z, J = layer
    found = spectral_radius(lambda z: dense(params, z), z, KEY, steps=200)
    np.testing.assert_allclose(found, np.abs(np.linalg.eigvals(J)).max(1), rtol=1e-3)


def test_pytrees_jit_and_vmap_over_clients_agree_with_the_plain_call(layer):
    params, z, _ = layer

    def f(W):
        def as_tree(z):
            both = dense(params | {"W": W}, jnp.concatenate([z["a"], z["b"].reshape(3, 4)], axis=1))
            return {"a": both[:, :1], "b": both[:, 1:].reshape(3, 2, 2)}

        return as_tree

    z_tree = {"a": z[:, :1], "b": z[:, 1:].reshape(3, 2, 2)}
    clients = jnp.stack([params["W"], 0.1 * params["W"]])
    together = jax.jit(jax.vmap(lambda W: spectral_radius(f(W), z_tree, KEY, steps=200)))(clients)
    norms = jax.jit(jax.vmap(lambda W: jacobian_norm(f(W), z_tree, KEY)))(clients)
    for W, radius, size in zip(clients, together, norms, strict=True):
        plain = spectral_radius(lambda z, W=W: dense(params | {"W": W}, z), z, KEY, steps=200)
        np.testing.assert_allclose(radius, plain, rtol=1e-3)
        np.testing.assert_allclose(size, jacobian_norm(f(W), z_tree, KEY), rtol=1e-5)


def test_a_number_of_steps_below_one_is_refused():
    with pytest.raises(InputError, match="steps = 0: must be at least 1"):
        spectral_radius(lambda z: z, jnp.zeros((1, 2)), KEY, steps=0)

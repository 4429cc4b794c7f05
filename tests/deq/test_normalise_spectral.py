from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlab_lite.deq import fixed_point, normalise_spectral, spectral_radius
from fedlab_lite.nn.equilibrium_nets import dense_cell
from fedlab_lite.util import InputError

scaled = jax.jit(normalise_spectral, static_argnums=1)


def matrix(seed, shape, size):
    return np.float32(np.random.default_rng(seed).normal(size=shape) * size)


def test_by_hand():
    """B has the singular values 3 and 0.25; two orthogonal columns, so the bound is (3^512 + ...)^(1/512)."""
    B = np.float32([[1.8, -0.2], [2.4, 0.15]])
    np.testing.assert_allclose(np.linalg.svd(B)[1], [3.0, 0.25], rtol=1e-6)
    np.testing.assert_allclose(scaled(B, 0.5), B / 6, rtol=1e-5)
    both = np.float32([[2.0, 0.0], [0.0, -2.0]])  # two of the same size: ||G^256||_F = sqrt(2) 4^256
    np.testing.assert_allclose(scaled(both, 0.5), both / 4 / 2 ** (1 / 1024), rtol=1e-5)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    shape=st.sampled_from([(1, 1), (5, 5), (3, 6), (40, 40)]),
    size=st.sampled_from([1e-12, 1e-2, 1.0, 1e6]),
    kappa=st.sampled_from([0.1, 0.95]),
)
def test_the_norm_is_at_most_kappa_and_no_matrix_is_scaled_more_than_it_must(seed, shape, size, kappa):
    B = matrix(seed, shape, size)
    A, before = np.asarray(scaled(B, kappa)), np.linalg.norm(B.astype(float), 2)
    after = np.linalg.norm(A.astype(float), 2)
    assert after <= kappa * (1 + 1e-5)
    slack = shape[1] ** (1 / 1024) * (1 + 1e-5)
    if before <= kappa / slack:
        np.testing.assert_array_equal(A, B)
    else:
        assert after >= min(before, kappa) / slack
        np.testing.assert_allclose(A / after, B / before, atol=1e-5)  # the same direction


@partial(jax.jit, static_argnums=3)
def solved(B, u, starts, kappa):
    """From each start: the distance of two images over that of the starts, and plain iteration's result and radius."""

    def cell(z):
        return dense_cell({"B": B}, u, z)

    steps = int(np.ceil(np.log(1e-6) / np.log(kappa)))
    stretch = jnp.linalg.norm(cell(starts[0]) - cell(starts[1]), axis=1) / jnp.linalg.norm(
        starts[0] - starts[1], axis=1
    )
    z = [fixed_point(cell, start, tol=1e-5, max_iter=steps).z for start in starts]
    return stretch, z, spectral_radius(cell, z[0], jax.random.key(0))


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), kappa=st.sampled_from([0.5, 0.9]))
def test_the_layer_is_a_contraction_and_plain_iteration_finds_its_one_equilibrium(seed, kappa):
    B, u = scaled(matrix(seed, (6, 6), 3.0), kappa), matrix(seed + 1, (4, 6), 1.0)
    stretch, (z, w), radius = solved(B, u, matrix(seed + 2, (2, 4, 6), 5.0), kappa)
    assert (stretch <= kappa + 1e-5).all()
    np.testing.assert_allclose(z, np.maximum(z @ B.T + u, 0), atol=1e-3)
    np.testing.assert_allclose(z, w, atol=1e-2 * np.abs(z).max() * (1 - kappa))
    assert (radius <= kappa + 1e-4).all()


def test_a_row_outside_the_other_ball_may_be_inside_this_one():
    turn = 0.9 * np.float32([[0.6, -0.8], [0.8, 0.6]])  # rows sum to 1.26, the spectral norm is 0.9
    np.testing.assert_array_equal(scaled(turn, 0.95), turn)


def test_clients_under_vmap():
    many = jnp.asarray(matrix(0, (3, 5, 5), 1.0)) * jnp.array([0.01, 1.0, 100.0])[:, None, None]
    got = jax.jit(jax.vmap(normalise_spectral))(many)
    for i in range(3):
        np.testing.assert_allclose(got[i], normalise_spectral(many[i]), atol=1e-5)
    np.testing.assert_array_equal(got[0], many[0])


def test_a_nan_stays_visible():
    assert jnp.isnan(scaled(jnp.full((3, 3), jnp.nan), 0.5)).any()


@pytest.mark.parametrize("kappa", [0.0, 1.0, float("nan")])
def test_a_radius_outside_the_open_unit_interval_is_refused(kappa):
    with pytest.raises(InputError, match="kappa = "):
        normalise_spectral(jnp.eye(2), kappa)


def test_a_convolution_has_no_such_parametrisation():
    with pytest.raises(InputError, match=r"the matrix of a dense layer, got shape \(3, 3, 8, 8\)"):
        normalise_spectral(jnp.ones((3, 3, 8, 8)))

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError

from fedlab_lite.deq import project_linf
from fedlab_lite.util import InputError

project = jax.jit(project_linf, static_argnums=1)


@st.composite
def matrices(draw):
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    shape = draw(st.sampled_from([(1, 1), (6, 3), (4, 40)]))
    B = rng.normal(size=shape) * draw(st.sampled_from([1e-3, 0.1, 1.0, 100.0]))
    B[rng.random(shape) < draw(st.sampled_from([0.0, 0.7]))] = 0
    return B.astype(np.float32)


radii = st.sampled_from([0.1, 0.95])


def by_bisection(B, kappa):
    """The paper's way: bisect each row's threshold, in float64 and as what the largest entry keeps."""
    B = np.asarray(B, np.float64)
    A = B.copy()
    for i, row in enumerate(np.abs(B)):
        if row.sum() > kappa:
            below, low, high = row.max() - row, 0.0, row.max()
            for _ in range(200):
                keeps = (low + high) / 2
                low, high = (keeps, high) if np.maximum(keeps - below, 0).sum() <= kappa else (low, keeps)
            A[i] = np.sign(B[i]) * np.maximum(low - below, 0)
    return A


@settings(max_examples=60)
@given(B=matrices(), kappa=radii)
def test_it_is_the_nearest_matrix_in_the_ball(B, kappa):
    A = np.asarray(project(B, kappa), np.float64)
    rounding = 4e-6 * (1 + np.abs(B).max())
    np.testing.assert_allclose(A, by_bisection(B, kappa), atol=rounding)
    sums = np.abs(A).sum(1)
    assert (sums <= kappa + rounding).all()
    inside = np.abs(B).sum(1) <= kappa * (1 - 1e-6)
    np.testing.assert_array_equal(A[inside], B[inside])
    # KKT: on the sphere, B - A = t sign(A) on the support and at most t elsewhere, with one t >= 0 a row
    for a, b in zip(A[~inside], B[~inside], strict=True):
        gap, on = np.abs(b - a), a != 0
        t = gap[on].max()
        np.testing.assert_allclose(gap[on], t, atol=rounding)
        assert (gap[~on] <= t + rounding).all()
        assert (np.sign(a[on]) == np.sign(b[on])).all()


@settings(max_examples=30)
@given(B=matrices(), kappa=radii)
def test_idempotent_and_no_matrix_in_the_ball_is_nearer(B, kappa):
    A = np.asarray(project(B, kappa))
    np.testing.assert_allclose(project(A, kappa), A, atol=4e-6 * (1 + np.abs(B).max()))
    rng = np.random.default_rng(0)
    distance = np.linalg.norm(A - B)
    for size in (1e-3, 0.1, 1.0):
        other = A + rng.normal(size=B.shape).astype(np.float32) * size
        other *= np.minimum(1, kappa / np.maximum(np.abs(other).sum(1, keepdims=True), 1e-9))
        assert np.linalg.norm(other - B) >= distance - 1e-4 * (1 + distance)


@settings(max_examples=100)
@given(
    seed=st.integers(0, 10_000),
    shape=st.sampled_from([(3, 1), (6, 3), (4, 512)]),
    exponents=st.tuples(st.integers(-6, 6), st.integers(-6, 6)),
    repeated=st.booleans(),
    kappa=st.sampled_from([1e-6, 1e-3, 0.3, 0.95]),
)
def test_whatever_the_magnitudes_the_ball_is_kept_to_rounding_of_kappa(seed, shape, exponents, repeated, kappa):
    rng = np.random.default_rng(seed)
    low, high = sorted(exponents)
    B = (rng.normal(size=shape) * 10.0 ** rng.uniform(low, high, size=shape)).astype(np.float32)
    if repeated:  # all but equal, where the threshold lies close to every entry
        B = B[:, :1] * (1 + np.finfo(np.float32).eps * rng.integers(0, 3, size=shape)).astype(np.float32)
    A = np.asarray(project(B, kappa))
    sums = np.abs(np.asarray(A, np.float64)).sum(1)
    assert (sums <= kappa * (1 + 1e-6)).all()
    np.testing.assert_allclose(A, by_bisection(B, kappa), rtol=0, atol=2e-6 * kappa)
    inside = np.abs(B.astype(np.float64)).sum(1) <= kappa * (1 - 1e-6)
    np.testing.assert_array_equal(A[inside].view(np.int32), B[inside].view(np.int32))


def test_entries_far_above_the_radius_by_hand():
    np.testing.assert_allclose(project_linf(jnp.full((1, 3), 3.3), 1e-6), 1e-6 / 3, rtol=1e-6)  # had a sum of 1.43e-6
    np.testing.assert_allclose(project_linf(jnp.full((1, 3), -1e6), 0.01), -0.01 / 3, rtol=1e-6)  # was all zeros
    assert project_linf(jnp.array([[3e38, 3e38, 1.0]]), 0.5).tolist() == [[0.25, 0.25, 0.0]]


def test_forward_derivatives_stay_on_the_sphere():
    B, along = jnp.array([[1.0, -0.75], [0.25, 0.125]]), jnp.array([[1.0, 3.0], [1.0, 3.0]])
    for axis in (1, 0):
        turned = (lambda a: a) if axis else jnp.transpose
        _, moved = jax.jvp(lambda B, axis=axis: project_linf(B, 0.5, axis=axis), (turned(B),), (turned(along),))
        np.testing.assert_allclose(turned(moved), [[2.0, 2.0], [1.0, 3.0]], atol=1e-6)


def test_it_agrees_with_optax_and_sits_on_the_sphere():
    B = jax.random.normal(jax.random.key(0), (64, 200))
    A = jax.jit(project_linf)(B)
    want = jax.vmap(lambda row: optax.projections.projection_l1_ball(row, 0.95))(B)
    np.testing.assert_allclose(A, want, atol=1e-6)
    np.testing.assert_allclose(jnp.abs(A).sum(1), 0.95, rtol=1e-5)


def test_by_hand():
    B = jnp.array([[1.0, -0.75], [0.25, 0.125], [0.0, 0.0], [8.0, 0.5]])
    assert project_linf(B, 0.5).tolist() == [[0.375, -0.125], [0.25, 0.125], [0.0, 0.0], [0.5, 0.0]]


def test_a_kernel_that_multiplies_from_the_right_is_projected_by_columns():
    W = jax.random.normal(jax.random.key(1), (7, 5))
    A = project_linf(W, 0.9, axis=0)
    np.testing.assert_array_equal(A, project_linf(W.T, 0.9).T)
    np.testing.assert_allclose(jnp.abs(A).sum(0), 0.9, rtol=1e-5)
    # the layer contracts in the maximum norm, whatever z
    z = jax.random.normal(jax.random.key(2), (100, 7))
    assert jnp.all(jnp.abs(z @ A).max(1) <= 0.9 * jnp.abs(z).max(1) * (1 + 1e-6))


def test_vmap_over_clients():
    many = jax.random.normal(jax.random.key(3), (4, 6, 6)) * jnp.array([0.01, 0.1, 1.0, 10.0])[:, None, None]
    got = jax.vmap(project_linf)(many)
    for i in range(4):
        np.testing.assert_allclose(got[i], project_linf(many[i]), atol=1e-6)
    np.testing.assert_array_equal(got[0], many[0])


def test_a_nan_stays_visible():
    assert jnp.isnan(project_linf(jnp.array([[jnp.nan, 1.0]]))).any()


@pytest.mark.parametrize("kappa", [0.0, -0.5, 1.0, 2.0, float("nan")])
def test_a_radius_outside_the_open_unit_interval_is_refused(kappa):
    with pytest.raises(InputError, match="kappa = "):
        project_linf(jnp.eye(2), kappa)


def test_other_shapes_and_axes_are_refused():
    with pytest.raises(InputError, match=r"shape \(3,\)"):
        project_linf(jnp.ones(3))
    with pytest.raises(InputError, match="axis 2"):
        project_linf(jnp.eye(2), axis=2)


def test_integers_are_refused_by_name():
    with pytest.raises(TypeCheckError, match="parameter 'B'"):
        project_linf(jnp.eye(2, dtype=int))

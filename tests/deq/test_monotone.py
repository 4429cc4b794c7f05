from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlab_lite.deq import equilibrium, fixed_point, monotone, peaceman_rachford, spectral_radius, splitting
from fedlab_lite.util import InputError

TIGHT = {"tol": 1e-12, "max_iter": 2000, "backward_tol": 1e-12, "backward_max_iter": 2000, "solver": "fixed_point"}


def draw(seed, n=6, size=2.0):
    rng = np.random.default_rng(seed)
    A, B, u = rng.normal(size=(n, n)), rng.normal(size=(n, n)), 3 * rng.normal(size=(4, n))
    return jnp.asarray(size * A / np.sqrt(n)), jnp.asarray(size * B / np.sqrt(n)), jnp.asarray(u)


def layer(A, B, u, m, **options):
    v, solution = equilibrium(peaceman_rachford, splitting(monotone(A, B, m)), u, u, **options)
    return jnp.maximum(v, 0), solution


def forward_backward(W, u, m, steps=1_000_000):
    """The paper's other splitting, as an independent way to the same equilibrium; its step is at most 2 m / L^2."""
    M = np.eye(len(W)) - W
    alpha, z = m / np.linalg.norm(M, 2) ** 2, np.zeros_like(u)
    for _ in range(steps):
        new = np.maximum(z - alpha * (z @ M.T - u), 0)
        if np.abs(new - z).max() < 1e-13:
            break
        z = new
    return z


def test_a_layer_by_hand():
    """W = ((-0.5, 0), (-2, -1.5)): z1 = relu(-0.5 z1 + u1), z2 = relu(-2 z1 - 1.5 z2 + u2)."""
    A, B = jnp.array([[1.0, 1.0], [0.0, 1.0]]), jnp.array([[0.0, 1.0], [0.0, 0.0]])
    assert monotone(A, B, 0.5).tolist() == [[-0.5, 0.0], [-2.0, -1.5]]
    u = jnp.array([[3.0, 5.0], [3.0, 1.0], [-1.0, 5.0]])
    z, _ = layer(A, B, u, 0.5, tol=1e-6, max_iter=100)
    np.testing.assert_allclose(z, [[2.0, 0.4], [2.0, 0.0], [0.0, 2.0]], atol=1e-5)


@partial(jax.jit, static_argnums=2)
def iterated(A, B, m, u, v):
    W = monotone(A, B, m)
    params = splitting(W)
    return W, params, peaceman_rachford(params, u, v)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    n=st.sampled_from([1, 2, 7]),
    size=st.sampled_from([0.0, 1.0, 20.0]),
    m=st.sampled_from([0.05, 0.5, 1.0]),
)
def test_the_conditions_on_which_existence_and_convergence_rest(seed, n, size, m):
    """I - W >= m I, and an iteration contracts by the factor that `splitting` states: one equilibrium, always found."""
    with jax.enable_x64():
        A, B, u = draw(seed, n, size)
        starts = np.random.default_rng(seed).normal(size=(2, 4, n))
        W, params, v = iterated(A, B, m, u, starts[0])
        M, w = np.eye(n) - W, iterated(A, B, m, u, starts[1])[2]
        assert np.linalg.eigvalsh((M + M.T) / 2).min() >= m - 1e-9 * size
        np.testing.assert_allclose(params["inverse"] @ (np.eye(n) + params["step"] * M), np.eye(n), atol=1e-12)
        L = np.linalg.norm(M, 2)
        assert 1 / L / 1.01 <= params["step"] <= 1 / L * (1 + 1e-12)
        apart = np.linalg.norm(v - w, axis=1) / np.linalg.norm(starts[0] - starts[1], axis=1)
        assert (apart <= np.sqrt(1 - m / L / 1.01) + 1e-12).all()


@partial(jax.jit, static_argnums=2)
def solved(A, B, m, u):
    return layer(A, B, u, m, **TIGHT)


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000), m=st.sampled_from([0.3, 1.0]))
def test_the_splitting_finds_the_equilibrium_that_another_splitting_finds(seed, m):
    with jax.enable_x64():
        A, B, u = draw(seed, n=4)
        W = np.asarray(monotone(A, B, m))
        z, solution = solved(A, B, m, u)
        np.testing.assert_allclose(z, np.maximum(z @ W.T + u, 0), atol=1e-9)  # it is an equilibrium
        np.testing.assert_allclose(z, forward_backward(W, np.asarray(u), m), atol=1e-7)  # and the only one
        assert (solution.iterations < 2000).all()


def test_it_converges_where_plain_iteration_does_not():
    with jax.enable_x64():
        A, B, u = draw(0, n=20, size=3.0)
        W = monotone(A, B, 0.1)

        def plain(z):
            return jnp.maximum(z @ W.T + u, 0)

        z, solution = solved(A, B, 0.1, u)
        assert (solution.residual < 1e-9).all()
        np.testing.assert_allclose(z, plain(z), atol=1e-8)
        assert (fixed_point(plain, u, max_iter=300).residual > 1).all()
        assert (spectral_radius(plain, z, jax.random.key(0)) > 1).all()


@pytest.mark.parametrize("solver", ["fixed_point", "anderson"])
def test_the_gradient_is_that_of_the_implicit_function_theorem_and_of_finite_differences(solver):
    with jax.enable_x64():
        A, B, u = draw(3)
        y = jnp.asarray(np.random.default_rng(1).normal(size=(4, 6)))

        @jax.jit
        def loss(A, B, u):
            return jnp.sum(y * layer(A, B, u, 0.5, **TIGHT | {"solver": solver, "backward_solver": solver})[0])

        of_A, of_B, of_u = jax.grad(loss, argnums=(0, 1, 2))(A, B, u)
        W = np.asarray(monotone(A, B, 0.5))
        z = forward_backward(W, np.asarray(u), 0.5)
        for i in range(4):  # dz = (I - D W)^-1 D du
            D = np.diag((z[i] > 0).astype(float))
            np.testing.assert_allclose(of_u[i], np.linalg.solve(np.eye(6) - D @ W, D).T @ y[i], atol=1e-7)
        h, (to_A, to_B) = 1e-6, np.random.default_rng(2).normal(size=(2, 6, 6))
        slope = (loss(A + h * to_A, B + h * to_B, u) - loss(A - h * to_A, B - h * to_B, u)) / (2 * h)
        np.testing.assert_allclose(jnp.vdot(of_A, to_A) + jnp.vdot(of_B, to_B), slope, rtol=1e-6)


def test_clients_under_vmap_and_jit_agree_with_the_plain_call():
    A, B, u = (jnp.asarray(x, jnp.float32) for x in draw(5))

    @jax.jit
    def of_client(scale):
        return jax.value_and_grad(lambda A: layer(A, scale * B, u, 0.5)[0].sum())(A)

    together = jax.jit(jax.vmap(of_client))(jnp.array([0.5, 2.0]))
    for i, scale in enumerate((0.5, 2.0)):
        jax.tree.map(
            lambda a, b, i=i: np.testing.assert_allclose(a[i], b, rtol=2e-3, atol=1e-3), together, of_client(scale)
        )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: monotone(jnp.eye(2), jnp.eye(2), 0.0), "m = 0.0: must be above 0"),
        (lambda: monotone(jnp.eye(2), jnp.eye(2), float("nan")), "m = nan"),
        (lambda: monotone(jnp.ones((2, 3)), jnp.ones((2, 3))), "square matrices of one size"),
        (lambda: monotone(jnp.ones((3, 3, 2, 2)), jnp.ones((3, 3, 2, 2))), "of a dense layer"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(InputError, match=message):
        call()

"""Broyden's inverse and the gradient that it gives: against the dense recursion, exact cases, and the fall-back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlab_lite.deq import broyden, equilibrium
from fedlab_lite.deq.implicit import TOO_LONG


def dense_inverse(f, z0, *, steps, memory):
    """H of the docstring as a matrix, by the printed recursion, after `steps` evaluations of one sample."""
    eye = np.eye(len(z0))
    H, z, g = -eye, z0, f(z0) - z0
    for step in range(1, steps):
        new = z - H @ g
        dz, dg = new - z, (f(new) - new) - g
        H = -eye if (step - 1) % memory == 0 else H
        H = H + np.outer(dz - H @ dg, dz @ H) / (dz @ H @ dg)
        z, g = new, g + dg
    return H


@pytest.mark.parametrize("memory", [3, 20])
def test_the_inverse_is_the_printed_recursion_where_each_sample_stopped(memory):
    """Also of samples that stop early, and across restarts."""
    rng = np.random.default_rng(0)
    w = 0.8 * np.linalg.qr(rng.normal(size=(5, 5)))[0]
    shift, y = rng.normal(size=(3, 5)), rng.normal(size=(3, 5))
    scale = np.array([0.05, 0.3, 1.0])
    with jax.enable_x64():
        solve = jax.jit(
            lambda z: broyden(
                lambda z: jnp.tanh(scale[:, None] * (z @ w) + shift), z, tol=1e-6, memory=memory, inverse=True
            )
        )
        found = solve(jnp.zeros((3, 5)))
        product = found.inverse.transposed(jnp.asarray(y))
    assert len(set(found.iterations.tolist())) > 1
    for i, steps in enumerate(found.iterations.tolist()):
        H = dense_inverse(
            lambda z, i=i: np.tanh(scale[i] * (z @ w) + shift[i]), np.zeros(5), steps=steps, memory=memory
        )
        np.testing.assert_allclose(product[i], H.T @ y[i], rtol=1e-6, atol=1e-9)


def test_the_inverse_changes_no_solution():
    step = lambda z: jnp.cos(z) + 0.1  # noqa: E731
    plain, kept = (broyden(step, jnp.zeros((2, 3)), inverse=yes) for yes in (False, True))
    assert plain.inverse is None
    for a, b in zip(plain[:4], kept[:4], strict=True):
        np.testing.assert_array_equal(a, b)


def slope(a, *, gradient="shine"):
    def value(a):
        z, found = equilibrium(
            lambda a, x, z: a * z + 1, a, (), jnp.zeros((1, 1)), solver="broyden", gradient=gradient, tol=1e-6
        )
        assert found.inverse is None  # it is as large as the history, and of no use outside
        return z.sum()

    return float(jax.grad(value)(a))


def test_one_number_is_exact_until_the_direction_is_too_long():
    """z* = 1 / (1 - a): u = y / (1 - a), which the secant has exactly. At a = 1/2 it is 2 y, above 1.8 y."""
    assert slope(0.4) == pytest.approx(1 / 0.6**2, rel=1e-4)
    assert slope(-2.0) == pytest.approx(1 / 9, rel=1e-4)  # shorter than y
    assert TOO_LONG < 2
    assert slope(0.5) == pytest.approx(2.0, rel=1e-4)  # u = y: the derivative of a z* + 1 at z* = 2
    assert slope(0.5, gradient="implicit") == pytest.approx(4.0, rel=1e-4)


def test_it_is_closer_than_one_step_where_the_loss_follows_the_solution():
    rng = np.random.default_rng(0)
    w = rng.normal(size=(32, 32))
    w = jnp.asarray((w + w.T) * 0.6 / np.abs(np.linalg.eigvalsh(w + w.T)).max(), jnp.float32)
    x = jnp.asarray(rng.normal(size=(8, 32)), jnp.float32)

    def of(gradient):
        def value(w):
            z, _ = equilibrium(
                lambda w, x, z: jnp.tanh(z @ w + x), w, x, jnp.zeros((8, 32)), solver="broyden", gradient=gradient
            )
            return jnp.sum(z**2)

        return jax.jit(jax.grad(value))(w)

    exact, shine, one_step = map(of, ("implicit", "shine", "one_step"))
    assert jnp.linalg.norm(shine - exact) < jnp.linalg.norm(one_step - exact)

"""Relaxed steps, and iterates that are kept on the way."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlab_lite.deq import SOLVERS, equilibrium, fixed_point
from fedlab_lite.util import InputError


def test_relaxed_steps_by_hand():
    # z <- z + (4 - 4 z) / 4 reaches 1 at once, where plain steps have the factor -3
    found = fixed_point(lambda z: 4 - 3 * z, jnp.zeros((1, 1)), tau=0.25)
    assert (found.z.item(), found.iterations.item()) == (1.0, 2)
    plain = fixed_point(lambda z: 4 - 3 * z, jnp.zeros((1, 1)))
    assert plain.residual > 1
    # from 0: 1/2 of f(0) = 1, then 1/2 + (f(1/2) - 1/2) / 2 = 1/2 + 3/8
    found = fixed_point(lambda z: z / 2 + 1, jnp.zeros((1, 1)), tau=0.5, tol=0.0, max_iter=3, keep=(1, 2))
    assert found.path.ravel().tolist() == [0.5, 0.875]


def test_relaxed_gradients():
    """With J = a = -2 no plain series converges, relaxed ones do. z* = 1 / (1 - a), its slope is 1 / (1 - a)^2."""

    def slope(**options):
        def value(a):
            options_ = {"solver": "fixed_point", "tau": 0.3, "tol": 1e-6} | options
            return equilibrium(lambda a, x, z: a * z + 1, a, (), jnp.zeros((1, 1)), **options_)[0].sum()

        return float(jax.grad(value)(-2.0))

    exact = 1 / 9
    assert slope(backward_solver="fixed_point") == pytest.approx(exact, rel=1e-3)
    for gradient in ("neumann", "phantom"):
        assert slope(gradient=gradient, k=40) == pytest.approx(exact, rel=1e-3)
        assert slope(gradient=gradient, k=1) == pytest.approx(0.3 / 3, rel=1e-3)  # tau df/da = tau z*
    assert slope(gradient="unrolled", max_iter=60) == pytest.approx(exact, rel=1e-3)
    with pytest.raises(InputError, match="between 0 and 2"):
        fixed_point(lambda z: z, jnp.zeros((1, 1)), tau=0.0)


@pytest.mark.parametrize("solver", SOLVERS)
def test_kept_iterates_are_those_of_shorter_runs(solver):
    w = 0.7 * jnp.asarray(np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0], jnp.float32)

    def solve(z, **options):
        step = lambda z: {"a": jnp.tanh(z["a"] @ w + 1)}  # noqa: E731
        return SOLVERS[solver](step, {"a": z}, tol=0.0, **options)

    z0 = jnp.asarray(np.random.default_rng(1).normal(size=(3, 4)), jnp.float32)
    found = jax.jit(lambda z: solve(z, max_iter=6, keep=(2, 5)))(z0)
    assert found.path["a"].shape == (2, 3, 4)
    # the iterate after k evaluations is where evaluation k + 1 takes place
    for kept, k in zip(found.path["a"], (2, 5), strict=True):
        gap = jnp.linalg.norm(jnp.tanh(kept @ w + 1) - kept, axis=1)
        np.testing.assert_allclose(gap, found.trace[k], rtol=1e-4, atol=1e-6)
    together = jax.vmap(lambda z: solve(z, max_iter=6, keep=(2, 5)))(jnp.stack([z0, 2 * z0]))
    np.testing.assert_allclose(together.path["a"][0], found.path["a"], rtol=1e-5, atol=1e-6)
    for keep in ((0,), (7,)):
        with pytest.raises(InputError, match="from 1 to max_iter = 6"):
            solve(z0, max_iter=6, keep=keep)


def test_a_sample_that_stopped_has_its_solution_in_the_path():
    rate = jnp.array([[0.0], [0.9]])
    found = fixed_point(lambda z: rate * z + 1, jnp.zeros((2, 1)), max_iter=10, keep=(4, 10))
    assert found.iterations.tolist() == [2, 10]
    assert found.path[:, 0, 0].tolist() == [1.0, 1.0]
    early = fixed_point(lambda z: 0 * z + 1, jnp.zeros((2, 1)), max_iter=10, keep=(9,))  # the loop ends before
    assert early.path.ravel().tolist() == [1.0, 1.0]


def test_a_loss_along_the_path():
    """Each corrected state has the one-step gradient: z_k + a dz_k is replaced by f's own derivative z_k."""
    x, z0 = jnp.ones((1, 1)), jnp.zeros((1, 1))
    layer = lambda a, x, z: a * z + x  # noqa: E731

    def value(a):
        z, found = equilibrium(
            layer, a, x, z0, solver="fixed_point", gradient="one_step", max_iter=3, tol=0.0, keep=(1,)
        )
        return layer(a, x, found.path[0]).sum() + 0 * z.sum()

    assert float(jax.grad(value)(0.5)) == 1.0  # z_1 = 1

"""The reversible iteration: its gradient is that of its own steps, sample by sample, and what rounding does to it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlab_lite.deq import equilibrium
from fedlab_lite.deq.reversible import most_steps
from fedlab_lite.util import InputError

SIZE = 6


def layer(params, x, z):
    return jnp.tanh(z @ params["W"] + x)


def problem(radius=0.8, samples=4):
    """params, x, z0 and the weights y of a loss, in double precision where it is enabled."""
    rng = np.random.default_rng(0)
    w = rng.normal(size=(SIZE, SIZE))
    x, y = (jnp.asarray(rng.normal(size=(samples, SIZE))) for _ in range(2))
    return {"W": jnp.asarray(w * radius / np.linalg.norm(w, 2))}, x, jnp.zeros((samples, SIZE)), y


def loss(params, x, z0, y, **options):
    return jnp.sum(y * equilibrium(layer, params, x, z0, gradient="reversible", **options)[0] ** 2)


def by_hand(params, x, z0, y, *, evaluations, tau):
    """The same loss by the paper's two states, differentiated step by step."""
    states, now = [z0, z0], 1
    for _ in range(evaluations - 1):
        states[1 - now] = (1 - tau) * states[1 - now] + tau * layer(params, x, states[now])
        now = 1 - now
    return jnp.sum(y * layer(params, x, states[now]) ** 2)


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


@pytest.mark.parametrize(("evaluations", "tau"), [(1, 0.5), (2, 0.5), (9, 0.8), (20, 0.5), (20, 1.4)])
def test_the_gradient_is_that_of_the_steps(evaluations, tau):
    with jax.enable_x64():
        given = problem()
        options = {"max_iter": evaluations, "tol": 0.0, "tau": tau}
        value, found = jax.jit(jax.value_and_grad(lambda *a: loss(*a, **options), (0, 1)))(*given)
        steps = {"evaluations": evaluations, "tau": tau}
        wanted, want = jax.value_and_grad(lambda *a: by_hand(*a, **steps), (0, 1))(*given)
    np.testing.assert_allclose(value, wanted, rtol=1e-10)
    np.testing.assert_allclose(flat(found), flat(want), atol=1e-8 * np.abs(flat(want)).max())


def test_two_evaluations_on_paper():
    """z <- a z + 1 from 0 with tau = 1/4: v = 0, 1/4, so a v + 1 = a / 4 + 1, whose derivative is 1/4."""

    def value(a):
        options = {"gradient": "reversible", "tau": 0.25, "max_iter": 2, "tol": 0.0}
        return equilibrium(lambda a, x, z: a * z + 1, a, (), jnp.zeros((1, 1)), **options)[0].sum()

    found, slope = jax.value_and_grad(value)(0.5)
    assert (float(found), float(slope)) == (1.125, 0.25)


def test_each_sample_takes_its_own_steps_back():
    with jax.enable_x64():
        params, x, z0, y = problem()
        scale = jnp.array([[0.01], [0.3], [1.0], [1.2]])  # some samples stop early

        def of(params, rows):
            step = lambda p, given, z: jnp.tanh(given[1] * (z @ p["W"]) + given[0])  # noqa: E731
            options = {"gradient": "reversible", "tol": 1e-3, "max_iter": 40}
            z, found = equilibrium(step, params, (x[rows], scale[rows]), z0[rows], **options)
            return jnp.sum(y[rows] * z**2), found.iterations

        run = jax.jit(jax.grad(of, has_aux=True))
        together, iterations = run(params, jnp.arange(4))
        alone = [run(params, jnp.array([i])) for i in range(4)]
        assert len(set(iterations.tolist())) > 2
        assert iterations.tolist() == [int(each[1][0]) for each in alone]
        total = sum(flat(each[0]) for each in alone)
        np.testing.assert_allclose(flat(together), total, rtol=1e-9)


def test_an_equilibrium_has_the_exact_gradient():
    """At the tolerance of the steps; with a budget, those that it allows."""
    given = problem(radius=0.3)
    exact = jax.grad(lambda *a: loss_of(*a, "implicit"))(*given)
    found = jax.grad(lambda *a: loss_of(*a, "reversible"))(*given)
    assert np.linalg.norm(flat(found) - flat(exact)) < 2e-3 * np.linalg.norm(flat(exact))
    budget = jnp.array([1, 2, 3, 30])
    found = equilibrium(layer, *given[:3], gradient="reversible", tol=0.0, budget=budget)[1]
    assert found.iterations.tolist() == [1, 2, 3, 30]


def loss_of(params, x, z0, y, gradient):
    return jnp.sum(y * equilibrium(layer, params, x, z0, gradient=gradient)[0] ** 2)


def test_rounding_that_grows_is_told():
    """J = 0.9: 32 steps of tau 1/2 lose the way back in single precision."""

    def slope(max_iter):
        def value(a):
            options = {"gradient": "reversible", "max_iter": max_iter, "tol": 0.0}
            z, _ = equilibrium(lambda a, x, z: a * z + x, a, jnp.full((1, 1), 0.7), jnp.full((1, 1), 3.0), **options)
            return z.sum()

        return jax.grad(value)(0.9)

    slope(10)  # no warning, which would be an error here
    with pytest.warns(RuntimeWarning, match="miss their start by .* Use fewer steps"):
        slope(32)


def test_bad_input():
    params, x, z0, _ = problem()
    for tau in (0.0, 1.0, 2.0, -0.5, float("nan")):
        with pytest.raises(InputError, match="tau"):
            equilibrium(layer, params, x, z0, gradient="reversible", tau=tau)
    assert most_steps(z0.dtype, 0.8) == 14
    equilibrium(layer, params, x, z0, gradient="reversible", tau=0.8, max_iter=14)
    with pytest.raises(
        InputError, match=r"max_iter = 15 .* in float32: .* Use max_iter <= 14, or a tau further from 1"
    ):
        equilibrium(layer, params, x, z0, gradient="reversible", tau=0.8, max_iter=15)
    with pytest.raises(InputError, match="keep the structure and shapes"):
        equilibrium(lambda p, x, z: z[:, :2], params, x, z0, gradient="reversible")
    with pytest.raises(InputError, match="max_iter = 0"):
        equilibrium(layer, params, x, z0, gradient="reversible", max_iter=0)

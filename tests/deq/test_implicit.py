import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError

from fedlab_lite.deq import GRADIENTS, SOLVERS, adjoint_residual, equilibrium, project_linf
from fedlab_lite.deq.implicit import BACKWARD_SOLVERS
from fedlab_lite.nn.equilibrium_nets import dense_cell
from fedlab_lite.util import InputError

TIGHT = {"tol": 1e-11, "backward_tol": 1e-11, "max_iter": 300, "backward_max_iter": 300}


def layer(params, x, z):
    return jnp.tanh(z @ params["W"] + x @ params["U"] + params["b"])


@pytest.fixture
def problem():
    """params, x, z0 and the loss's weights y, in float64: 4 samples, width 6, 3 inputs."""
    with jax.enable_x64():
        rng = np.random.default_rng(0)
        w = rng.normal(size=(6, 6))
        params = {"W": jnp.asarray(0.8 * w / np.linalg.norm(w, 2)), "U": jnp.asarray(rng.normal(size=(3, 6)))}
        params["b"] = jnp.asarray(rng.normal(size=6))
        yield params, jnp.asarray(rng.normal(size=(4, 3))), jnp.zeros((4, 6)), jnp.asarray(rng.normal(size=(4, 6)))


def chosen(gradient):
    """Options with a solver that the gradient can follow."""
    return {"gradient": gradient, "solver": "broyden" if gradient == "shine" else "anderson"}


def loss(params, x, z0, y, **options):
    return jnp.sum(y * equilibrium(layer, params, x, z0, **options)[0] ** 2)


def gradient_of(problem, argnums=0, **options):
    return jax.jit(jax.grad(lambda *a: loss(*a, **options), argnums))(*problem)


def flat(tree):
    return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)])


def relative_error(a, b):
    return jnp.linalg.norm(flat(a) - flat(b)) / jnp.linalg.norm(flat(b))


def dense_gradient(params, x, z0, y):
    """Eqs. (7) and (10) with dense Jacobians, sample by sample."""
    z, _ = equilibrium(layer, params, x, z0, **TIGHT)

    def of_one(x, z, y):
        J = jax.jacobian(lambda z: layer(params, x, z))(z)
        u = jnp.linalg.solve(jnp.eye(len(z)) - J.T, 2 * y * z)
        return jax.vjp(lambda p: layer(p, x, z), params)[1](u)[0]

    return jax.tree.map(lambda part: part.sum(0), jax.vmap(of_one)(x, z, y))


@pytest.mark.slow
@pytest.mark.parametrize("backward_solver", BACKWARD_SOLVERS)
def test_the_implicit_gradient_is_that_of_eq_7_and_of_finite_differences(problem, backward_solver):
    params, x, z0, y = problem

    def of(params, x):
        return loss(params, x, z0, y, backward_solver=backward_solver, **TIGHT)

    found, found_x = jax.jit(jax.grad(of, argnums=(0, 1)))(params, x)
    assert relative_error(found, dense_gradient(*problem)) < 1e-7

    value, step = jax.jit(of), 1e-5

    def difference(tree, at):
        leaves, structure = jax.tree.flatten(tree)
        parts = []
        for n, leaf in enumerate(leaves):
            for i in np.ndindex(leaf.shape):
                up, down = (
                    at(jax.tree.unflatten(structure, [*leaves[:n], leaf.at[i].add(s), *leaves[n + 1 :]]))
                    for s in (step, -step)
                )
                parts.append((up - down) / (2 * step))
        return jnp.stack(parts)

    assert relative_error(found, difference(params, lambda p: value(p, x))) < 1e-4
    assert relative_error(found_x, difference(x, lambda x: value(params, x))) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
def test_the_forward_solver_does_not_change_value_or_gradient(problem, solver):
    params, x, z0, y = problem
    z = jax.lax.fori_loop(0, 400, lambda i, z: layer(params, x, z), z0)
    value, slope = jax.jit(jax.value_and_grad(lambda *a: loss(*a, solver=solver, **TIGHT)))(*problem)
    np.testing.assert_allclose(value, jnp.sum(y * z**2), rtol=1e-9)
    assert relative_error(slope, dense_gradient(*problem)) < 1e-7


def test_default_tolerances_in_float32_stay_within_a_thousandth(problem):
    single = jax.tree.map(lambda a: a.astype(jnp.float32), problem)
    assert relative_error(gradient_of(single), dense_gradient(*problem)) < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(("tol", "least", "most"), [(1e-3, 1e-4, 6e-4), (1e-4, 3e-5, 1.5e-4), (1e-5, 3e-6, 1.5e-5)])
def test_the_error_of_the_gradient_is_what_the_docstring_says(tol, least, most):
    """DEQ-MLP's cell of width 32, B in the ball: tol (and 1e-4 for the backward solver at most) in float32."""
    rng = np.random.default_rng(0)
    B = project_linf(jnp.asarray(rng.normal(size=(32, 32)) / 32**0.5, jnp.float32))
    u, y = (jnp.asarray(rng.normal(size=(50, 32)), jnp.float32) for _ in range(2))

    def slope(B, u, y, **options):
        of = jax.grad(lambda B: jnp.sum(y * equilibrium(dense_cell, {"B": B}, u, jnp.zeros_like(u), **options)[0]))
        return np.asarray(jax.jit(of)(B))

    found = slope(B, u, y, tol=tol, backward_tol=min(tol, 1e-4))
    with jax.enable_x64():
        exact = slope(*(jnp.asarray(np.asarray(a, np.float64)) for a in (B, u, y)), **TIGHT)
    assert least < relative_error(found, exact) < most


def test_the_value_is_g_at_the_solvers_point(problem):
    params, x, z0, _ = problem
    for gradient in ("implicit", "one_step", "neumann"):
        z, found = equilibrium(layer, params, x, z0, gradient=gradient, tol=0.1)
        np.testing.assert_allclose(z, layer(params, x, found.z), rtol=1e-12)
        assert jnp.linalg.norm(z - found.z) > 1e-4


def test_one_step_is_y_times_dg_dtheta(problem):
    params, x, z0, y = problem
    z, _ = equilibrium(layer, params, x, z0, **TIGHT)
    slope = 2 * y * z * (1 - z**2)  # of the loss, at the tanh's argument
    want = {"W": z.T @ slope, "U": x.T @ slope, "b": slope.sum(0)}
    got = gradient_of(problem, gradient="one_step", **TIGHT)
    assert relative_error(got, want) < 1e-9
    for same in ({"gradient": "neumann", "k": 1}, {"gradient": "phantom", "k": 1}):
        assert relative_error(gradient_of(problem, **same, **TIGHT), want) < 1e-9


@pytest.mark.slow
def test_phantom_is_the_series_written_out(problem):
    params, x, z0, y = problem
    z, _ = equilibrium(layer, params, x, z0, **TIGHT)

    def by_hand(params):
        out = z
        for _ in range(3):
            out = layer(params, x, out)
        return jnp.sum(y * out**2)

    got = gradient_of(problem, gradient="phantom", k=3, **TIGHT)
    assert relative_error(got, jax.grad(by_hand)(params)) < 1e-9


@pytest.mark.slow
def test_neumann_phantom_and_unrolled_approach_the_implicit_gradient(problem):
    exact = gradient_of(problem, **TIGHT)
    for options in ({"gradient": "neumann"}, {"gradient": "phantom"}):
        errors = [relative_error(gradient_of(problem, k=k, **options, **TIGHT), exact) for k in (1, 8, 64)]
        assert all(b < a for a, b in itertools.pairwise(errors)), errors
        assert errors[0] > 1e-2
        assert errors[-1] < 1e-6
    unrolled = [relative_error(gradient_of(problem, gradient="unrolled", max_iter=n), exact) for n in (2, 10, 80)]
    assert unrolled[0] > unrolled[1] > unrolled[2]
    assert unrolled[2] < 1e-6


@pytest.mark.slow
def test_unrolled_reports_the_plain_iteration(problem):
    params, x, z0, _ = problem
    z, found = equilibrium(layer, params, x, z0, gradient="unrolled", max_iter=7)
    plain = SOLVERS["fixed_point"](lambda z: layer(params, x, z), z0, tol=0.0, max_iter=7)
    np.testing.assert_allclose(found.trace, plain.trace, rtol=1e-10)
    np.testing.assert_allclose(found.z, plain.z, rtol=1e-10)
    np.testing.assert_allclose(z, layer(params, x, plain.z), rtol=1e-10)
    assert found.iterations.tolist() == [7] * 4
    assert equilibrium(layer, params, x, z0, gradient="unrolled", max_iter=1)[1].trace.shape == (1, 4)


@pytest.mark.slow
@pytest.mark.parametrize("gradient", GRADIENTS)
def test_the_start_receives_no_gradient_and_a_warm_one_saves_steps(problem, gradient):
    params, x, z0, _ = problem
    assert not gradient_of(problem, 2, **chosen(gradient)).any()
    if gradient != "unrolled":
        run = jax.jit(lambda params, z: equilibrium(layer, params, x, z, tol=1e-2, **chosen(gradient)))
        z, cold = run(params, z0)
        warm = run(jax.tree.map(lambda p: p * 1.001, params), z)[1]
        assert jnp.all(warm.iterations < cold.iterations)


@pytest.mark.slow
@pytest.mark.parametrize("gradient", GRADIENTS)
def test_vmap_over_clients_and_scan_equal_a_loop(problem, gradient):
    params, x, z0, y = problem
    clients = jax.tree.map(lambda p: jnp.stack([p, 0.9 * p, 0.5 * p]), params)
    one = jax.jit(jax.grad(lambda p: loss(p, x, z0, y, **chosen(gradient))))
    looped = [one(jax.tree.map(lambda p, i=i: p[i], clients)) for i in range(3)]
    looped = jax.tree.map(lambda *p: jnp.stack(p), *looped)

    def total(clients):
        return jnp.sum(jax.vmap(lambda p: loss(p, x, z0, y, **chosen(gradient)))(clients))

    for many in (
        jax.jit(jax.vmap(one))(clients),
        jax.jit(jax.grad(total))(clients),
        jax.jit(lambda clients: jax.lax.map(one, clients))(clients),
    ):
        assert relative_error(many, looped) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("gradient", GRADIENTS)
def test_what_f_closes_over_is_differentiated_too(problem, gradient):
    params, x, z0, y = problem

    def closed(params, x):
        z, _ = equilibrium(lambda nothing, none, z: layer(params, x, z), (), (), z0, **chosen(gradient))
        return jnp.sum(y * z**2)

    of_one = jax.jit(jax.grad(closed, (0, 1)))
    assert relative_error(of_one(params, x), gradient_of(problem, (0, 1), **chosen(gradient))) < 1e-9
    # grad outside vmap: the backward pass runs when vmap has ended
    got = jax.jit(jax.grad(lambda p: jax.vmap(lambda x: closed(p, x))(jnp.stack([x, 2 * x])).sum()))(params)
    want = jax.tree.map(jnp.add, of_one(params, x)[0], of_one(params, 2 * x)[0])
    assert relative_error(got, want) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("gradient", GRADIENTS)
def test_pytrees_go_in_and_out(problem, gradient):
    params, x, z0, y = problem

    def pairs(params, x, z):
        out = layer(params, x["x"], jnp.concatenate([z["a"], z["b"][0].reshape(-1, 4)], axis=1))
        return {"a": out[:, :2], "b": (out[:, 2:].reshape(-1, 2, 2),)}

    def split_loss(params):
        start = {"a": z0[:, :2], "b": (z0[:, 2:].reshape(-1, 2, 2),)}
        z, found = equilibrium(pairs, params, {"x": x}, start, **chosen(gradient))
        assert jax.tree.structure(found.z) == jax.tree.structure(start)
        return jnp.sum(y * jnp.concatenate([z["a"], z["b"][0].reshape(-1, 4)], axis=1) ** 2)

    want = gradient_of(problem, **chosen(gradient))
    assert relative_error(jax.jit(jax.grad(split_loss))(params), want) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gradient", "constant"),
    [("implicit", True), ("one_step", True), ("neumann", True), ("reversible", True), ("unrolled", False)],
)
def test_memory_of_the_backward_pass(gradient, constant):
    batch, width = 32, 128
    z0 = jnp.zeros((batch, width))

    def bytes_needed(steps):
        def of(w, x):
            options = {"max_iter": steps, "backward_max_iter": steps, "tol": 0.0, "gradient": gradient}
            options |= {"tau": 0.1} if gradient == "reversible" else {}
            return jnp.sum(equilibrium(lambda w, x, z: jnp.tanh(z @ w + x), w, x, z0, **options)[0] ** 2)

        compiled = jax.jit(jax.grad(of)).lower(jnp.zeros((width, width)), z0).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    few, many = bytes_needed(10), bytes_needed(200)
    if constant:
        assert many - few <= 4 * 190 * batch * 4  # residual traces at most: a number for each sample and step
        assert many < 1.2 * few
    else:
        assert many - few > 190 * z0.nbytes * 0.9  # an activation for each step


@pytest.mark.slow
@pytest.mark.parametrize("gradient", [each for each in GRADIENTS if each not in ("phantom", "unrolled")])
def test_a_sample_that_breaks_leaves_the_others_their_gradient(problem, gradient):
    params, x, z0, y = problem
    broken = jnp.array([[False], [True], [False], [False]])

    def step(params, x, z):  # sample 1 has no fixed point and a Jacobian of norm > 1
        return jnp.where(broken, 3 * z + 1, layer(params, x, z))

    def total(params, weights):
        z, found = equilibrium(step, params, x, z0, **chosen(gradient))
        return jnp.sum(weights * z**2), found

    grads, found = jax.jit(jax.grad(total, has_aux=True))(params, y)
    assert jnp.isfinite(flat(grads)).all()
    assert jnp.isfinite(found.residual).all()
    rest = jnp.array([0, 2, 3])
    want = gradient_of((params, x[rest], z0[rest], y[rest]), **chosen(gradient))
    assert relative_error(grads, want) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("backward_solver", BACKWARD_SOLVERS)
def test_an_adjoint_without_a_solution_still_gives_finite_gradients(backward_solver):
    # value 0 everywhere, derivative NaN in z: u falls back to y, the one-step gradient
    @jax.custom_jvp
    def bad(z):
        return jnp.zeros_like(z)

    bad.defjvp(lambda primals, tangents: (bad(*primals), tangents[0] * jnp.nan))
    z0 = jnp.zeros((2, 3))

    def total(w):
        z, _ = equilibrium(lambda w, x, z: w + bad(z), w, (), z0, backward_solver=backward_solver)
        return jnp.sum(z)

    np.testing.assert_array_equal(jax.jit(jax.grad(total))(jnp.ones((2, 3))), jnp.ones((2, 3)))


@pytest.mark.slow
def test_a_budget_counts_forward_and_backward(problem):
    """As data it does what both `max_iter` do, also for many devices at once (FL-DEQ, Sec. IV-C: 3 and 10)."""
    exact = {"gradient": "implicit", "tol": 0.0, "backward_tol": 0.0, "max_iter": 10, "backward_max_iter": 10}
    budgets = jnp.array([3, 10])
    both = jax.vmap(lambda budget: gradient_of(problem, budget=budget, **exact))(budgets)
    for row, budget in enumerate(budgets.tolist()):
        alone = gradient_of(problem, **exact | {"max_iter": budget, "backward_max_iter": budget})
        assert relative_error(jax.tree.map(lambda leaf, row=row: leaf[row], both), alone) < 1e-6
    assert relative_error(jax.tree.map(lambda leaf: leaf[0], both), dense_gradient(*problem)) > 1e-6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gradient": "implict"}, "unknown gradient 'implict'; did you mean 'implicit'"),
        ({"solver": "andersen"}, "unknown solver 'andersen'; did you mean 'anderson'"),
        ({"backward_solver": "cg"}, "unknown backward solver 'cg'"),
        ({"budget": 3, "gradient": "unrolled"}, "takes neither a budget of iterations nor keep"),
        ({"keep": (3,), "gradient": "unrolled"}, "takes neither a budget of iterations nor keep"),
        ({"keep": (31,)}, "keep = .31,.: numbers of evaluations, from 1 to max_iter = 30"),
        ({"gradient": "shine"}, "gradient='shine' needs the inverse of solver='broyden', not 'anderson'"),
        ({"tau": 0.5}, "tau = 0.5 relaxes 'fixed_point', 'phantom'.* none of them is used here"),
        ({"tau": 0.5, "gradient": "one_step", "backward_solver": "fixed_point"}, "none of them is used here"),
        ({"tau": 2.0, "solver": "fixed_point"}, "tau = 2.0: a relaxation lies between 0 and 2"),
        ({"tau": 1.0, "gradient": "reversible"}, "need a tau between 0 and 2 that is not 1"),
        ({"tau": 0.8, "gradient": "reversible", "max_iter": 40}, "cannot be reversed in float64.* max_iter <= 39"),
        ({"budget": 3, "backward_solver": "gmres"}, "a budget of iterations needs a solver"),
        ({"k": 0}, "k = 0"),
        ({"max_iter": 0}, "max_iter = 0"),
        ({"backward_max_iter": 0}, "backward_max_iter = 0"),
        ({"tol": -1.0}, "tol must be of type float, at least 0, got -1.0"),
        ({"backward_tol": float("nan")}, "backward_tol must be of type float, at least 0, got nan"),
    ],
)
def test_bad_input(problem, options, message):
    with pytest.raises(InputError, match=message):
        loss(*problem, **options)


def test_shapes_and_types_are_checked(problem):
    params, x, z0, _ = problem
    for options in ({"budget": jnp.array([2.5])}, {"tol": "1e-4"}):
        with pytest.raises(TypeCheckError, match=f"parameter '{next(iter(options))}'"):
            equilibrium(layer, params, x, z0, **options)


def test_a_backward_solver_that_does_not_converge_says_so():
    """J = 0.99: 30 products of plain iteration leave a quarter of the gradient; Anderson is exact for one number."""
    x = z = jnp.ones((1, 1))

    def slope(**options):
        layer = lambda a: equilibrium(lambda a, x, z: a * z + x, a, x, z, max_iter=99, **options)[0].sum()  # noqa: E731
        return jax.grad(layer)(0.99)

    with pytest.warns(RuntimeWarning, match=r"stopped at a relative residual of 0.028 .*raise backward_max_iter"):
        rough = slope(backward_solver="fixed_point")
    exact = slope()  # no warning, which would be an error here
    assert 0.2 < float(rough / exact) < 0.3

    probe = functools.partial(adjoint_residual, lambda a, x, z: a * z + x, 0.99, x, z, jnp.ones((1, 1)))
    assert float(probe(backward_solver="fixed_point")[0]) == pytest.approx(0.028, abs=1e-3)
    assert float(probe()[0]) < 1e-4
    assert float(jax.jit(lambda: probe(backward_solver="gmres"))()[0]) < 1e-4
    with pytest.raises(InputError, match="unknown backward solver 'anderso'"):
        probe(backward_solver="anderso")
    with pytest.raises(InputError, match="backward_tol must be of type float"):
        probe(backward_tol=-1.0)
    with pytest.raises(InputError, match="backward_max_iter = 0"):
        probe(backward_solver="gmres", backward_max_iter=0)

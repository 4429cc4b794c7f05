import inspect
import math
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError

from fedlab_lite.deq import SOLVERS, driver, fixed_point, implicit, projection, solvers
from fedlab_lite.deq.solvers import _weights, anderson, broyden
from fedlab_lite.engine import averaging, graphs
from fedlab_lite.util import InputError

every_solver = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)


def symmetric(n, radius, seed=0):
    w = np.random.default_rng(seed).normal(size=(n, n))
    w = w + w.T
    return jnp.asarray(w * radius / np.abs(np.linalg.eigvalsh(w)).max(), jnp.float32)


@pytest.mark.slow
@every_solver
@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), radius=st.floats(0.05, 0.9), nonlinear=st.booleans())
def test_random_contractions_reach_their_true_fixed_point(solver, seed, radius, nonlinear):
    rng = np.random.default_rng(seed)
    with jax.enable_x64():
        w = rng.normal(size=(5, 5))
        w = jnp.asarray(w * radius / np.linalg.norm(w, 2))
        b = jnp.asarray(rng.normal(size=(3, 5)))
        act = jnp.tanh if nonlinear else lambda t: t
        found = solver(lambda z: act(z @ w + b), jnp.zeros((3, 5)), tol=1e-10, max_iter=400)
        if nonlinear:
            truth = jax.lax.fori_loop(0, 400, lambda i, z: jnp.tanh(z @ w + b), jnp.zeros((3, 5)))
        else:
            truth = jnp.linalg.solve(jnp.eye(5) - w.T, b.T).T
        size = jnp.linalg.norm(found.z, axis=1)
        assert jnp.all(found.residual <= 1.1e-10 * size)
        # contraction with factor `radius`: the error is at most residual / (1 - radius)
        assert jnp.all(jnp.linalg.norm(found.z - truth, axis=1) <= 1.1e-9 * size + 1e-12)


@pytest.mark.parametrize("nonlinear", [False, True])
def test_anderson_needs_at_most_half_the_steps_of_plain_iteration_at_radius_0_9(nonlinear):
    w = symmetric(512, 0.9)
    x = jnp.asarray(np.random.default_rng(1).normal(size=(16, 512)), jnp.float32)
    act, scale = (jnp.tanh, 0.1) if nonlinear else (lambda t: t, 1.0)
    plain, mixed = (
        solve(lambda z: act(z @ w + scale * x), jnp.zeros((16, 512)), max_iter=200) for solve in (fixed_point, anderson)
    )
    for found in (plain, mixed):
        assert jnp.all(found.iterations < 200)
    assert mixed.iterations.max() * 2 <= plain.iterations.max()
    assert jnp.all(mixed.iterations * 2 <= plain.iterations)


def test_fixed_point_by_hand():
    # residuals of z <- z / 2 + 1 from 0: 1, 1/2, 1/4, ...; where 1/2 > 0.15 * f(1) = 0.225 and 1/4 <= 0.15 * f(1.5)
    found = fixed_point(lambda z: z / 2 + 1, jnp.zeros((1, 1)), tol=0.15, max_iter=5)
    assert found.trace[:, 0].tolist()[:3] == [1.0, 0.5, 0.25]
    assert jnp.isnan(found.trace[3:]).all()
    assert (found.iterations.item(), found.residual.item(), found.z.item()) == (3, 0.25, 1.5)
    assert found.iterations.dtype == jnp.int32


def test_one_dimensional_anderson_is_the_secant_method():
    # affine f: two evaluations fix the secant, the third confirms it
    found = anderson(lambda z: -3 * z + 4, jnp.full((1, 1), 5.0), tol=1e-3, max_iter=6)
    assert found.iterations.item() == 3
    np.testing.assert_allclose(found.z, 1.0, atol=1e-4)


def test_the_weights_minimise_the_mixed_residual():
    g = np.random.default_rng(0).normal(size=(3, 10)) * np.array([[1.0], [1e-2], [1e-4]])
    w = _weights(jnp.asarray(g @ g.T, jnp.float32)[:, :, None], 1e-6)[:, 0]
    inverse = np.linalg.inv(g @ g.T).sum(1)
    np.testing.assert_allclose(w, inverse / inverse.sum(), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("gram", "want"),
    [
        ([[2.0, 0.0], [0.0, 0.0]], [1.0, 0.0]),  # the second row is still empty
        ([[0.0, 0.0], [0.0, 0.0]], [1.0, 0.0]),  # nothing but zero residuals: a plain step
        ([[1.0, 1.0], [1.0, 1.0]], [0.5, 0.5]),  # a repeated row
        ([[1.0, 1.001], [1.001, 1.0019]], [1.0, 0.0]),  # rounding made it indefinite: the older row is left out
        ([[np.nan, np.nan], [np.nan, 1.0]], [1.0, 0.0]),
    ],
)
def test_the_weights_of_a_singular_history(gram, want):
    np.testing.assert_allclose(_weights(jnp.array(gram)[:, :, None], 1e-6)[:, 0], want, atol=1e-6)


def test_without_a_ridge_a_singular_history_leaves_plain_steps():
    def f(z):
        return 0.5 * z + 1

    options = {"tol": 1e-5, "max_iter": 40}
    mixed, plain = anderson(f, jnp.zeros((1, 1)), ridge=0.0, **options), fixed_point(f, jnp.zeros((1, 1)), **options)
    assert mixed.residual <= plain.residual * (1 + 1e-5)
    assert mixed.iterations <= plain.iterations


def test_anderson_with_one_row_of_history_is_plain_damped_iteration():
    w, x = symmetric(6, 0.8), jnp.ones((2, 6))
    options = {"tol": 1e-6, "max_iter": 40}
    plain = fixed_point(lambda z: z @ w + x, jnp.zeros((2, 6)), **options)
    np.testing.assert_allclose(
        anderson(lambda z: z @ w + x, jnp.zeros((2, 6)), m=1, **options).trace, plain.trace, rtol=1e-3, atol=1e-6
    )
    damped = fixed_point(lambda z: 0.4 * z + 0.6 * (z @ w + x), jnp.zeros((2, 6)), tol=0.0, max_iter=10)
    mixed = anderson(lambda z: z @ w + x, jnp.zeros((2, 6)), m=1, beta=0.6, tol=0.0, max_iter=10)
    np.testing.assert_allclose(mixed.trace * 0.6, damped.trace, rtol=1e-4)


@every_solver
def test_a_sample_stops_by_itself_and_its_result_does_not_depend_on_the_others(solver):
    with jax.enable_x64():  # in single precision the order of a sum may decide the last step
        rate = jnp.array([[0.1], [0.5], [0.95], [jnp.nan]])
        z0 = jnp.asarray(np.random.default_rng(0).normal(size=(4, 4)))
        run = jax.jit(lambda r, z: solver(lambda z: jnp.tanh(r * z[:, ::-1] + 0.3), z, tol=1e-6, max_iter=60))
        together = run(rate, z0)
        assert together.iterations[0] < together.iterations[2]
        for i in range(4):
            alone = run(rate[i : i + 1], z0[i : i + 1])
            assert alone.iterations[0] == together.iterations[i]
            np.testing.assert_allclose(alone.z[0], together.z[i], atol=1e-9)
            np.testing.assert_allclose(alone.residual[0], together.residual[i], atol=1e-9)
            assert jnp.isfinite(together.trace[:, i]).sum() == (0 if i == 3 else together.iterations[i])


@every_solver
def test_the_reported_residual_belongs_to_the_reported_z(solver):
    w, x = symmetric(16, 0.95), jnp.ones((3, 16))

    def f(z):
        return z @ w + x

    found = solver(f, jnp.zeros((3, 16)), tol=0.0, max_iter=12)
    np.testing.assert_allclose(found.residual, jnp.linalg.norm(f(found.z) - found.z, axis=1), rtol=1e-3, atol=1e-6)
    np.testing.assert_array_equal(found.residual, jnp.nanmin(found.trace, axis=0))
    assert found.iterations.tolist() == [12, 12, 12]


@every_solver
def test_a_nan_ends_that_sample_and_spares_the_rest(solver):
    # the first sample's map breaks once z passes 1.2; the other one has its fixed point at 2
    def f(z):
        return jnp.where((z > 1.2) & jnp.array([[True], [False]]), jnp.nan, 0.5 * z + 1)

    found = jax.jit(lambda z: solver(f, z, tol=1e-5, max_iter=1000))(jnp.zeros((2, 2)))
    assert found.iterations[0] <= 4
    assert jnp.isfinite(found.z).all()
    assert found.residual[0] >= 0.4  # of z <= 1.2
    assert jnp.isinf(found.trace[found.iterations[0] - 1, 0])
    np.testing.assert_allclose(found.z[1], 2.0, atol=1e-4)

    never = solver(lambda z: z * jnp.nan, jnp.ones((2, 3)), max_iter=1000)
    assert never.iterations.tolist() == [1, 1]
    assert jnp.isinf(never.residual).all()
    assert never.z.tolist() == [[1.0] * 3] * 2


def test_a_diverging_map_is_given_up_with_its_best_iterate():
    found = fixed_point(lambda z: 2 * z, jnp.ones((1, 4)), max_iter=100_000)
    assert found.iterations.item() == 21  # 2^20 > 1e6
    assert (found.residual.item(), found.z.tolist()) == (2.0, [[1.0] * 4])


@every_solver
def test_a_map_without_a_fixed_point_ends_in_a_reported_residual(solver):
    def f(z):
        return 2 * z * z + 1  # at least 7/8 away from z

    found = solver(f, jnp.ones((2, 4)), max_iter=50)
    assert jnp.isfinite(found.z).all()
    np.testing.assert_allclose(found.residual, jnp.linalg.norm(f(found.z) - found.z, axis=1), rtol=1e-5)
    assert jnp.all(found.residual >= 0.87 * 2)
    assert jnp.all(found.iterations <= 50)


@pytest.mark.parametrize("solver", [anderson, broyden])
def test_a_linear_map_that_expands_is_still_solved(solver):
    found = solver(lambda z: 2 * z - 3, jnp.zeros((2, 4)), tol=1e-5)
    np.testing.assert_allclose(found.z, 3.0, rtol=1e-4)


@every_solver
def test_a_singular_history_does_no_harm(solver):
    constant = solver(lambda z: jnp.full_like(z, 7.0), jnp.zeros((2, 3)), tol=0.0, max_iter=10)
    assert constant.z.tolist() == [[7.0] * 3] * 2
    assert constant.residual.tolist() == [0.0, 0.0]
    assert constant.iterations.tolist() == [2, 2]
    started_there = solver(lambda z: 0.5 * z, jnp.zeros((1, 3)), max_iter=10)
    assert (started_there.iterations.item(), started_there.residual.item()) == (1, 0.0)
    # g is the same at every z: each row of the history repeats the first
    shift = solver(lambda z: z + 1, jnp.zeros((1, 3)), tol=1e-9, max_iter=25)
    assert jnp.isfinite(shift.z).all()
    np.testing.assert_allclose(shift.residual, 3**0.5, rtol=1e-5)


@every_solver
def test_vmap_adds_no_selection_of_the_state(solver):
    """The batched loop has one condition, so JAX has no need to choose between old and new of every array."""

    def solve(shift):
        return solver(lambda z: 0.5 * z + shift, jnp.zeros((3, 4)))

    alone, together = jax.make_jaxpr(solve)(1.0), jax.make_jaxpr(jax.vmap(solve))(jnp.ones(5))
    assert str(together).count("select_n") <= str(alone).count("select_n") + 1  # not one for each of the state's arrays


@every_solver
def test_pytrees_jit_and_vmap_agree_with_the_plain_call(solver):
    w = symmetric(6, 0.7)

    def f(shift):
        def step(z):
            both = jnp.concatenate([z["a"], z["b"].reshape(-1, 4)], axis=1) @ w + shift
            return {"a": both[:, :2], "b": both[:, 2:].reshape(-1, 2, 2)}

        return step

    z0 = {"a": jnp.zeros((3, 2)), "b": jnp.zeros((3, 2, 2))}

    def solve(shift):
        return solver(f(shift), z0, tol=1e-5)

    shifts = jnp.array([0.1, 1.0, -2.0])
    many = jax.jit(jax.vmap(solve))(shifts)
    assert many.z["b"].shape == (3, 3, 2, 2)
    for i, shift in enumerate(shifts):
        one = solve(shift)
        flat = solver(lambda z, s=shift: z @ w + s, jnp.zeros((3, 6)), tol=1e-5)
        np.testing.assert_array_equal(one.iterations, many.iterations[i])
        np.testing.assert_array_equal(one.iterations, flat.iterations)
        np.testing.assert_allclose(one.z["b"], many.z["b"][i], atol=1e-5)
        np.testing.assert_allclose(one.z["a"], flat.z[:, :2], atol=1e-5)


@every_solver
def test_a_budget_ends_each_sample_where_a_smaller_max_iter_would(solver):
    matrix = 0.9 * jnp.linalg.qr(jax.random.normal(jax.random.key(0), (6, 6)))[0]
    z0 = jax.random.normal(jax.random.key(1), (4, 6))

    def solve(budget=None, max_iter=12):
        return solver(lambda z: jnp.tanh(z @ matrix + 1), z0, tol=0.0, max_iter=max_iter, budget=budget)

    budgets = jnp.array([1, 3, 7, 12])
    mixed = jax.jit(solve)(budgets)
    assert mixed.iterations.tolist() == budgets.tolist()
    for sample, budget in enumerate(budgets.tolist()):
        alone = solve(max_iter=budget)
        np.testing.assert_allclose(mixed.z[sample], alone.z[sample], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(mixed.residual[sample], alone.residual[sample], rtol=1e-3, atol=1e-6)
    assert solve(jnp.int32(3)).iterations.tolist() == [3] * 4  # one number for all


@every_solver
def test_a_warm_start_saves_steps(solver):
    w, x = symmetric(32, 0.9), jnp.ones((4, 32))

    def f(z):
        return jnp.tanh(z @ w + 0.1 * x)

    cold = solver(f, jnp.zeros((4, 32)), max_iter=200)
    warm = solver(f, cold.z + 1e-3, max_iter=200)
    again = solver(f, cold.z, max_iter=200)
    assert jnp.all(warm.iterations < cold.iterations)
    assert again.iterations.tolist() == [1] * 4


def test_broyden_survives_a_memory_shorter_than_its_run():
    w = symmetric(64, 0.95)
    x = jnp.asarray(np.random.default_rng(2).normal(size=(4, 64)), jnp.float32)
    found = broyden(lambda z: z @ w + x, jnp.zeros((4, 64)), max_iter=200, memory=4)
    assert jnp.all(found.iterations > 8)
    np.testing.assert_allclose(found.z, jnp.linalg.solve(jnp.eye(64) - w.T, x.T).T, rtol=0.02, atol=0.02)


def test_bad_input():
    z = jnp.zeros((2, 3))
    for solver in SOLVERS.values():
        with pytest.raises(InputError, match="max_iter = 0"):
            solver(lambda z: z, z, max_iter=0)
        with pytest.raises(InputError, match="keep the structure and shapes"):
            solver(lambda z: z[:, :2], z)
        with pytest.raises(InputError, match="share axis 0"):
            solver(lambda z: z, (z, jnp.zeros((3, 3))))
        with pytest.raises(InputError, match="share axis 0"):
            solver(lambda z: z, jnp.float32(0))
        for tol in (-1.0, -1e-9, math.nan, math.inf):
            with pytest.raises(InputError, match="tol must be of type float, at least 0, got"):
                solver(lambda z: z, z, tol=tol)
    with pytest.raises(InputError, match="m = 0"):
        anderson(lambda z: z, z, m=0)
    with pytest.raises(InputError, match="memory = 0"):
        broyden(lambda z: z, z, memory=0)


def test_numpy_arrays_and_plain_numbers_are_taken():
    for z0 in (np.ones((1, 3), np.float32), (np.zeros((1, 2)), [np.ones(1)])):
        found = fixed_point(lambda z: jax.tree.map(lambda leaf: 0.5 * leaf, z), z0, budget=3)
        assert jax.tree.structure(found.z) == jax.tree.structure(z0)
        assert found.iterations.tolist() == [3]


@every_solver
def test_a_budget_that_is_no_whole_number_is_named(solver):
    with pytest.raises(TypeCheckError, match="parameter 'budget'"):
        solver(lambda z: 0.5 * z, jnp.ones((1, 2)), budget=jnp.array([2.5]))


@pytest.mark.parametrize("module", [driver, implicit, projection, solvers, graphs, averaging])
def test_every_public_function_says_what_it_takes_and_is_checked(module):
    functions = inspect.getmembers(module, lambda f: inspect.isfunction(f) and f.__module__ == module.__name__)
    public = [function for name, function in functions if not name.startswith("_")]
    assert public
    for function in public:
        assert hasattr(function, "__wrapped__"), function  # by the checker, in tests
        signature = inspect.signature(function)
        assert signature.return_annotation is not inspect.Signature.empty, function
        assert all(p.annotation is not inspect.Parameter.empty for p in signature.parameters.values()), function


def test_outside_tests_nothing_is_checked():
    code = "import sys; from fedlab_lite.engine import graphs; from fedlab_lite.deq import implicit; "
    code += "assert 'beartype' not in sys.modules and not hasattr(implicit.equilibrium, '__wrapped__')"
    subprocess.run([sys.executable, "-c", code], check=True)

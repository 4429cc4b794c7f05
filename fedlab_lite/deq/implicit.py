r"""The equilibrium layer z* = g(z*; x) of FeDEQ's eq. (1), with seven ways to differentiate it.

With y the gradient of the loss at z* and J = dg/dz at (z*; x), the exact gradient is eq. (10), u^T dg/dtheta where u
solves eq. (9), u = J^T u + y:

    implicit   u by a solver, as exact as its tolerance
    neumann    u = sum_{i<k} (J^T)^i y, the first k terms of that solution
    one_step   u = y, k = 1 of it: Jacobian-free backpropagation (Fung et al. 2022), FeDEQ's choice
    shine      u = -H^T y with Broyden's H for the inverse of J - I, or y where that is too long (Ramzi et al. 2022)
    phantom    k steps from z*, differentiated step by step (Geng et al. 2021)
    unrolled   all steps of plain iteration, differentiated step by step: memory grows with their number
    reversible all steps of a reversible iteration (McCallum et al. 2025), which are undone in the backward pass

'implicit', 'neumann', 'one_step' and 'phantom' follow any solver, 'shine' needs Broyden's method, and the last two have
steps of their own. All but 'unrolled' store one evaluation of g (or k) for the backward pass, for any number of steps.
"""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int, PyTree, Shaped

from fedlab_lite.deq.driver import Inverse, Solution, check_counts, check_tolerances, flatten, norm, unflatten
from fedlab_lite.deq.reversible import reversible
from fedlab_lite.deq.solvers import SOLVERS, check_tau, relaxed
from fedlab_lite.util import InputError, choose

GRADIENTS = ("implicit", "one_step", "phantom", "neumann", "unrolled", "shine", "reversible")
RELAXED = ("phantom", "neumann", "unrolled", "reversible")  # gradients whose steps `tau` relaxes
BACKWARD_SOLVERS = (*SOLVERS, "gmres")
RESTART = 20  # products with J^T between two restarts of GMRES
SAID = 0.01  # relative residual of eq. (9) above which a backward solver that has not converged warns
TOO_LONG = 1.8  # of 'shine': u = y where ||u|| > 1.8 ||y||, the `fallback_mask` of the authors' code (deq2d.py)


def _add(a: PyTree, b: PyTree) -> PyTree:
    return jax.tree.map(jnp.add, a, b)


def _hooked(adjoint: Callable, given: PyTree, z: PyTree) -> PyTree:
    """z with a backward pass that turns its gradient y into u = adjoint(given, y).

    Only z has a custom derivative, not the layer. z = f(params, x, z*) stays an ordinary evaluation, so JAX itself
    passes u on to `params`, `x` and all that `f` closes over. A custom rule for the whole layer could not name these.

    `given` has all arrays that `adjoint` needs. No tracer is closed over, so the backward pass may run after an
    enclosing vmap has ended.
    """

    @jax.custom_vjp
    def hook(given, z):
        return z

    hook.defvjp(lambda given, z: (z, given), lambda given, y: (None, adjoint(given, y)))
    return hook(jax.lax.stop_gradient(given), z)


def _implicit(solver: str, tol: float, max_iter: int, tau: float | None = None) -> Callable:
    """The solution of u = J^T u + y by one of `BACKWARD_SOLVERS`, started at y (the one-step gradient).

    Given are `vjp`, a pytree of what J^T u needs, and the budget.
    """

    def by_iteration(transposed, y, budget):
        options = _options(solver, tau) | {"tol": tol, "max_iter": max_iter, "budget": budget}
        return SOLVERS[solver](lambda u: _add(transposed(u), y), y, **options).z

    def by_gmres(transposed, y, budget):
        restart = min(RESTART, max_iter)
        u, _ = jax.scipy.sparse.linalg.gmres(
            lambda u: jax.tree.map(jnp.subtract, u, transposed(u)),
            y,
            y,
            tol=tol,
            restart=restart,
            maxiter=max_iter // restart,
        )
        return jax.tree.map(lambda u, y: jnp.where(jnp.isfinite(u), u, y), u, y)

    def adjoint(given, y):
        vjp, budget = given
        return (by_gmres if solver == "gmres" else by_iteration)(lambda u: vjp(u)[0], y, budget)

    return adjoint


def _checked(adjoint: Callable, tol: float) -> Callable:
    """The same, but outside compiled programs it warns where u does not solve eq. (9)."""

    def checked(given, y):
        u = adjoint(given, y)
        if not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((given, u))):
            _say(_residual(given[0], y, u), tol)
        return u

    return checked


def _options(solver: str, tau: float | None) -> dict:
    return {"tau": tau} if solver == "fixed_point" else {}


def _neumann(k: int, tau: float | None) -> Callable:
    def adjoint(vjp, y):
        start = y if tau is None else jax.tree.map(lambda y: tau * y, y)
        return jax.lax.fori_loop(0, k - 1, lambda i, u: relaxed(u, _add(vjp(u)[0], y), tau), start)

    return adjoint


def _shine(inverse: Inverse, y: PyTree) -> PyTree:
    """u = -H^T y by the terms of Broyden's method; y for a sample whose u is not finite or too long."""
    flat = flatten(y)
    u = -inverse.transposed(flat)
    fits = norm(u) <= TOO_LONG * norm(flat)
    return unflatten(jnp.where(fits[:, None], u, flat), y)


def _phantom(g: Callable, z_star: PyTree, k: int, tau: float | None) -> PyTree:
    return jax.lax.scan(lambda z, _: (relaxed(z, g(z), tau), None), z_star, length=k)[0]


def _unrolled(g: Callable, z0: PyTree, max_iter: int, tau: float | None) -> tuple[PyTree, Solution]:
    def step(z, _):
        fz = g(z)
        return relaxed(z, fz, tau), norm(jax.lax.stop_gradient(flatten(fz) - flatten(z)))

    before, trace = jax.lax.scan(step, z0, length=max_iter - 1)
    z, last = step(before, None)
    trace = jnp.concatenate([trace, last[None]])
    return z, Solution(before, last, jnp.full(last.shape, max_iter, jnp.int32), trace)


def equilibrium(
    f: Callable,
    params: PyTree,
    x: PyTree,
    z0: PyTree[Shaped[ArrayLike, "..."]],
    *,
    solver: str = "anderson",
    gradient: str = "implicit",
    tol: float = 1e-4,
    max_iter: int = 30,
    budget: Int[ArrayLike, "..."] | None = None,
    backward_solver: str = "anderson",
    backward_tol: float = 1e-4,
    backward_max_iter: int = 30,
    k: int = 5,
    tau: float | None = None,
    keep: tuple[int, ...] = (),
) -> tuple[PyTree[Float[Array, "B ..."]], Solution]:
    r"""An equilibrium layer: z = f(params, x, z*) at the fixed point z* that the solver finds.

    The value is one evaluation after the solver's last one. The gradient with respect to `params` and `x` is that of
    this evaluation, with u of eq. (9), or its approximation, in place of y.

    Args:
      f: `f(params, x, z) -> z`, acting on each sample of axis 0 by itself. What it closes over is differentiated too.
      params, x: pytrees; both receive gradients.
      z0: the solver's start, a pytree of [B, ...] leaves; an earlier z is a warm start. It receives no gradient.
      solver: one of `SOLVERS`; 'broyden' for 'shine'. 'unrolled' and 'reversible' have steps of their own.
      gradient: one of `GRADIENTS`.
      tol, max_iter: of the forward solver; 'unrolled' takes `max_iter` steps. See `backward_tol`.
      budget: most evaluations for these samples in the forward pass, and most products with J^T in the backward pass
        of 'implicit' (FL-DEQ's Sec. IV-A gives both the same number). A number or `[B]`; None: the two `max_iter`.
        It models how fast a device is. It is data of a compiled program.
      backward_solver: of 'implicit', one of `SOLVERS` or 'gmres'. The former treat each sample by itself; GMRES takes
        the batch as one system. A sample whose adjoint is not finite gets the one-step gradient. Outside compiled
        programs a solver that does not converge warns; for compiled ones see `adjoint_residual`.
      backward_tol: of 'implicit', relative residual of eq. (9). The table has the relative error of the whole gradient
        in float32, for DEQ-MLP's cell and 50 samples. B is in the ball of kappa 0.95 (or symmetric, of radius 0.9):

            tol, backward_tol      width 32          width 256
            1e-4, 1e-4 (default)   7e-5 (1.4e-4)     1.0e-4 (1.9e-4)
            1e-3, 1e-4             3.2e-4 (7e-4)     4.8e-4 (1.0e-2)
            1e-5, 1e-5             7e-6              7e-6

        These are medians. One unit that the tolerance leaves on the wrong side of ReLU's kink makes it 1.6e-2.
      backward_max_iter: of 'implicit', the most products with J^T.
      k: number of steps of 'phantom', or of terms of 'neumann'.
      tau: relaxation, z <- (1 - tau) z + tau f(z), of all plain steps: those of 'fixed_point' (forward and backward),
        'phantom', 'neumann', 'unrolled' and 'reversible'. None: 1, of 'reversible' 0.5.
      keep: numbers of evaluations; `Solution.path` has the iterates after them. With `f(params, x, z)` of each, a loss
        can correct the way to the equilibrium too (Bai et al. 2022). Not for 'unrolled'.

    Returns:
      z, like `z0`, and the solver's `Solution` (not differentiable). With 'phantom', z lies k steps past z*.

    Raises:
      InputError: unknown names, names that do not fit together, k or max_iter < 1, a tolerance below 0 or not finite,
        and what the solvers raise. Also a `tau` that nothing would use, and more steps of 'reversible' than the
        precision bears.

    Example:
      >>> layer = lambda a: equilibrium(lambda a, x, z: a * z + x, a, jnp.ones((1, 1)), jnp.zeros((1, 1)))[0].sum()
      >>> value, slope = jax.value_and_grad(layer)(0.5)  # z* = 1 / (1 - a)
      >>> round(float(value), 3), round(float(slope), 3)
      (2.0, 4.0)
    """
    choose("solver", solver, SOLVERS)
    choose("gradient", gradient, GRADIENTS)
    choose("backward solver", backward_solver, BACKWARD_SOLVERS)
    check_counts(k=k, max_iter=max_iter, backward_max_iter=backward_max_iter)
    check_tolerances(tol=tol, backward_tol=backward_tol)
    check_tau(tau)
    if (budget is not None or keep) and gradient == "unrolled":
        raise InputError("gradient='unrolled' has no solver: it takes neither a budget of iterations nor keep")
    if budget is not None and gradient == "implicit" and backward_solver == "gmres":
        raise InputError("a budget of iterations needs a solver that counts them; avoid backward_solver='gmres'")
    if gradient == "shine" and solver != "broyden":
        raise InputError(f"gradient='shine' needs the inverse of solver='broyden', not {solver!r}")
    used = (solver, backward_solver) if gradient == "implicit" else (solver,)
    if tau is not None and gradient not in RELAXED and "fixed_point" not in used:
        raise InputError(
            f"tau = {tau} relaxes 'fixed_point', {', '.join(map(repr, RELAXED))}; none of them is used here"
        )

    z0 = jax.tree.map(lambda leaf: jax.lax.stop_gradient(jnp.asarray(leaf)), z0)
    if gradient == "unrolled":
        z, solution = _unrolled(lambda z: f(params, x, z), z0, max_iter, tau)
        return z, jax.lax.stop_gradient(solution)
    limits: dict[str, Any] = {"tol": tol, "max_iter": max_iter, "budget": budget, "keep": keep}
    if gradient == "reversible":
        return reversible(lambda z: f(params, x, z), z0, tau=tau, **limits)

    def frozen(z):
        return f(*jax.lax.stop_gradient((params, x)), z)

    options = _options(solver, tau) | ({"inverse": True} if gradient == "shine" else {})
    solution = jax.lax.stop_gradient(SOLVERS[solver](frozen, z0, **limits, **options))
    z_star = solution.z
    if gradient == "phantom":
        return _phantom(lambda z: f(params, x, z), z_star, k, tau), solution
    z = f(params, x, z_star)
    if gradient == "one_step":
        return z, solution
    if gradient == "shine":
        return _hooked(_shine, solution.inverse, z), solution._replace(inverse=None)
    vjp = jax.vjp(frozen, z_star)[1]
    if gradient == "neumann":
        return _hooked(_neumann(k, tau), vjp, z), solution
    adjoint = _implicit(backward_solver, backward_tol, backward_max_iter, tau)
    return _hooked(_checked(adjoint, backward_tol), (vjp, budget), z), solution


def adjoint_residual(
    f: Callable,
    params: PyTree,
    x: PyTree,
    z: PyTree,
    y: PyTree,
    *,
    backward_solver: str = "anderson",
    backward_tol: float = 1e-4,
    backward_max_iter: int = 30,
) -> Float[Array, " B"]:
    """The relative residual of eq. (9) that the backward solver leaves, ||J^T u + y - u|| / ||u|| per sample.

    A compiled program cannot warn, so this measures what `equilibrium` would do there. With a spectral radius of J near
    1, plain iteration needs more than the default of 30 products. At 0.99 its gradients were 24 % off, Anderson's 0.15.

    Args:
      f, params, x: as for `equilibrium`.
      z: an equilibrium, `[B, ...]` leaves.
      y: the gradient of the loss at z, or any probe of z's form.

    Example (J = 0.99, 30 products of plain iteration):
      >>> z = y = jnp.ones((1, 1))
      >>> options = {"backward_solver": "fixed_point", "backward_max_iter": 30}
      >>> round(float(adjoint_residual(lambda a, x, z: a * z + x, 0.99, jnp.ones((1, 1)), z, y, **options)[0]), 3)
      0.028
    """
    choose("backward solver", backward_solver, BACKWARD_SOLVERS)
    check_counts(backward_max_iter=backward_max_iter)
    check_tolerances(backward_tol=backward_tol)
    vjp = jax.vjp(lambda z: f(params, x, z), z)[1]
    u = _implicit(backward_solver, backward_tol, backward_max_iter)((vjp, None), y)
    return _residual(vjp, y, u)


def _residual(vjp: Callable, y: PyTree, u: PyTree) -> Float[Array, " B"]:
    u_flat = flatten(u)
    gap = norm(flatten(_add(vjp(u)[0], y)) - u_flat)
    return gap / jnp.maximum(norm(u_flat), jnp.finfo(u_flat.dtype).tiny)


def _say(residual: Float[Array, " B"], tol: float) -> None:
    """Warn of adjoints that are not converged."""
    worst = float(jnp.max(residual, initial=0))
    if worst > max(tol, SAID):
        warnings.warn(
            f"the backward solver of an equilibrium layer stopped at a relative residual of {worst:.2g} (backward_tol "
            f"{tol:g}), so the gradient is not exact; raise backward_max_iter, or use backward_solver='anderson'",
            RuntimeWarning,
            stacklevel=2,
        )

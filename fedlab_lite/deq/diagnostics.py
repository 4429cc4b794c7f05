"""A report on an equilibrium layer: how far each solver gets, and what each gradient costs and how exact it is."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key, PyTree, Shaped

from fedlab_lite.deq.driver import flatten, norm, unflatten
from fedlab_lite.deq.implicit import GRADIENTS, adjoint_residual, equilibrium
from fedlab_lite.deq.regularisers import spectral_radius
from fedlab_lite.deq.reversible import TAU, most_steps
from fedlab_lite.deq.solvers import SOLVERS
from fedlab_lite.util import choose

RUNS = 5  # of which the fastest counts
REFERENCE_ITER = 300  # the most steps of the exact solve


class SolverRow(NamedTuple):
    """A solver on all samples of the layer."""

    solver: str
    iterations: float  # mean over samples
    residual: float  # largest over samples, ||f(z) - z|| / ||f(z)||
    milliseconds: float  # of one solve, compiled


class GradientRow(NamedTuple):
    """The gradient of y . z with respect to `params`, forward and backward pass together."""

    gradient: str
    solver: str
    error: float  # ||gradient - exact|| / ||exact||
    kilobytes: float  # of intermediate arrays, as the compiler plans them
    milliseconds: float


class Report(NamedTuple):
    """The result of `report`.

    Attributes:
      spectral_radius: of df/dz at the equilibrium of each sample, estimated by power iteration.
      exact_residual: what the exact solve left, the largest relative residual of its two systems; errors below it say
        nothing.
      solvers, gradients: rows, of which `pandas.DataFrame(rows)` makes a table.
      traces: by solver, ||f(z) - z|| at each evaluation, the median over samples; NaN after half of them stopped.
    """

    spectral_radius: Float[Array, " B"]
    exact_residual: float
    solvers: tuple[SolverRow, ...]
    gradients: tuple[GradientRow, ...]
    traces: dict[str, np.ndarray]


def report(
    f: Callable,
    params: PyTree,
    x: PyTree,
    z0: PyTree[Shaped[Array, "..."]],
    key: Key[Array, ""],
    *,
    tol: float = 1e-4,
    max_iter: int = 30,
    k: int = 5,
    gradients: Sequence[str] = GRADIENTS,
) -> Report:
    """Measure all solvers and the gradients on one layer and batch, on this machine.

    The gradient is that of y . z for a random y. The exact one is 'implicit' with tolerances near the precision.

    Args:
      f, params, x, z0: as for `equilibrium`; gradients are with respect to `params`.
      key: draws y and the start of the power iteration.
      tol, max_iter: of all forward and backward solvers. 'reversible' takes no more steps than the precision bears.
      k: of 'phantom' and 'neumann'.
      gradients: which of `GRADIENTS`. Each is a program of its own, whose compilation takes most of the time.

    Returns:
      `Report`; `plots.equilibrium_report` draws it.

    Raises:
      InputError: an unknown gradient, and what `equilibrium` raises.

    Example:
      >>> layer = lambda a, x, z: jnp.tanh(a * z + x)
      >>> found = report(layer, 0.5, jnp.ones((1, 2)), jnp.zeros((1, 2)), jax.random.key(0))
      >>> errors = {row.gradient: row.error for row in found.gradients}
      >>> errors["implicit"] < 1e-3 < errors["one_step"]
      True
    """

    def layer(z):
        return f(params, x, z)

    for name in gradients:
        choose("gradient", name, GRADIENTS)
    probe, start = jax.random.split(key)
    y = unflatten(optax.tree.random_like(probe, flatten(z0)), z0)  # drawn flat, which XLA compiles faster
    eps = float(jnp.finfo(flatten(z0).dtype).eps)
    backward: dict[str, Any] = {"backward_tol": 10 * eps, "backward_max_iter": REFERENCE_ITER}
    forward = {"tol": 10 * eps, "max_iter": REFERENCE_ITER}
    limits = {"tol": tol, "max_iter": max_iter}

    def slope(**options):
        def of(params):
            z, found = equilibrium(f, params, x, z0, **options)
            return jnp.sum(flatten(z) * flatten(y)), found.z

        return jax.jit(jax.grad(of, has_aux=True)).lower(params).compile()

    @jax.jit
    def measured(z):
        left = jnp.maximum(_relative(layer, z), adjoint_residual(f, params, x, z, y, **backward))
        return left, spectral_radius(layer, z, start)

    exact, z = slope(**forward, **backward)(params)
    exact = ravel_pytree(exact)[0]
    left, radius = measured(z)

    solvers, traces, relative = [], {}, jax.jit(partial(_relative, layer))
    for name, solver in SOLVERS.items():
        solve = jax.jit(lambda z0, solver=solver: solver(layer, z0, **limits))
        found, seconds = _timed(solve, z0)
        row = float(found.iterations.mean()), float(relative(found.z).max())
        solvers.append(SolverRow(name, *row, 1e3 * seconds))
        traces[name] = _median(np.asarray(found.trace))

    rows = []
    for name in gradients:
        solver = "broyden" if name == "shine" else "anderson"
        options: dict[str, Any] = limits | {"backward_tol": tol, "backward_max_iter": max_iter, "k": k}
        if name == "reversible":
            options["max_iter"] = min(max_iter, most_steps(flatten(z0).dtype, TAU))
        compiled = slope(gradient=name, solver=solver, **options)
        (found, _), seconds = _timed(compiled, params)
        error = jnp.linalg.norm(ravel_pytree(found)[0] - exact) / jnp.linalg.norm(exact)
        planned = compiled.memory_analysis().temp_size_in_bytes
        solver = "its own" if name in ("unrolled", "reversible") else solver
        rows.append(GradientRow(name, solver, float(error), planned / 1e3, 1e3 * seconds))
    return Report(radius, float(left.max()), tuple(solvers), tuple(rows), traces)


def _relative(layer: Callable, z: PyTree) -> Float[Array, " B"]:
    fz = flatten(layer(z))
    return norm(fz - flatten(z)) / norm(fz)


def _median(trace: np.ndarray) -> np.ndarray:
    """The median over samples, of which those that stopped are the smallest; NaN where the median one has stopped."""
    middle = np.sort(np.where(np.isnan(trace), -np.inf, trace), axis=1)[:, trace.shape[1] // 2]
    return np.where(middle == -np.inf, np.nan, middle)


def _timed(run: Callable, given: PyTree) -> tuple[PyTree, float]:
    """The result of `run(given)`, and the seconds of the fastest run after the first."""
    result, taken = jax.block_until_ready(run(given)), []
    for _ in range(RUNS):
        start = time.perf_counter()
        jax.block_until_ready(run(given))
        taken.append(time.perf_counter() - start)
    return result, min(taken)

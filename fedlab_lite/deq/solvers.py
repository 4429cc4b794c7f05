r"""Solvers for fixed points `z = f(z)` of a batch of samples: plain iteration, Anderson acceleration, Broyden's method.

The three share one driver (`fedlab_lite.deq.driver`), one signature and one type of result. Samples lie on axis 0 and
are solved independently. Each stops on its own residual and does not change afterwards, so a result never depends on
the other samples of the batch. All solvers work under `jit`, and under `vmap` over clients and seeds. They are not
meant to be differentiated: `fedlab_lite.deq.implicit` has the gradients.

Sources: Walker & Ni, "Anderson acceleration for fixed-point iterations" (2011); Broyden's "good" update in the
limited-memory form of Bai et al., "Deep equilibrium models" (2019); FeDEQ, Sec. III-B1.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int, PyTree, Shaped

from fedlab_lite.deq.driver import Solution, check, dot, solve


def _mix(weights: Float[Array, "m B"], history: Float[Array, "m B D"]) -> Float[Array, "B D"]:
    """The sum over i of weights[i] history[i], unrolled so that it is one pass over the history."""
    return sum(w[:, None] * h for w, h in zip(weights, history, strict=True))


def fixed_point(
    f: Callable,
    z0: PyTree[Shaped[ArrayLike, "..."]],
    *,
    tol: float = 1e-4,
    max_iter: int = 30,
    budget: Int[ArrayLike, "..."] | None = None,
) -> Solution:
    """Solve z = f(z) by plain iteration z <- f(z).

    Args:
      f: maps a pytree of [B, ...] leaves to one of the same structure and shapes, sample by sample.
      z0: where to start; the fixed point of an earlier step is a warm start.
      tol: a sample stops when ||f(z) - z||_2 <= tol * ||f(z)||_2.
      max_iter: the most evaluations of `f`; the loop always ends there.
      budget: the most evaluations for these samples, 1 to `max_iter`, one number or `[B]`. Unlike `max_iter` it is
        data, so one program serves faster and slower devices (FL-DEQ, Sec. III-C). None: `max_iter`.

    Returns:
      `Solution`; a sample that did not converge, diverged or met a NaN has its best iterate and the residual there.

    Raises:
      InputError: max_iter < 1, tol below 0 or not finite, leaves of `z0` without a common axis 0, or an `f` that
        changes shapes.

    Example:
      >>> found = fixed_point(lambda z: 0.5 * z + 1, jnp.zeros((1, 3)), tol=1e-6)
      >>> found.z.round(3).tolist(), found.iterations.tolist()
      ([[2.0, 2.0, 2.0]], [20])
    """
    check(z0, max_iter, tol)
    return solve(f, z0, lambda z: (), lambda m, step, z, fz, g: (m, fz), tol=tol, max_iter=max_iter, budget=budget)


def _weights(gram: Float[Array, "m m B"], ridge: float) -> Float[Array, "m B"]:
    """Weights that sum to 1 and minimise ||sum_i w_i g_i||^2 + ridge * sum_i w_i^2 ||g_i||^2; gram_ij = g_i . g_j.

    Such weights solve a system of m equations, gram w = 1 up to a factor, one system per sample. L D L^T is Gaussian
    elimination that uses the symmetry. It is written out entry by entry, where each entry is a vector over the
    samples. It takes half the time of `jnp.linalg.solve` for m = 5 and 50 samples.

    Each g_i is first scaled to length one, so the ridge means the same at every stage of convergence. The pivots exceed
    the ridge in exact arithmetic. A row with a smaller pivot repeats earlier rows up to rounding and gets no weight. So
    does a row that is still empty (zeros). Hence the newest row comes first.
    """
    m = gram.shape[0]
    length = jnp.sqrt(jnp.diagonal(gram).T)
    scale = jnp.where(length > 0, 1 / jnp.where(length > 0, length, 1), 0)
    a = [[gram[i, j] * scale[i] * scale[j] for j in range(i)] + [jnp.full_like(length[0], 1 + ridge)] for i in range(m)]
    relative = scale / jnp.maximum(jnp.max(scale, axis=0), jnp.finfo(gram.dtype).tiny)
    b = [relative[i] for i in range(m)]
    lower = {}
    for j in range(m):
        usable = a[j][j] > ridge / 2
        pivot = jnp.where(usable, 1 / jnp.where(usable, a[j][j], 1), 0)
        for i in range(j + 1, m):
            lower[i, j] = a[i][j] * pivot
            b[i] = b[i] - lower[i, j] * b[j]
            for t in range(j + 1, i + 1):
                a[i][t] = a[i][t] - lower[i, j] * a[t][j]
        a[j][j] = pivot
    for j in reversed(range(m)):
        b[j] = b[j] * a[j][j] - sum(lower[i, j] * b[i] for i in range(j + 1, m))
    w = jnp.stack(b) * relative
    w = w / jnp.sum(w, axis=0)
    newest = (jnp.arange(m) == 0)[:, None]  # all weight on it is a plain step
    return jnp.where(jnp.all(jnp.isfinite(w), axis=0), w, newest)


def anderson(
    f: Callable,
    z0: PyTree[Shaped[ArrayLike, "..."]],
    *,
    tol: float = 1e-4,
    max_iter: int = 30,
    budget: Int[ArrayLike, "..."] | None = None,
    m: int = 5,
    beta: float = 1.0,
    ridge: float = 1e-6,
) -> Solution:
    r"""Solve z = f(z) by Anderson acceleration: mix the last m evaluations so that the mixed residual is smallest.

    With g_i = f(z_i) - z_i over the last m iterates,

    .. math::
      \alpha = \arg\min_{\sum \alpha_i = 1} \|\sum_i \alpha_i g_i\|^2, \qquad
      z_{k+1} = \sum_i \alpha_i (z_i + \beta g_i).

    For a linear f it is equivalent to GMRES(m). With m = 1 and beta = 1 it is plain iteration.

    Args:
      f, z0, tol, max_iter, budget: as in `fixed_point`.
      m: number of iterates in the history, at least 1.
      beta: mixing; 1 takes the mixed evaluations themselves.
      ridge: Tikhonov term, relative to each ||g_i||^2.

    Returns:
      `Solution`. Where the weights are not finite, because the history is singular, the step is a plain one.

    Raises:
      InputError: as in `fixed_point`; m < 1.

    Example:
      >>> slow = lambda z: z * jnp.array([0.9, -0.9, 0.5]) + 1
      >>> plain, mixed = (s(slow, jnp.zeros((1, 3)), max_iter=200) for s in (fixed_point, anderson))
      >>> bool(mixed.iterations[0] * 8 < plain.iterations[0])
      True
    """
    check(z0, max_iter, tol, m=m)

    def memory(z):
        history = jnp.zeros((m, *z.shape), z.dtype)
        return history, history, jnp.zeros((m, m, z.shape[0]), z.dtype)

    def update(memory, step, z, fz, g):
        values, residuals, gram = memory
        slot = step % m
        values, residuals = values.at[slot].set(fz), residuals.at[slot].set(g)
        row = dot(residuals, g)  # [m, B]: the only new row of the Gram matrix
        gram = gram.at[slot].set(row).at[:, slot].set(row)
        order = (slot - jnp.arange(m)) % m  # newest first; its own inverse
        w = _weights(gram[order][:, order], ridge)[order]
        mixed = _mix(w, values)
        if beta != 1:
            mixed = mixed - (1 - beta) * _mix(w, residuals)
        return (values, residuals, gram), mixed

    return solve(f, z0, memory, update, tol=tol, max_iter=max_iter, budget=budget)


def broyden(
    f: Callable,
    z0: PyTree[Shaped[ArrayLike, "..."]],
    *,
    tol: float = 1e-4,
    max_iter: int = 30,
    budget: Int[ArrayLike, "..."] | None = None,
    memory: int = 10,
) -> Solution:
    r"""Solve z = f(z) by Broyden's good method on g(z) = f(z) - z.

    The inverse Jacobian is stored as -I plus at most `memory` rank-one terms.

    .. math::
      z_{k+1} = z_k - H_k g_k, \qquad H_{k+1} = H_k + \frac{(\Delta z - H_k \Delta g)\, \Delta z^T H_k}
      {\Delta z^T H_k \Delta g}, \qquad H_0 = -I.

    Args:
      f, z0, tol, max_iter, budget: as in `fixed_point`.
      memory: number of rank-one terms stored, at least 1. When all are used, the method restarts from -I. (With the
        oldest term overwritten instead, the approximation drifts: on a linear map of radius 0.9 it diverges.)

    Returns:
      `Solution`.

    Raises:
      InputError: as in `fixed_point`; memory < 1.

    Example:
      >>> found = broyden(lambda z: jnp.cos(z), jnp.zeros((1, 1)), tol=1e-6)
      >>> round(float(found.z[0, 0]), 4), bool(found.iterations[0] < 10)
      (0.7391, True)
    """
    check(z0, max_iter, tol, memory=memory)

    def start(z):
        terms = jnp.zeros((memory, *z.shape), z.dtype)
        return terms, terms, z, jnp.zeros_like(z)

    def update(state, step, z, fz, g):
        u, v, z_before, g_before = state
        slot = (step - 1) % memory

        def apply(weights, terms, last):  # only the terms since the last restart count
            return _mix(jnp.where(jnp.arange(memory)[:, None] <= last, weights, 0), terms)

        dz, dg = z - z_before, g - g_before
        new_v = apply(dot(u, dz), v, slot - 1) - dz
        gap = dz + dg - apply(dot(v, dg), u, slot - 1)
        along = dot(new_v, dg)
        usable = jnp.abs(along) > 0  # no movement (or the first step): no new term
        new_u = gap * jnp.where(usable, 1 / jnp.where(usable, along, 1), 0)[:, None]
        u, v = u.at[slot].set(new_u), v.at[slot].set(new_v)
        return (u, v, z, g), z + g - apply(dot(v, g), u, slot)

    return solve(f, z0, start, update, tol=tol, max_iter=max_iter, budget=budget)


SOLVERS = {"fixed_point": fixed_point, "anderson": anderson, "broyden": broyden}

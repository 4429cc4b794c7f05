r"""Fixed points `z = f(z)` of a batch of samples: plain iteration, Anderson acceleration, Broyden's method.

The three share one driver, one signature and one result. Samples lie on axis 0 and are solved independently: each stops
on its own residual and is frozen from then on, so that a result never depends on which other samples share its batch.
Everything may be jitted, and vmapped over clients and seeds. Nothing here is meant to be differentiated:
`fedlab_lite.deq.gradients` has the gradients.

Sources: Walker & Ni, "Anderson acceleration for fixed-point iterations" (2011); Broyden's "good" update in the
limited-memory form of Bai et al., "Deep equilibrium models" (2019); FeDEQ, Sec. III-B1.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedlab_lite.errors import InputError

DIVERGED = 1e6  # a sample whose residual grows to this multiple of its best one is given up


class Solution(NamedTuple):
    """What a solver found, for `B` samples.

    Attributes:
      z: the best iterate of each sample (lowest residual), a pytree of [B, ...] leaves like `z0`.
      residual: [B], ||f(z) - z||_2 of exactly that `z`; inf where `f` never gave a finite value.
      iterations: [B] int32, evaluations of `f` that the sample needed.
      trace: [max_iter, B], the residual at each evaluation; inf where it was not finite, NaN after the sample stopped.
    """

    z: Any
    residual: jax.Array
    iterations: jax.Array
    trace: jax.Array


@jax.custom_batching.custom_vmap
def _any(active: jax.Array) -> jax.Array:
    """Whether any sample goes on. Under `vmap` the answer is one for the whole batch: the loop then has one condition
    and its body runs as it stands, where a condition for each would make JAX select every array of the state again.
    """
    return jnp.any(active)


@_any.def_vmap
def _any_of_batch(axis_size: int, batched: list[bool], active: jax.Array):
    return _any(active), False


class _State(NamedTuple):
    step: jax.Array  # evaluations so far
    z: jax.Array  # [B, D]
    best: jax.Array  # [B, D]
    residual: jax.Array  # [B], of `best`
    active: jax.Array  # [B] bool
    iterations: jax.Array  # [B]
    trace: jax.Array  # [max_iter, B]
    memory: Any  # of the method


def _dot(x: jax.Array, y: jax.Array) -> jax.Array:
    """Inner products over the last axis. XLA's CPU reductions are scalar; its matrix products are not."""
    product = jnp.matmul(x[..., None, :], y[..., :, None], precision=jax.lax.Precision.HIGHEST)
    return product[..., 0, 0]


def _mix(weights: jax.Array, history: jax.Array) -> jax.Array:
    """sum_i weights[i] history[i], weights [m, B], history [m, B, D]; unrolled, to be one pass over the history."""
    return sum(w[:, None] * h for w, h in zip(weights, history, strict=True))


def norm(x: jax.Array) -> jax.Array:
    """Euclidean norms over the last axis."""
    return jnp.sqrt(_dot(x, x))


def flatten(tree: Any) -> jax.Array:
    """A pytree of [B, ...] leaves as one [B, D] array (a reshape where there is one leaf)."""
    leaves = [leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(tree)]
    return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves, axis=1)


def _unflatten(flat: jax.Array, like: Any) -> Any:
    leaves, structure = jax.tree.flatten(like)
    parts, start = [], 0
    for leaf in leaves:
        size = leaf.size // max(leaf.shape[0], 1)
        parts.append(flat[:, start : start + size].reshape(leaf.shape).astype(leaf.dtype))
        start += size
    return jax.tree.unflatten(structure, parts)


def _shapes(tree: Any) -> Any:
    return jax.tree.map(jnp.shape, tree)


def _check(z0: Any, max_iter: int, **sizes: int) -> None:
    for name, value in {"max_iter": max_iter, **sizes}.items():
        if value < 1:
            raise InputError(f"{name} = {value}: a solver needs at least 1")
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(z0)]
    if not shapes or any(not s or s[0] != shapes[0][0] for s in shapes):
        raise InputError(f"z0 must be arrays that share axis 0, the samples; their shapes are {shapes}")


def _solve(
    f: Callable,
    z0: Any,
    memory: Callable,
    update: Callable,
    *,
    tol: float,
    relative: bool,
    max_iter: int,
    budget: jax.Array | None,
) -> Solution:
    """The driver: evaluate, judge each sample, keep the best, let the method propose the next iterate.

    `memory(z) -> memory` makes the method's state for z [B, D], `update(memory, step, z, fz, g) -> (memory, next z)`
    its move, where g = f(z) - z. It may produce nonsense for samples that have stopped: they are not moved.
    """
    z0 = jax.tree.map(jnp.asarray, z0)
    flat = flatten(z0)
    samples, eps = flat.shape[0], jnp.finfo(flat.dtype).eps

    def evaluate(z):
        fz = f(_unflatten(z, z0))
        if _shapes(fz) != _shapes(z0):
            raise InputError(f"f must keep the structure and shapes of z: got {_shapes(fz)} from {_shapes(z0)}")
        return flatten(fz).astype(z.dtype)

    def body(s: _State) -> _State:
        fz = evaluate(s.z)
        g = fz - s.z
        r = norm(g)
        r = jnp.where(jnp.isfinite(r), r, jnp.inf)
        converged = r <= (tol * (norm(fz) + eps) if relative else tol)
        failed = jnp.isinf(r) | (r > DIVERGED * s.residual)
        better = s.active & (r < s.residual)
        best = jnp.where(better[:, None], s.z, s.best)
        going = s.active & ~converged & ~failed
        if budget is not None:
            going &= s.step + 1 < budget
        memory, proposed = update(s.memory, s.step, s.z, fz, g)
        return _State(
            step=s.step + 1,
            z=jnp.where(going[:, None], proposed, best),
            best=best,
            residual=jnp.where(better, r, s.residual),
            active=going,
            iterations=s.iterations + s.active,
            trace=s.trace.at[s.step].set(jnp.where(s.active, r, jnp.nan)),
            memory=memory,
        )

    last = jax.lax.while_loop(
        lambda s: (s.step < max_iter) & _any(s.active),
        body,
        _State(
            step=jnp.int32(0),
            z=flat,
            best=flat,
            residual=jnp.full(samples, jnp.inf, flat.dtype),
            active=jnp.ones(samples, bool),
            iterations=jnp.zeros(samples, jnp.int32),
            trace=jnp.full((max_iter, samples), jnp.nan, flat.dtype),
            memory=memory(flat),
        ),
    )
    return Solution(_unflatten(last.best, z0), last.residual, last.iterations, last.trace)


def fixed_point(
    f: Callable,
    z0: Any,
    *,
    tol: float = 1e-4,
    relative: bool = True,
    max_iter: int = 30,
    budget: jax.Array | None = None,
) -> Solution:
    """Plain iteration z <- f(z).

    Args:
      f: maps a pytree of [B, ...] leaves to one of the same structure and shapes, sample by sample.
      z0: where to start; the fixed point of the step before makes a warm start.
      tol: a sample stops when ||f(z) - z||_2 <= tol, or tol * ||f(z)||_2 if `relative`.
      relative: measure the residual against ||f(z)||_2.
      max_iter: evaluations of `f` after which the loop ends in any case.
      budget: evaluations that these samples may have, 1 to `max_iter`, one number or `[B]`; unlike `max_iter` it is
        data, so that one program serves devices of different strength (FL-DEQ, Sec. III-C). None: `max_iter`.

    Returns:
      `Solution`; a sample that did not converge, diverged or met a NaN has its best iterate and that one's residual.

    Raises:
      InputError: max_iter < 1, leaves of `z0` without a common axis 0, or an `f` that changes shapes.

    Example:
      >>> found = fixed_point(lambda z: 0.5 * z + 1, jnp.zeros((1, 3)), tol=1e-6)
      >>> found.z.round(3).tolist(), found.iterations.tolist()
      ([[2.0, 2.0, 2.0]], [20])
    """
    _check(z0, max_iter)
    return _solve(
        f,
        z0,
        lambda z: (),
        lambda memory, step, z, fz, g: (memory, fz),
        tol=tol,
        relative=relative,
        max_iter=max_iter,
        budget=budget,
    )


def _weights(gram: jax.Array, ridge: float) -> jax.Array:
    """Weights [m, B] that sum to 1 and minimise ||sum_i w_i g_i||^2 + ridge * sum_i w_i^2 ||g_i||^2; gram [m, m, B].

    Each g_i is scaled to length one first, so the ridge means the same at every stage of convergence. The system is
    solved by an unrolled L D L^T. Its pivots exceed the ridge in exact arithmetic; a row where rounding left less
    repeats the rows before it and gets no weight, like one that is still empty (zeros). Hence the newest comes first.
    """
    m = gram.shape[0]
    length = jnp.sqrt(jnp.diagonal(gram).T)
    scale = jnp.where(length > 0, 1 / jnp.where(length > 0, length, 1), 0)
    a = [[gram[i, j] * scale[i] * scale[j] for j in range(i)] + [jnp.full_like(length[0], 1 + ridge)] for i in range(m)]
    relative = scale / jnp.maximum(jnp.max(scale, axis=0), jnp.finfo(gram.dtype).tiny)
    b = [relative[i] for i in range(m)]
    lower = [[None] * m for _ in range(m)]
    for j in range(m):
        usable = a[j][j] > ridge / 2
        pivot = jnp.where(usable, 1 / jnp.where(usable, a[j][j], 1), 0)
        for i in range(j + 1, m):
            lower[i][j] = a[i][j] * pivot
            b[i] = b[i] - lower[i][j] * b[j]
            for t in range(j + 1, i + 1):
                a[i][t] = a[i][t] - lower[i][j] * a[t][j]
        a[j][j] = pivot
    for j in reversed(range(m)):
        b[j] = b[j] * a[j][j] - sum(lower[i][j] * b[i] for i in range(j + 1, m))
    w = jnp.stack(b) * relative
    w = w / jnp.sum(w, axis=0)
    newest = (jnp.arange(m) == 0)[:, None]  # alone, it makes a plain step
    return jnp.where(jnp.all(jnp.isfinite(w), axis=0), w, newest)


def anderson(
    f: Callable,
    z0: Any,
    *,
    tol: float = 1e-4,
    relative: bool = True,
    max_iter: int = 30,
    budget: jax.Array | None = None,
    m: int = 5,
    beta: float = 1.0,
    ridge: float = 1e-6,
) -> Solution:
    r"""Anderson acceleration: mix the last m evaluations so that the mixed residual is smallest.

    With g_i = f(z_i) - z_i over the last m iterates,
    \[ \alpha = \arg\min_{\sum \alpha_i = 1} \|\sum_i \alpha_i g_i\|^2, \qquad
       z_{k+1} = \sum_i \alpha_i (z_i + \beta g_i). \]
    On a linear f it does what GMRES(m) does; with m = 1 and beta = 1 it is plain iteration.

    Args:
      f, z0, tol, relative, max_iter, budget: as in `fixed_point`.
      m: iterates in the history, at least 1.
      beta: mixing; 1 takes the mixed evaluations themselves.
      ridge: Tikhonov term, relative to each ||g_i||^2.

    Returns:
      `Solution`. Where the history is singular beyond repair, the step is a plain one.

    Raises:
      InputError: as in `fixed_point`; m < 1.

    Example:
      >>> slow = lambda z: z * jnp.array([0.9, -0.9, 0.5]) + 1
      >>> plain, mixed = (s(slow, jnp.zeros((1, 3)), max_iter=200) for s in (fixed_point, anderson))
      >>> bool(mixed.iterations[0] * 8 < plain.iterations[0])
      True
    """
    _check(z0, max_iter, m=m)

    def memory(z):
        history = jnp.zeros((m, *z.shape), z.dtype)
        return history, history, jnp.zeros((m, m, z.shape[0]), z.dtype)

    def update(memory, step, z, fz, g):
        values, residuals, gram = memory
        slot = step % m
        values, residuals = values.at[slot].set(fz), residuals.at[slot].set(g)
        row = _dot(residuals, g)  # [m, B]: all that is new in the Gram matrix
        gram = gram.at[slot].set(row).at[:, slot].set(row)
        order = (slot - jnp.arange(m)) % m  # newest first; its own inverse
        w = _weights(gram[order][:, order], ridge)[order]
        mixed = _mix(w, values)
        if beta != 1:
            mixed = mixed - (1 - beta) * _mix(w, residuals)
        return (values, residuals, gram), mixed

    return _solve(f, z0, memory, update, tol=tol, relative=relative, max_iter=max_iter, budget=budget)


def broyden(
    f: Callable,
    z0: Any,
    *,
    tol: float = 1e-4,
    relative: bool = True,
    max_iter: int = 30,
    budget: jax.Array | None = None,
    memory: int = 10,
) -> Solution:
    r"""Broyden's good method on g(z) = f(z) - z, its inverse Jacobian kept as -I and at most `memory` rank-one terms.

    \[ z_{k+1} = z_k - H_k g_k, \qquad H_{k+1} = H_k + \frac{(\Delta z - H_k \Delta g)\, \Delta z^T H_k}
       {\Delta z^T H_k \Delta g}, \qquad H_0 = -I. \]

    Args:
      f, z0, tol, relative, max_iter, budget: as in `fixed_point`.
      memory: rank-one terms kept, at least 1; when they are used up the method restarts from -I (overwriting the oldest
        instead lets the approximation drift: on a linear map of radius 0.9 it then diverges).

    Returns:
      `Solution`.

    Raises:
      InputError: as in `fixed_point`; memory < 1.

    Example:
      >>> found = broyden(lambda z: jnp.cos(z), jnp.zeros((1, 1)), tol=1e-6)
      >>> round(float(found.z[0, 0]), 4), bool(found.iterations[0] < 10)
      (0.7391, True)
    """
    _check(z0, max_iter, memory=memory)

    def start(z):
        terms = jnp.zeros((memory, *z.shape), z.dtype)
        return terms, terms, z, jnp.zeros_like(z)

    def update(state, step, z, fz, g):
        u, v, z_before, g_before = state
        slot = (step - 1) % memory

        def apply(weights, terms, last):  # only the terms since the last restart count
            return _mix(jnp.where(jnp.arange(memory)[:, None] <= last, weights, 0), terms)

        dz, dg = z - z_before, g - g_before
        new_v = apply(_dot(u, dz), v, slot - 1) - dz
        gap = dz + dg - apply(_dot(v, dg), u, slot - 1)
        along = _dot(new_v, dg)
        usable = jnp.abs(along) > 0  # no movement (or the first step): no new term
        new_u = gap * jnp.where(usable, 1 / jnp.where(usable, along, 1), 0)[:, None]
        u, v = u.at[slot].set(new_u), v.at[slot].set(new_v)
        return (u, v, z, g), z + g - apply(_dot(v, g), u, slot)

    return _solve(f, z0, start, update, tol=tol, relative=relative, max_iter=max_iter, budget=budget)


SOLVERS = {"fixed_point": fixed_point, "anderson": anderson, "broyden": broyden}

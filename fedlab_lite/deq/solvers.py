r"""Solvers for fixed points `z = f(z)` of a batch of samples: plain iteration, Anderson acceleration, Broyden's method.

The three share one driver (`fedlab_lite.deq.driver`), one signature and one type of result. Samples lie on axis 0 and
are solved independently. Each stops on its own residual and does not change afterwards, so a result never depends on
the other samples of the batch. All solvers work under `jit`, and under `vmap` over clients and seeds. They are not
meant to be differentiated: `fedlab_lite.deq.implicit` has the gradients.

Sources: Walker & Ni, "Anderson acceleration for fixed-point iterations" (2011); Broyden's "good" update in the
limited-memory form of Bai et al., "Deep equilibrium models" (2019); FeDEQ, Sec. III-B1.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int, PyTree, Shaped

from fedlab_lite.deq.driver import Inverse, Solution, State, check, dot, mix, solve
from fedlab_lite.util import InputError


def fixed_point(
    f: Callable,
    z0: PyTree[Shaped[ArrayLike, "..."]],
    *,
    tol: float = 1e-4,
    max_iter: int = 30,
    budget: Int[ArrayLike, "..."] | None = None,
    keep: tuple[int, ...] = (),
    tau: float | None = None,
) -> Solution:
    """Solve z = f(z) by plain iteration z <- f(z), or relaxed: z <- (1 - tau) z + tau f(z) (Krasnoselskij-Mann).

    Args:
      f: maps a pytree of [B, ...] leaves to one of the same structure and shapes, sample by sample.
      z0: where to start; the fixed point of an earlier step is a warm start.
      tol: a sample stops when ||f(z) - z||_2 <= tol * ||f(z)||_2.
      max_iter: the most evaluations of `f`; the loop always ends there.
      budget: the most evaluations for these samples, 1 to `max_iter`, one number or `[B]`. Unlike `max_iter` it is
        data, so one program serves faster and slower devices (FL-DEQ, Sec. III-C). None: `max_iter`.
      keep: numbers of evaluations, each 1 to `max_iter`. `Solution.path` has the iterates after them.
      tau: relaxation, between 0 and 2; None: 1. Eigenvalues of J = df/dz become 1 - tau + tau J's. So tau < 1 solves
        maps whose J has eigenvalues beyond -1, where plain iteration diverges.

    Returns:
      `Solution`; a sample that did not converge, diverged or met a NaN has its best iterate and the residual there.

    Raises:
      InputError: max_iter < 1, tol below 0 or not finite, tau outside (0, 2). Also leaves of `z0` without a common
        axis 0, or an `f` that changes shapes.

    Example:
      >>> found = fixed_point(lambda z: 0.5 * z + 1, jnp.zeros((1, 3)), tol=1e-6)
      >>> found.z.round(3).tolist(), found.iterations.tolist()
      ([[2.0, 2.0, 2.0]], [20])
      >>> fixed_point(lambda z: 4 - 3 * z, jnp.zeros((1, 1)), tau=0.25, keep=(1,)).path.tolist()
      [[[1.0]]]
    """
    check(z0, max_iter, tol, keep)
    check_tau(tau)

    def update(s: State, fz, g):
        return (), relaxed(s.z, fz, tau)

    return solve(f, z0, lambda z: (), update, tol=tol, max_iter=max_iter, budget=budget, keep=keep)[0]


def check_tau(tau: float | None) -> None:
    """Raise `InputError` unless a relaxation lies in (0, 2)."""
    if tau is not None and not 0 < tau < 2:
        raise InputError(f"tau = {tau}: a relaxation lies between 0 and 2; no contraction converges outside")


def relaxed(z: PyTree[Array], fz: PyTree[Array], tau: float | None) -> PyTree[Array]:
    """(1 - tau) z + tau f(z); None: f(z) itself."""
    return fz if tau is None else jax.tree.map(lambda z, fz: z + tau * (fz - z), z, fz)


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
    keep: tuple[int, ...] = (),
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
      f, z0, tol, max_iter, budget, keep: as in `fixed_point`.
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
    check(z0, max_iter, tol, keep, m=m)

    def memory(z):
        history = jnp.zeros((m, *z.shape), z.dtype)
        return history, history, jnp.zeros((m, m, z.shape[0]), z.dtype)

    def update(s: State, fz, g):
        values, residuals, gram = s.memory
        slot = s.step % m
        values, residuals = values.at[slot].set(fz), residuals.at[slot].set(g)
        row = dot(residuals, g)  # [m, B]: the only new row of the Gram matrix
        gram = gram.at[slot].set(row).at[:, slot].set(row)
        order = (slot - jnp.arange(m)) % m  # newest first; its own inverse
        w = _weights(gram[order][:, order], ridge)[order]
        mixed = mix(w, values)
        if beta != 1:
            mixed = mixed - (1 - beta) * mix(w, residuals)
        return (values, residuals, gram), mixed

    return solve(f, z0, memory, update, tol=tol, max_iter=max_iter, budget=budget, keep=keep)[0]


def broyden(
    f: Callable,
    z0: PyTree[Shaped[ArrayLike, "..."]],
    *,
    tol: float = 1e-4,
    max_iter: int = 30,
    budget: Int[ArrayLike, "..."] | None = None,
    keep: tuple[int, ...] = (),
    memory: int = 10,
    inverse: bool = False,
) -> Solution:
    r"""Solve z = f(z) by Broyden's good method on g(z) = f(z) - z.

    The inverse Jacobian is stored as -I plus at most `memory` rank-one terms.

    .. math::
      z_{k+1} = z_k - H_k g_k, \qquad H_{k+1} = H_k + \frac{(\Delta z - H_k \Delta g)\, \Delta z^T H_k}
      {\Delta z^T H_k \Delta g}, \qquad H_0 = -I.

    Args:
      f, z0, tol, max_iter, budget, keep: as in `fixed_point`.
      memory: number of rank-one terms stored, at least 1. When all are used, the method restarts from -I. (With the
        oldest term overwritten instead, the approximation drifts: on a linear map of radius 0.9 it diverges.)
      inverse: whether the `Solution` has the approximation H of the inverse Jacobian where each sample stopped.

    Returns:
      `Solution`; `inverse` has the terms since the last restart.

    Raises:
      InputError: as in `fixed_point`; memory < 1.

    Example:
      >>> found = broyden(lambda z: jnp.cos(z), jnp.zeros((1, 1)), tol=1e-6)
      >>> round(float(found.z[0, 0]), 4), bool(found.iterations[0] < 10)
      (0.7391, True)
      >>> slope = broyden(lambda z: 0.5 * z + 1, jnp.zeros((1, 1)), inverse=True).inverse.transposed(jnp.ones((1, 1)))
      >>> slope.tolist()  # 1 / (0.5 - 1)
      [[-2.0]]
    """
    check(z0, max_iter, tol, keep, memory=memory)

    def start(z):
        terms = jnp.zeros((memory, *z.shape), z.dtype)
        return terms, terms, z, jnp.zeros_like(z)

    def update(s: State, fz, g):
        u, v, z_before, g_before = s.memory
        z, slot = s.z, (s.step - 1) % memory

        dz, dg = z - z_before, g - g_before

        def add(i, sums):  # (H + I)^T dz and (H + I) g, term by term
            of_dz, of_g = sums
            return of_dz + dot(u[i], dz)[:, None] * v[i], of_g + dot(v[i], g)[:, None] * u[i]

        none = jnp.zeros_like(g)  # only the terms since the last restart count; slot is their number
        of_dz, of_g = jax.lax.fori_loop(0, slot, add, (none, none))
        new_v, step = of_dz - dz, g - of_g
        gap = jnp.where(slot == 0, dz + dg, step)  # dz = -H g_before, so dz - H dg = -H g; after a restart H is -I
        along = dot(new_v, dg)
        usable = jnp.abs(along) > 0  # no movement (or the first step): no new term
        new_u = gap * jnp.where(usable, 1 / jnp.where(usable, along, 1), 0)[:, None]
        proposed = z + step - new_u * dot(new_v, g)[:, None]
        if inverse:  # of a sample that has stopped, the terms stay
            new_u, new_v = (jnp.where(s.active[:, None], new, old[slot]) for new, old in ((new_u, u), (new_v, v)))
        return (u.at[slot].set(new_u), v.at[slot].set(new_v), z, g), proposed

    found, (u, v, *_) = solve(f, z0, start, update, tol=tol, max_iter=max_iter, budget=budget, keep=keep)
    if not inverse:
        return found
    last = (found.iterations - 2) % memory  # where a sample's last evaluation wrote
    u = jnp.where((jnp.arange(memory)[:, None] <= last)[:, :, None], u, 0)
    return found._replace(inverse=Inverse(u, v))


SOLVERS: dict[str, Callable[..., Solution]] = {"fixed_point": fixed_point, "anderson": anderson, "broyden": broyden}

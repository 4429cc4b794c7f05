"""Matrices kept inside a ball, so that an equilibrium layer z = phi(B z + u) is a contraction.

Let phi be 1-Lipschitz in each component, as ReLU and tanh are. Let the infinity norm of B be at most kappa < 1, as in
FeDEQ's eq. (4). Then z -> phi(B z + u) is a contraction with factor kappa in the max-norm. A bound on the spectral norm
makes it one in the Euclidean norm. So one equilibrium exists for every u, and plain iteration finds it.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from fedlab_lite.util import InputError

SQUARINGS = 8  # of B^T B, in the bound of its spectral norm


def project_linf(B: Float[ArrayLike, "..."], kappa: float = 0.95, *, axis: int = 1) -> Float[Array, "n m"]:
    r"""The matrix nearest to B (Frobenius norm) whose infinity norm is at most kappa.

    .. math::
      \min_A \tfrac12 \|A - B\|_F^2 \quad \text{s.t.} \quad \|A\|_\infty = \max_i \sum_j |A_{ij}| \le \kappa.

    It consists of one projection onto an l1 ball per row, `A_ij = sign(B_ij) max(|B_ij| - t_i, 0)`. A row inside the
    ball has t_i = 0 and stays bit for bit the same. Newton's method on t_i (Michelot 1986) rises from 0 to the exact
    threshold in a few passes. It replaces the paper's bisection. The sort of `optax.projections.projection_l1_ball`
    gives the same result and takes 25 times as long on a CPU. Row sums equal kappa up to its own rounding, for any size
    of the entries of B. Only forward derivatives exist, because the passes are a loop.

    Eq. (3) computes B z with z a column. A layer that computes `z @ W` has B = W^T: `project_linf(W, axis=0)`.

    Args:
      B: [n, m] matrix; vmap over further axes.
      kappa: radius, in (0, 1).
      axis: the axis to sum over: 1 for B as in the paper, 0 for a kernel stored as [in, out].

    Returns:
      The projection, shaped like B.

    Raises:
      InputError: kappa outside (0, 1), B not a matrix, axis not 0 or 1.

    Example:
      >>> project_linf(jnp.array([[1.0, -0.75], [0.25, 0.125]]), 0.5).tolist()
      [[0.375, -0.125], [0.25, 0.125]]
      >>> W = jnp.array([[1.0, 0.25], [-0.75, 0.125]])
      >>> bool((project_linf(W, 0.5, axis=0) == project_linf(W.T, 0.5).T).all())
      True
    """
    _check_radius(kappa)
    if jnp.ndim(B) != 2 or axis not in (0, 1):
        raise InputError(f"B must be a matrix and axis 0 or 1, got shape {jnp.shape(B)} and axis {axis}")
    size = jnp.abs(B)
    total = jnp.sum(size, axis=axis, keepdims=True)
    largest = jnp.max(size, axis=axis, keepdims=True, initial=0)
    outside = total > kappa
    # In a row with an entry far above kappa, size - t loses all its digits. As t is at least largest - kappa, this
    # amount is subtracted first. Then the row's entries lie between 0 and kappa, and so does its threshold.
    size = jnp.where(largest > kappa, jnp.maximum(kappa - (largest - size), 0), size)

    def newton(state):
        t, _ = state
        kept = size > t
        excess = jnp.sum(jnp.where(kept, size, 0), axis=axis, keepdims=True) - kappa
        new = jnp.where(outside, excess / jnp.maximum(jnp.sum(kept, axis=axis, keepdims=True), 1), 0)
        return jnp.maximum(new, t), jnp.any(new > t)

    start = jnp.where(outside & (largest <= kappa), (total - kappa) / jnp.shape(B)[axis], 0)  # the step if all are kept
    t, _ = jax.lax.while_loop(lambda s: s[1], newton, (start, jnp.any(outside)))
    size = jnp.maximum(size - t, 0)
    left = jnp.where(outside, jnp.sum(size, axis=axis, keepdims=True), kappa)  # rounding of t, once per kept entry
    return jnp.where(outside, jnp.sign(B) * (size * (kappa / left)), B)


def normalise_spectral(B: Float[ArrayLike, "..."], kappa: float = 0.95) -> Float[Array, "n m"]:
    """B, scaled down where its spectral norm may exceed kappa: spectral normalisation (Miyato et al. 2018).

    The norm is taken by `spectral_bound`. A matrix whose bound is at most kappa stays bit for bit the same. The ball is
    convex, so averages of matrices inside stay inside. B and its transpose need no distinction.

    Args:
      B: [n, m] matrix; vmap over further axes.
      kappa: radius, in (0, 1).

    Returns:
      The scaled matrix, shaped like B.

    Raises:
      InputError: kappa outside (0, 1), B not a matrix.

    Example (the norm is 2, and m = 1):
      >>> (10 * normalise_spectral(jnp.array([[1.2], [1.6]]), 0.5)).round().tolist()
      [[3.0], [4.0]]
    """
    _check_radius(kappa)
    if jnp.ndim(B) != 2:
        raise InputError(f"B must be the matrix of a dense layer, got shape {jnp.shape(B)}")
    bound = spectral_bound(jnp.asarray(B))
    return jnp.where(bound <= kappa, B, B * (kappa / jnp.where(bound > 0, bound, 1)))


def spectral_bound(B: Float[Array, "n m"]) -> Float[Array, ""]:
    r"""An upper bound of the spectral norm of B, at most 0.7 % too large up to m = 1024.

    A guarantee needs an upper bound, and power iteration gives a lower one. A singular value decomposition is exact.
    But its threads compete with those of the devices, so it takes longer than a whole local step. Here G = B^T B is
    squared eight times, and all is products of matrices:

    .. math::
      \|B\|_2 \le \|G^{256}\|_F^{1/512} \le m^{1/1024} \, \|B\|_2.

    Example:
      >>> round(float(spectral_bound(jnp.array([[1.2], [1.6]]))), 4)
      2.0
    """
    left, right, log_bound = B.T, B, jnp.zeros((), B.dtype)
    for i in range(SQUARINGS + 1):
        power = jnp.matmul(left, right, precision=jax.lax.Precision.HIGHEST)
        size = jnp.sqrt(jnp.sum(power**2))
        log_bound += jnp.log(size) / 2 ** (i + 1)
        left = right = power / jnp.where(size > 0, size, 1)  # of norm 1 before it is squared
    return jnp.exp(log_bound)


def _check_radius(kappa: float) -> None:
    if not 0 < kappa < 1:
        raise InputError(f"kappa = {kappa}: must lie strictly between 0 and 1 for a contraction")

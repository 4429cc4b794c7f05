"""Diagnostics of an equilibrium map at a point: Jacobian norm, spectral radius and rate of convergence."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray, PyTree

from fedlab_lite.deq.driver import check_counts, flatten, norm


def _normal_like(key: PRNGKeyArray, z: PyTree[Float[ArrayLike, "B ..."]]) -> PyTree[Float[Array, "B ..."]]:
    leaves, structure = jax.tree.flatten(z)
    keys = jax.random.split(key, len(leaves))
    drawn = [jax.random.normal(k, leaf.shape, leaf.dtype) for k, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, drawn)


def jacobian_norm(
    f: Callable, z: PyTree[Float[ArrayLike, "B ..."]], key: PRNGKeyArray, num_probes: int = 8
) -> Float[Array, " B"]:
    r"""Hutchinson's estimate of ||df/dz||_F, per sample: the root of the mean of ||J v||^2 over normal v.

    \[ \|J\|_F^2 = \operatorname{tr} J^T J = \mathrm{E}_{v \sim N(0, I)} \|J v\|_2^2; \]
    the relative standard deviation of the estimate is at most 1 / sqrt(2 num_probes).

    Args:
      f: as in `fedlab_lite.deq.solvers`: maps a pytree of [B, ...] leaves to one of equal shapes, sample by sample.
      z: the point.
      key: draws the probes.
      num_probes: number of products with J.

    Returns:
      [B], one number per sample.

    Raises:
      InputError: num_probes < 1.

    Example:
      >>> jacobian_norm(lambda z: 0.5 * z, jnp.zeros((1, 4)), jax.random.key(0), 4000).round(1).tolist()
      [1.0]
    """
    check_counts(num_probes=num_probes)
    _, product = jax.linearize(f, z)
    squares = jax.lax.map(lambda k: norm(flatten(product(_normal_like(k, z)))) ** 2, jax.random.split(key, num_probes))
    return jnp.sqrt(jnp.mean(squares, axis=0))


def spectral_radius(
    f: Callable, z: PyTree[Float[ArrayLike, "B ..."]], key: PRNGKeyArray, num_iters: int = 50
) -> Float[Array, " B"]:
    r"""The largest |eigenvalue| of df/dz, per sample, by the power method: v <- J v / ||J v||.

    The estimate is the geometric mean of ||J v|| over the second half of the iterations. With a complex pair of
    eigenvalues the single factors oscillate, and the mean removes this. The error falls as 1 / num_iters at worst.

    Args:
      f, z: as in `jacobian_norm`.
      key: draws the first vector.
      num_iters: number of products with J, at least 1.

    Returns:
      [B]; 0 where the power method reaches the zero vector.

    Raises:
      InputError: num_iters < 1.

    Example:
      >>> found = spectral_radius(lambda z: z * jnp.array([0.9, -0.2]), jnp.zeros((1, 2)), jax.random.key(0))
      >>> found.round(4).tolist() == [jnp.float32(0.9)]
      True
    """
    check_counts(num_iters=num_iters)
    _, product = jax.linearize(f, z)

    def scaled(v):
        length = norm(flatten(v))
        inverse = jnp.where(length > 0, 1 / jnp.where(length > 0, length, 1), 0)
        return jax.tree.map(lambda leaf: leaf * inverse.reshape(-1, *[1] * (leaf.ndim - 1)), v), length

    _, lengths = jax.lax.scan(lambda v, _: scaled(product(v)), scaled(_normal_like(key, z))[0], length=num_iters)
    return jnp.exp(jnp.mean(jnp.log(lengths[num_iters // 2 :]), axis=0))


def convergence_rate(trace: Float[Array | np.ndarray, " max_iter *samples"]) -> Float[Array, "*samples"]:
    """The factor by which the residual falls per iteration: the geometric mean over the trace of a `Solution`.

    Args:
      trace: [max_iter, ...] residuals; entries that are not finite (after a sample stopped) are ignored.

    Returns:
      [...]: (last / first)^(1 / (count - 1)); NaN with fewer than two finite residuals, or where the first is 0.

    Example:
      >>> convergence_rate(jnp.array([8.0, 4.0, 2.0, jnp.nan])).item()
      0.5
    """
    finite = jnp.isfinite(trace)
    first_at, last_at = jnp.argmax(finite, axis=0), len(trace) - 1 - jnp.argmax(finite[::-1], axis=0)
    first, last = (jnp.take_along_axis(trace, at[None], axis=0)[0] for at in (first_at, last_at))
    usable = (last_at > first_at) & (first > 0)
    ratio = jnp.where(usable, last / jnp.where(usable, first, 1), jnp.nan)
    return ratio ** (1 / jnp.maximum(last_at - first_at, 1))

"""The minimum of a convex quadratic form over the probability simplex."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def simplex_minimum(
    P: Float[Array, "m m"], allowed: Bool[Array, " m"], *, tol: float = 1e-7, max_steps: int = 5000
) -> Float[Array, " m"]:
    """argmin a'Pa over a >= 0, sum(a) = 1, and a_j = 0 where j is not allowed; zeros where no entry is allowed.

    The method is pairwise Frank-Wolfe. Each step moves weight from the entry with the steepest slope to the entry with
    the least slope. An exact line search gives the amount. It stops when no two slopes differ by more than `tol` times
    P's largest entry.

    Args:
      P: positive semi-definite.

    Example (weights are as the inverse of the variances):
      >>> simplex_minimum(jnp.diag(jnp.array([1.0, 2.0, 2.0])), jnp.ones(3, bool)).round(3).tolist()
      [0.5, 0.25, 0.25]
    """
    P = P.astype(jnp.float32)
    scale = jnp.maximum(jnp.max(jnp.where(allowed, jnp.diag(P), 0)), jnp.finfo(P.dtype).tiny)
    P = P / scale
    start = allowed / jnp.maximum(allowed.sum(), 1)

    def pair(a, slope):
        worst = jnp.argmax(jnp.where(a > 0, slope, -jnp.inf))
        best = jnp.argmin(jnp.where(allowed, slope, jnp.inf))
        return worst, best, slope[worst] - slope[best]

    def unfinished(carry):
        steps, a, slope = carry
        return (steps < max_steps) & allowed.any() & (pair(a, slope)[2] > tol)

    def move(carry):
        steps, a, slope = carry
        worst, best, gain = pair(a, slope)
        curve = P[worst, worst] + P[best, best] - 2 * P[worst, best]
        amount = jnp.clip(gain / jnp.maximum(curve, jnp.finfo(P.dtype).tiny), 0, a[worst])
        a = a.at[worst].add(-amount).at[best].add(amount)
        return steps + 1, a, slope + amount * (P[:, best] - P[:, worst])

    return jax.lax.while_loop(unfinished, move, (0, start, P @ start))[1]

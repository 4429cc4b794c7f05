"""The Jacobian of a layer's map at a point: its Frobenius norm, to be added to a loss, and its spectral radius.

Both need only products with the transposed Jacobian, one evaluation of the map and its derivative each. The map acts on
each sample of axis 0 by itself, so the Jacobian has one block per sample.

Source: Bai, Koltun and Kolter, "Stabilizing Equilibrium Models by Jacobian Regularization" (2021), Sec. 4.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key, PyTree

from fedlab_lite.deq.driver import check_counts, dot, flatten, norm


def jacobian_norm(f: Callable, z: PyTree[Float[Array, "B ..."]], key: Key[Array, ""]) -> Float[Array, " B"]:
    r"""An unbiased estimate of ||J||_F^2 / d per sample, J the Jacobian of f at z and d the number of entries of z.

    Hutchinson's estimator with one Gaussian probe,

    .. math::
      \|\epsilon^T J\|_2^2 / d, \qquad \epsilon \sim N(0, I_d).

    The paper's loss adds gamma times the mean over samples; the division by d is the paper's. As in its code, z is
    constant: the gradient is with respect to all that `f` closes over. The spectral radius is at most the Frobenius
    norm, so a small norm makes the solver's task easy. It guarantees no equilibrium.

    Args:
      f: z -> f(z), keeping structure and shapes.
      z: where to take the Jacobian, usually the equilibrium; a pytree of [B, ...] leaves.
      key: draws the probe.

    Example (J = 3 for one entry per sample, so the mean over many probes is about 9):
      >>> estimate = jacobian_norm(lambda z: 3 * z, jnp.zeros((5000, 1)), jax.random.key(0))
      >>> estimate.shape, bool(abs(estimate.mean() - 9) < 1)
      ((5000,), True)
    """
    fz, vjp = jax.vjp(f, jax.lax.stop_gradient(z))
    product = flatten(vjp(optax.tree.random_like(key, fz))[0])
    return dot(product, product) / product.shape[1]


def spectral_radius(
    f: Callable, z: PyTree[Float[Array, "B ..."]], key: Key[Array, ""], *, steps: int = 50
) -> Float[Array, " B"]:
    """The spectral radius of the Jacobian of f at z, per sample; below 1, plain iteration of f converges near z.

    Power iteration on the transposed Jacobian J^T, which has the eigenvalues of J. The paper's code takes the Rayleigh
    quotient of the last step, which is wrong for a pair of complex eigenvalues. Here the last two directions w and
    J^T w span a plane. The radius is that of J^T restricted to this plane, so a complex pair is found as well.

    It is an estimate. Its error falls with the ratio of the third largest eigenvalue to the largest, to the power of
    `steps`.

    Args:
      f, z: as in `jacobian_norm`.
      key: draws the first direction.
      steps: products with J^T, at least 1; two more follow.

    Raises:
      InputError: steps < 1.

    Example (a rotation by 90 degrees, scaled by 0.8, has the eigenvalues 0.8 i and -0.8 i):
      >>> turn = 0.8 * jnp.array([[0.0, 1.0], [-1.0, 0.0]])
      >>> round(float(spectral_radius(lambda z: z @ turn, jnp.zeros((1, 2)), jax.random.key(0))[0]), 4)
      0.8
    """
    check_counts(steps=steps)
    fz, vjp = jax.vjp(f, z)

    def product(w: PyTree) -> PyTree:
        return vjp(w)[0]

    w = jax.lax.fori_loop(0, steps, lambda _, w: _unit(product(w)), _unit(optax.tree.random_like(key, fz)))
    first = product(w)
    w_flat, first_flat = flatten(w), flatten(first)
    a = dot(w_flat, first_flat)
    rest = jax.tree.map(jnp.subtract, first, _scaled(w, a))
    b = norm(flatten(rest))
    inside = b <= jnp.sqrt(jnp.finfo(b.dtype).eps) * norm(first_flat)  # w is an eigenvector, and the rest is rounding
    across = _scaled(_unit(rest), jnp.where(inside, 0.0, 1.0))
    second = flatten(product(across))
    c, d = dot(w_flat, second), dot(flatten(across), second)
    half, determinant = (a + d) / 2, a * d - b * c  # of [[a, c], [b, d]]
    square = half**2 - determinant
    real = jnp.abs(half) + jnp.sqrt(jnp.maximum(square, 0))
    return jnp.where(square >= 0, real, jnp.sqrt(jnp.maximum(determinant, 0)))


def _scaled(tree: PyTree, factor: Float[Array, " B"]) -> PyTree:
    return jax.tree.map(lambda leaf: leaf * factor.reshape(-1, *(1,) * (leaf.ndim - 1)), tree)


def _unit(tree: PyTree) -> PyTree:
    """Each sample scaled to length one; zeros stay zeros."""
    length = norm(flatten(tree))
    return _scaled(tree, jnp.where(length > 0, 1 / jnp.where(length > 0, length, 1), 0))

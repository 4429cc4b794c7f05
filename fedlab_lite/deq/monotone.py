r"""A dense layer z = relu(W z + u) that has one equilibrium for every u, though W may be large: the monotone layer.

The condition is I - W >= m I with m > 0: the symmetric part of W has no eigenvalue above 1 - m. `monotone` gives all
such W and no others. Plain iteration may diverge on them. The equilibrium is also that of a splitting of monotone
operators, and Peaceman-Rachford's iteration for it converges for every step size. It is a map, so `equilibrium` and
the solvers take it as they take any layer. The implicit function theorem at its fixed point gives the layer's gradient.

Source: Winston and Kolter, "Monotone operator equilibrium networks" (2020).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedlab_lite.deq.projection import spectral_bound
from fedlab_lite.util import InputError

INVERSION_STEPS = 8  # of Newton's iteration in `splitting`


def monotone(A: Float[Array, "..."], B: Float[Array, "..."], m: float = 0.1) -> Float[Array, "n n"]:
    """The matrix W = (1 - m) I - A^T A + B - B^T, for any A and B.

    Args:
      A, B: the parameters that are trained, without a constraint.
      m: above 0; a smaller m allows more matrices, and the solver needs more steps. 0.1 is the default of the paper's
        code for a dense layer.

    Raises:
      InputError: m <= 0, A or B not square matrices of one size. Convolutions have no such parametrisation here.

    Example (the symmetric part has the eigenvalues 0.5 - 1 and 0.5 - 4):
      >>> monotone(jnp.array([[1.0, 0.0], [0.0, 2.0]]), jnp.array([[0.0, 3.0], [0.0, 0.0]]), 0.5).tolist()
      [[-0.5, 3.0], [-3.0, -3.5]]
    """
    if not m > 0:
        raise InputError(f"m = {m}: must be above 0, or the layer may have no equilibrium, or several")
    if A.ndim != 2 or A.shape[0] != A.shape[1] or A.shape != B.shape:
        raise InputError(f"A and B must be square matrices of one size, as of a dense layer; got {A.shape}, {B.shape}")
    return (1 - m) * jnp.eye(len(A), dtype=A.dtype) - A.T @ A + B - B.T


def splitting(W: Float[Array, "n n"]) -> dict:
    """The params of `peaceman_rachford` for the layer of W: a step size, and the inverse of I + step (I - W).

    Any step size converges. Let L be the norm of I - W, by `spectral_bound`. With step = 1 / L an iteration multiplies
    the error by at most sqrt(1 - m / L), the smallest factor that can be guaranteed. Then Newton's iteration for the
    inverse is accurate to float32 after seven steps. All is products of matrices, which suit every device.
    """
    identity = jnp.eye(len(W), dtype=W.dtype)
    step = 1 / jax.lax.stop_gradient(spectral_bound(identity - W))  # z does not depend on it
    matrix = identity + step * (identity - W)

    def newton(_, inverse):
        with jax.default_matmul_precision("highest"):
            return inverse @ (2 * identity - matrix @ inverse)

    start = identity / 4  # ||matrix|| <= 2 and matrix >= I, so ||I - matrix / 4||^2 <= 3 / 4, and each step squares it
    inverse = jax.lax.stop_gradient(jax.lax.fori_loop(0, INVERSION_STEPS, newton, start))
    return {"inverse": newton(0, inverse), "step": step}  # at the inverse V this step has V's derivative, -V dM V


def peaceman_rachford(params: dict, u: Float[Array, "B n"], v: Float[Array, "B n"]) -> Float[Array, "B n"]:
    """One iteration of the splitting; its fixed point v gives the layer's equilibrium z = relu(v).

    A cell for `equilibrium(peaceman_rachford, splitting(W), u, v0)`. Differentiate it with `gradient='implicit'`. The
    other gradients approximate the inverse of I - J by a few terms, and here J reflects, so these terms do not fall.

    Example (z = relu(-3 z + 8) is 2; plain iteration diverges):
      >>> from fedlab_lite.deq import equilibrium
      >>> v, _ = equilibrium(peaceman_rachford, splitting(jnp.array([[-3.0]])), jnp.array([[8.0]]), jnp.zeros((1, 1)))
      >>> round(float(jnp.maximum(v, 0)[0, 0]), 3)
      2.0
    """
    reflected = 2 * jax.nn.relu(v) - v
    return 2 * (reflected + params["step"] * u) @ params["inverse"].T - reflected

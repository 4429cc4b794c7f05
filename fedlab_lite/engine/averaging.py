"""The server's weighted average of what clients send, and the rules for its weights.

FL-DEQ's eq. (14) weights each device by its number of solver iterations. It is "applicable to any federated learning
algorithm": a rule gives the weights, and every algorithm here averages with them.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree, Shaped

from fedlab_lite.engine.devices import combine, per_row
from fedlab_lite.util import InputError, choose

FUSIONS = ("own", "samples", "uniform", "iterations", "iterations_samples")


def fusion_weights(
    fusion: str, size: Shaped[np.ndarray, " clients"], iterations: Shaped[np.ndarray, " given"]
) -> Float[np.ndarray, " clients"] | None:
    """The weight of each client in the average, `[clients]`, up to a common factor.

    Args:
      fusion: 'own': the algorithm's own weights (None is returned); 'samples': n_i; 'uniform'; 'iterations': k_i, eq.
        (14) of FL-DEQ; 'iterations_samples': k_i n_i.
      size: `[clients]`, n_i, training rows.
      iterations: `[clients]`, k_i, solver iterations that a client makes per row.

    Raises: `InputError` for an unknown rule, or iterations that are not at least 1 for every client.

    >>> fusion_weights("iterations", np.array([50, 50, 20]), np.array([3, 10, 10])).tolist()
    [3.0, 10.0, 10.0]
    """
    choose("fusion", fusion, FUSIONS)
    size, iterations = np.asarray(size, np.float32), np.asarray(iterations, np.float32)
    if size.shape != iterations.shape:
        raise InputError(f"{iterations.size} numbers of iterations for {size.size} clients; pass one per client")
    if iterations.size and iterations.min() < 1:
        raise InputError(f"client {int(iterations.argmin())} makes {iterations.min():g} iterations; make it at least 1")
    rules = {"samples": size, "uniform": np.ones_like(size), "iterations": iterations}
    return (rules | {"own": None, "iterations_samples": iterations * size})[fusion]


def average(
    stacked: PyTree, weights: Shaped[Array | np.ndarray, " m"], *, order: Int[Array, " counted"] | None = None
) -> PyTree:
    """The weighted mean sum_i weights_i stacked_i / sum_i weights_i over axis 0: the server's aggregation rule.

    A row of weight 0 is ignored, whatever it holds. Where all weights are 0, the average is 0.

    Args:
      order: the rows that are added up, in this order (see `engine.devices.combine`); None: all, in their present
        order.

    Raises `InputError` for weights that are negative or not finite, unless they are traced by `jit`.

    >>> average({"w": jnp.array([[1.0], [4.0]])}, jnp.array([1, 3]))["w"].tolist()
    [3.25]
    """
    if not isinstance(weights, jax.core.Tracer) and not (np.isfinite(weights).all() and np.min(weights) >= 0):
        raise InputError(f"weights {np.asarray(weights).tolist()} must be finite and not negative")
    counts = weights > 0
    weights = weights / jnp.where(counts.any(), weights.max(), 1)  # equal weights give equal bits, however large
    share = weights if order is None else weights[order]
    share = share / jnp.where(counts.any(), share.sum(), 1)
    rows = jax.tree.map(lambda leaf: jnp.where(per_row(counts, leaf), leaf, 0), stacked)
    return jax.tree.map(lambda leaf: leaf[0], combine(share[None], rows, order=order))

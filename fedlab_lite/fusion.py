"""How the server fuses what clients send: one weighted average, and the rules for its weights.

FL-DEQ's eq. (14) weights a device by the solver iterations it makes. It is "applicable to any federated learning
algorithm": a rule gives the weights, and every algorithm here averages with them.
"""

import jax
import jax.numpy as jnp
import numpy as np

from fedlab_lite.errors import InputError, choose

FUSIONS = ("own", "samples", "uniform", "iterations", "iterations_samples")


def fusion_weights(fusion: str, size: np.ndarray, iterations: np.ndarray) -> np.ndarray | None:
    """What each client counts in the average, `[clients]`, up to a factor.

    Args:
      fusion: 'own': as the algorithm has it (None is returned); 'samples': n_i; 'uniform'; 'iterations': k_i, eq. (14)
        of FL-DEQ; 'iterations_samples': k_i n_i.
      size: `[clients]`, n_i, training rows.
      iterations: `[clients]`, k_i, solver iterations that a client makes for a row.

    Raises: `InputError` for an unknown rule, or iterations that are not at least 1 for every client.

    >>> fusion_weights("iterations", np.array([50, 50, 20]), np.array([3, 10, 10])).tolist()
    [3.0, 10.0, 10.0]
    """
    choose("fusion", fusion, FUSIONS)
    size, iterations = np.asarray(size, np.float32), np.asarray(iterations, np.float32)
    if size.shape != iterations.shape:
        raise InputError(f"{iterations.size} numbers of iterations for {size.size} clients; give one a client")
    if iterations.size and iterations.min() < 1:
        raise InputError(f"client {int(iterations.argmin())} makes {iterations.min():g} iterations; 1 is the least")
    rules = {"samples": size, "uniform": np.ones_like(size), "iterations": iterations}
    return (rules | {"own": None, "iterations_samples": iterations * size})[fusion]


def average(stacked, weights: jax.Array):
    """sum_i weights_i stacked_i / sum_i weights_i over axis 0: the one aggregation rule of the server.

    Raises `InputError` for weights that are negative or sum to 0, unless they are traced by `jit`.

    >>> average({"w": jnp.array([[1.0], [4.0]])}, jnp.array([1, 3]))["w"].tolist()
    [3.25]
    """
    if not isinstance(weights, jax.core.Tracer) and not (np.min(weights) >= 0 and np.sum(weights) > 0):
        raise InputError(f"weights {np.asarray(weights).tolist()} must not be negative, nor all 0")
    weights = weights / weights.max()  # so that equal weights give equal bits, however large they are
    weights = weights / weights.sum()
    return jax.tree.map(lambda leaf: jnp.tensordot(weights.astype(leaf.dtype), leaf, axes=1), stacked)

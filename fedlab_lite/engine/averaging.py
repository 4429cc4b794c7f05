"""Averages over clients: the server's weighted average, the rules for its weights, and mixing by a matrix.

FL-DEQ's eq. (14) weights each device by its number of solver iterations. It is "applicable to any federated learning
algorithm": a rule gives the weights, and every algorithm here averages with them.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Inexact, Int, Integer, PyTree, Shaped

from fedlab_lite.engine.devices import Sparse, combine, everywhere, per_row
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
    weights = everywhere(jnp.asarray(weights))  # a sum over devices would round in another order
    counts = weights > 0
    weights = weights / jnp.where(counts.any(), weights.max(), 1)  # equal weights give equal bits, however large
    share = weights if order is None else weights[order]
    share = jnp.asarray(share / jnp.where(counts.any(), share.sum(), 1))
    rows = jax.tree.map(lambda leaf: jnp.where(per_row(counts, leaf), leaf, 0), stacked)
    return jax.tree.map(lambda leaf: leaf[0], combine(share[None], rows, order=order))


def mix(
    matrix: Shaped[ArrayLike, "..."] | Sequence,
    stacked: PyTree[Shaped[ArrayLike, "..."]],
    neighbours: Integer[Array | np.ndarray, "N K"] | None = None,
) -> PyTree[Inexact[Array, "N ..."]]:
    """Mix stacked values: client i receives sum_j matrix[i, j] * stacked_j, for every leaf `[N, ...]` of a pytree.

    Floats keep their type and integers become floats. Products and sums are computed in float32 or better.

    Args:
      matrix: `[N, N]`, for example `Graph.metropolis` or `Graph.neighbour_mean`; see `check_mixing`.
      neighbours: `Graph.neighbours`, where the matrix has no other entries than theirs and its diagonal. Then the cost
        grows with the number of edges. None: every entry counts.

    Raises `InputError` where a leaf is not stacked over as many clients as the matrix has columns.

    >>> from fedlab_lite.engine import make_graph
    >>> mix(make_graph("star", 3).neighbour_mean, {"w": np.array([0.0, 2.0, 4.0])})["w"].tolist()
    [3.0, 0.0, 0.0]
    """
    matrix, stacked = jnp.asarray(matrix), jax.tree.map(jnp.asarray, stacked)
    for leaf in jax.tree.leaves(stacked):
        if leaf.shape[:1] != matrix.shape[1:]:
            raise InputError(f"a matrix {matrix.shape} cannot mix an array {leaf.shape}; stack clients on its axis 0")
    if neighbours is not None:
        columns = jnp.concatenate([jnp.arange(len(matrix))[:, None], neighbours], axis=1)
        matrix = Sparse(columns, jnp.take_along_axis(matrix, columns, axis=1, mode="fill", fill_value=0))
    return combine(matrix, stacked, spread=True)


def check_mixing(matrix: Shaped[ArrayLike, "..."] | Sequence, *, doubly: bool = False) -> None:
    """Raise `InputError` unless `matrix` is square, finite and non-negative, with rows that sum to 1 within 1e-5.

    `doubly`: its columns as well (Assumption 1 of DePRL), so that mixing keeps the mean of all clients.

    >>> check_mixing([[0.5, 0.5], [0.5, 0.6]])
    Traceback (most recent call last):
    fedlab_lite.util.errors.InputError: row 1 of the mixing matrix sums to 1.1; divide each row by its sum
    """
    matrix = np.asarray(matrix, float)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        raise InputError(f"a mixing matrix has the shape (clients, clients); this one has {matrix.shape}")
    for row, weights in enumerate(matrix):
        said = f"row {row} of the mixing matrix sums to {weights.sum():.6g}"
        if not np.isfinite(weights).all():
            raise InputError(f"{said}: it has a NaN or an infinity, as D^-1 A has for a client without neighbours")
        if weights.min() < 0:
            raise InputError(f"{said} and has the weight {weights.min():.6g}; weights must be 0 or more")
        if abs(weights.sum() - 1) > 1e-5:
            raise InputError(f"{said}; divide each row by its sum")
    columns = matrix.sum(0)
    if doubly and abs(columns - 1).max() > 1e-5:
        worst = int(abs(columns - 1).argmax())
        raise InputError(
            f"the mixing matrix is not doubly stochastic: column {worst} sums to {columns[worst]:.6g}, so client "
            f"{worst} would count for more or less than its share; use Metropolis weights (`Graph.metropolis`)"
        )


def spectral_gap(matrix: Shaped[ArrayLike, "..."] | Sequence) -> float:
    """The spectral gap of a mixing matrix `[N, N]`: `1 - the second largest |eigenvalue|`.

    A gap of 0 never reaches consensus; a gap of 1 reaches it in one round. The disagreement of the clients shrinks like
    (1 - gap)^rounds. D^-1 A has the gap 0 on a bipartite graph, where its least eigenvalue is -1. Exact to about 1e-6.
    Raises `InputError` as `check_mixing` does.

    >>> from fedlab_lite.engine import make_graph
    >>> [round(spectral_gap(make_graph("complete", n).neighbour_mean), 4) for n in (2, 5)]
    [0.0, 0.75]
    """
    check_mixing(matrix)
    matrix = np.asarray(matrix, float)
    # A matrix diag(s) K with K symmetric, such as D^-1 A with any diagonal, has the eigenvalues of the symmetric
    # sqrt(M_ij M_ji). They are found ten times faster.
    others = matrix * (1 - np.eye(len(matrix)))
    others /= np.maximum(others.max(1, keepdims=True), 1e-30)
    if np.array_equal(matrix, matrix.T) or np.allclose(others, others.T):
        eigenvalues = np.linalg.eigvalsh(np.sqrt(matrix * matrix.T))
    else:
        eigenvalues = np.linalg.eigvals(matrix)
    return max(0.0, 1 - float(np.sort(abs(eigenvalues))[:-1].max(initial=0)))

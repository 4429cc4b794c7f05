"""Mixing: the product of a matrix over clients with what they hold, checks of such matrices, and their spectral gap."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Inexact, Integer, PyTree, Shaped

from fedlab_lite.engine.devices import Sparse, combine
from fedlab_lite.util import InputError


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
    """The spectral gap of a mixing matrix `[N, N]`: 1 - the second largest |eigenvalue|.

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

"""The edges of a graph of clients, read from what users have: pairs, an adjacency matrix, or a networkx graph."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from jaxtyping import Integer

from fedlab_lite.util import InputError


def edges_of(graph: Any, num_clients: int) -> Integer[np.ndarray, "edges 2"]:
    """The edges as pairs of clients `[edges, 2]`; see `Graph.from_edges`. Raises `InputError`."""
    if hasattr(graph, "edges") and hasattr(graph, "nodes"):
        return _of_networkx(graph, num_clients)
    edges = graph if isinstance(graph, np.ndarray) else list(graph)
    if not len(edges):
        return np.zeros((0, 2), int)
    try:
        array = np.asarray(edges)
    except ValueError:  # ragged
        array = np.zeros(0)
    whole = np.issubdtype(array.dtype, np.integer)
    if array.shape == (num_clients, num_clients) and (num_clients > 2 or not whole):
        return _of_matrix(array)  # two pairs of two clients are pairs: as a matrix they would say the same
    if array.ndim != 2 or array.shape[1] != 2 or not whole:
        raise InputError(
            f"edges must be pairs of client numbers such as (0, 1), or a matrix [{num_clients}, {num_clients}] of 0 "
            f"and 1, but the first edge is {edges[0]!r}"
        )
    return array


def _of_matrix(matrix: np.ndarray) -> Integer[np.ndarray, "edges 2"]:
    if matrix.dtype != bool and not np.isin(matrix, (0, 1)).all():
        wrong = matrix[~np.isin(matrix, (0, 1))][0]
        raise InputError(
            f"an adjacency matrix has 0 and 1 alone, but this one has {wrong}; a graph has no weights here: those of "
            "mixing follow from its degrees (see `Graph.metropolis`)"
        )
    if (matrix != matrix.T).any():
        a, b = np.argwhere(matrix != matrix.T)[0]
        raise InputError(
            f"the adjacency matrix is not symmetric: it has {matrix[a, b]:g} at [{a}, {b}] and {matrix[b, a]:g} at "
            f"[{b}, {a}]; edges have no direction here, so use matrix | matrix.T if both mean one edge"
        )
    return np.argwhere(np.triu(matrix))


def _of_networkx(graph: Any, num_clients: int) -> Integer[np.ndarray, "edges 2"]:
    for a, b, weight in graph.edges(data="weight", default=1):
        if weight != 1:
            raise InputError(
                f"the edge from {a!r} to {b!r} has the weight {weight!r}, but a graph has no weights here: those of "
                "mixing follow from its degrees (see `Graph.metropolis`); remove the attribute 'weight'"
            )
    nodes = list(graph.nodes)
    if all(isinstance(node, int | np.integer) for node in nodes):
        return edges_of([tuple(edge[:2]) for edge in graph.edges()], num_clients)
    if len(nodes) != num_clients:
        raise InputError(f"the graph has {len(nodes)} nodes, but there are {num_clients} clients; they must agree")
    number = {node: client for client, node in enumerate(nodes)}
    pairs: Iterable = ((number[a], number[b]) for a, b, *_ in graph.edges())
    return edges_of(list(pairs), num_clients)

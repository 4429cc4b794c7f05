"""Graphs of clients without a server, and their mixing matrices.

Each graph has three mixing matrices:

- `neighbour_mean` (D^-1 A, without the client itself) is M_i of FedF-ADMM.
- `metropolis` is doubly stochastic (Assumption 1 of DePRL), so it keeps the mean of all clients.
- `uniform` is the matrix of DePRL's and DisPFL's codes.

networkx is imported where it is used.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Integer, Shaped

from fedlab_lite.engine.edges import edges_of
from fedlab_lite.engine.shown import draw_graph
from fedlab_lite.util import InputError, choose
from fedlab_lite.util.fields import Count, Probability, Seed, checks_arguments
from fedlab_lite.util.memory import check_memory

GRAPHS = ("ring", "star", "random", "complete")
MAX_DRAWS = 10_000  # draws of a random graph until one is connected

Matrix = Float[Array | np.ndarray, "N N"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Graph:
    """A connected, undirected graph of clients 0 ... N-1; a pytree, so it passes through `jit` as an argument.

    `make_graph` and `Graph.from_edges` make and check a graph; the constructor does not check. All results are NumPy's
    where the adjacency is. Inside `jit` all but `num_edges`, `incidence` and `draw` work.

    Example:
      >>> star = Graph.from_edges([(0, 1), (0, 2), (0, 3)], 4, name="star")
      >>> star.num_clients, star.num_edges, star.degree.tolist()
      (4, 3, [3.0, 1.0, 1.0, 1.0])
      >>> star.metropolis[0].tolist(), star.neighbour_mean[1].tolist()
      ([0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0])
    """

    # float32, 0 or 1; symmetric, zeros on the diagonal. `Any`, because JAX also rebuilds pytrees from placeholders.
    adjacency: Matrix | Any
    name: str = field(metadata={"static": True})
    # [N, K] int32, each client's neighbours, filled up with N; None: a dense product is as fast
    neighbours: Any = None

    @classmethod
    def from_edges(cls, edges: Any, num_clients: int, *, name: str = "custom") -> "Graph":
        """A graph from pairs of clients, an adjacency matrix, or a networkx graph.

        Direction and repetition do not count: (0, 1), (1, 0) and both of them are one edge. Nodes of networkx that are
        not whole numbers (words, pairs) become clients 0 ... N-1 in the order of `graph.nodes`.

        Args:
          edges: an iterable of pairs of integers, an array `[edges, 2]`, a symmetric matrix `[N, N]` of 0 and 1, or a
            networkx graph.

        Raises `InputError` for fewer than two clients, for edges that are not pairs of integers, for clients outside 0
        ... N-1, for self-loops, for weights, and for a graph that is not connected; the message names a client that is
        not reached.

        >>> Graph.from_edges([[0, 1, 0], [1, 0, 1], [0, 1, 0]], 3).degree.tolist()
        [1.0, 2.0, 1.0]
        """
        _check_num_clients(num_clients)
        pairs = edges_of(edges, num_clients)
        outside = (pairs < 0) | (pairs >= num_clients)
        if outside.any():
            raise InputError(
                f"an edge has client {pairs[outside][0]}, but {num_clients} clients are numbered 0 to {num_clients - 1}"
            )
        loops = pairs[pairs[:, 0] == pairs[:, 1], 0]
        if loops.size:
            raise InputError(f"an edge joins client {loops[0]} to itself; leave it out: mixing matrices do not need it")
        adjacency = _adjacency(pairs, num_clients)
        unreached = np.flatnonzero(~_reached(adjacency))
        if unreached.size:
            raise InputError(
                f"the graph is not connected: no path leads from client 0 to client {unreached[0]} "
                f"({unreached.size} of {num_clients} cannot be reached); add edges that join the parts"
            )
        return cls(adjacency, name, _neighbours(adjacency))

    @property
    def num_clients(self) -> int:
        return self.adjacency.shape[0]

    @property
    def num_edges(self) -> int:
        """The number of undirected edges."""
        return int(np.count_nonzero(self.adjacency)) // 2

    @property
    def degree(self) -> Float[Array | np.ndarray, " N"]:
        """The number of neighbours of each client, n_i of FedF-ADMM (Sec. III)."""
        return self.adjacency.sum(1)

    @property
    def neighbour_mean(self) -> Matrix:
        """The matrix D^-1 A, M_i of FedF-ADMM: the mean of the neighbours' values, without the client's own.

        Its rows sum to one; its columns do so only where all degrees are equal. On a bipartite graph (a star, a ring of
        an even number) mixing with it alone oscillates and reaches no consensus.
        """
        return self.adjacency / self.degree[:, None]

    @property
    def metropolis(self) -> Matrix:
        """The Metropolis-Hastings weights: W_ij = 1 / (1 + max(n_i, n_j)) for neighbours, W_ii the remainder.

        They are symmetric and doubly stochastic on every graph. So mixing keeps the mean and converges to it (Xiao,
        Boyd and Lall 2006). They are a consensus matrix P as DePRL's Assumption 1 requires.
        """
        xp = self.adjacency.__array_namespace__()
        others = self.adjacency / (1 + xp.maximum(self.degree[:, None], self.degree))
        return others + xp.diag(1 - others.sum(1))

    @property
    def uniform(self) -> Matrix:
        """The matrix (D + I)^-1 (A + I): the plain mean of a client and its neighbours.

        Where all degrees are equal, it is doubly stochastic and the same as `metropolis`. Elsewhere only its rows sum
        to one, against Assumption 1 of DePRL, and well-connected clients count for more.
        """
        xp = self.adjacency.__array_namespace__()
        return (self.adjacency + xp.eye(self.num_clients, dtype=self.adjacency.dtype)) / (1 + self.degree[:, None])

    @property
    def incidence(self) -> Float[np.ndarray, "N directed_edges"]:
        """The incidence matrix B `[N, 2 edges]` of FedF-ADMM (Sec. III).

        It is made by "treating each undirected edge as two oppositely oriented directed edges". The column of edge (s,
        e) has 1 at s and -1 at e, so that (B^T x) there is x_s - x_e.

        Then L = B B^T / 2. The columns are sorted by (s, e). Dense: 4 N 2 edges bytes.
        """
        start, end = np.nonzero(self.adjacency)
        unit = np.eye(self.num_clients, dtype=np.float32)
        return unit[:, start] - unit[:, end]

    @property
    def laplacian(self) -> Matrix:
        """The Laplacian L = D - A; L x = 0 exactly where all clients have the same value."""
        return self.adjacency.__array_namespace__().diag(self.degree) - self.adjacency

    def draw(self, ax=None, values: Shaped[ArrayLike, "..."] | Sequence[float] | None = None):
        """Draw the clients on a circle, counter-clockwise from the right, with their numbers.

        Args:
          ax: matplotlib axes; new ones if none are given.
          values: `[N]`, one number per client, shown by its colour (a colour bar takes `ax.collections[0]`).

        Returns: the axes. Raises `InputError` unless there is one value per client.
        """
        return draw_graph(self.adjacency, ax, values)


@checks_arguments
def make_graph(
    kind: str,
    num_clients: Count,
    *,
    num_edges: Count | None = None,
    edge_probability: Probability | None = None,
    seed: Seed = 0,
) -> Graph:
    """Make one of `GRAPHS` over clients 0 ... N-1.

    - ring: joins client i and i+1, and the last and the first; two clients have one edge.
    - star: joins client 0, the centre, to each other client.
    - complete: joins every pair of clients.
    - random: exactly `num_edges` edges, by default as many as the ring has (FedF-ADMM, Sec. VI-F and Fig. 15). A
      spanning tree is drawn uniformly from all N^(N-2) (a random Prüfer sequence), then further edges uniformly from
      the rest. So the graph is always connected. Drawing all edges until they connect would take very long on sparse
      graphs.
      The price: the probability of a graph grows with its number of spanning trees, so it is not quite uniform.
    - random with an `edge_probability` p: Erdős and Rényi's G(N, p), each edge drawn independently, drawn again until
      the graph is connected. DePRL's code takes p = 0.25 and does not check (4 clients: connected with probability
      0.14).

    Args:
      num_edges: of the random graph, N - 1 to N (N - 1) / 2.
      edge_probability: p in (0, 1], in place of `num_edges`.
      seed: of the random graph.

    Raises `InputError` for an unknown kind, fewer than two clients, an impossible number of edges, or where none of
    `MAX_DRAWS` draws is connected.

    >>> make_graph("ring", 4).neighbour_mean[0].tolist()
    [0.0, 0.5, 0.0, 0.5]
    >>> make_graph("random", 10, num_edges=12, seed=1).num_edges
    12
    """
    choose("graph", kind, GRAPHS)
    _check_num_clients(num_clients)
    for option, value in (("num_edges", num_edges), ("edge_probability", edge_probability)):
        if value is not None and kind != "random":
            raise InputError(f"{option} is {value}, but only a random graph uses it; leave it out for {kind!r}")
    if num_edges is not None and edge_probability is not None:
        raise InputError("a random graph uses num_edges or edge_probability, not both; leave one out")
    clients = np.arange(num_clients)
    if kind == "ring":
        pairs = np.stack([clients, np.roll(clients, -1)], 1)
    elif kind == "star":
        pairs = np.stack([np.zeros_like(clients[1:]), clients[1:]], 1)
    elif kind == "complete":
        pairs = np.stack(np.triu_indices(num_clients, 1), 1)
    elif edge_probability is not None:
        pairs = _independent_pairs(num_clients, edge_probability, np.random.default_rng(seed))
    else:
        pairs = _random_pairs(num_clients, num_edges, np.random.default_rng(seed))
    return Graph.from_edges(pairs, num_clients, name=kind)


def _check_num_clients(num_clients: int) -> None:
    if num_clients < 2:
        raise InputError(f"num_clients is {num_clients}; a graph needs at least two clients")
    check_memory(f"a graph of {num_clients:,} clients", 20 * num_clients**2, "use fewer clients")


def _adjacency(pairs: Integer[np.ndarray, "edges 2"], num_clients: int) -> Float[np.ndarray, "N N"]:
    adjacency = np.zeros((num_clients, num_clients), np.float32)
    adjacency[pairs[:, 0], pairs[:, 1]] = adjacency[pairs[:, 1], pairs[:, 0]] = 1
    return adjacency


def _reached(adjacency: Float[np.ndarray, "N N"]) -> Bool[np.ndarray, " N"]:
    """Which clients a path joins to client 0."""
    reached = frontier = np.arange(len(adjacency)) == 0
    while frontier.any():
        frontier = adjacency[frontier].any(0) & ~reached
        reached = reached | frontier
    return reached


def _neighbours(adjacency: Float[np.ndarray, "N N"]) -> Integer[np.ndarray, "N K"] | None:
    """Each client's neighbours in a row, filled up with N.

    None if that takes more than a tenth of the matrix.
    """
    n, most = len(adjacency), int(adjacency.sum(1).max())
    if (most + 1) * 10 > n:
        return None
    found = np.full((n, most), n, np.int32)
    client, neighbour = np.nonzero(adjacency)
    place = np.arange(len(client)) - np.searchsorted(client, client)
    found[client, place] = neighbour
    return found


def _independent_pairs(num_clients: int, probability: float, rng: np.random.Generator) -> Integer[np.ndarray, "e 2"]:
    pairs = np.stack(np.triu_indices(num_clients, 1), 1)
    for _ in range(MAX_DRAWS):
        drawn = pairs[rng.random(len(pairs)) < probability]
        if _reached(_adjacency(drawn, num_clients)).all():
            return drawn
    raise InputError(
        f"none of {MAX_DRAWS} random graphs of {num_clients} clients with edge_probability {probability} is connected; "
        f"raise it (above log(N) / N = {np.log(num_clients) / num_clients:.2g}), or set num_edges instead"
    )


def _random_pairs(num_clients: int, num_edges: int | None, rng: np.random.Generator) -> Integer[np.ndarray, "edges 2"]:
    import networkx

    least, most = num_clients - 1, num_clients * (num_clients - 1) // 2
    num_edges = min(num_clients, most) if num_edges is None else num_edges  # by default as many as a ring
    if num_edges < least:
        raise InputError(f"{num_clients} clients with {num_edges} edges cannot be connected; use {least} or more")
    if num_edges > most:
        raise InputError(f"{num_clients} clients have at most {most} edges, not {num_edges}; use no more than those")
    tree = networkx.from_prufer_sequence(rng.integers(num_clients, size=num_clients - 2).tolist())
    free = np.argwhere(np.triu(networkx.to_numpy_array(tree, nodelist=range(num_clients)) == 0, 1))
    return np.concatenate([np.array(tree.edges), rng.choice(free, num_edges - least, replace=False)])

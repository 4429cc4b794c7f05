"""Graphs of clients without a server: their mixing matrices, and mixing.

Each graph has three mixing matrices:

- `neighbour_mean` (D^-1 A, without the client itself) is M_i of FedF-ADMM.
- `metropolis` is doubly stochastic (Assumption 1 of DePRL), so it keeps the mean of all clients.
- `uniform` is the matrix of DePRL's and DisPFL's codes.

networkx and matplotlib are imported where they are used.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Inexact, Integer, PyTree, Shaped

from fedlab_lite.util import InputError, choose

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
        """A graph from pairs of clients, or from a networkx graph whose nodes are 0 ... N-1.

        Direction and repetition do not count: (0, 1), (1, 0) and both of them are one edge.

        Args:
          edges: an iterable of pairs of integers, an array `[edges, 2]`, or a networkx graph.

        Raises `InputError` for fewer than two clients, for edges that are not pairs of integers, for clients outside 0
        ... N-1, for self-loops, and for a graph that is not connected; the message names a client that is not reached.
        """
        _check_num_clients(num_clients)
        pairs = _as_pairs(edges.edges() if hasattr(edges, "edges") else edges)
        outside = (pairs < 0) | (pairs >= num_clients)
        if outside.any():
            raise InputError(
                f"an edge names client {pairs[outside][0]}, but {num_clients} clients are 0 to {num_clients - 1}; "
                "number them so, or raise num_clients"
            )
        loops = pairs[pairs[:, 0] == pairs[:, 1], 0]
        if loops.size:
            raise InputError(f"an edge joins client {loops[0]} to itself; leave it out, mixing matrices need none")
        adjacency = np.zeros((num_clients, num_clients), np.float32)
        adjacency[pairs[:, 0], pairs[:, 1]] = adjacency[pairs[:, 1], pairs[:, 0]] = 1
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
        import matplotlib.pyplot as plt
        import networkx
        from matplotlib.patheffects import withStroke

        if values is not None and np.shape(values) != (self.num_clients,):
            raise InputError(
                f"values has shape {np.shape(values)}; give a number for each of {self.num_clients} clients"
            )
        ax = ax or plt.subplots()[1]
        graph = networkx.from_numpy_array(np.asarray(self.adjacency))
        place = networkx.circular_layout(graph)
        colour = "#56B4E9" if values is None else np.asarray(values)
        networkx.draw_networkx_nodes(graph, place, ax=ax, node_color=colour, edgecolors="black")
        networkx.draw_networkx_edges(graph, place, ax=ax, edge_color="#999999")
        for text in networkx.draw_networkx_labels(graph, place, ax=ax, font_size=9).values():
            text.set_path_effects([withStroke(linewidth=2, foreground="white")])
        ax.set_aspect("equal")
        ax.set_axis_off()
        return ax


def make_graph(
    kind: str,
    num_clients: int,
    *,
    num_edges: int | None = None,
    edge_probability: float | None = None,
    seed: int = 0,
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

    Raises `InputError` for an unknown kind, fewer than two clients, an impossible number of edges, and a probability at
    which no draw of `MAX_DRAWS` is connected.

    >>> make_graph("ring", 4).neighbour_mean[0].tolist()
    [0.0, 0.5, 0.0, 0.5]
    >>> make_graph("random", 10, num_edges=12, seed=1).num_edges
    12
    """
    choose("graph", kind, GRAPHS)
    _check_num_clients(num_clients)
    for option, value in (("num_edges", num_edges), ("edge_probability", edge_probability)):
        if value is not None and kind != "random":
            raise InputError(f"{option} is {value}, but only a random graph takes it; leave it out for {kind!r}")
    if num_edges is not None and edge_probability is not None:
        raise InputError("a random graph takes num_edges or edge_probability, not both; leave one out")
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


def mix(
    matrix: Shaped[ArrayLike, "..."] | Sequence, stacked: PyTree[Shaped[ArrayLike, "..."]]
) -> PyTree[Inexact[Array, "N ..."]]:
    """Mix stacked values: client i receives sum_j matrix[i, j] * stacked_j, for every leaf `[N, ...]` of a pytree.

    Floats keep their type and integers become floats. Products and sums are computed in float32 or better.

    Args:
      matrix: `[N, N]`, for example `Graph.metropolis` or `Graph.neighbour_mean`; see `check_mixing`.

    Raises `InputError` where a leaf is not stacked over as many clients as the matrix has columns.

    >>> mix(make_graph("star", 3).neighbour_mean, {"w": np.array([0.0, 2.0, 4.0])})["w"].tolist()
    [3.0, 0.0, 0.0]
    """
    matrix = jnp.asarray(matrix)

    def mix_leaf(leaf):
        if np.shape(leaf)[:1] != np.shape(matrix)[1:]:
            raise InputError(
                f"a matrix {np.shape(matrix)} cannot mix an array {np.shape(leaf)}; stack the clients on its axis 0"
            )
        mixed = jnp.einsum("ij,j...->i...", matrix, leaf, precision=jax.lax.Precision.HIGHEST)
        return mixed.astype(jnp.result_type(leaf, float))

    return jax.tree.map(mix_leaf, stacked)


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
            raise InputError(f"{said}: it has a NaN or an infinity; D^-1 A gets one from a client without neighbours")
        if weights.min() < 0:
            raise InputError(f"{said} and has the weight {weights.min():.6g}; weights must be 0 or more")
        if abs(weights.sum() - 1) > 1e-5:
            raise InputError(f"{said}; divide each row by its sum")
    columns = matrix.sum(0)
    if doubly and abs(columns - 1).max() > 1e-5:
        worst = int(abs(columns - 1).argmax())
        raise InputError(
            f"the mixing matrix is not doubly stochastic: column {worst} sums to {columns[worst]:.6g}, so client "
            f"{worst} would count for more or less than its share; take Metropolis weights (`Graph.metropolis`)"
        )


def spectral_gap(matrix: Shaped[ArrayLike, "..."] | Sequence) -> float:
    """The spectral gap of a mixing matrix `[N, N]`: 1 - the second largest |eigenvalue|.

    A gap of 0 never reaches consensus; a gap of 1 reaches it in one round. The disagreement of the clients shrinks like
    (1 - gap)^rounds. D^-1 A has the gap 0 on a bipartite graph, where its least eigenvalue is -1. Exact to about 1e-6.
    Raises `InputError` as `check_mixing` does.

    >>> [round(spectral_gap(make_graph("complete", n).neighbour_mean), 4) for n in (2, 5)]
    [0.0, 0.75]
    """
    check_mixing(matrix)
    matrix = np.asarray(matrix, float)
    # A matrix diag(s) K with K symmetric, such as D^-1 A with any diagonal, has the eigenvalues of the symmetric
    # sqrt(M_ij M_ji), which are found ten times faster.
    others = matrix * (1 - np.eye(len(matrix)))
    others /= np.maximum(others.max(1, keepdims=True), 1e-30)
    if np.array_equal(matrix, matrix.T) or np.allclose(others, others.T):
        eigenvalues = np.linalg.eigvalsh(np.sqrt(matrix * matrix.T))
    else:
        eigenvalues = np.linalg.eigvals(matrix)
    return max(0.0, 1 - float(np.sort(abs(eigenvalues))[:-1].max(initial=0)))


def _check_num_clients(num_clients: int) -> None:
    if num_clients < 2:
        raise InputError(f"num_clients is {num_clients}; a graph needs at least two clients")


def _as_pairs(edges: Iterable) -> Integer[np.ndarray, "edges 2"]:
    edges = edges if isinstance(edges, np.ndarray) else list(edges)
    if not len(edges):
        return np.zeros((0, 2), int)
    try:
        pairs = np.asarray(edges)
    except ValueError:  # ragged
        pairs = np.zeros(0)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not np.issubdtype(pairs.dtype, np.integer):
        raise InputError(f"edges must be pairs of client numbers such as (0, 1); the first of these is {edges[0]!r}")
    return pairs


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
    if not 0 < probability <= 1:
        raise InputError(f"edge_probability is {probability}; it is a share of all pairs, above 0 and at most 1")
    pairs = np.stack(np.triu_indices(num_clients, 1), 1)
    adjacency = np.zeros((num_clients, num_clients))
    for _ in range(MAX_DRAWS):
        drawn = pairs[rng.random(len(pairs)) < probability]
        adjacency[:] = 0
        adjacency[drawn[:, 0], drawn[:, 1]] = adjacency[drawn[:, 1], drawn[:, 0]] = 1
        if _reached(adjacency).all():
            return drawn
    raise InputError(
        f"none of {MAX_DRAWS} random graphs of {num_clients} clients with edge_probability {probability} is connected; "
        f"raise it (log(N) / N = {np.log(num_clients) / num_clients:.2g} is where it begins), or give num_edges instead"
    )


def _random_pairs(num_clients: int, num_edges: int | None, rng: np.random.Generator) -> Integer[np.ndarray, "edges 2"]:
    import networkx

    least, most = num_clients - 1, num_clients * (num_clients - 1) // 2
    num_edges = min(num_clients, most) if num_edges is None else num_edges  # by default as many as a ring
    if num_edges < least:
        raise InputError(
            f"{num_clients} clients with {num_edges} edges cannot be connected; use at least {least} edges"
        )
    if num_edges > most:
        raise InputError(f"{num_clients} clients have at most {most} edges, not {num_edges}; use no more than those")
    tree = networkx.from_prufer_sequence(rng.integers(num_clients, size=num_clients - 2).tolist())
    free = np.argwhere(np.triu(networkx.to_numpy_array(tree, nodelist=range(num_clients)) == 0, 1))
    return np.concatenate([np.array(tree.edges), rng.choice(free, num_edges - least, replace=False)])

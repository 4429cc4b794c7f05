"""Graphs and mixing: matrices by hand, identities of the papers, consensus, exact random graphs, clear errors."""

import jax
import jax.numpy as jnp
import matplotlib as mpl
import networkx
import numpy as np
import pytest
from helpers import random_graphs, tree_of
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError

from fedlab_lite.engine import GRAPHS, Graph, check_mixing, make_graph, mix, spectral_gap
from fedlab_lite.util import InputError

mpl.use("Agg")


def test_ring_of_4_by_hand():
    ring = make_graph("ring", 4)
    a = np.array([[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]])
    np.testing.assert_array_equal(ring.adjacency, a)
    np.testing.assert_array_equal(ring.neighbour_mean, a / 2)
    np.testing.assert_allclose(ring.metropolis, (a + np.eye(4)) / 3, atol=1e-7)
    np.testing.assert_array_equal(ring.laplacian, [[2, -1, 0, -1], [-1, 2, -1, 0], [0, -1, 2, -1], [-1, 0, -1, 2]])
    assert (ring.name, ring.num_clients, ring.num_edges, ring.degree.tolist()) == ("ring", 4, 4, [2, 2, 2, 2])


def test_star_of_4_by_hand():
    star = make_graph("star", 4)
    np.testing.assert_array_equal(star.adjacency, [[0, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]])
    np.testing.assert_allclose(star.neighbour_mean, [[0, 1 / 3, 1 / 3, 1 / 3], *[[1, 0, 0, 0]] * 3], atol=1e-7)
    quarters = [[1, 1, 1, 1], [1, 3, 0, 0], [1, 0, 3, 0], [1, 0, 0, 3]]
    np.testing.assert_allclose(star.metropolis, np.array(quarters) / 4, atol=1e-7)
    np.testing.assert_array_equal(star.laplacian, [[3, -1, -1, -1], [-1, 1, 0, 0], [-1, 0, 1, 0], [-1, 0, 0, 1]])
    edges = [[1, 1, 1, -1, -1, -1], [-1, 0, 0, 1, 0, 0], [0, -1, 0, 0, 1, 0], [0, 0, -1, 0, 0, 1]]
    np.testing.assert_array_equal(star.incidence, edges)  # columns 01, 02, 03, 10, 20, 30


@pytest.mark.parametrize("kind", GRAPHS)
def test_two_clients_have_one_edge(kind):
    np.testing.assert_array_equal(make_graph(kind, 2).adjacency, [[0, 1], [1, 0]])


def test_default_numbers_of_edges():
    edges = {kind: [make_graph(kind, n).num_edges for n in (3, 10, 20)] for kind in GRAPHS}
    assert edges == {"ring": [3, 10, 20], "star": [2, 9, 19], "random": [3, 10, 20], "complete": [3, 45, 190]}


@settings(max_examples=60)
@given(random_graphs())
def test_incidence_gives_laplacian_and_differences(graph):
    """FedF-ADMM, Sec. III: B is N x 2|E|, L = B B^T / 2, and B^T x are the differences along the edges."""
    b = graph.incidence
    assert b.shape == (graph.num_clients, 2 * graph.num_edges)
    np.testing.assert_array_equal(b @ b.T / 2, graph.laplacian)
    x = np.arange(graph.num_clients, dtype=np.float32) ** 2
    start, end = np.argmax(b, 0), np.argmin(b, 0)
    np.testing.assert_array_equal(b.T @ x, x[start] - x[end])
    assert graph.adjacency[start, end].all()


@settings(max_examples=60)
@given(random_graphs())
def test_mixing_matrices_are_stochastic_on_the_edges_alone(graph):
    for matrix in (graph.neighbour_mean, graph.metropolis, graph.uniform):
        assert isinstance(matrix, np.ndarray)
        assert matrix.dtype == np.float32
        check_mixing(matrix)
        np.testing.assert_allclose(matrix.sum(1), 1, atol=1e-6)
        off_diagonal = matrix * (1 - np.eye(graph.num_clients))
        np.testing.assert_array_equal(off_diagonal > 0, graph.adjacency > 0)
    assert not graph.neighbour_mean.diagonal().any()
    np.testing.assert_array_equal(graph.metropolis, graph.metropolis.T)
    np.testing.assert_allclose(graph.metropolis.sum(0), 1, atol=1e-6)
    assert np.all(graph.metropolis.diagonal() > 0)


@settings(max_examples=100)
@given(st.data())
def test_random_graphs_are_simple_connected_and_have_exactly_the_edges_asked_for(data):
    n = data.draw(st.integers(2, 40))
    num_edges = data.draw(st.integers(n - 1, n * (n - 1) // 2))
    graph = make_graph("random", n, num_edges=num_edges, seed=data.draw(st.integers(0, 2**31 - 1)))
    assert graph.num_edges == num_edges
    assert set(np.unique(graph.adjacency)) <= {0, 1}
    assert not graph.adjacency.diagonal().any()
    np.testing.assert_array_equal(graph.adjacency, graph.adjacency.T)
    assert networkx.is_connected(networkx.from_numpy_array(graph.adjacency))


@pytest.mark.parametrize("num_clients", [4, 16, 128])
def test_random_graphs_of_erdos_and_renyi(num_clients):
    """Drawn again until connected, the seed's own, and with about p of all edges where that is no luck."""
    graphs = [make_graph("random", num_clients, edge_probability=0.25, seed=seed) for seed in (0, 0, 1)]
    assert np.array_equal(graphs[0].adjacency, graphs[1].adjacency)
    assert not np.array_equal(graphs[0].adjacency, graphs[2].adjacency)
    if num_clients == 128:
        assert 0.22 < graphs[0].num_edges / (128 * 127 / 2) < 0.28


def test_neighbours_are_listed_where_they_are_few():
    assert make_graph("ring", 29).neighbours is None
    ring = make_graph("ring", 30).neighbours
    assert ring.shape == (30, 2)
    assert [sorted(row) for row in ring[[0, 1, 29]].tolist()] == [[1, 29], [0, 2], [0, 28]]
    assert make_graph("star", 200).neighbours is None
    tree = make_graph("random", 200, num_edges=199, seed=1)
    for client in (0, 7, 199):
        listed = tree.neighbours[client][tree.neighbours[client] < 200]
        assert sorted(listed) == np.flatnonzero(tree.adjacency[client]).tolist()


def test_random_graphs_are_the_seeds_own():
    def draw(seed):
        return make_graph("random", 10, seed=seed).adjacency.tobytes()

    assert draw(3) == draw(3)
    assert len({draw(seed) for seed in range(20)}) == 20


def test_random_trees_are_uniform_and_further_edges_too():
    """4 clients have 4^2 trees; 800 draws: 50 each, standard deviation 7. 5 of 6 edges: each is left out 133 times."""
    drawn = [make_graph("random", 4, num_edges=3, seed=seed).adjacency.tobytes() for seed in range(800)]
    counts = [drawn.count(tree) for tree in set(drawn)]
    assert len(counts) == 16
    assert 20 < min(counts) <= max(counts) < 80
    missing = sum(1 - make_graph("random", 4, num_edges=5, seed=seed).adjacency for seed in range(800))
    assert np.all(abs(missing[np.triu_indices(4, 1)] - 800 / 6) < 45)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ring", "random"])
def test_a_thousand_clients(kind):
    graph = make_graph(kind, 1000)
    assert (graph.num_edges, graph.incidence.shape) == (1000, (1000, 2000))
    check_mixing(graph.metropolis)
    assert 0 <= spectral_gap(graph.neighbour_mean) < 1e-2


def test_an_adjacency_matrix_is_told_from_a_list_of_edges():
    """Two clients: pairs and matrix say the same. A matrix of floats cannot be pairs."""
    path = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    for matrix in (path, path.tolist(), path.astype(bool), path.astype(float)):
        np.testing.assert_array_equal(Graph.from_edges(matrix, 3).adjacency, path)
    for pair in ([[0, 1]], [[0, 1], [1, 0]], np.array([[0.0, 1.0], [1.0, 0.0]])):
        assert Graph.from_edges(pair, 2).adjacency.tolist() == [[0, 1], [1, 0]]
    star = Graph.from_edges(np.array([[0, 1], [0, 2]]), 3)
    assert star.degree.tolist() == [2, 1, 1]


def test_nodes_of_networkx_may_have_any_names():
    named = networkx.Graph([("hub", "a"), ("hub", "b")])
    assert Graph.from_edges(named, 3).degree.tolist() == [2, 1, 1]  # in the order of its nodes
    grid = Graph.from_edges(networkx.grid_2d_graph(2, 3), 6)
    np.testing.assert_array_equal(grid.adjacency, networkx.to_numpy_array(networkx.grid_2d_graph(2, 3)))
    with pytest.raises(InputError, match="the graph has 3 nodes, but there are 4 clients"):
        Graph.from_edges(named, 4)


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        (networkx.Graph([(0, 1), (1, 2, {"weight": 0.3})]), "the edge from 1 to 2 has the weight 0.3.* remove"),
        ([[0, 0.5, 0], [0.5, 0, 1], [0, 1, 0]], "an adjacency matrix has 0 and 1 alone, but this one has 0.5"),
        ([[0, 1, 0], [1, 0, 1], [0, 0, 0]], r"not symmetric: it has 1 at \[1, 2\] and 0 at \[2, 1\]"),
        ([[1, 1, 0], [1, 0, 1], [0, 1, 0]], "an edge joins client 0 to itself"),
        ([[0, 1, 0], [1, 0, 0]], r"must be pairs .* or a matrix \[3, 3\] of 0 and 1, but the first edge is \[0, 1, 0"),
    ],
)
def test_edges_that_say_more_than_a_graph_has(edges, message):
    with pytest.raises(InputError, match=message):
        Graph.from_edges(edges, 3)


def test_from_edges_takes_lists_arrays_iterators_and_networkx():
    edges = [(0, 1), (2, 1), (1, 2), (2, 3)]  # one of them twice
    path = networkx.MultiDiGraph(edges)
    for given_as in (edges, set(edges), iter(edges), np.array(edges), path, networkx.path_graph(4)):
        graph = Graph.from_edges(given_as, 4, name="path")
        np.testing.assert_array_equal(graph.adjacency, np.eye(4, k=1) + np.eye(4, k=-1))
    assert (graph.name, graph.num_edges) == ("path", 3)


def test_graph_passes_through_jit_and_vmap():
    star = make_graph("star", 5)
    names = ("degree", "neighbour_mean", "metropolis", "laplacian")
    inside = jax.jit(lambda graph: {name: getattr(graph, name) for name in names})(star)
    for name in names:
        np.testing.assert_allclose(inside[name], getattr(star, name), atol=1e-7)
    stacked, matrices = tree_of(5), np.stack([star.metropolis, make_graph("ring", 5).metropolis])
    both = jax.jit(jax.vmap(mix, in_axes=(0, None)))(matrices, stacked)
    batch = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), stacked)
    each = jax.vmap(mix, in_axes=(None, 0))(star.metropolis, batch)
    for k in range(2):
        for ours, other, leaf in zip(*map(jax.tree.leaves, (both, each, stacked)), strict=True):
            np.testing.assert_allclose(ours[k], mix(matrices[k], leaf), atol=1e-6)
            np.testing.assert_allclose(other[k], (k + 1) * mix(star.metropolis, leaf), atol=1e-6)


def test_graph_is_a_pytree_with_one_leaf():
    graph = make_graph("ring", 5)
    leaves, structure = jax.tree.flatten(graph)
    assert [leaf.shape for leaf in leaves] == [(5, 5)]
    again = jax.tree.unflatten(structure, leaves)
    assert again.name == "ring"
    np.testing.assert_array_equal(again.adjacency, graph.adjacency)
    assert jax.tree.structure(make_graph("star", 5)) != structure


def test_graphs_are_rebuilt_from_whatever_jax_puts_in_the_leaf():
    graph = make_graph("ring", 4)
    assert jax.tree.map(np.shape, graph).adjacency == (4, 4)
    both = jax.tree.map(lambda *leaves: np.stack(leaves), graph, graph)
    assert jax.vmap(lambda graph: graph.degree)(both).tolist() == [[2, 2, 2, 2]] * 2
    assert jax.eval_shape(lambda graph: graph, graph).adjacency.shape == (4, 4)


def test_shapes_and_types_are_checked():
    with pytest.raises(TypeCheckError, match="return value"):
        Graph(np.ones((2, 3), np.float32), "no square").neighbour_mean  # noqa: B018
    with pytest.raises(TypeCheckError, match="parameter 'matrix'"):
        mix(None, np.zeros(3))
    with pytest.raises(TypeCheckError, match="parameter 'stacked'"):
        mix(np.eye(3), {"w": "three"})


def test_draw_shows_clients_edges_and_values():
    import matplotlib.pyplot as plt

    graph = make_graph("random", 7, num_edges=9)
    ax = graph.draw(values=np.arange(7))
    assert sorted(text.get_text() for text in ax.texts) == list("0123456")
    nodes, edges = ax.collections
    assert nodes.get_array().tolist() == list(range(7))
    assert len(edges.get_paths()) == 9
    np.testing.assert_allclose(np.linalg.norm(nodes.get_offsets(), axis=1), 1, atol=1e-6)
    assert ax.get_aspect() == 1
    assert not ax.axison
    assert make_graph("star", 3).draw(ax) is ax
    plt.close("all")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: make_graph("rign", 4), "unknown graph 'rign'; did you mean 'ring'"),
        (lambda: make_graph("ring", 1), "num_clients is 1; a graph needs at least two clients"),
        (lambda: make_graph("ring", 10**7), r"a graph of 10,000,000 clients would take .* use fewer clients"),
        (lambda: make_graph("random", 0), "num_clients must be of type int, at least 1, got 0"),
        (lambda: Graph.from_edges([], 1), "num_clients is 1; a graph needs at least two"),
        (lambda: make_graph("random", 5, num_edges=3), "cannot be connected; use 4 or more"),
        (lambda: make_graph("random", 5, num_edges=11), "at most 10 edges, not 11"),
        (lambda: make_graph("ring", 5, num_edges=5), "only a random graph uses it"),
        (lambda: Graph.from_edges([(0, 1), (2, 3)], 4), r"from client 0 to client 2 \(2 of 4 cannot"),
        (lambda: Graph.from_edges([], 3), "from client 0 to client 1"),
        (lambda: Graph.from_edges([(0, 1), (1, 1)], 2), "joins client 1 to itself"),
        (lambda: Graph.from_edges([(0, 1), (1, 2)], 2), "has client 2, but 2 clients are numbered 0 to 1"),
        (lambda: Graph.from_edges([(0, 1), (-1, 0)], 2), "has client -1"),
        (lambda: Graph.from_edges([(0, 1, 0.5)], 2), r"pairs of client numbers .* is \(0, 1, 0.5\)"),
        (lambda: Graph.from_edges([(0, 1), (1,)], 2), "pairs of client numbers"),
        (lambda: Graph.from_edges([("a", "b")], 2), "pairs of client numbers"),
        (lambda: Graph.from_edges(np.array([[0.0, 1.0]]), 2), "pairs of client numbers"),
        (lambda: make_graph("ring", 4).draw(values=[1, 2]), r"shape \(2,\); pass one for each of the 4 clients"),
        (lambda: mix(np.eye(3), {"w": np.zeros((4, 2))}), r"\(3, 3\) cannot mix an array \(4, 2\)"),
        (lambda: mix(np.eye(3), np.zeros((1, 2))), "stack clients on its axis 0"),
        (lambda: mix(np.eye(3), 0.0), r"cannot mix an array \(\)"),
        (lambda: check_mixing(np.ones((2, 3)) / 3), r"\(clients, clients\); this one has \(2, 3\)"),
        (lambda: check_mixing(np.zeros((0, 0))), r"this one has \(0, 0\)"),
        (lambda: check_mixing([[1, 0], [0.5, 0.4]]), "row 1 of the mixing matrix sums to 0.9; divide"),
        (lambda: check_mixing([[1, 0], [1.5, -0.5]]), "row 1 of the mixing matrix sums to 1 and has the weight -0.5"),
        (lambda: check_mixing([[1, 0], [np.nan, 1]]), "row 1 of the mixing matrix sums to nan: it has a NaN"),
        (lambda: check_mixing([[1, 0], [np.inf, 1]]), "row 1 of the mixing matrix sums to inf"),
        (lambda: spectral_gap(make_graph("ring", 4).laplacian), "row 0 of the mixing matrix sums to 0"),
        (
            lambda: check_mixing(make_graph("star", 4).uniform, doubly=True),
            "doubly stochastic: column 0 sums to 1.75",
        ),
        (lambda: make_graph("random", 5, num_edges=5, edge_probability=0.5), "num_edges or edge_probability, not both"),
        (lambda: make_graph("ring", 5, edge_probability=0.5), "only a random graph uses it"),
        (lambda: make_graph("random", 5, edge_probability=0.0), "above 0 and at most 1"),
        (
            lambda: make_graph("random", 60, edge_probability=0.001),
            "none of 10000 random graphs",
        ),
    ],
)
def test_errors_say_what_was_wrong(make, said):
    with pytest.raises(InputError, match=said):
        make()

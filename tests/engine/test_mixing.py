"""Mixing over graphs: against a loop over clients, and against eigenvalues and spectral gaps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import random_graphs, tree_of
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlab_lite.engine import GRAPHS, check_mixing, make_graph, mix, spectral_gap
from fedlab_lite.util import InputError


@pytest.mark.parametrize("matrix", ["neighbour_mean", "metropolis"])
def test_mix_equals_a_loop_over_clients(matrix):
    matrix = getattr(make_graph("random", 6, num_edges=9, seed=1), matrix)
    stacked = tree_of(6)

    def slowly(leaf):
        return np.stack([sum(matrix[i, j] * np.asarray(leaf[j], float) for j in range(6)) for i in range(6)])

    mixed = mix(matrix, stacked)
    assert jax.tree.structure(mixed) == jax.tree.structure(stacked)
    for ours, leaf in zip(jax.tree.leaves(mixed), jax.tree.leaves(stacked), strict=True):
        assert (ours.shape, ours.dtype) == (leaf.shape, leaf.dtype)
        np.testing.assert_allclose(ours, slowly(leaf), atol=1e-6)


def test_mix_keeps_types_of_floats_and_makes_integers_floats():
    half = [[0.5, 0.5], [0.5, 0.5]]
    for given_type, expected in ((jnp.bfloat16, jnp.bfloat16), (jnp.float16, jnp.float16), (jnp.int32, jnp.float32)):
        mixed = mix(half, jnp.array([1, 2], given_type))
        assert mixed.dtype == expected
        assert mixed.tolist() == [1.5, 1.5]


@pytest.mark.parametrize("kind", GRAPHS)
def test_metropolis_keeps_the_mean_and_reaches_consensus(kind):
    graph = make_graph(kind, 8)
    stacked = tree_of(8)
    assert 0 < spectral_gap(graph.metropolis) <= 1
    mixed = jax.jit(lambda graph, x: jax.lax.fori_loop(0, 300, lambda _, x: mix(graph.metropolis, x), x))(
        graph, stacked
    )
    for start, end in zip(jax.tree.leaves(stacked), jax.tree.leaves(mixed), strict=True):
        np.testing.assert_allclose(end, np.broadcast_to(start.mean(0), end.shape), atol=3e-5)


def test_neighbour_mean_alone_oscillates_on_an_even_ring():
    signs = np.array([1.0, -1.0, 1.0, -1.0], np.float32)
    np.testing.assert_array_equal(mix(make_graph("ring", 4).neighbour_mean, signs), -signs)


def test_spectral_gap_equals_the_closed_forms():
    """D^-1 A of a ring has the eigenvalues cos(2 pi k / N), of the complete graph 1 and -1/(N-1) N-1 times."""
    for n in (3, 5, 9, 21):
        ring, complete = make_graph("ring", n), make_graph("complete", n)
        assert spectral_gap(ring.neighbour_mean) == pytest.approx(1 - np.cos(np.pi / n), abs=1e-6)
        assert spectral_gap(complete.neighbour_mean) == pytest.approx(1 - 1 / (n - 1), abs=1e-6)
        assert spectral_gap(complete.metropolis) == pytest.approx(1, abs=1e-6)
        second = abs(1 / 3 + 2 / 3 * np.cos(2 * np.pi * np.arange(1, n) / n)).max()
        assert spectral_gap(ring.metropolis) == pytest.approx(1 - second, abs=1e-6)
    for bipartite in (make_graph("ring", 6), make_graph("star", 5)):
        assert spectral_gap(bipartite.neighbour_mean) == pytest.approx(0, abs=1e-6)


@settings(max_examples=40)
@given(random_graphs(), st.floats(0.1, 1), st.integers(0, 99))
def test_spectral_gap_equals_the_eigenvalues_of_the_matrix_itself(graph, beta, seed):
    n = graph.num_clients
    lazy = (1 - beta) * np.eye(n) + beta * graph.neighbour_mean
    no_symmetry = np.random.default_rng(seed).dirichlet(np.ones(n), n)
    cycle = 0.3 * np.eye(n) + 0.7 * np.roll(np.eye(n), 1, 1)
    for matrix in (lazy, no_symmetry, cycle, graph.metropolis @ graph.neighbour_mean):
        second = np.sort(abs(np.linalg.eigvals(matrix.astype(float))))[-2]
        assert spectral_gap(matrix) == pytest.approx(1 - second, abs=1e-5)


def test_disagreement_shrinks_as_the_spectral_gap_says():
    matrix = make_graph("random", 12, num_edges=20, seed=2).metropolis.astype(float)
    far = np.linalg.matrix_power(matrix, 60) - 1 / 12
    farther = matrix @ far
    assert np.linalg.norm(farther) / np.linalg.norm(far) == pytest.approx(1 - spectral_gap(matrix), rel=1e-3)


def test_check_mixing_tolerates_rounding_and_no_more():
    check_mixing([[1, 9e-6], [0, 1]])
    with pytest.raises(InputError, match="row 0"):
        check_mixing([[1, 1.1e-5], [0, 1]])

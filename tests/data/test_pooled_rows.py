"""Pooled rows: the same data as padded rows, in every way that they are read; memory that goes with what there is."""

import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from fedlab_lite.algorithms import make_algorithm
from fedlab_lite.analysis.membership import row_losses
from fedlab_lite.analysis.new_workers import redeal
from fedlab_lite.data import Federated
from fedlab_lite.data.pooled_rows import Rows
from fedlab_lite.engine import Problem, in_chunks, rows_of, train
from fedlab_lite.engine.clients import EXECUTORS
from fedlab_lite.engine.training import place_problem
from fedlab_lite.nn import make_model

SIZES = (2, 3, 2, 40)
ARRAYS = ("x", "y", "size", "test_x", "test_y", "test_size")


@pytest.fixture
def both(monkeypatch):
    """The same ragged data, padded and pooled."""
    rng = np.random.default_rng(0)

    def draw(sizes):
        return [(rng.integers(0, 256, (n, 6), np.uint8), rng.integers(0, 3, n)) for n in sizes]

    parts = draw(SIZES), draw((30, 1, 2, 1))
    about = {"name": "ragged", "source": "made up", "num_classes": 3}
    padded = Federated.stack(*parts, **about)
    monkeypatch.setattr(sys.modules[Federated.__module__], "POOL_BEYOND", 0)
    pooled = Federated.stack(*parts, **about)
    assert isinstance(pooled.x, Rows)
    assert isinstance(pooled.test_x, Rows)
    assert isinstance(padded.x, np.ndarray)
    return padded, pooled


def assert_same(one, other):
    for name in ARRAYS:
        assert_array_equal(np.asarray(getattr(one, name)), np.asarray(getattr(other, name)))
    assert one.fingerprint() == other.fingerprint()


def test_small_data_and_even_data_stay_padded(both, monkeypatch):
    monkeypatch.undo()
    _, pooled = both
    parts = [(np.asarray(pooled.x)[i, :n], np.asarray(pooled.y)[i, :n]) for i, n in enumerate(SIZES)]
    about = {"name": "ragged", "source": "made up", "num_classes": 3}
    assert isinstance(Federated.stack(parts, parts, **about).x, np.ndarray)
    monkeypatch.setattr(sys.modules[Federated.__module__], "POOL_BEYOND", 0)
    assert isinstance(Federated.stack(parts[:2], parts[:2], **about).x, np.ndarray)


def test_the_same_data(both):
    padded, pooled = both
    assert_same(padded, pooled)
    assert pooled.x.pool.shape == (sum(SIZES) + 1, 6)
    assert (pooled.num_clients, pooled.input_shape) == (4, (6,))
    assert pooled.summary() == padded.summary()
    for one, other in zip(padded.split(2, seed=3), pooled.split(2, seed=3), strict=True):
        assert_same(one, other)
    for one, other in zip(padded.hold_out(0.4), pooled.hold_out(0.4), strict=True):
        assert_same(one, other)
    assert_same(jax.tree.map(jnp.asarray, pooled), padded)


def test_rows_held_out_of_a_common_test_set(both):
    def common(data):
        return replace(data, test_x=data.test_x[:1], test_y=data.test_y[:1], test_size=data.test_size[:1])

    for one, other in zip(*(common(data).hold_out(0.4) for data in both), strict=True):
        assert_same(one, other)


def test_rows_and_chunks(both):
    padded, pooled = both
    places = jnp.array([3, 0])
    assert_array_equal(rows_of(padded.x[3], places), rows_of(pooled.x[3], places))
    square = [in_chunks(lambda x: x.astype(jnp.float32) ** 2, data.x[3], jnp.int32(40), 7) for data in both]
    assert_array_equal(*square)


METHODS = [("fedrep", None, "map"), ("knn_per", 3, "map"), ("ditto", None, "map"), ("fedpac", None, "map")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "cohort", "executor"), METHODS + [("fedavg", 2, each) for each in EXECUTORS])
def test_the_same_training(both, name, cohort, executor):
    """Losses, accuracies and parameters to the bit."""
    histories, states = [], []
    for data in both:
        model = make_model("mlp", data.input_shape, data.num_classes, width=5, depth=1)
        problem = Problem(data, model, executor)
        algorithm = make_algorithm(name, lr=0.1, batch_size=4, **({"k": 1} if name == "knn_per" else {}))
        history, state = train(problem, algorithm, num_rounds=2, cohort_size=cohort, seeds=(0, 1), progress=False)
        histories.append(history)
        states.append(state)
    for metric, values in histories[0].metrics.items():
        assert_array_equal(values, histories[1].metrics[metric])
    for leaves in zip(*map(jax.tree.leaves, states), strict=True):
        assert_array_equal(*leaves)


def test_a_round_takes_no_more_memory_than_there_are_rows(both):
    """Arguments and temporaries of a compiled round: the padded rows are in neither."""
    wide = [
        replace(data, x=rows, test_x=rows[:, :1], y=data.y, test_y=data.y[:, :1], test_size=data.size * 0 + 1)
        for data, rows in zip(
            both,
            (np.zeros((4, 40, 4000), np.uint8), replace(both[1].x, pool=np.zeros((48, 4000), np.uint8))),
            strict=True,
        )
    ]
    taken = []
    for data in wide:
        model = make_model("mlp", data.input_shape, data.num_classes, width=2, depth=1)
        problem = place_problem(Problem(data, model))
        algorithm = make_algorithm("fedavg", lr=0.1, batch_size=4)
        state, at = algorithm.init(problem, jax.random.key(0)), problem.everyone(jax.random.key(1))
        memory = jax.jit(type(algorithm).round).lower(algorithm, problem, state, at).compile().memory_analysis()
        taken.append(memory.argument_size_in_bytes + memory.temp_size_in_bytes)
    devices = len(jax.devices())
    padding = 4 * 40 * 4000 / devices - 48 * 4000  # on a device; the pool is on every one
    assert taken[0] - taken[1] > 0.8 * padding


def test_what_else_reads_rows(both):
    padded, pooled = both
    assert_same(redeal(padded, 0.5), redeal(pooled, 0.5))
    model = make_model("mlp", padded.input_shape, 3, width=5, depth=1)
    params = model.init(jax.random.key(0))
    found = [row_losses(Problem(data, model), {}, params) for data in both]
    for one, other in zip(*(members + others for members, others in found), strict=True):
        assert_array_equal(one, other)

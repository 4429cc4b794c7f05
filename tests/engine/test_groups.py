"""Groups of clients of similar size: results stay, few steps are wasted, and memory keeps its bound."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import KEY
from hypothesis import given
from hypothesis import strategies as st

from fedlab_lite.algorithms import make_algorithm
from fedlab_lite.data import federated
from fedlab_lite.engine import Problem, for_clients, in_groups, train
from fedlab_lite.engine.groups import SHARE, group_size, training_step
from fedlab_lite.engine.work import Work
from fedlab_lite.nn import make_model


@pytest.mark.parametrize("at_once", [1, 2, 3, 7])
def test_results_are_in_the_given_order(at_once):
    x, sizes = jax.random.normal(KEY, (7, 4)), jnp.array([3, 9, 1, 9, 0, 2, 5])

    def fn(row, size, scale):
        return {"a": jnp.sin(row) * scale, "b": size}

    def groups(x, sizes):
        options = {"executor": "vmap", "clients_at_once": at_once, "sizes": sizes}
        return for_clients(fn, x, sizes, shared=(jnp.float32(3),), **options)

    got = jax.jit(groups)(x, sizes)
    np.testing.assert_array_equal(got["b"], sizes)
    np.testing.assert_allclose(got["a"], 3 * np.sin(x), atol=1e-6)


def problem(**options):
    data = federated("digits", partition="dirichlet", alpha=0.2, num_clients=8, train_size=320, test_size=80)
    return Problem(data, make_model("mlp", data.input_shape, 10, width=8, depth=1), executor="vmap", **options)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedeq", "ditto", "dispfl"])
def test_training_in_groups_is_training(name):
    """The same curves to rounding, whatever the number of clients in a batch, and with cohorts of some clients."""
    algorithm = make_algorithm(name, lr=0.1, batch_size=10)
    graph = {}
    if name == "dispfl":
        from fedlab_lite.engine import make_graph

        graph = {"graph": make_graph("ring", 8)}
    cohort = 8 if algorithm.needs_all_clients else 5

    def curves(**options):
        history = train(problem(**graph, **options), algorithm, num_rounds=2, cohort_size=cohort)[0]
        return history.metrics["loss"]

    whole = curves(clients_at_once=8, judged_at_once=8)
    np.testing.assert_allclose(curves(clients_at_once=3, judged_at_once=2), whole, atol=1e-5)


def test_a_cpu_is_left_alone():
    of = replace(problem(), executor="auto")
    assert in_groups(of, make_algorithm("fedavg"), 8) is of


def test_what_was_chosen_stays():
    assert in_groups(problem(clients_at_once=5, judged_at_once=4), make_algorithm("fedavg"), 8).clients_at_once == 5


@given(st.lists(st.integers(1, 200), min_size=1, max_size=40), st.floats(1e8, 1e12), st.integers(1, 40))
def test_a_group_fits_the_memory_and_loses_to_no_other(steps, flops, fit):
    step = Work(flops=flops, memory=1e9)
    size = group_size(np.array(steps), step, fit * 1e9)
    assert 1 <= size <= max(1, min(fit, len(steps)))


def waste(steps, size):
    """The steps that batches of `size` clients execute, against those that are needed."""
    ordered = np.sort(steps)[::-1]
    longest = ordered[::size]
    return float((longest * np.minimum(size, len(steps) - size * np.arange(len(longest)))).sum() / steps.sum())


def test_unequal_clients_waste_little():
    """One client of 80 steps beside 127 of 1 to 10: a single batch would execute fifteen times what is needed."""
    steps = np.concatenate([[80], np.random.default_rng(0).integers(1, 10, 127)])
    assert waste(steps, 128) > 14
    size = group_size(steps, Work(flops=1e11, memory=1e6), 1e12)
    assert waste(steps, size) < 1.5


def test_equal_clients_are_one_batch():
    assert group_size(np.full(100, 7), Work(flops=1e9, memory=1e6), 1e12) == 100


@pytest.mark.slow
def test_a_large_network_fits(monkeypatch):
    """DePRL's ResNet-18, 128 clients with batches of 128 rows: 400 GB at once by our bound."""
    data = federated("textures", partition="iid", num_clients=2, train_size=256, test_size=20)
    of = Problem(data, make_model("resnet18", data.input_shape, 100), executor="vmap")
    step = training_step(of, 128)
    size = group_size(np.full(128, 4), step, SHARE * 80e9)
    assert size * step.memory <= SHARE * 80e9
    assert size >= 4

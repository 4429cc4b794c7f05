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
from fedlab_lite.data import Federated, federated
from fedlab_lite.data.partition import dirichlet
from fedlab_lite.data.partition_deprl import dirichlet_capped
from fedlab_lite.engine import Problem, for_clients, in_groups, train
from fedlab_lite.engine.groups import SHARE, group_size, step_seconds, training_step
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
def test_a_group_fits_the_memory_and_loses_to_no_other_power_of_two(steps, flops, fit):
    step, most = Work(flops=flops, memory=1e9), min(fit, len(steps))
    size = group_size(np.array(steps), step, fit * 1e9)
    assert 1 <= size <= most

    def seconds(size):
        ordered = sorted(steps, reverse=True)
        return sum(max(ordered[first : first + size]) for first in range(0, len(steps), size)) * step_seconds(
            step, size
        )

    others = [2**power for power in range(6) if 2**power <= most]
    assert seconds(size) <= min(map(seconds, [*others, most])) * (1 + 1e-9)


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


PARTITIONS = {  # rows, clients, alpha; rows of a step, network, input; waste of one batch, and of our groups at most
    "DePRL, CIFAR-10": (dirichlet_capped, 50_000, 128, 0.1, 16, "vgg11", (32, 32, 3), 4.86, 1.4),
    "DePRL, Fashion-MNIST": (dirichlet_capped, 60_000, 128, 0.1, 16, "alexnet", (28, 28, 1), 7.03, 1.6),
    "FedF-ADMM, Fashion-MNIST": (dirichlet, 10_000, 10, 0.1, 100, "norm_cnn", (28, 28, 1), 2.67, 1.2),
    "FL-DEQ, CIFAR-10": (dirichlet, 50_000, 15, 0.25, 32, "fl_deq_resnet", (32, 32, 3), 1.59, 1.2),
}


@pytest.mark.parametrize("name", PARTITIONS)
def test_the_partitions_of_the_papers_waste_little(name):
    """Their ten classes are equally large, so the sizes of the clients need no pictures."""
    partition, rows, clients, alpha, batch_size, network, shape, together, most = PARTITIONS[name]
    train = partition(np.arange(rows) % 10, np.arange(10_000) % 10, clients, alpha, seed=0)[0]
    steps = -(-np.array([len(client) for client in train]) // batch_size)
    one = [(np.zeros((batch_size, *shape), np.uint8), np.zeros(batch_size, int))]
    data = Federated.stack(one, one, name="zeros", source="zeros", num_classes=10)
    work = training_step(Problem(data, make_model(network, shape, 10), executor="vmap"), batch_size)
    assert waste(steps, clients) == pytest.approx(together, abs=0.01)
    assert waste(steps, group_size(steps, work, SHARE * 80e9)) <= most


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

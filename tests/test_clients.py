"""Executors agree, batches are counted right, ragged clients are handled, gradients are the loss's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import blobs
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlab_lite import clients
from fedlab_lite.clients import Batch, ClientData, fit_head, for_clients, in_chunks, local_sgd, mesh, put, take
from fedlab_lite.errors import InputError

KEY = jax.random.key(0)


def assert_close(a, b, **tolerance):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerance), a, b)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_executors_agree(rows):
    x = jax.random.normal(KEY, (rows, 4))

    def fn(row, scale):
        return {"a": jnp.sin(row) * scale, "b": row.sum()}

    want = for_clients(fn, x, shared=(jnp.float32(3),), executor="loop")
    for executor in ("map", "vmap", "auto"):
        got = jax.jit(lambda x, e=executor: for_clients(fn, x, shared=(jnp.float32(3),), executor=e))(x)
        assert_close(got, want, rtol=1e-6)


def test_the_suite_runs_on_several_devices():
    assert mesh().size > 1, "tests/conftest.py asks for two host devices"


@pytest.mark.parametrize("executor", ["map", "vmap", "loop"])
def test_vmap_over_seeds_lays_them_out_as_clients(executor):
    x = jax.random.normal(KEY, (3, 5, 4))  # [seeds, clients, 4]
    y = jax.random.normal(KEY, (5, 4))  # not batched
    scale = jnp.arange(3.0)

    def one_seed(x, scale):
        return for_clients(lambda a, b, s: a * s + b, x, y, shared=(scale,), executor=executor)

    assert_close(jax.vmap(one_seed)(x, scale), x * scale[:, None, None] + y, rtol=1e-6)
    shared_only = jax.vmap(lambda s: for_clients(lambda b, s: b * s, y, shared=(s,), executor=executor))(scale)
    assert_close(shared_only, y * scale[:, None, None], rtol=1e-6)


def test_unknown_executor():
    with pytest.raises(InputError, match="unknown executor 'threads'"):
        for_clients(lambda a: a, jnp.zeros(2), executor="threads")


@given(st.lists(st.integers(1, 99), min_size=1, max_size=17), st.integers(1, 4))
@settings(deadline=None)
def test_devices_are_dealt_equal_shares(sizes, devices):
    """All of the cohort once; no device's rows exceed another's by more than the largest client's."""
    problem = blobs(sizes=sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clients, "mesh", lambda: np.zeros(devices))
        order = np.asarray(problem.dealt(jnp.arange(len(sizes))))
    assert sorted(order) == list(range(len(sizes)))
    share = -(-len(sizes) // devices)  # devices take equal runs, the last ones what is left
    rows = [sum(sizes[i] for i in order[start : start + share]) for start in range(0, share * devices, share)]
    if len(sizes) % devices == 0:
        assert max(rows) - min(rows) <= max(sizes)


def count_rows(params, batch):
    """A 'loss' whose gradient at every step is -(number of rows that count)."""
    return -params * batch.weight.sum(), None


@given(size=st.integers(1, 23), batch_size=st.integers(1, 30), epochs=st.integers(0, 3))
@settings(max_examples=15, deadline=None)
def test_every_row_is_seen_once_an_epoch(size, batch_size, epochs):
    data = ClientData(jnp.zeros((23, 1)), jnp.arange(23), jnp.int32(size))
    seen = local_sgd(count_rows, jnp.float32(0), data, KEY, lr=1.0, epochs=epochs, batch_size=batch_size)
    assert float(seen) == size * epochs

    def mark(params, batch):  # gradient: -1 at each row of the batch
        return -jnp.sum(params[batch.y] * batch.weight), None

    marks = local_sgd(mark, jnp.zeros(23), data, KEY, lr=1.0, epochs=epochs, batch_size=batch_size)
    np.testing.assert_array_equal(marks, np.where(np.arange(23) < size, epochs, 0))


def test_epochs_are_shuffled_differently():
    data = ClientData(jnp.zeros((16, 1)), jnp.arange(16), jnp.int32(16))

    def last_row(params, batch):  # one step of lr 1 moves params to the row it saw
        return jnp.sum((params - batch.y) ** 2 / 2), None

    last = [float(local_sgd(last_row, jnp.float32(0), data, KEY, lr=1.0, epochs=e, batch_size=1)) for e in range(1, 6)]
    assert len(set(last)) > 2


def test_full_batch_step_is_gradient_descent():
    problem = blobs(sizes=[17, 9])
    params = problem.model.init(KEY)
    data = ClientData(*take((problem.data.x, problem.data.y, problem.data.size), 1))
    got = local_sgd(problem.loss, params, data, KEY, lr=0.1, epochs=1, batch_size=17)
    batch = Batch(data.x[:9], data.y[:9], jnp.ones(9), KEY)
    gradient, _ = jax.grad(problem.loss, has_aux=True)(params, batch)
    want = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)
    assert_close(got, want, atol=1e-6)


def test_projection_follows_every_step():
    data = ClientData(jnp.zeros((4, 1)), jnp.zeros(4, jnp.int32), jnp.int32(4))
    got = local_sgd(
        count_rows, jnp.float32(0), data, KEY, lr=1.0, epochs=1, batch_size=1, project=lambda p: jnp.minimum(p, 2.5)
    )
    assert float(got) == 2.5


def test_fit_head_equals_sgd_through_the_frozen_network():
    problem = blobs(sizes=[23, 8])
    params = problem.model.init(KEY)
    sgd = {"lr": 0.1, "epochs": 2, "batch_size": 5}
    for client in range(2):
        data = ClientData(*take((problem.data.x, problem.data.y, problem.data.size), client))
        got = fit_head(problem, params["representation"], params["head"], data, KEY, chunk=7, **sgd)

        def loss(head, batch):
            return problem.loss(params | {"head": head}, batch)

        assert_close(got, local_sgd(loss, params["head"], data, KEY, **sgd), atol=1e-6)


@pytest.mark.parametrize("size", [1, 6, 7, 8, 20])
def test_in_chunks_covers_the_rows_that_count(size):
    x = jnp.arange(20.0)
    got = in_chunks(lambda rows: {"square": rows**2}, x, jnp.int32(size), 7)["square"]
    np.testing.assert_array_equal(got[:size], x[:size] ** 2)


def test_put_leaves_the_others_alone():
    tree = jnp.arange(4.0)
    assert put(tree, jnp.array([2, 0]), jnp.array([9.0, 8.0])).tolist() == [8.0, 1.0, 9.0, 3.0]

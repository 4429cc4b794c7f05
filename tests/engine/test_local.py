"""Executors agree, batches are counted right, ragged clients are handled, gradients are the loss's."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import KEY, blobs
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlab_lite.engine import Batch, ClientData, fit_head, for_clients, in_chunks, local_train, rows_of
from fedlab_lite.engine.devices import mesh
from fedlab_lite.util import InputError
from fedlab_lite.util.jax_setup import _cores

SGD = optax.sgd(1.0)


def trainer(loss, **options):
    """`local_train` by SGD at 1, compiled once for all numbers of rows, epochs and steps."""

    def train(params, data, key=KEY, **numbers):
        return local_train(loss, params, data, key, SGD, **options, **numbers)

    return jax.jit(train, static_argnames="batch_size")


def numbered(rows, size=None):
    """Rows whose labels are their numbers, and of which `size` count."""
    return ClientData(jnp.zeros((rows, 1)), jnp.arange(rows), jnp.int32(rows if size is None else size))


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


@pytest.mark.skipif(_cores() < 2, reason="on one core the suite runs on one device")
def test_the_suite_runs_on_several_devices():
    assert mesh().size > 1, "the conftest.py at the root asks for as many devices as there are cores"


@pytest.mark.parametrize("executor", ["map", "vmap", "loop"])
def test_under_vmap_over_seeds(executor):
    x = jax.random.normal(KEY, (3, 5, 4))  # [seeds, clients, 4]
    y = jax.random.normal(KEY, (5, 4))  # not batched
    scale = jnp.arange(3.0)

    def one_seed(x, scale):
        return for_clients(lambda a, b, s: a * s + b, x, y, shared=(scale,), executor=executor)

    assert_close(jax.vmap(one_seed)(x, scale), x * scale[:, None, None] + y, rtol=1e-6)
    shared_only = jax.vmap(lambda s: for_clients(lambda b, s: b * s, y, shared=(s,), executor=executor))(scale)
    assert_close(shared_only, y * scale[:, None, None], rtol=1e-6)


@pytest.mark.parametrize("executor", ["map", "vmap"])
def test_reverse_mode(executor):
    """A gradient through all clients is the sum of theirs."""
    x, scale = jax.random.normal(KEY, (5, 4)), jax.random.normal(jax.random.fold_in(KEY, 1), (4,))

    def fn(row, scale):
        return jnp.sin(row * scale).sum()

    def total(x, scale):
        return for_clients(fn, x, shared=(scale,), executor=executor).sum()

    got = jax.jit(jax.grad(total, (0, 1)))(x, scale)
    assert_close(got, jax.grad(lambda x, scale: jnp.sin(x * scale).sum(), (0, 1))(x, scale), atol=1e-6)


@pytest.mark.parametrize("at_once", [1, 2, 3, 9])
def test_clients_at_once(at_once):
    x = jax.random.normal(KEY, (7, 4))

    def fn(row, scale):
        return {"a": jnp.sin(row) * scale, "b": row.sum()}

    def some(at_once):
        return jax.jit(
            lambda x: for_clients(fn, x, shared=(jnp.float32(3),), executor="vmap", clients_at_once=at_once)
        )(x)

    assert_close(some(at_once), some(None), atol=1e-6)


@pytest.mark.parametrize("at_once", [0, -1])
def test_fewer_than_one_client_at_once(at_once):
    with pytest.raises(InputError, match=f"clients_at_once must be of type int . None, at least 1, got {at_once}"):
        for_clients(lambda a: a, jnp.zeros(2), clients_at_once=at_once)


def test_unknown_executor():
    with pytest.raises(InputError, match="unknown executor 'threads'"):
        for_clients(lambda a: a, jnp.zeros(2), executor="threads")


def count_rows(params, batch):
    """A 'loss' whose gradient at every step is -(number of rows that count)."""
    return -params * batch.weight.sum(), None


def mark(params, batch):
    """A 'loss' whose gradient is -1 at every row of the batch that counts."""
    return -jnp.sum(params[batch.y] * batch.weight), None


count_all, mark_all = trainer(count_rows), trainer(mark)
batch_sizes = st.sampled_from([1, 7, 30])  # each is a program


@given(size=st.integers(1, 23), batch_size=batch_sizes, epochs=st.integers(0, 3))
@settings(max_examples=15)
def test_every_row_is_seen_once_an_epoch(size, batch_size, epochs):
    data = numbered(23, size)
    assert float(count_all(jnp.float32(0), data, epochs=epochs, batch_size=batch_size)) == size * epochs
    marks = mark_all(jnp.zeros(23), data, epochs=epochs, batch_size=batch_size)
    np.testing.assert_array_equal(marks, np.where(np.arange(23) < size, epochs, 0))


def look_at_batches(params, batch):
    """Marks the rows of each batch, and counts steps, distinct rows and rows."""
    marks = jnp.zeros(23).at[batch.y].add(batch.weight)
    return -jnp.vdot(params["rows"], marks) - jnp.vdot(params["seen"], jnp.array([1.0, marks.max(), marks.sum()])), None


look = trainer(look_at_batches)


@given(size=st.integers(0, 23), batch_size=batch_sizes, steps=st.integers(0, 6))
@settings(max_examples=15)
def test_random_batches_hold_a_row_once_and_no_padding(size, batch_size, steps):
    """As many steps as asked for, each on a full batch, or on all rows that there are."""
    params = {"rows": jnp.zeros(23), "seen": jnp.zeros(3)}
    got = look(params, numbered(23, size), steps=steps, batch_size=batch_size)
    steps = steps if size else 0  # of no rows there is no batch
    assert got["seen"].tolist() == [steps, steps, steps * min(batch_size, size)]
    assert float(got["rows"].sum()) == steps * min(batch_size, size)
    assert not got["rows"][size:].any()
    assert float(got["rows"].max()) <= steps


def test_every_step_draws_its_batch_anew():
    one, two, many = (mark_all(jnp.zeros(23), numbered(23), steps=n, batch_size=4) for n in (1, 2, 90))
    assert not np.array_equal(2 * one, two)
    assert float(many.min()) > 4  # 15.7 on average


@pytest.mark.parametrize("bounds", [{}, {"epochs": 1, "steps": 1}, {"epochs": None, "steps": None}])
def test_epochs_or_steps(bounds):
    with pytest.raises(InputError, match=r"epochs is .* and steps is .*; set one of them"):
        local_train(count_rows, jnp.float32(0), numbered(4), KEY, SGD, batch_size=2, **bounds)


def see(params, batch):
    """A 'loss' whose equilibria are what was kept plus x; of rows that do not count, -99."""
    return params * 0.0, jnp.where(batch.weight[:, None] > 0, batch.x + batch.z0, -99.0)


def test_a_memory_keeps_what_each_row_saw_last():
    """A last batch is filled up with indices of no row, and they write nowhere."""
    x, visit = jnp.arange(1.0, 9.0)[:, None], trainer(see, memory=jnp.zeros((8, 1)))
    for batch_size in (3, 5, 8):
        for size in (8, 5):
            data = ClientData(x, jnp.arange(8), jnp.int32(size))
            _, memory = visit(jnp.float32(0), data, epochs=2, batch_size=batch_size)
            assert_close(memory[:size], 2 * x[:size])  # each row was seen twice, and found its own again


@pytest.mark.parametrize("loss", [lambda w, b: w, lambda w, b: (w, None, None), lambda w, b: (jnp.stack([w, w]), None)])
def test_a_loss_of_another_form(loss):
    with pytest.raises(InputError, match=r"a loss must return \(mean, equilibria or None\), .* got shapes .*\("):
        local_train(loss, jnp.float32(0), numbered(4), KEY, SGD, batch_size=2, epochs=1)


GROWING = optax.GradientTransformation(lambda p: jnp.zeros(1), lambda g, s, p=None: (g, jnp.concatenate([s, s])))
TURNING = optax.GradientTransformation(lambda p: jnp.zeros(1), lambda g, s, p=None: (g, jnp.zeros(1, jnp.int32)))


@pytest.mark.parametrize("optimizer", [GROWING, TURNING])
def test_an_optimizer_whose_state_changes_its_form(optimizer):
    with pytest.raises(InputError, match=r"the optimizer's update changes the shapes or types of its state"):
        local_train(count_rows, jnp.float32(0), numbered(4), KEY, optimizer, batch_size=2, epochs=1)


def test_any_optimizer_of_optax():
    """Two full-batch steps of Adam on (w - 3)^2 / 2, against optax in a loop."""

    def loss(params, batch):
        return (params - 3.0) ** 2 / 2, None

    adam, want = optax.adam(0.3), jnp.float32(0)
    state = adam.init(want)
    for _ in range(2):
        updates, state = adam.update(want - 3.0, state)
        want = want + updates
    got = local_train(loss, jnp.float32(0), numbered(4), KEY, adam, batch_size=4, epochs=2)
    assert float(got) == pytest.approx(float(want), rel=1e-6)


@pytest.mark.parametrize("optimizer", [optax.sgd, optax.adam])
def test_bfloat16_params_stay_what_they_are(optimizer):
    """Also where the step size is an array, as in a compiled round, which has a type of its own."""

    def train(lr):
        return local_train(count_rows, jnp.bfloat16(0), numbered(4), KEY, optimizer(lr), batch_size=2, epochs=1)

    for got in (train(0.5), jax.jit(train)(0.5)):
        assert got.dtype == jnp.bfloat16
        assert float(got) > 0


def last_row(params, batch):
    """A 'loss' of which a step at 1 moves params to the row it saw."""
    return jnp.sum((params - batch.y) ** 2 / 2), None


def test_epochs_are_shuffled_differently():
    train = trainer(last_row)
    last = [float(train(jnp.float32(0), numbered(16), epochs=e, batch_size=1)) for e in range(1, 6)]
    assert len(set(last)) > 2


def test_full_batch_step_is_gradient_descent():
    problem = blobs(sizes=[17, 9])
    params = problem.model.init(KEY)
    data = ClientData(*rows_of((problem.data.x, problem.data.y, problem.data.size), 1))
    got = local_train(problem.loss, params, data, KEY, optax.sgd(0.1), epochs=1, batch_size=17)
    batch = Batch(data.x[:9], data.y[:9], jnp.ones(9), KEY)
    gradient, _ = jax.grad(problem.loss, has_aux=True)(params, batch)
    want = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)
    assert_close(got, want, atol=1e-6)


def test_projection_follows_every_step():
    options = {"epochs": 1, "batch_size": 1, "project": lambda p: jnp.minimum(p, 2.5)}
    got = local_train(count_rows, jnp.float32(0), numbered(4), KEY, SGD, **options)
    assert float(got) == 2.5


def test_fit_head_equals_sgd_through_the_frozen_network():
    problem = blobs(sizes=[23, 8])
    params = problem.model.init(KEY)
    sgd, options = optax.sgd(0.1), {"epochs": 2, "batch_size": 5}
    for client in range(2):
        data = ClientData(*rows_of((problem.data.x, problem.data.y, problem.data.size), client))
        got = fit_head(problem, params["representation"], params["head"], data, KEY, sgd, chunk=7, **options)

        def loss(head, batch):
            return problem.loss(params | {"head": head}, batch)

        assert_close(got, local_train(loss, params["head"], data, KEY, sgd, **options), atol=1e-6)


@pytest.mark.parametrize("size", [1, 6, 7, 8, 20])
def test_in_chunks_covers_the_rows_that_count(size):
    x = jnp.arange(20.0)
    got = in_chunks(lambda rows: {"square": rows**2}, x, jnp.int32(size), 7)["square"]
    np.testing.assert_array_equal(got[:size], x[:size] ** 2)

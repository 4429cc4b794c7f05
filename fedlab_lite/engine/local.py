"""One client's training: `local_train` for any params and loss, `fit_head` for a head on a fixed representation."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from fedlab_lite.data import apart, is_rows
from fedlab_lite.engine.clients import rows_of
from fedlab_lite.util import InputError


class ClientData(NamedTuple):
    """The rows of one client, or of several clients stacked on axis 0; only the first `size` rows count.

    Example:
      >>> rows = ClientData(x=jnp.zeros((5, 2)), y=jnp.zeros(5, int), size=jnp.int32(3))  # the last two are padding
      >>> rows.x.shape, int(rows.size)
      ((5, 2), 3)
    """

    x: Any  # [n, ...], or a tree of such arrays
    y: Any  # [n, ...]
    size: Any  # []
    budget: jax.Array | None = None  # solver iterations that the client can afford; None: the model's max_iter


class Batch(NamedTuple):
    """The input of a loss in one step: rows, which of them count, and what a model may need in training.

    Example:
      >>> def loss(params, batch):  # `local_train` wants this and the solver's equilibria, or None
      ...     return jnp.sum(batch.weight * (batch.x @ params - batch.y) ** 2) / jnp.sum(batch.weight)
      >>> loss(jnp.ones(1), Batch(x=jnp.ones((2, 1)), y=jnp.zeros(2), weight=jnp.array([1.0, 0.0]))).item()
      1.0
    """

    x: jax.Array  # [B, ...]
    y: jax.Array  # [B, ...]
    weight: jax.Array  # [B], 1 or 0
    key: jax.Array | None = None  # of this step, for dropout; None: none
    z0: jax.Array | None = None  # [B, ...], each row's last equilibrium; zeros: row not seen yet; None: no warm start
    budget: jax.Array | None = None  # the client's budget, see `ClientData`


def local_train(
    loss: Callable,
    params: PyTree,
    data: ClientData,
    key: Key[Array, ""],
    optimizer: optax.GradientTransformation,
    *,
    batch_size: int,
    epochs: Int[Array, ""] | int | None = None,
    steps: Int[Array, ""] | int | None = None,
    project: Callable = lambda params: params,
    memory: Float[Array, "n ..."] | None = None,
) -> PyTree:
    """Train one client from a fresh optimizer: `epochs` passes over its rows, or `steps` random batches.

    A pass takes the rows in fresh random order. A client of `size` rows takes ceil(size / batch_size) steps, the last
    one on the remaining rows. A random batch is drawn without replacement, anew for every step. The loops' bounds are
    data and not shapes, so one compilation serves clients of every size.

    Args:
      loss: `loss(params, batch: Batch) -> (scalar, z)`: a mean over the rows that count, and the rows' equilibria
        (None where there are none).
      params: the tree that is trained (`loss` holds what stays fixed).
      data: `x [n, ...]` (or a tree of them), `y [n]`, `size []`, and the client's `budget`.
      key: draws the order of the rows and seeds each step's dropout.
      optimizer: any optimizer of optax; its numbers may be data of the compiled program.
      batch_size: rows per step.
      epochs, steps: exactly one of the two.
      project: applied after every step (eq. (4) in FeDEQ).
      memory: `[n, ...]`, every row's last equilibrium (FeDEQ, Sec. III-B1), where the solver starts when the row is
        used again. `Problem.equilibria` makes one.

    Returns: the trained params; with a memory, the pair (params, memory).

    Raises: `InputError` unless exactly one of `epochs` and `steps` is given, and for an optimizer whose update changes
      the shapes or types of its state.

    Example (least squares on two rows; one step of full batch):
      >>> data = ClientData(jnp.array([[1.0], [2.0]]), jnp.array([0, 0]), jnp.int32(2))
      >>> square = lambda w, b: (jnp.sum(b.weight * (b.x[:, 0] * w) ** 2) / 2 / b.weight.sum(), None)
      >>> sgd = optax.sgd(0.1)
      >>> float(local_train(square, jnp.float32(1), data, jax.random.key(0), sgd, epochs=1, batch_size=2))
      0.75
    """
    if (epochs is None) == (steps is None):
        raise InputError(f"epochs is {epochs} and steps is {steps}; set one of them, and leave the other None")
    params, data = jax.tree.map(jnp.asarray, (params, data))
    rows = data.y.shape[0]
    batch_size = min(batch_size, rows)
    valid = jnp.arange(rows + batch_size) < data.size

    def shuffled(key):
        """Indices `[rows + batch_size]`: rows that count in random order, then the others, then indices of no row."""
        order = jnp.argsort(jnp.where(valid[:rows], jax.random.uniform(key, (rows,)), 2.0))
        return jnp.concatenate([order, jnp.full(batch_size, rows, order.dtype)])

    def checked_loss(params, batch):
        found = loss(params, batch)
        if not (isinstance(found, tuple) and len(found) == 2 and jnp.shape(found[0]) == ()):
            given = jax.tree.map(jnp.shape, found)
            raise InputError(f"a loss must return (mean, equilibria or None), the mean of shape (); got shapes {given}")
        return found

    def step(carry, order, start, key):
        params, state, memory = carry
        chosen = jax.lax.dynamic_slice(order, (start,), (batch_size,))
        weight = jax.lax.dynamic_slice(valid, (start,), (batch_size,)).astype(jnp.float32)
        z0 = None if memory is None else memory[chosen]
        batch = Batch(rows_of(data.x, chosen), data.y[chosen], weight, key, z0, data.budget)
        gradient, z = jax.grad(checked_loss, has_aux=True)(params, batch)
        updates, state = optimizer.update(gradient, state, params)
        memory = None if memory is None else memory.at[chosen].set(z, mode="drop")
        return project(optax.apply_updates(params, updates)), state, memory

    def epoch_or_step(index, carry):
        order_key, step_key = jax.random.split(jax.random.fold_in(key, index))
        order = shuffled(order_key)
        if steps is not None:
            return step(carry, order, 0, step_key)
        count = (data.size + batch_size - 1) // batch_size

        def in_order(index, carry):
            return step(carry, order, index * batch_size, jax.random.fold_in(step_key, index))

        return jax.lax.fori_loop(0, count, in_order, carry)

    state = optimizer.init(params)
    _check_optimizer(optimizer, params, state)
    number = epochs if steps is None else jnp.where(data.size > 0, steps, 0)
    params, _, memory = jax.lax.fori_loop(0, number, epoch_or_step, (params, state, memory))
    return params if memory is None else (params, memory)


def length_of(epochs: Int[Array, ""] | int, steps: Int[Array, ""] | int | None) -> dict[str, Int[Array, ""] | int]:
    """The length of `local_train` for an algorithm that has both: `steps` random batches, or if None `epochs` passes.

    Example:
      >>> length_of(2, None), length_of(2, 5)
      ({'epochs': 2}, {'steps': 5})
    """
    return {"epochs": epochs} if steps is None else {"steps": steps}


def _check_optimizer(optimizer: optax.GradientTransformation, params: Any, state: Any) -> None:
    updates, after = jax.eval_shape(optimizer.update, params, state, params)

    def form(tree):
        return jax.tree.structure(tree), [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)]

    if form(after) != form(jax.eval_shape(lambda: state)) or form(updates)[0] != form(params)[0]:
        raise InputError(
            "the optimizer's update changes the shapes or types of its state, or its updates differ in form from "
            f"params: {form(jax.eval_shape(lambda: state))} became {form(after)}; keep the form that `init` returns"
        )


def in_chunks(fn: Callable, rows: PyTree, size: Int[Array, ""], chunk: int) -> PyTree:
    """Apply `fn` to the first `size` rows of a tree of `[n, ...]`, `chunk` rows at a time; the other rows are zeros.

    The number of chunks follows `size`, so a small client's padding costs nothing. `fn` maps a tree of `[chunk, ...]`
    to a tree of `[chunk, ...]`, row by row.
    """
    stacked, pools, together = apart(rows)
    total = stacked[0].shape[0]
    chunk = min(chunk, total)

    def at(start):
        places = [jax.lax.dynamic_slice_in_dim(leaf, start, chunk) for leaf in stacked]
        return jax.tree.map(jnp.asarray, together(places, pools), is_leaf=is_rows)

    shapes = jax.eval_shape(lambda: fn(at(0)))
    result = jax.tree.map(lambda leaf: jnp.zeros((total, *leaf.shape[1:]), leaf.dtype), shapes)

    def step(index, result):
        start = jnp.minimum(index * chunk, total - chunk)  # the last chunk overlaps the one before
        write = jax.lax.dynamic_update_slice_in_dim
        return jax.tree.map(lambda old, new: write(old, new, start, 0), result, fn(at(start)))

    return jax.lax.fori_loop(0, (size + chunk - 1) // chunk, step, result)


def fit_head(
    problem: Any,  # a `Problem`, whose module builds on this one
    representation: dict,
    head: dict,
    data: ClientData,
    key: jax.Array,
    optimizer: optax.GradientTransformation,
    *,
    chunk: int = 100,
    **options,
) -> dict:
    """Train a client's head on a fixed representation, with each row represented only once.

    The result is that of training through the whole network with the representation frozen and its dropout off. The
    cost is one forward pass, then `local_train` on features. `options` are those of `local_train`.
    """
    model = problem.model

    def represent(x):
        return model.represent({"representation": representation}, x, budget=data.budget)

    features = in_chunks(represent, data.x, data.size, chunk)

    def loss(head, batch):
        outputs = model.classify(head, batch.x, key=batch.key)
        return problem.mean_loss(outputs, batch.y, batch.weight), None

    return local_train(loss, head, ClientData(features, data.y, data.size), key, optimizer, **options)

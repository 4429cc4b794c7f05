"""Many clients in one compiled program: `for_clients` applies one client's function to a cohort, `local_sgd` trains it.

A client never knows how it is executed. `loop` is a plain Python loop, for reading and for checking (it compiles anew
at every call); `map` runs one client after the other inside the program; `vmap` batches them. On several devices `map`
and `vmap` shard the cohort over all of them. All agree to rounding on the same keys.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedlab_lite.data.federated import Federated
from fedlab_lite.data.text import PAD
from fedlab_lite.errors import choose
from fedlab_lite.graphs import Graph
from fedlab_lite.nn.model import Model

EXECUTORS = ("auto", "loop", "map", "vmap")


class ClientData(NamedTuple):
    """One client's rows, or a stack of clients' on axis 0; only the first `size` rows count."""

    x: jax.Array
    y: jax.Array
    size: jax.Array
    budget: jax.Array | None = None  # solver iterations that the client can afford; None: the model's max_iter


class Batch(NamedTuple):
    """What a loss sees in one step: rows, which of them count, and what a model in training may need."""

    x: jax.Array  # [B, ...]
    y: jax.Array  # [B, ...]
    weight: jax.Array  # [B], 1 or 0
    key: jax.Array | None = None  # of this step, for dropout; None: none
    z0: jax.Array | None = None  # [B, ...], each row's last equilibrium; zeros: not seen yet; None: no warm start
    budget: jax.Array | None = None  # the client's, see `ClientData`


def take(tree, cohort: jax.Array | int):
    """The cohort's rows (or one client's) of a tree stacked over clients."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[cohort], tree)


def put(tree, cohort: jax.Array, rows):
    """The tree with the cohort's rows replaced; everybody else keeps theirs."""
    return jax.tree.map(lambda leaf, new: leaf.at[cohort].set(new), tree, rows)


def broadcast(tree, num_clients: int):
    """The same tree for every client, stacked on axis 0."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_clients, *leaf.shape)), tree)


@lru_cache(maxsize=1)
def mesh() -> Mesh:
    """All devices of the default backend in a row; the client axis is laid over them."""
    return jax.make_mesh((jax.device_count(),), ("clients",), axis_types=(jax.sharding.AxisType.Auto,))


def replicated() -> NamedSharding:
    """Where arrays that every device needs (data, server state) are placed."""
    return NamedSharding(mesh(), PartitionSpec())


def for_clients(fn: Callable, *stacked, shared: tuple = (), executor: str = "auto"):
    """Apply `fn(*rows, *shared)` to every row (axis 0) of the `stacked` trees and stack what it returns.

    Under `vmap` (over seeds, say) the batch is laid out as further clients, so seeds cost what clients cost and
    weights never turn into a batched axis of a convolution.

    Args:
      fn: one client's function; it must not close over arrays that an outer `vmap` batches: pass them as `shared`.
      stacked: trees whose leaves have the cohort on axis 0.
      shared: trees that every client sees whole.
      executor: 'loop', 'map', 'vmap', or 'auto': map on CPU, vmap on an accelerator.

    Raises: `InputError` for an unknown executor.

    Example:
      >>> for_clients(lambda a, b: a * b, jnp.arange(3.0), shared=(jnp.float32(2.0),)).tolist()
      [0.0, 2.0, 4.0]
    """
    choose("executor", executor, EXECUTORS)
    if executor == "auto":
        executor = "map" if jax.default_backend() == "cpu" else "vmap"

    @jax.custom_batching.custom_vmap
    def apply(stacked, shared):
        return _execute(fn, stacked, shared, executor)

    @apply.def_vmap
    def flatten_batch(axis_size, batched, stacked, shared):
        rows = jax.tree.leaves(stacked)[0].shape[1 if jax.tree.leaves(batched[0])[0] else 0]

        def flat(leaf, is_batched):
            leaf = leaf if is_batched else jnp.broadcast_to(leaf, (axis_size, *leaf.shape))
            return leaf.reshape(axis_size * rows, *leaf.shape[2:])

        def one_row(of_batch, *args):  # what a row shares with its batch is looked up, not copied for every row
            row, shared = args[: len(stacked)], args[len(stacked) :]
            pick = jax.tree.map(lambda leaf, is_batched: leaf[of_batch] if is_batched else leaf, shared, batched[1])
            return fn(*row, *pick)

        of_batch = jnp.repeat(jnp.arange(axis_size), rows)
        flat_stacked = jax.tree.map(flat, stacked, batched[0])
        result = for_clients(one_row, of_batch, *flat_stacked, shared=shared, executor=executor)
        unflat = jax.tree.map(lambda leaf: leaf.reshape(axis_size, rows, *leaf.shape[1:]), result)
        return unflat, jax.tree.map(lambda _: True, unflat)

    return apply(stacked, shared)


def _execute(fn: Callable, stacked, shared, executor: str):
    rows = jax.tree.leaves(stacked)[0].shape[0]
    if executor == "loop":
        one_client = jax.jit(fn)
        results = [one_client(*take(stacked, i), *shared) for i in range(rows)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *results)

    def block(stacked, shared):
        if executor == "map":
            return jax.lax.map(lambda row: fn(*row, *shared), stacked)
        return jax.vmap(lambda row: fn(*row, *shared))(stacked)

    devices = mesh().size
    if devices == 1 or rows == 1:
        return block(stacked, shared)
    if padding := -rows % devices:  # the last device's idle places repeat a client; their results are dropped
        stacked = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf[-1:].repeat(padding, 0)]), stacked)
    over_clients, everywhere = PartitionSpec("clients"), PartitionSpec()
    sharded = jax.shard_map(
        block, mesh=mesh(), in_specs=(over_clients, everywhere), out_specs=over_clients, check_vma=False
    )
    return jax.tree.map(lambda leaf: leaf[:rows], sharded(stacked, shared))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Problem:
    """What an algorithm works on: data, model, loss, and how clients are executed."""

    data: Federated
    model: Model = field(metadata={"static": True})
    executor: str = field(default="auto", metadata={"static": True})
    newcomers: Federated | None = None  # clients that join when the others have been trained
    graph: Graph | None = None  # who talks to whom, where there is no server
    weight: jax.Array | None = None  # [clients], what each counts in an average; None: as the algorithm has it

    @property
    def num_clients(self) -> int:
        return self.data.num_clients

    def weights(self, cohort: jax.Array, own: jax.Array | None = None) -> jax.Array:
        """What each client of `cohort [m]` counts in the server's average.

        `weight` where the problem has one (see `fusion`), else the algorithm's `own [m]`; None: its training rows.
        """
        if self.weight is not None:
            return jnp.asarray(self.weight)[cohort]
        return jnp.asarray(self.data.size)[cohort] if own is None else own

    def row_loss(self, logits: jax.Array, y: jax.Array) -> jax.Array:
        """Cross-entropy of `logits [B, C]` and labels `y [B]`: `[B]`; of tokens `[B, T, C]`, `[B, T]`: `[B, T]`."""
        return optax.softmax_cross_entropy_with_integer_labels(logits, y)

    def counted(self, y: jax.Array, weight: jax.Array) -> jax.Array:
        """What of `y` counts, 1 or 0: the labels of the rows that `weight [B]` counts; of token rows, no padding."""
        return weight if y.ndim == 1 else weight[:, None] * (y != PAD)

    def mean_loss(self, logits: jax.Array, y: jax.Array, weight: jax.Array) -> jax.Array:
        """Mean of `row_loss` over the labels or tokens that count."""
        counted = self.counted(y, weight)
        return jnp.sum(self.row_loss(logits, y) * counted) / jnp.maximum(counted.sum(), 1)

    def loss(self, params: dict, batch: Batch) -> tuple[jax.Array, jax.Array | None]:
        """Mean loss of a batch in training, and its rows' equilibria `[B, ...]` (None: an explicit model)."""
        logits, solution = self.model.forward(params, batch.x, key=batch.key, z0=batch.z0, budget=batch.budget)
        return self.mean_loss(logits, batch.y, batch.weight), solution and solution.z

    def equilibria(self, *rows: int) -> jax.Array | None:
        """A memory of equilibria `[*rows, ...]` for `local_sgd`, nothing seen yet; None for an explicit model."""
        shape = self.model.equilibrium_shape()
        return None if shape is None else jnp.zeros((*rows, *shape))

    def project(self, params: dict) -> dict:
        """Params with the representation inside the model's constraint set, if it has one."""
        return params | {"representation": self.model.project(params["representation"])}

    def dealt(self, cohort: jax.Array) -> jax.Array:
        """The cohort in the order that gives every device an equal share of the work.

        Clients are ragged, and devices take equal runs of the cohort: from the largest client on they are dealt one
        to each device and back again, so that no device's rows exceed another's by more than one client's.
        """
        devices, size = mesh().size, len(cohort)
        hands = np.arange(-(-size // devices) * devices).reshape(-1, devices)
        hands[1 : size // devices : 2] = hands[1 : size // devices : 2, ::-1]
        order = hands.T.ravel()
        largest_first = jnp.argsort(-self.data.size[cohort])
        return cohort[largest_first[order[order < size]]]

    def for_cohort(self, fn: Callable, cohort: jax.Array, key: jax.Array, *stacked, shared: tuple = ()):
        """`fn(data: ClientData, key, *rows, *shared)` for every client of `cohort [m]`, each with its own key.

        A client's key depends on its index, not on who else was sampled.
        """
        data = ClientData(*take((self.data.x, self.data.y, self.data.size, self.data.budget), cohort))
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, cohort)
        return for_clients(fn, data, keys, *stacked, shared=shared, executor=self.executor)


def local_sgd(
    loss: Callable,
    params,
    data: ClientData,
    key: jax.Array,
    *,
    lr: float,
    epochs: int,
    batch_size: int,
    momentum: float | None = None,
    project: Callable = lambda params: params,
    memory: jax.Array | None = None,
):
    """One client's SGD: `epochs` passes over its rows in fresh random order, `batch_size` rows a step.

    A client of `size` rows takes ceil(size / batch_size) steps an epoch, the last one on the rows that are left. The
    loops' bounds are data, not shapes, so one compilation serves clients of every size.

    Args:
      loss: `loss(params, batch: Batch) -> (scalar, z)`: a mean over the rows that count, and the rows' equilibria
        (None where there are none).
      params: the tree that is trained (what stays fixed lives in `loss`).
      data: `x [n, ...]` (or a tree of them), `y [n]`, `size []`, and the client's `budget`.
      key: shuffles the rows and seeds each step's dropout.
      lr: step size eta. epochs: passes. batch_size: rows a step.
      momentum: epsilon of the heavy ball, w <- w - eta g + epsilon (w - the w before), from rest; None: none.
      project: applied after every step (eq. (4) in FeDEQ).
      memory: `[n, ...]`, every row's last equilibrium (FeDEQ, Sec. III-B1): where the solver starts when the row comes
        up again. `Problem.equilibria` makes one.

    Returns: the trained params; with a memory, the pair (params, memory).

    Example (least squares on two rows; one step of full batch):
      >>> data = ClientData(jnp.array([[1.0], [2.0]]), jnp.array([0, 0]), jnp.int32(2))
      >>> square = lambda w, b: (jnp.sum(b.weight * (b.x[:, 0] * w) ** 2) / 2 / b.weight.sum(), None)
      >>> float(local_sgd(square, jnp.float32(1), data, jax.random.key(0), lr=0.1, epochs=1, batch_size=2))
      0.75
    """
    data = jax.tree.map(jnp.asarray, data)
    rows = data.y.shape[0]
    batch_size = min(batch_size, rows)
    steps = (data.size + batch_size - 1) // batch_size
    valid = jnp.arange(rows + batch_size) < data.size

    def epoch(index, carry):
        order_key, step_key = jax.random.split(jax.random.fold_in(key, index))
        noise = jax.random.uniform(order_key, (rows,))
        order = jnp.argsort(jnp.where(valid[:rows], noise, 2.0))  # rows that count come first
        order = jnp.concatenate([order, jnp.zeros(batch_size, order.dtype)])

        def step(index, carry):
            params, before, memory = carry
            chosen = jax.lax.dynamic_slice(order, (index * batch_size,), (batch_size,))
            weight = jax.lax.dynamic_slice(valid, (index * batch_size,), (batch_size,)).astype(jnp.float32)
            z0 = None if memory is None else memory[chosen]
            key = jax.random.fold_in(step_key, index)
            batch = Batch(take(data.x, chosen), data.y[chosen], weight, key, z0, data.budget)
            gradient, z = jax.grad(loss, has_aux=True)(params, batch)
            moved = jax.tree.map(lambda p, g: p - lr * g, params, gradient)
            if momentum is not None:
                moved = jax.tree.map(lambda m, p, b: m + momentum * (p - b), moved, params, before)
                before = params
            return project(moved), before, None if memory is None else memory.at[chosen].set(z)

        return jax.lax.fori_loop(0, steps, step, carry)

    before = None if momentum is None else params
    params, _, memory = jax.lax.fori_loop(0, epochs, epoch, (params, before, memory))
    return params if memory is None else (params, memory)


def in_chunks(fn: Callable, rows, size: jax.Array, chunk: int):
    """`fn` over the first `size` rows of a tree of `[n, ...]`, `chunk` rows at a time; zeros beyond.

    The number of chunks follows `size`, so a small client's padding costs nothing. `fn` maps a tree of `[chunk, ...]`
    to a tree of `[chunk, ...]`, row by row.
    """
    total = jax.tree.leaves(rows)[0].shape[0]
    chunk = min(chunk, total)

    def at(start):
        return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, chunk), rows)

    shapes = jax.eval_shape(lambda: fn(at(0)))
    result = jax.tree.map(lambda leaf: jnp.zeros((total, *leaf.shape[1:]), leaf.dtype), shapes)

    def step(index, result):
        start = jnp.minimum(index * chunk, total - chunk)  # the last chunk overlaps the one before
        write = jax.lax.dynamic_update_slice_in_dim
        return jax.tree.map(lambda old, new: write(old, new, start, 0), result, fn(at(start)))

    return jax.lax.fori_loop(0, (size + chunk - 1) // chunk, step, result)


def fit_head(
    problem: Problem,
    representation: dict,
    head: dict,
    data: ClientData,
    key: jax.Array,
    *,
    chunk: int = 100,
    **sgd,
):
    """Train a client's head on a fixed representation: each row is represented once, then `local_sgd` on features.

    The same as SGD through the whole network with the representation frozen and its dropout off, at the cost of one
    forward pass.
    """
    model = problem.model

    def represent(x):
        return model.represent({"representation": representation}, x, budget=data.budget)

    features = in_chunks(represent, data.x, data.size, chunk)

    def loss(head, batch):
        logits = model.classify(head, batch.x, key=batch.key)
        return problem.mean_loss(logits, batch.y, batch.weight), None

    return local_sgd(loss, head, ClientData(features, data.y, data.size), key, **sgd)

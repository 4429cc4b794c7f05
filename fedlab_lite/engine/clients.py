"""Many clients in one compiled program: `for_clients` applies one client's function to all of them.

The function does not depend on how it is executed. `loop` is a plain Python loop, for reading and for checking; it
compiles anew at every call. `map` runs one client after the other inside the program. `vmap` batches them: all at once,
or in groups. On several devices `map` and `vmap` distribute the clients over all devices. All agree to rounding on the
same keys.

A batch takes as many steps as its largest client. So clients are sorted by their number of rows before they are put
into groups, and few steps are wasted on clients that have finished.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree, Shaped

from fedlab_lite.data import apart, is_rows
from fedlab_lite.engine.devices import CLIENTS, EVERYWHERE, mesh
from fedlab_lite.util import choose
from fedlab_lite.util.fields import Count, checks_arguments

EXECUTORS = ("auto", "loop", "map", "vmap")


def rows_of(tree: PyTree, rows: Int[Array, "..."] | int) -> PyTree:
    """The given rows of a tree of `[n, ...]`, or one row."""

    def of(leaf):
        return jnp.asarray(leaf[rows] if is_rows(leaf) else jnp.asarray(leaf)[rows])

    return jax.tree.map(of, tree, is_leaf=is_rows)


def executor_here(executor: str) -> str:
    """The executor that 'auto' means on this machine: 'map' on a CPU, 'vmap' on an accelerator."""
    choose("executor", executor, EXECUTORS)
    return ("map" if jax.default_backend() == "cpu" else "vmap") if executor == "auto" else executor


@checks_arguments
def for_clients(
    fn: Callable,
    *stacked: PyTree,
    shared: tuple = (),
    executor: str = "auto",
    clients_at_once: Count | None = None,
    sizes: Shaped[Array | np.ndarray, " clients"] | None = None,
) -> PyTree:
    """Apply `fn(*rows, *shared)` to every row (axis 0) of the `stacked` trees and stack the results.

    Args:
      fn: one client's function.
      stacked: trees whose leaves have the clients on axis 0; pools of `Rows` are passed whole, with places into them.
      shared: trees that are passed to every client unchanged.
      executor: 'loop', 'map', 'vmap', or 'auto': map on CPU, vmap on an accelerator.
      clients_at_once: number of clients that a device batches with 'vmap', which decides the memory; None: all.
      sizes: each client's number of rows; groups are made of clients with similar numbers. None: in the given order.

    Raises: `InputError` for an unknown executor, or fewer than one client at once.

    Example:
      >>> for_clients(lambda a, b: a * b, jnp.arange(3.0), shared=(jnp.float32(2.0),)).tolist()
      [0.0, 2.0, 4.0]
    """
    executor = executor_here(executor)
    stacked, pools, together = apart(stacked)
    shared = (pools, *shared)
    rows = stacked[0].shape[0]

    def client(shared, row):
        pools, *others = shared
        return fn(*together(row, pools), *others)

    if executor == "loop":
        one_client = jax.jit(client)
        results = [one_client(shared, rows_of(stacked, i)) for i in range(rows)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *results)

    def block(stacked, sizes, shared):
        one = partial(client, shared)
        return jax.lax.map(one, stacked) if executor == "map" else _in_groups(one, stacked, sizes, clients_at_once)

    devices = mesh().size
    if devices == 1 or rows == 1:
        return block(stacked, sizes, shared)
    if padding := -rows % devices:  # idle slots of the last device repeat a client; their results are dropped
        stacked, sizes = rows_of((stacked, sizes), jnp.minimum(jnp.arange(rows + padding), rows - 1))
    in_specs = (CLIENTS, CLIENTS, EVERYWHERE)
    everywhere = jax.shard_map(block, mesh=mesh(), in_specs=in_specs, out_specs=CLIENTS, check_vma=False)
    result = jax.jit(everywhere)(stacked, sizes, shared)
    return jax.tree.map(lambda leaf: leaf[:rows], result) if padding else result


def _in_groups(
    fn: Callable, stacked: PyTree, sizes: Shaped[Array | np.ndarray, " clients"] | None, at_once: int | None
) -> PyTree:
    """Apply `fn` to all rows, `at_once` in a batch, the largest clients first; results are in the given order."""
    rows = jax.tree.leaves(stacked)[0].shape[0]
    if at_once is None or at_once >= rows:
        return jax.vmap(fn)(stacked)
    order = jnp.arange(rows) if sizes is None else jnp.argsort(-jnp.asarray(sizes), stable=True)
    groups = -(-rows // at_once)  # places that are left over in the last group repeat its smallest client
    places = order[jnp.minimum(jnp.arange(groups * at_once), rows - 1)].reshape(groups, at_once)
    result = jax.lax.map(lambda places: jax.vmap(fn)(rows_of(stacked, places)), places)
    result = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), result)
    return rows_of(result, jnp.argsort(order, stable=True))

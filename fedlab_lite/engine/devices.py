"""Clients over devices: who owns which rows, how a cohort's rows come to whom computes them, and sums over clients.

What clients own (data, params, duals) lies in equal runs over the devices, client 0's first, if the number of devices
divides the number of clients; else, and on one device, everything is everywhere. What all read is on every device.
XLA left to itself gathers such arrays whole, so what moves is written down here, as `jax.shard_map`. None of it depends
on the number of devices, to the bit: rows are copied, and sums are made of products of one fixed shape.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped

CLIENTS, EVERYWHERE = PartitionSpec("clients"), PartitionSpec()
CHUNK = 1 << 16  # entries of a row that one product over clients takes; a constant, because shapes decide rounding


@lru_cache(maxsize=1)
def mesh() -> Mesh:
    """All devices of the default backend, of all processes, in a row; the client axis is laid over them."""
    return jax.make_mesh((jax.device_count(),), ("clients",), axis_types=(jax.sharding.AxisType.Auto,))


def replicated() -> NamedSharding:
    """Where arrays that every device needs (server state) are placed."""
    return NamedSharding(mesh(), EVERYWHERE)


def shared_out(num_clients: int) -> bool:
    """Whether what so many clients own is laid over several devices."""
    return mesh().size > 1 and num_clients % mesh().size == 0


def placed(num_clients: int, *, axis: int = 0) -> NamedSharding:
    """Where an array that is stacked over all clients on `axis` is placed."""
    spec = PartitionSpec(*[None] * axis, "clients") if shared_out(num_clients) else EVERYWHERE
    return NamedSharding(mesh(), spec)


def put_on_devices(tree: Any, sharding: NamedSharding) -> Any:
    """The host's arrays as arrays of all devices; each process gives its devices their part."""
    if jax.process_count() == 1:
        return jax.device_put(tree, sharding)

    def place(leaf):
        leaf = np.asarray(leaf)
        return jax.make_array_from_callback(leaf.shape, sharding, lambda index: leaf[index])

    return jax.tree.map(place, tree)


def to_host(leaf: Shaped[Array, "..."]) -> Shaped[np.ndarray, "..."]:
    """An array of all devices as one of this process; every process has to ask for it."""
    if not leaf.is_fully_addressable and not leaf.is_fully_replicated:
        leaf = jax.jit(lambda leaf: leaf, out_shardings=replicated())(leaf)
    return np.asarray(leaf)


def _over_devices(fn: Callable, in_specs, out_specs) -> Callable:
    return jax.shard_map(fn, mesh=mesh(), in_specs=in_specs, out_specs=out_specs, check_vma=False)


def _own(cohort: Int[Array, " m"], block: int) -> tuple[Bool[Array, " m"], Int[Array, " m"]]:
    """Which of the cohort this device owns, and at which of its `block` rows; for the others a row past the end."""
    place = cohort - jax.lax.axis_index("clients") * block
    mine = (place >= 0) & (place < block)
    return mine, jnp.where(mine, place, block)


def _padded(cohort: jax.Array, num_clients: int) -> jax.Array:
    """The cohort with nobody (`num_clients`) in the places that are missing to equal shares for all devices."""
    return jnp.concatenate([cohort, jnp.full(-len(cohort) % mesh().size, num_clients, cohort.dtype)])


@jax.jit
def take(tree: PyTree, cohort: Int[Array, " m"]) -> PyTree:
    """Rows `cohort [m]` of a tree whose leaves `[clients, ...]` are stacked over all clients; zeros for nobody.

    Nobody is the index `clients`: an idle place. Where clients are shared out, each device masks the rows that it owns,
    and adding the masked rows up deals them to the devices that will compute with them.
    """
    leaves = jax.tree.leaves(tree)
    if not leaves or not shared_out(len(leaves[0])):
        return jax.tree.map(lambda leaf: leaf.at[cohort].get(mode="fill", fill_value=0), tree)
    places = _padded(cohort, len(leaves[0]))

    def deal(tree):
        def leaf_rows(leaf):
            mine, place = _own(places, len(leaf))
            rows = leaf.at[place].get(mode="fill", fill_value=0)
            rows = rows.astype(jnp.uint8) if leaf.dtype == bool else rows
            rows = jnp.where(mine.reshape(-1, *[1] * (rows.ndim - 1)), rows, 0)
            return jax.lax.psum_scatter(rows, "clients", tiled=True).astype(leaf.dtype)

        return jax.tree.map(leaf_rows, tree)

    rows = _over_devices(deal, (CLIENTS,), CLIENTS)(tree)
    return jax.tree.map(lambda leaf: leaf[: len(cohort)], rows)


@jax.jit
def put(tree: PyTree, cohort: Int[Array, " m"], rows: PyTree) -> PyTree:
    """The tree with the cohort's rows replaced by `rows [m, ...]`; everybody else keeps theirs, nobody gets nothing."""
    leaves = jax.tree.leaves(tree)
    if not leaves or not shared_out(len(leaves[0])):
        return jax.tree.map(lambda leaf, new: leaf.at[cohort].set(new, mode="drop"), tree, rows)
    places = _padded(cohort, len(leaves[0]))
    fill = len(places) - len(cohort)
    rows = jax.tree.map(lambda leaf: jnp.pad(leaf, [(0, fill)] + [(0, 0)] * (leaf.ndim - 1)), rows)

    def collect(tree, rows):
        def own_rows(leaf, new):
            new = jax.lax.all_gather(new, "clients", tiled=True)
            return leaf.at[_own(places, len(leaf))[1]].set(new, mode="drop")

        return jax.tree.map(own_rows, tree, rows)

    return _over_devices(collect, (CLIENTS, CLIENTS), CLIENTS)(tree, rows)


def broadcast(tree: PyTree, num_clients: int) -> PyTree:
    """The same tree for every client, stacked on axis 0; each device makes the copies of the clients that it owns."""
    if not shared_out(num_clients):
        return _copies(tree, num_clients)
    return _copier(num_clients, placed(num_clients))(tree)


def _copies(tree: PyTree, number: int) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (number, *jnp.shape(leaf))), tree)


@lru_cache(maxsize=64)
def _copier(number: int, where: NamedSharding) -> Callable[[PyTree], PyTree]:
    return jax.jit(partial(_copies, number=number), out_shardings=where)


class Sparse(NamedTuple):
    """A matrix `[k, m]` of few entries a row: their columns (m: none) and their values, both `[k, entries]`."""

    columns: Int[Array, "k entries"]
    values: Float[Array, "k entries"]


def _product(matrix: Float[Array, "k m"] | Sparse, rows: Shaped[Array, "m columns"]) -> Float[Array, "k columns"]:
    """`matrix [k, m] @ rows [m, columns]`, in float32 or better whatever the type of the rows.

    Behind barriers, because what XLA fuses into a product, here this and there that, decides how it rounds.
    """
    wide = jnp.promote_types(rows.dtype, jnp.float32)
    if isinstance(matrix, Sparse):
        return _few(matrix, rows.astype(wide)).astype(jnp.result_type(rows, float))
    factors = jax.lax.optimization_barrier((matrix.astype(wide), rows.astype(wide)))
    product = jax.lax.optimization_barrier(jnp.matmul(*factors, precision=jax.lax.Precision.HIGHEST))
    return product.astype(jnp.result_type(rows, float))


def _few(matrix: Sparse, rows: Float[Array, "m columns"]) -> Float[Array, "k columns"]:
    """The product entry by entry: as many multiplications as there are entries."""

    def add(total, entry):
        index, value = entry
        return total + value[:, None] * rows.at[index].get(mode="fill", fill_value=0), None

    start = jnp.zeros((len(matrix.values), rows.shape[1]), rows.dtype)
    return jax.lax.scan(add, start, (matrix.columns.T, matrix.values.T.astype(rows.dtype)))[0]


def _chunks(rows: Shaped[Array, "m columns"], multiple: int = 1) -> Shaped[Array, "m chunks entries"]:
    """`[m, columns]` as `[m, chunks, CHUNK]`, zeros at the end."""
    count = -(-rows.shape[1] // CHUNK)
    count = -(-count // multiple) * multiple
    return jnp.pad(rows, [(0, 0), (0, count * CHUNK - rows.shape[1])]).reshape(len(rows), count, CHUNK)


def combine(
    matrix: Float[Array, "k m"] | Sparse,
    stacked: PyTree,
    *,
    order: Int[Array, " m"] | None = None,
    spread: bool = False,
) -> PyTree:
    """sum_j matrix[i, j] stacked_(order_j) for every leaf, the same bits on any number of devices.

    Wide rows are cut into chunks, so that a product has one shape however many devices share them out; several devices
    exchange chunks, so that each adds up some columns of all rows.

    Args:
      matrix: `[k, m]`; a `Sparse` one costs its entries.
      stacked: leaves `[rows, ...]`.
      order: `[m]`, the rows that are added up, in this order; None: all, as they stand.
      spread: the result's k rows are clients', and shared out like them; else the result is on every device.

    >>> combine(jnp.array([[0.5, 0.5]]), {"w": jnp.array([1.0, 3.0])})["w"].tolist()
    [2.0]
    """
    devices, k = mesh().size, len(matrix.values if isinstance(matrix, Sparse) else matrix)
    several = devices > 1 and shared_out(len(jax.tree.leaves(stacked)[0])) and (not spread or shared_out(k))

    def ordered(rows):
        return rows if order is None else rows[order]

    def whole(rows):
        if rows.shape[1] <= CHUNK:
            return _product(matrix, ordered(rows))
        parts = jnp.moveaxis(_chunks(rows), 1, 0)
        parts = jax.lax.map(lambda part: _product(matrix, ordered(part)), parts)
        return jnp.moveaxis(parts, 0, 1).reshape(k, -1)[:, : rows.shape[1]]

    def exchanged(rows):  # of this device: [rows / devices, columns]
        gather = partial(jax.lax.all_gather, axis_name="clients", tiled=True)
        if rows.shape[1] <= CHUNK:
            result = _product(matrix, ordered(gather(rows)))
            if not spread:
                return result
            return jax.lax.dynamic_slice_in_dim(result, jax.lax.axis_index("clients") * (k // devices), k // devices)
        parts = jax.lax.all_to_all(_chunks(rows, devices), "clients", 1, 0, tiled=True)
        parts = jax.lax.map(lambda part: _product(matrix, ordered(part)), jnp.moveaxis(parts, 1, 0))
        parts = jax.lax.all_to_all(parts, "clients", 1, 0, tiled=True) if spread else gather(parts)
        return jnp.moveaxis(parts, 0, 1).reshape(parts.shape[1], -1)[:, : rows.shape[1]]

    def one(leaf):
        rows = leaf.reshape(len(leaf), -1)
        if several:
            result = _over_devices(exchanged, (CLIENTS,), CLIENTS if spread else EVERYWHERE)(rows)
        else:
            result = whole(jax.lax.with_sharding_constraint(rows, replicated()) if devices > 1 else rows)
        return result.reshape(k, *leaf.shape[1:])

    return jax.tree.map(one, stacked)


def dealt(cohort: Int[Array, " m"], size: Int[Array | np.ndarray, " clients"]) -> Int[Array, " places"]:
    """The cohort in the order that gives every device an equal share of the work, nobody in the places left over.

    Devices take equal runs of the cohort, but clients are ragged: from the largest on they are dealt one to each device
    and back again, so that no device's rows exceed another's by more than the largest client's.

    Args:
      cohort: `[m]` of `[0, clients)`.
      size: `[clients]`, rows.

    Returns: `[m]`, rounded up to a multiple of the devices; on one device the cohort as it is.
    """
    devices = mesh().size
    if devices == 1:
        return cohort
    nobody = len(size)
    places = _padded(cohort, nobody)
    hands = np.arange(len(places)).reshape(-1, devices)
    hands[1::2] = hands[1::2, ::-1]
    work = jnp.where(places < nobody, jnp.asarray(size)[jnp.minimum(places, nobody - 1)], -1)
    return places[jnp.argsort(-work, stable=True)[hands.T.ravel()]]

"""Clients over devices: which device owns which rows, how a cohort's rows reach the devices, and sums over clients.

What clients own (data, params, duals) is split into equal runs over the devices, client 0's first. This needs a number
of devices that divides the number of clients. Otherwise, and on one device, every device holds everything. What all
clients read is on every device.

Left to itself, XLA gathers such arrays whole. So each transfer is written down here, as `jax.shard_map`. No result
depends on the number of devices, to the bit: rows are copied, and sums are made of products of one fixed shape.
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
CHUNK = 1 << 16  # entries of a row per product over clients; constant, because shapes decide rounding
ADDED = {"bool": jnp.uint8, "uint16": jnp.uint32}  # types in which rows are added up where devices cannot add theirs


@lru_cache(maxsize=1)
def mesh() -> Mesh:
    """All devices of the default backend, of all processes, in a row along the client axis."""
    return jax.make_mesh((jax.device_count(),), ("clients",), axis_types=(jax.sharding.AxisType.Auto,))


def replicated() -> NamedSharding:
    """The placement of arrays that every device needs, such as the server's state."""
    return NamedSharding(mesh(), EVERYWHERE)


def everywhere(tree: Any) -> Any:
    """The arrays on every device, so that what is computed from them has the bits of a single device."""
    return tree if mesh().size == 1 else jax.lax.with_sharding_constraint(tree, replicated())


def shared_out(num_clients: int) -> bool:
    """Whether the arrays of `num_clients` clients are distributed over several devices."""
    return mesh().size > 1 and num_clients % mesh().size == 0


def placed(num_clients: int, *, axis: int = 0) -> NamedSharding:
    """The placement of an array that is stacked over all clients on `axis`."""
    spec = PartitionSpec(*[None] * axis, "clients") if shared_out(num_clients) else EVERYWHERE
    return NamedSharding(mesh(), spec)


def put_on_devices(tree: Any, sharding: NamedSharding) -> Any:
    """Arrays of the host as arrays on all devices; each process supplies the part of its own devices."""
    if jax.process_count() == 1:
        return jax.device_put(tree, sharding)

    def place(leaf):
        leaf = np.asarray(leaf)
        return jax.make_array_from_callback(leaf.shape, sharding, lambda index: leaf[index])

    return jax.tree.map(place, tree)


def to_host(leaf: Shaped[Array, "..."]) -> Shaped[np.ndarray, "..."]:
    """An array on all devices as one of this process; every process has to call this."""
    if not leaf.is_fully_addressable and not leaf.is_fully_replicated:
        leaf = jax.jit(lambda leaf: leaf, out_shardings=replicated())(leaf)
    return np.asarray(leaf)


def _over_devices(fn: Callable, in_specs, out_specs) -> Callable:
    return jax.shard_map(fn, mesh=mesh(), in_specs=in_specs, out_specs=out_specs, check_vma=False)


def _own(cohort: Int[Array, " m"], block: int) -> tuple[Bool[Array, " m"], Int[Array, " m"]]:
    """Which of the cohort this device owns, and at which of its `block` rows.

    For clients of other devices the row is one past the end.
    """
    place = cohort - jax.lax.axis_index("clients") * block
    mine = (place >= 0) & (place < block)
    return mine, jnp.where(mine, place, block)


def _padded(cohort: jax.Array, num_clients: int) -> jax.Array:
    """The cohort, padded with idle slots (`num_clients`) to equal shares for all devices."""
    return jnp.concatenate([cohort, jnp.full(-len(cohort) % mesh().size, num_clients, cohort.dtype)])


def per_row(values: Shaped[Array, " m"], leaf: Shaped[Array, "m ..."]) -> Shaped[Array, "m ..."]:
    """One value per row, in a shape that broadcasts against `leaf`."""
    return values.reshape(-1, *[1] * (leaf.ndim - 1))


@jax.jit
def take(tree: PyTree, cohort: Int[Array, " m"]) -> PyTree:
    """The rows `cohort [m]` of a tree whose leaves `[clients, ...]` are stacked over all clients; zeros for idle slots.

    An idle slot is the index `clients`. Where clients are distributed, each device masks the rows that it owns. Adding
    up the masked rows sends them to the devices that compute with them.
    """
    leaves = jax.tree.leaves(tree)
    if not leaves or not shared_out(len(leaves[0])):
        return jax.tree.map(lambda leaf: leaf.at[cohort].get(mode="fill", fill_value=0), tree)
    places = _padded(cohort, len(leaves[0]))

    def deal(tree):
        def leaf_rows(leaf):
            mine, place = _own(places, len(leaf))
            rows = leaf.at[place].get(mode="fill", fill_value=0)
            rows = rows.astype(ADDED[leaf.dtype.name]) if leaf.dtype.name in ADDED else rows
            rows = jnp.where(per_row(mine, rows), rows, 0)
            return jax.lax.psum_scatter(rows, "clients", tiled=True).astype(leaf.dtype)

        return jax.tree.map(leaf_rows, tree)

    rows = _over_devices(deal, (CLIENTS,), CLIENTS)(tree)
    return jax.tree.map(lambda leaf: leaf[: len(cohort)], rows)


@jax.jit
def put(tree: PyTree, cohort: Int[Array, " m"], rows: PyTree) -> PyTree:
    """The tree with the cohort's rows replaced by `rows [m, ...]`; other rows stay, and idle slots are ignored."""
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
    copies = jax.jit(_copies, static_argnames="number", out_shardings=placed(num_clients))  # JAX keeps the program
    return copies(tree, num_clients)


def _copies(tree: PyTree, number: int) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (number, *jnp.shape(leaf))), tree)


class Sparse(NamedTuple):
    """A matrix `[k, m]` with few entries per row.

    It holds their columns (m: no entry) and their values, both `[k, entries]`.
    """

    columns: Int[Array, "k entries"]
    values: Float[Array, "k entries"]


Matrix = Float[Array, "k m"] | Sparse


def _product(matrix: Matrix, rows: Shaped[Array, "m columns"]) -> Float[Array, "k columns"]:
    """The product `matrix [k, m] @ rows [m, columns]`, in float32 or better whatever the type of the rows.

    It stands behind barriers. Otherwise XLA would fuse different operations into it in different programs, and that
    decides how it rounds.
    """
    wide = jnp.promote_types(rows.dtype, jnp.float32)
    if isinstance(matrix, Sparse):
        return _few(matrix, rows.astype(wide)).astype(jnp.result_type(rows, float))
    factors = jax.lax.optimization_barrier((matrix.astype(wide), rows.astype(wide)))
    product = jax.lax.optimization_barrier(jnp.matmul(*factors, precision=jax.lax.Precision.HIGHEST))
    return product.astype(jnp.result_type(rows, float))


def _few(matrix: Sparse, rows: Float[Array, "m columns"]) -> Float[Array, "k columns"]:
    """The product with a sparse matrix, entry by entry: one multiplication per entry."""

    def add(total, entry):
        index, value = entry
        return total + value[:, None] * rows.at[index].get(mode="fill", fill_value=0), None

    start = jnp.zeros((len(matrix.values), rows.shape[1]), rows.dtype)
    return jax.lax.scan(add, start, (matrix.columns.T, matrix.values.T.astype(rows.dtype)))[0]


def _chunks(rows: Shaped[Array, "m columns"], multiple: int = 1) -> Shaped[Array, "m chunks entries"]:
    """Reshape `[m, columns]` to `[m, chunks, CHUNK]`, with zeros at the end."""
    count = -(-rows.shape[1] // CHUNK)
    count = -(-count // multiple) * multiple
    return jnp.pad(rows, [(0, 0), (0, count * CHUNK - rows.shape[1])]).reshape(len(rows), count, CHUNK)


def combine(matrix: Matrix, stacked: PyTree, *, order: Int[Array, " m"] | None = None, spread: bool = False) -> PyTree:
    """The sum sum_j matrix[i, j] stacked_(order_j) for every leaf, with the same bits on any number of devices.

    Wide rows are cut into chunks, so that a product has one shape however many devices take part. Several devices
    exchange chunks, so that each device adds up some columns of all rows.

    Args:
      matrix: `[k, m]`; the cost of a `Sparse` one grows with its number of entries.
      stacked: leaves `[rows, ...]`.
      order: `[m]`, the rows that are added up, in this order; None: all, in their present order.
      spread: the result's k rows belong to clients and are distributed like them; else the result is on every device.

    >>> combine(jnp.array([[0.5, 0.5]]), {"w": jnp.array([1.0, 3.0])})["w"].tolist()
    [2.0]
    """
    devices, k = mesh().size, len(matrix.values if isinstance(matrix, Sparse) else matrix)
    several = devices > 1 and shared_out(len(jax.tree.leaves(stacked)[0])) and (not spread or shared_out(k))

    def product(rows):
        return _product(matrix, rows if order is None else rows[order])

    def whole(rows):
        if rows.shape[1] <= CHUNK:
            return product(rows)
        parts = jax.lax.map(product, jnp.moveaxis(_chunks(rows), 1, 0))
        return jnp.moveaxis(parts, 0, 1).reshape(k, -1)[:, : rows.shape[1]]

    def exchanged(rows):  # this device's: [rows / devices, columns]
        gather = partial(jax.lax.all_gather, axis_name="clients", tiled=True)
        if rows.shape[1] <= CHUNK:
            result = product(gather(rows))
            if not spread:
                return result
            return jax.lax.dynamic_slice_in_dim(result, jax.lax.axis_index("clients") * (k // devices), k // devices)
        parts = jax.lax.all_to_all(_chunks(rows, devices), "clients", 1, 0, tiled=True)
        parts = jax.lax.map(product, jnp.moveaxis(parts, 1, 0))
        parts = jax.lax.all_to_all(parts, "clients", 1, 0, tiled=True) if spread else gather(parts)
        return jnp.moveaxis(parts, 0, 1).reshape(parts.shape[1], -1)[:, : rows.shape[1]]

    def one(leaf):
        rows = leaf.reshape(len(leaf), -1)
        if several:
            result = _over_devices(exchanged, (CLIENTS,), CLIENTS if spread else EVERYWHERE)(rows)
        else:
            result = whole(everywhere(rows))
        return result.reshape(k, *leaf.shape[1:])

    return jax.tree.map(one, stacked)


def balanced(cohort: Int[Array, " m"], size: Int[Array | np.ndarray, " clients"]) -> Int[Array, " places"]:
    """The cohort in an order that gives every device an equal share of the work; left-over places are idle slots.

    Devices take equal runs of the cohort, but clients have different numbers of rows. So devices take one client in
    turn, the largest first, and the direction alternates. Then the rows of two devices differ by the largest client's
    rows at most.

    Args:
      cohort: `[m]` of `[0, clients)`.
      size: `[clients]`, rows.

    Returns: `[m]`, rounded up to a multiple of the devices; on one device the cohort unchanged.
    """
    devices = mesh().size
    if devices == 1:
        return cohort
    idle = len(size)
    places = _padded(cohort, idle)
    hands = np.arange(len(places)).reshape(-1, devices)
    hands[1::2] = hands[1::2, ::-1]
    work = jnp.where(places < idle, jnp.asarray(size)[jnp.minimum(places, idle - 1)], -1)
    return places[jnp.argsort(-work, stable=True)[hands.T.ravel()]]

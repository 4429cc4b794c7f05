"""`Rows`: the rows of all clients, stored once in a pool, for data where padding would need too much memory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

POOL_BEYOND = 64 << 20  # the most bytes of padded rows; beyond, rows are pooled


def counted(size: np.ndarray, length: int) -> np.ndarray:
    """A mask `[clients, length]`, True for the first `size` entries of each client."""
    return np.arange(length) < size[:, None]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Rows:
    """Rows given by their places in a pool; they can be read like the padded array `pool[place]`.

    Indexing selects places and copies no row; `np.asarray` and `jnp.asarray` gather. Every device holds the whole pool.

    Example:
      >>> held = Rows.of([np.ones((1, 2)), np.full((3, 2), 5.0)])
      >>> held.shape, held.pool.shape
      ((2, 3, 2), (5, 2))
      >>> np.asarray(held[0])[:, 0].tolist()
      [1.0, 0.0, 0.0]
    """

    pool: Any  # [rows + 1, ...]; the last row is zeros, for padding
    place: Any  # int32 [clients, n_max], or a part of it after indexing

    @classmethod
    def of(cls, parts: list[np.ndarray]) -> "Rows":
        """Make `Rows` from one array `[n, ...]` per client."""
        size = np.array([len(part) for part in parts], np.int32)
        place = np.full((len(parts), size.max()), size.sum(), np.int32)
        place[counted(size, size.max())] = np.arange(size.sum())
        return cls(np.concatenate([*parts, np.zeros((1, *parts[0].shape[1:]), parts[0].dtype)]), place)

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.place.shape, *self.pool.shape[1:])

    @property
    def dtype(self) -> np.dtype:
        return self.pool.dtype

    def __len__(self) -> int:
        return len(self.place)

    def __getitem__(self, index: Any) -> "Rows":
        return replace(self, place=self.place[index])

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return np.asarray(self.pool)[np.asarray(self.place)]

    def __jax_array__(self) -> jax.Array:
        return jnp.asarray(self.pool)[self.place]

    def blocks(self) -> Iterator[np.ndarray]:
        """The padded rows of each client, one client after the other."""
        return (np.asarray(self[client]) for client in range(len(self)))


def is_rows(leaf: Any) -> bool:
    return isinstance(leaf, Rows)


def apart(tree: Any) -> tuple[list, list, Callable[[list, list], Any]]:
    """Split a tree into leaves stacked over clients and pools (None: not `Rows`); also return the inverse function.

    >>> stacked, pools, together = apart({"x": Rows.of([np.ones((1, 2))] * 3), "n": np.ones(3)})
    >>> [leaf.shape for leaf in stacked], pools[0], pools[1].shape
    ([(3,), (3, 1)], None, (4, 2))
    >>> together(stacked, pools)["x"].shape
    (3, 1, 2)
    """
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_rows)

    def together(stacked: list, pools: list) -> Any:
        pairs = zip(stacked, pools, strict=True)
        return structure.unflatten([leaf if pool is None else Rows(pool, leaf) for leaf, pool in pairs])

    places = [leaf.place if is_rows(leaf) else leaf for leaf in leaves]
    return places, [leaf.pool if is_rows(leaf) else None for leaf in leaves], together

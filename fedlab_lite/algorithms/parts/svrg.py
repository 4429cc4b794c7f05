"""Gradients of a mean over a client's rows: from a random batch, from all rows, and with reduced variance."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedlab_lite.engine import Batch, ClientData, rows_of


def random_batch(data: ClientData, key: jax.Array, batch_size: int) -> Batch:
    """A random batch of the client's rows, without replacement, as `local_train` draws it; all rows if it has fewer."""
    rows = data.y.shape[0]
    order = jnp.argsort(jnp.where(jnp.arange(rows) < data.size, jax.random.uniform(key, (rows,)), 2.0))
    return _batch(data, order[: min(batch_size, rows)])


def mean_gradient(loss: Callable, params: Any, data: ClientData, chunk: int = 100) -> Any:
    """The gradient at `params` of a mean over all rows of a client; 0 for a client without rows.

    It has the types of the params.

    Args:
      loss: `loss(params, batch: Batch)`, a mean over the rows that `batch.weight` counts.
      chunk: rows per step.

    Example (the mean of 1, 2 and 3 times w):
      >>> data = ClientData(jnp.array([1.0, 2.0, 3.0]), jnp.zeros(3), jnp.int32(3))
      >>> loss = lambda w, batch: jnp.sum(batch.weight * batch.x * w) / batch.weight.sum()
      >>> float(mean_gradient(loss, jnp.float32(7), data, chunk=2))
      2.0
    """
    chunk = min(chunk, data.y.shape[0])

    def step(index, total):
        batch = _batch(data, index * chunk + jnp.arange(chunk))
        return optax.tree.add_scale(total, batch.weight.sum(), jax.grad(loss)(params, batch))

    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), params)
    total = jax.lax.fori_loop(0, (data.size + chunk - 1) // chunk, step, zeros)
    return jax.tree.map(lambda leaf, like: (leaf / jnp.maximum(data.size, 1)).astype(like.dtype), total, params)


def reduced(loss: Callable, anchor: Any, data: ClientData) -> Callable:
    """A loss whose batch gradient has less noise near `anchor` than that of `loss`: SVRG (Johnson and Zhang 2013).

    The gradient is grad_B(p) - grad_B(anchor) + grad(anchor). At the anchor it is the full gradient, whatever the
    batch.

    Args:
      loss: `loss(params, batch: Batch)`, a mean over the rows that `batch.weight` counts.
    """
    full = mean_gradient(loss, anchor, data)

    def corrected(params: Any, batch: Batch) -> jax.Array:
        missed = optax.tree.sub(full, jax.grad(loss)(anchor, batch))
        return loss(params, batch) + optax.tree.vdot(missed, params)

    return corrected


def _batch(data: ClientData, places: jax.Array) -> Batch:
    """A batch of the rows at these places; a place past the client's rows is ignored."""
    places, weight = jnp.minimum(places, data.y.shape[0] - 1), (places < data.size).astype(jnp.float32)
    return Batch(rows_of(data.x, places), jnp.asarray(data.y)[places], weight, budget=data.budget)

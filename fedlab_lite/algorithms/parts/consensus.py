"""Consensus on features: FedReCo's regulariser H_i(u, u_0), its measures, and gradients of a mean over a client's rows.

`random_batch` draws rows, `mean_gradient` is over all of them, `reduced` lowers the noise of a batch's gradient (SVRG).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedlab_lite.engine import Batch, ClientData, Problem, average, in_chunks, rows_of


def features_of(problem: Problem) -> Any:
    """The shapes of the representation of one row; nothing is computed."""
    params = jax.eval_shape(problem.model.init, jax.random.key(0))
    return jax.eval_shape(
        problem.model.represent, params, jax.ShapeDtypeStruct((1, *problem.data.input_shape), problem.data.x.dtype)
    )


def row_distances(problem: Problem, u: dict, u_0: dict, x: jax.Array, budget: Any = None) -> jax.Array:
    """The distance ||h(x; u) - h(x; u_0)||^2 of every row, `[B]`: two forward passes, without dropout."""
    mine, theirs = (problem.model.represent({"representation": each}, x, budget=budget) for each in (u, u_0))
    gaps = jax.tree.map(lambda a, b: jnp.square(a - b).reshape(len(a), -1).sum(1), mine, theirs)
    return sum(jax.tree.leaves(gaps))


def distance(problem: Problem, u: dict, u_0: dict, batch: Batch) -> jax.Array:
    """The distance H_i(u, u_0), the mean over the rows of a batch."""
    rows = row_distances(problem, u, u_0, batch.x, batch.budget)
    return jnp.sum(rows * batch.weight) / jnp.maximum(batch.weight.sum(), 1)


def whole_distance(problem: Problem, data: ClientData, u: dict, u_0: dict) -> jax.Array:
    """The distance H_i(u, u_0), eq. (5): the mean over all rows of a client."""
    rows = in_chunks(lambda x: row_distances(problem, u, u_0, x, data.budget), data.x, data.size, 100)
    return jnp.sum(jnp.where(jnp.arange(len(rows)) < data.size, rows, 0)) / jnp.maximum(data.size, 1)


def measured(problem: Problem, u: dict, v: dict, u_0: dict, penalty: float | None = None) -> dict[str, jax.Array]:
    """The distance of clients with `u` and `v` (stacked) from consensus with `u_0`, and from a stationary point.

    Returns: 'representation_gap' `[clients]`, H_i. With a penalty, lambda, also Theorem 1's squared gradients over all
      rows: 'gamma_1' of F by u_0, and, `[clients]`, 'gamma_2' of F_i by u_i and 'gamma_3' of f_i by v_i.
    """

    def client(data: ClientData, key: jax.Array, u: dict, v: dict, u_0: dict, penalty):
        def objective(at: dict, batch: Batch):  # F_i = f_i + lambda/2 H_i
            loss = problem.loss({"representation": at["u"], "head": at["v"]}, batch)[0]
            return loss + penalty / 2 * distance(problem, at["u"], at["u_0"], batch)

        gap = whole_distance(problem, data, u, u_0)
        return gap, None if penalty is None else mean_gradient(objective, {"u": u, "v": v, "u_0": u_0}, data)

    everyone = problem.everyone(jax.random.key(0))  # nothing is drawn with this key
    gap, gradient = problem.for_cohort(client, everyone, u, v, shared=(u_0, penalty))
    if gradient is None:
        return {"representation_gap": gap}
    shared = average(gradient["u_0"], jnp.ones(problem.num_clients))
    own = {name: jax.vmap(_squares)(gradient[part]) for name, part in (("gamma_2", "u"), ("gamma_3", "v"))}
    return {"representation_gap": gap, "gamma_1": _squares(shared)} | own


def _squares(tree: dict) -> jax.Array:
    tree = optax.tree.cast(tree, jnp.float32)
    return optax.tree.vdot(tree, tree)


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

    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.promote_types(leaf.dtype, jnp.float32)), params)
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

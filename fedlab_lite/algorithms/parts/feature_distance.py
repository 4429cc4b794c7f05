"""The distance H_i(u, u_0) of two extractors' features of a client's rows: FedReCo's regulariser and measures."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedlab_lite.algorithms.parts.svrg import mean_gradient
from fedlab_lite.engine import Batch, ClientData, Problem, average, in_chunks


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

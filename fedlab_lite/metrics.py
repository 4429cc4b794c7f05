"""What is reported: accuracy of every client, and the bytes that cross the network."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import optax

from fedlab_lite.clients import ClientData, Problem, for_clients, in_chunks, take


def evaluate(
    problem: Problem, own: dict, shared: dict, *, predictor: Callable | None = None, chunk: int = 100
) -> dict[str, jax.Array]:
    """Judge client i's model, `shared | own_i`, on client i's test rows.

    Args:
      own: the parts of params that every client has of its own, leaves `[clients, ...]`.
      shared: the parts that are one for all; kept once, however many the clients.
      predictor: `predictor(problem, params, train: ClientData)` makes one client's `answer(x) -> (logits, solution)`
        with the help of its training rows; None: the model answers by itself. A pytree.
      chunk: rows a forward pass.

    Returns: arrays `[clients]`: 'accuracy' (share of test labels, or of tokens that are no padding, 0-1), 'loss' (mean
      cross-entropy); for equilibrium models also 'residual' (mean relative residual of the solver) and 'iterations'
      (mean over rows).
    """
    data = problem.data

    def judge(test: ClientData, own: dict, train: tuple, shared: dict, predictor) -> dict[str, jax.Array]:
        params = shared | own
        answer = predictor(problem, params, *train) if train else partial(problem.model.forward, params)

        def rows(batch):
            x, y = batch
            logits, solution = answer(x)
            counted = problem.counted(y, jnp.ones(y.shape[0]))
            losses = problem.row_loss(logits, y)
            sums = {"accuracy": (logits.argmax(-1) == y) * counted, "loss": losses * counted, "counted": counted}
            result = {name: values.reshape(len(y), -1).sum(1) for name, values in sums.items()}
            if solution is not None:
                length = jax.vmap(optax.tree.norm)(solution.z)
                result["residual"] = solution.residual / jnp.maximum(length, jnp.finfo(length.dtype).tiny)
                result["iterations"] = solution.iterations.astype(jnp.float32)
            return result

        per_row = in_chunks(rows, (test.x, test.y), test.size, chunk)
        seen = jnp.arange(test.y.shape[0]) < test.size
        sums = {name: jnp.sum(jnp.where(seen, values, 0)) for name, values in per_row.items()}
        labels = jnp.maximum(sums.pop("counted"), 1)
        return {name: value / (labels if name in ("accuracy", "loss") else test.size) for name, value in sums.items()}

    test = ClientData(data.test_x, data.test_y, data.test_size)
    train = () if predictor is None else (ClientData(data.x, data.y, data.size),)
    if not data.common_test:
        return for_clients(judge, test, own, train, shared=(shared, predictor), executor=problem.executor)

    def judge_alike(client, own: dict, train: tuple, test: ClientData, *shared):
        return judge(test, own, train, *shared)

    clients, test = jnp.arange(problem.num_clients), take(test, 0)
    return for_clients(judge_alike, clients, own, train, shared=(test, shared, predictor), executor=problem.executor)


def message_bytes(messages: dict) -> dict[str, int]:
    """Bytes a sampled client sends ('up') and receives ('down') in a round, from an algorithm's `messages(problem)`.

    >>> message_bytes({"up": {"w": jax.ShapeDtypeStruct((10, 2), jnp.float32)}, "down": {}})
    {'up': 80, 'down': 0}
    """
    return {
        way: sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree)) for way, tree in messages.items()
    }

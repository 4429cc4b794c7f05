"""What is reported: accuracy of every client, and the bytes that cross the network."""

import jax
import jax.numpy as jnp
import optax

from fedlab_lite.clients import ClientData, Problem, for_clients, in_chunks


def evaluate(problem: Problem, own: dict, shared: dict, *, chunk: int = 100) -> dict[str, jax.Array]:
    """Judge client i's model, `shared | own_i`, on client i's test rows.

    Args:
      own: the parts of params that every client has of its own, leaves `[clients, ...]`.
      shared: the parts that are one for all; kept once, however many the clients.
      chunk: rows a forward pass.

    Returns: arrays `[clients]`: 'accuracy' (share of test rows, 0-1), 'loss' (mean cross-entropy); for equilibrium
      models also 'residual' (mean relative residual of the solver) and 'iterations' (mean over rows).
    """
    model, data = problem.model, problem.data

    def judge(test: ClientData, own: dict, shared: dict) -> dict[str, jax.Array]:
        params = shared | own

        def rows(batch):
            logits, solution = model.forward(params, batch[0])
            result = {
                "accuracy": (logits.argmax(-1) == batch[1]).astype(jnp.float32),
                "loss": problem.row_loss(logits, batch[1]),
            }
            if solution is not None:
                length = jax.vmap(optax.tree.norm)(solution.z)
                result["residual"] = solution.residual / jnp.maximum(length, jnp.finfo(length.dtype).tiny)
                result["iterations"] = solution.iterations.astype(jnp.float32)
            return result

        per_row = in_chunks(rows, (test.x, test.y), test.size, chunk)
        counts = jnp.arange(test.y.shape[0]) < test.size
        return {name: jnp.sum(jnp.where(counts, values, 0)) / test.size for name, values in per_row.items()}

    test = ClientData(data.test_x, data.test_y, data.test_size)
    return for_clients(judge, test, own, shared=(shared,), executor=problem.executor)


def message_bytes(messages: dict) -> dict[str, int]:
    """Bytes a sampled client sends ('up') and receives ('down') in a round, from an algorithm's `messages(problem)`.

    >>> message_bytes({"up": {"w": jax.ShapeDtypeStruct((10, 2), jnp.float32)}, "down": {}})
    {'up': 80, 'down': 0}
    """
    return {
        way: sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree)) for way, tree in messages.items()
    }

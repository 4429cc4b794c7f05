"""New workers (DePRL, Tables 2 and 8): redistribute unused rows, and train a fresh head on a given phi.

The paper does not say whose phi a new worker takes, how long it trains its head, or whether the rows are new. Its code
for this is not published. Here all methods follow one protocol. A new worker takes the mean of all workers' phi, or
the server's phi. It trains one fresh head on its own training rows, and is tested on its own test rows.
"""

from dataclasses import replace
from typing import Any

import jax
import numpy as np

from fedlab_lite.algorithms import FedPer
from fedlab_lite.algorithms.parts import mean_of
from fedlab_lite.data import Federated, counted, dirichlet_capped
from fedlab_lite.engine import Problem, evaluate


def redeal(data: Federated, alpha: float, *, seed: int = 0) -> Federated:
    """Pool the rows of all clients and distribute them to as many new clients with `dirichlet_capped`.

    Example:
      >>> from fedlab_lite.data import federated
      >>> data = federated("digits", partition="iid", num_clients=4, train_size=200, test_size=80)
      >>> anew = redeal(data, 0.3)
      >>> int(anew.size.sum()), anew.num_clients
      (200, 4)
    """

    def pooled(x: np.ndarray, y: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = counted(np.asarray(size), x.shape[1])
        return np.asarray(x[rows]), np.asarray(y[rows])

    x, y = pooled(data.x, data.y, data.size)
    test_x, test_y = pooled(data.test_x, data.test_y, data.test_size)
    train, test, given = dirichlet_capped(y, test_y, data.num_clients, alpha, seed=seed)
    return Federated.stack(
        [(x[rows], y[rows]) for rows in train],
        [(test_x[rows], test_y[rows]) for rows in test],
        name=data.name,
        source=data.source + (f", rows given to new workers short of them: {given}" if given else ""),
        num_classes=data.num_classes,
    )


def representation_of(problem: Problem, algorithm: Any, state: dict, key: jax.Array) -> dict:
    """The phi of a new worker: the shared one, or the mean of the phi that workers are evaluated with."""
    own, shared = algorithm.models(problem, state, key)
    return shared["representation"] if "representation" in shared else _mean_of(own["representation"])


def with_fresh_heads(
    problem: Problem, data: Federated, representation: dict, key: jax.Array, *, lr: float, batch_size: int, epochs: int
) -> np.ndarray:
    """The accuracy of each new worker (a share, `[clients]`) after training a fresh head on a fixed representation.

    Args:
      problem: gives the model.
      data: the new workers' rows.
      epochs: passes over the training rows.
      key: random key for the head, which is the same for all new workers, and for the order of their rows.
    """
    head_key, key = jax.random.split(key)
    there = replace(problem, data=data, newcomers=None, graph=None, weight=None)
    state = {"theta": representation, "new_head": problem.model.init(head_key)["head"]}
    return np.asarray(_judged(there, FedPer(lr=lr, batch_size=batch_size, join_epochs=epochs), state, key))


_mean_of = jax.jit(mean_of)  # called outside of compiled programs: without `jit` each call would trace it again


@jax.jit
def _judged(problem: Problem, algorithm: FedPer, state: dict, key: jax.Array) -> jax.Array:
    return evaluate(problem, *algorithm.join(problem, state, key)[""])["accuracy"]

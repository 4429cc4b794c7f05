"""New workers (DePRL, Tables 2 and 8): rows that nobody trained on, dealt anew, and a fresh head on a given phi.

The paper does not say whose phi a new worker takes, how long it trains its head, or whether the rows are new; its code
for it is not published. Here the protocol is one for all methods: the mean of all workers' phi (a server's is one),
one fresh head, passes over the new worker's training rows, and its own test rows.
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
    """The rows of these clients, pooled and dealt to as many by `dirichlet_capped`: another heterogeneity.

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
    """The phi that a new worker is given: the one that all share, or the mean of those that workers are judged with."""
    own, shared = algorithm.models(problem, state, key)
    return shared["representation"] if "representation" in shared else _mean_of(own["representation"])


def with_fresh_heads(
    problem: Problem, data: Federated, representation: dict, key: jax.Array, *, lr: float, batch_size: int, epochs: int
) -> np.ndarray:
    """Accuracy of every new worker (a share, `[clients]`) after `epochs` of its fresh head on a fixed representation.

    Args:
      problem: for its model; `data`: the new workers'.
      key: draws the head, one for all new workers, and the order of their rows.
    """
    head_key, key = jax.random.split(key)
    there = replace(problem, data=data, newcomers=None, graph=None, weight=None)
    state = {"theta": representation, "new_head": problem.model.init(head_key)["head"]}
    return np.asarray(_judged(there, FedPer(lr=lr, batch_size=batch_size, join_epochs=epochs), state, key))


_mean_of = jax.jit(mean_of)  # called outside of any compiled program, where each call would trace it anew


@jax.jit
def _judged(problem: Problem, algorithm: FedPer, state: dict, key: jax.Array) -> jax.Array:
    return evaluate(problem, *algorithm.join(problem, state, key)[""])["accuracy"]

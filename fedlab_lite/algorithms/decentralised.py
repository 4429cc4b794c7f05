"""What algorithms without a server have in common: a model a device, neighbours on a graph, averages with them."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from fedlab_lite.algorithms.base import Algorithm, both_ways, shapes
from fedlab_lite.algorithms.fedavg import FedAvg
from fedlab_lite.clients import Problem, broadcast, local_sgd
from fedlab_lite.errors import InputError
from fedlab_lite.graphs import check_mixing, mix


@dataclass(frozen=True)
class Decentralised(Algorithm):
    """min sum_i C_i(w_i) such that neighbours agree, eq. (1)-(2) of FedF-ADMM; every device takes part in each round.

    The state has 'client_params', a model a device, all started from one w^0. A device is judged with its own model.
    `messages` are what crosses one link of the graph in each direction.
    """

    epochs: int = 1  # passes of the local update over the device's rows

    everybody: ClassVar[bool] = True

    def init(self, problem: Problem, key: jax.Array) -> dict:
        return {"client_params": broadcast(problem.model.init(key), problem.num_clients)}

    def check(self, problem: Problem) -> None:
        name = type(self).__name__
        if problem.graph is None:
            raise InputError(f"{name} has no server and needs a graph: set `graph` to 'ring', for example")
        if problem.graph.num_clients != problem.num_clients:
            raise InputError(
                f"the graph joins {problem.graph.num_clients} devices, the data have {problem.num_clients} clients"
            )
        check_mixing(problem.graph.neighbour_mean)

    def client_update(self, problem: Problem, data, key: jax.Array, params: dict) -> dict:
        """The local update, eq. (11): `epochs` of SGD on the device's own rows."""
        return local_sgd(problem.loss, params, data, key, epochs=self.epochs, project=problem.project, **self._sgd())

    def models(self, problem: Problem, state: dict) -> tuple[dict, dict]:
        return state["client_params"], {}

    def join(self, problem: Problem, state: dict, key: jax.Array) -> dict[str, tuple[dict, dict]]:
        """A newcomer starts at the mean of all devices' params (the papers do not say), then trains by itself."""
        start = jax.tree.map(lambda leaf: leaf.mean(0), state["client_params"])
        alone = FedAvg(lr=self.lr, batch_size=self.batch_size)
        return {"": alone.tuned(problem, {"params": start}, key, self.join_epochs)}

    def messages(self, problem: Problem) -> dict:
        return both_ways(shapes(problem))

    def monitor(self, problem: Problem, state: dict) -> dict[str, jax.Array]:
        """'consensus': (1/N) sum_i ||w_i - mean w||_2."""
        squares = [
            jnp.sum(jnp.square(leaf - leaf.mean(0)).reshape(leaf.shape[0], -1), axis=1)
            for leaf in jax.tree.leaves(state["client_params"])
        ]
        return {"consensus": jnp.sqrt(sum(squares)).mean()}


def neighbours(problem: Problem, stacked):
    """M_i[x_j], the mean over the neighbours of i, itself excluded, for every device; leaves `[N, ...]`."""
    return mix(problem.graph.neighbour_mean, stacked)


def averaged(problem: Problem, stacked, beta: float):
    """Eq. (21): (1 - beta) w_i + beta M_i[w_j]."""
    mean = neighbours(problem, stacked)
    return jax.tree.map(lambda own, others: (1 - beta) * own + beta * others, stacked, mean)

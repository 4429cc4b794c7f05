"""FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017."""

from dataclasses import dataclass

import jax

from fedlab_lite.algorithms.base import Algorithm, both_ways, shapes
from fedlab_lite.clients import Problem, average, local_sgd


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """min_w sum_i (n_i / n) L_i(w): one model for all (Algorithm 1 of the paper)."""

    epochs: int = 5  # E, passes over the client's rows in a round

    def init(self, problem: Problem, key: jax.Array) -> dict:
        return {"params": problem.model.init(key)}

    def client_update(self, problem: Problem, data, key: jax.Array, params: dict) -> dict:
        """E epochs of SGD from the received params."""
        return local_sgd(problem.loss, params, data, key, epochs=self.epochs, project=problem.project, **self._sgd())

    def round(self, problem: Problem, state: dict, cohort: jax.Array, key: jax.Array) -> dict:
        def update(data, key, params):
            return self.client_update(problem, data, key, params)

        client_params = problem.for_cohort(update, cohort, key, shared=(state["params"],))
        return {"params": average(client_params, problem.data.size[cohort])}

    def models(self, problem: Problem, state: dict) -> tuple[dict, dict]:
        return {}, state["params"]

    def messages(self, problem: Problem) -> dict:
        return both_ways(shapes(problem))

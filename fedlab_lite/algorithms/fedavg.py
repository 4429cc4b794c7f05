"""FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017."""

from dataclasses import dataclass, replace

import jax

from fedlab_lite.algorithms.base import Algorithm, both_ways, shapes
from fedlab_lite.clients import Problem, local_sgd
from fedlab_lite.fusion import average


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
        client_params = self.for_cohort(problem, self.client_update, cohort, key, shared=(state["params"],))
        return state | {"params": average(client_params, problem.weights(cohort))}

    def models(self, problem: Problem, state: dict) -> tuple[dict, dict]:
        return {}, state["params"]

    def tuned(self, problem: Problem, state: dict, key: jax.Array, epochs: int) -> tuple[dict, dict]:
        """A copy of the global model for every client, after so many epochs on its rows."""
        tuner = replace(self, epochs=epochs)
        return tuner.for_everybody(problem, tuner.client_update, key, shared=(state["params"],)), {}

    def join(self, problem: Problem, state: dict, key: jax.Array) -> dict[str, tuple[dict, dict]]:
        """FeDEQ, Sec. V-B5: "a full model will be trained and adapted to new participants"; 'global': it is not."""
        return {"": self.tuned(problem, state, key, self.join_epochs), "global": ({}, state["params"])}

    def messages(self, problem: Problem) -> dict:
        return both_ways(shapes(problem))

"""Local: every client alone. The floor that any federation has to beat."""

from dataclasses import dataclass

import jax

from fedlab_lite.algorithms.base import Algorithm, nothing_moves
from fedlab_lite.clients import Problem, broadcast, local_sgd, put, take


@dataclass(frozen=True)
class Local(Algorithm):
    """min_{w_i} L_i(w_i), no communication; the same participation and epochs as everybody else."""

    epochs: int = 5  # passes over the client's rows in a round

    def init(self, problem: Problem, key: jax.Array) -> dict:
        return {"client_params": broadcast(problem.model.init(key), problem.num_clients)}

    def round(self, problem: Problem, state: dict, cohort: jax.Array, key: jax.Array) -> dict:
        def train(data, key, params):
            return local_sgd(
                problem.loss, params, data, key, epochs=self.epochs, project=problem.project, **self._sgd()
            )

        trained = problem.for_cohort(train, cohort, key, take(state["client_params"], cohort))
        return {"client_params": put(state["client_params"], cohort, trained)}

    def models(self, problem: Problem, state: dict) -> tuple[dict, dict]:
        return state["client_params"], {}

    def messages(self, problem: Problem) -> dict:
        return nothing_moves()

"""Local: every client alone. The floor that any federation has to beat."""

from dataclasses import dataclass, replace

import jax

from fedlab_lite.algorithms.base import Algorithm, nothing_moves
from fedlab_lite.clients import Problem, broadcast, local_sgd, put, take


@dataclass(frozen=True)
class Local(Algorithm):
    """min_{w_i} L_i(w_i), no communication; the same participation and epochs as everybody else."""

    epochs: int = 5  # passes over the client's rows in a round

    def init(self, problem: Problem, key: jax.Array) -> dict:
        params = problem.model.init(key)
        return {"params": params, "client_params": broadcast(params, problem.num_clients)}

    def client_update(self, problem: Problem, data, key: jax.Array, params: dict) -> dict:
        return local_sgd(problem.loss, params, data, key, epochs=self.epochs, project=problem.project, **self._sgd())

    def round(self, problem: Problem, state: dict, cohort: jax.Array, key: jax.Array) -> dict:
        own = take(state["client_params"], cohort)
        trained = self.for_cohort(problem, self.client_update, cohort, key, own)
        return state | {"client_params": put(state["client_params"], cohort, trained)}

    def models(self, problem: Problem, state: dict) -> tuple[dict, dict]:
        return state["client_params"], {}

    def join(self, problem: Problem, state: dict, key: jax.Array) -> dict[str, tuple[dict, dict]]:
        """A newcomer starts where everybody did, and is alone as well."""
        alone = replace(self, epochs=self.join_epochs)
        return {"": (alone.for_everybody(problem, alone.client_update, key, shared=(state["params"],)), {})}

    def messages(self, problem: Problem) -> dict:
        return nothing_moves()

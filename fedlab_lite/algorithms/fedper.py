"""FedPer: Arivazhagan et al., "Federated Learning with Personalization Layers", 2019."""

from dataclasses import dataclass

import jax

from fedlab_lite.algorithms.base import Algorithm, both_ways, shapes
from fedlab_lite.clients import Problem, average, broadcast, local_sgd, put, take


@dataclass(frozen=True)
class FedPer(Algorithm):
    """min_{theta, w_i} sum_i (n_i / n) L_i(theta, w_i): body and head trained jointly, only the body averaged."""

    epochs: int = 5  # passes over the client's rows in a round, body and head together

    def init(self, problem: Problem, key: jax.Array) -> dict:
        params = problem.model.init(key)
        return {"theta": params["representation"], "heads": broadcast(params["head"], problem.num_clients)}

    def round(self, problem: Problem, state: dict, cohort: jax.Array, key: jax.Array) -> dict:
        def update(data, key, head, theta):
            params = {"representation": theta, "head": head}
            return local_sgd(
                problem.loss, params, data, key, epochs=self.epochs, project=problem.project, **self._sgd()
            )

        trained = problem.for_cohort(update, cohort, key, take(state["heads"], cohort), shared=(state["theta"],))
        return {
            "theta": average(trained["representation"], problem.data.size[cohort]),
            "heads": put(state["heads"], cohort, trained["head"]),
        }

    def models(self, problem: Problem, state: dict) -> tuple[dict, dict]:
        return {"head": state["heads"]}, {"representation": state["theta"]}

    def messages(self, problem: Problem) -> dict:
        return both_ways(shapes(problem)["representation"])

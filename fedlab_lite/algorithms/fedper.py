"""FedPer: Arivazhagan et al., "Federated Learning with Personalization Layers", 2019."""

from dataclasses import dataclass

import jax

from fedlab_lite.algorithms.base import Algorithm, both_ways, shapes
from fedlab_lite.clients import Problem, broadcast, fit_head, local_sgd, put, take
from fedlab_lite.fusion import average


@dataclass(frozen=True)
class PartialPersonalisation(Algorithm):
    """A shared representation theta and a head w_i for every client: what FedPer, FedRep and FeDEQ have in common.

    The state has 'theta', 'heads' (stacked) and 'new_head', the head that everybody started from and newcomers get.
    """

    def init(self, problem: Problem, key: jax.Array) -> dict:
        params = problem.model.init(key)
        heads = broadcast(params["head"], problem.num_clients)
        return {"theta": params["representation"], "heads": heads, "new_head": params["head"]}

    def models(self, problem: Problem, state: dict) -> tuple[dict, dict]:
        return {"head": state["heads"]}, {"representation": state["theta"]}

    def join_update(self, problem: Problem, data, key: jax.Array, theta: dict, head: dict) -> dict:
        """Only the head is trained, theta stays what the others have learned."""
        return fit_head(problem, theta, head, data, key, epochs=self.join_epochs, **self._sgd())

    def join(self, problem: Problem, state: dict, key: jax.Array) -> dict[str, tuple[dict, dict]]:
        shared = (state["theta"], state["new_head"])
        heads = self.for_everybody(problem, self.join_update, key, shared=shared)
        return {"": ({"head": heads}, {"representation": state["theta"]})}

    def messages(self, problem: Problem) -> dict:
        return both_ways(shapes(problem)["representation"])


@dataclass(frozen=True)
class FedPer(PartialPersonalisation):
    """min_{theta, w_i} sum_i (n_i / n) L_i(theta, w_i): body and head trained jointly, only the body averaged."""

    epochs: int = 5  # passes over the client's rows in a round, body and head together

    def client_update(self, problem: Problem, data, key: jax.Array, head: dict, theta: dict) -> dict:
        params = {"representation": theta, "head": head}
        return local_sgd(problem.loss, params, data, key, epochs=self.epochs, project=problem.project, **self._sgd())

    def round(self, problem: Problem, state: dict, cohort: jax.Array, key: jax.Array) -> dict:
        own = take(state["heads"], cohort)
        trained = self.for_cohort(problem, self.client_update, cohort, key, own, shared=(state["theta"],))
        return state | {
            "theta": average(trained["representation"], problem.weights(cohort)),
            "heads": put(state["heads"], cohort, trained["head"]),
        }

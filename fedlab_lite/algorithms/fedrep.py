"""FedRep: Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", 2021."""

from dataclasses import dataclass

import jax

from fedlab_lite.algorithms.fedper import PartialPersonalisation
from fedlab_lite.clients import Batch, Problem, fit_head, local_sgd, put, take
from fedlab_lite.fusion import average


@dataclass(frozen=True)
class FedRep(PartialPersonalisation):
    """FedPer's problem by alternation (Algorithm 1 of the paper): first the head on the received body, then the body.

    Judged with the averaged body and the client's own head.
    """

    epochs: int = 5  # passes for the body, after the head
    head_epochs: int = 3  # passes for the head, on the received body

    def client_update(self, problem: Problem, data, key: jax.Array, head: dict, theta: dict) -> tuple[dict, dict]:
        head_key, body_key = jax.random.split(key)
        head = fit_head(problem, theta, head, data, head_key, epochs=self.head_epochs, **self._sgd())

        def loss(theta: dict, batch: Batch):
            return problem.loss({"representation": theta, "head": head}, batch)

        project = problem.model.project
        theta = local_sgd(loss, theta, data, body_key, epochs=self.epochs, project=project, **self._sgd())
        return theta, head

    def round(self, problem: Problem, state: dict, cohort: jax.Array, key: jax.Array) -> dict:
        own = take(state["heads"], cohort)
        thetas, heads = self.for_cohort(problem, self.client_update, cohort, key, own, shared=(state["theta"],))
        return state | {
            "theta": average(thetas, problem.weights(cohort)),
            "heads": put(state["heads"], cohort, heads),
        }

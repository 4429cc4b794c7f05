"""FedRep: Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", 2021."""

from dataclasses import dataclass

import jax

from fedlab_lite.algorithms.fedper import FedPer
from fedlab_lite.clients import Problem, average, fit_head, local_sgd, put, take


@dataclass(frozen=True)
class FedRep(FedPer):
    """FedPer's problem by alternation (Algorithm 1 of the paper): first the head on the received body, then the body.

    Judged with the averaged body and the client's own head.
    """

    epochs: int = 5  # passes for the body, after the head
    head_epochs: int = 3  # passes for the head, on the received body

    def round(self, problem: Problem, state: dict, cohort: jax.Array, key: jax.Array) -> dict:
        def update(data, key, head, theta):
            head_key, body_key = jax.random.split(key)
            head = fit_head(problem, theta, head, data, head_key, epochs=self.head_epochs, **self._sgd())

            def loss(theta, x, y, weight):
                return problem.loss({"representation": theta, "head": head}, x, y, weight)

            theta = local_sgd(
                loss, theta, data, body_key, epochs=self.epochs, project=problem.model.project, **self._sgd()
            )
            return theta, head

        own = take(state["heads"], cohort)
        thetas, heads = problem.for_cohort(update, cohort, key, own, shared=(state["theta"],))
        return {
            "theta": average(thetas, problem.data.size[cohort]),
            "heads": put(state["heads"], cohort, heads),
        }

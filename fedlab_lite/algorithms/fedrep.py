"""FedRep: Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", 2021."""

from dataclasses import dataclass

import jax
import optax

from fedlab_lite.algorithms.base import Models
from fedlab_lite.algorithms.fedper import FedPer
from fedlab_lite.clients import Batch, ClientData, fit_head
from fedlab_lite.problem import Problem


@dataclass(frozen=True)
class FedRep(FedPer):
    """FedPer's problem by alternation (Algorithm 1 of the paper): first the head on the received body, then the body.

    Judged with the averaged body and the client's own head. Algorithm 1 averages uniformly, over clients that hold
    equally much; here clients count by their rows.
    """

    epochs: int = 5  # passes for the body, after the head
    head_epochs: int = 3  # passes for the head, on the received body

    def client_update(self, problem: Problem, data: ClientData, key: jax.Array, head: dict, theta: dict) -> Models:
        head_key, body_key = jax.random.split(key)
        options = {"epochs": self.head_epochs, "batch_size": self.batch_size}
        head = fit_head(problem, theta, head, data, head_key, self.optimizer(), **options)

        def loss(theta: dict, batch: Batch):
            return problem.loss({"representation": theta, "head": head}, batch)

        trained = self.train(loss, theta, data, body_key, epochs=self.epochs, project=problem.model.project)
        return optax.tree.sub(trained, theta), head

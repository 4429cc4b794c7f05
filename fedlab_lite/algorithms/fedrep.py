"""FedRep: Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", 2021."""

from dataclasses import dataclass

import jax
import optax

from fedlab_lite.algorithms.base import Algorithm, Models
from fedlab_lite.algorithms.fedper import FedPer
from fedlab_lite.clients import Batch, ClientData, fit_head, local_train
from fedlab_lite.problem import Problem


def alternate(
    algorithm: Algorithm,
    problem: Problem,
    data: ClientData,
    key: jax.Array,
    head: dict,
    theta: dict,
    *,
    for_head: dict,
    for_body: dict,
    head_lr: jax.Array | float | None = None,
) -> tuple[dict, dict]:
    """The head on the received body, then the body under that head: both new, (theta, head).

    `for_head` and `for_body` say how long: `{"epochs": ...}` or `{"steps": ...}`; `head_lr` None: the algorithm's lr.
    """
    head_key, body_key = jax.random.split(key)
    options = for_head | {"batch_size": algorithm.batch_size}

    def head_loss(head: dict, batch: Batch):
        features = problem.model.represent({"representation": theta}, batch.x, budget=batch.budget)
        return problem.mean_loss(problem.model.classify(head, features, key=batch.key), batch.y, batch.weight), None

    def loss(theta: dict, batch: Batch):
        return problem.loss({"representation": theta, "head": head}, batch)

    optimizer = algorithm.optimizer(head_lr)
    if "steps" in for_head:  # a few batches: no need to represent every row
        head = local_train(head_loss, head, data, head_key, optimizer, **options)
    else:
        head = fit_head(problem, theta, head, data, head_key, optimizer, **options)
    return algorithm.train(loss, theta, data, body_key, project=problem.model.project, **for_body), head


@dataclass(frozen=True)
class FedRep(FedPer):
    """FedPer's problem by alternation (Algorithm 1 of the paper): first the head on the received body, then the body.

    Judged with the averaged body and the client's own head. Algorithm 1 averages uniformly, over clients that hold
    equally much; here clients count by their rows.
    """

    epochs: int = 5  # passes for the body, after the head
    head_epochs: int = 3  # passes for the head, on the received body

    def client_update(self, problem: Problem, data: ClientData, key: jax.Array, head: dict, theta: dict) -> Models:
        passes = {"for_head": {"epochs": self.head_epochs}, "for_body": {"epochs": self.epochs}}
        trained, head = alternate(self, problem, data, key, head, theta, **passes)
        return optax.tree.sub(trained, theta), head

"""FedRep: Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", 2021."""

from dataclasses import dataclass

import jax
import optax

from fedlab_lite.algorithms.fedper import FedPer
from fedlab_lite.algorithms.parts import alternate
from fedlab_lite.engine import ClientData, Models, Problem
from fedlab_lite.util.fields import ranged


@dataclass(frozen=True)
class FedRep(FedPer):
    """FedPer's problem by alternation (Algorithm 1 of the paper): first the head on the received body, then the body.

    Judged with the averaged body and the client's own head. Algorithm 1 averages uniformly, over clients that hold
    equally much; here clients count by their rows.
    """

    epochs: int = ranged(5, 1)  # passes for the body, after the head
    head_epochs: int = ranged(3, 1)  # passes for the head, on the received body

    def client_update(self, problem: Problem, data: ClientData, key: jax.Array, head: dict, theta: dict) -> Models:
        passes = {"for_head": {"epochs": self.head_epochs}, "for_body": {"epochs": self.epochs}}
        trained, head = alternate(self, problem, data, key, head, theta, **passes)
        return optax.tree.sub(trained, theta), head

"""FedRep: Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", 2021."""

from dataclasses import dataclass

import jax
import optax

from fedlab_lite.algorithms.parts import PartialPersonalisation, alternate, body_round
from fedlab_lite.engine import ClientData, Models, Problem
from fedlab_lite.util.fields import ranged


@dataclass(frozen=True)
class FedRep(PartialPersonalisation):
    """FedPer's problem by alternation (Algorithm 1 of the paper): first the head on the received body, then the body.

    A client is judged with the averaged body and its own head. Algorithm 1 averages uniformly, over clients with
    equally many rows. Here clients are weighted by their rows.
    """

    epochs: int = ranged(5, 1)  # passes for the body, after the head
    head_epochs: int = ranged(3, 1)  # passes for the head, on the received body
    server_optimizer: optax.GradientTransformation | None = None  # the server's step; None: add the mean change

    round = body_round

    def client_update(self, problem: Problem, data: ClientData, key: jax.Array, head: dict, theta: dict) -> Models:
        """The change of the body, which is sent; the new head and body, which the client keeps."""
        passes = {"for_head": {"epochs": self.head_epochs}, "for_body": {"epochs": self.epochs}}
        trained, head = alternate(self, problem, data, key, head, theta, **passes)
        return optax.tree.sub(trained, theta), {"heads": head, "thetas": trained}

"""FedPer: Arivazhagan et al., "Federated Learning with Personalization Layers", 2019."""

from dataclasses import dataclass

import jax
import optax

from fedlab_lite.algorithms.parts import PartialPersonalisation, body_round
from fedlab_lite.engine import ClientData, Models, Problem
from fedlab_lite.util.fields import ranged


@dataclass(frozen=True)
class FedPer(PartialPersonalisation):
    """min_{theta, w_i} sum_i (n_i / n) L_i(theta, w_i): body and head trained jointly, with only the body averaged."""

    epochs: int = ranged(5, 1)  # passes over the client's rows per round, body and head together
    server_optimizer: optax.GradientTransformation | None = None  # the server's step; None: add the mean change

    round = body_round

    def client_update(self, problem: Problem, data: ClientData, key: jax.Array, head: dict, theta: dict) -> Models:
        """The change of theta, which is sent; the new head and theta_i, which the client keeps."""
        params = {"representation": theta, "head": head}
        trained = self.train(problem.loss, params, data, key, epochs=self.epochs, project=problem.project)
        own = trained["representation"]
        return optax.tree.sub(own, theta), {"heads": trained["head"], "thetas": own}

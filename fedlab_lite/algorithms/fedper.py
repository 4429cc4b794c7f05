"""FedPer: Arivazhagan et al., "Federated Learning with Personalization Layers", 2019."""

from dataclasses import dataclass

import jax
import optax

from fedlab_lite.algorithms.parts import PartialPersonalisation, server_start, server_step
from fedlab_lite.engine import ClientData, Models, Problem, RoundContext
from fedlab_lite.util.fields import ranged


@dataclass(frozen=True)
class FedPer(PartialPersonalisation):
    """min_{theta, w_i} sum_i (n_i / n) L_i(theta, w_i): body and head trained jointly, with only the body averaged."""

    epochs: int = ranged(5, 1)  # passes over the client's rows per round, body and head together
    server_optimizer: optax.GradientTransformation | None = None  # the server's step; None: add the mean change

    def init(self, problem: Problem, key: jax.Array) -> dict:
        state = super().init(problem, key)
        return state | server_start(self.server_optimizer, state["theta"])

    def client_update(self, problem: Problem, data: ClientData, key: jax.Array, head: dict, theta: dict) -> Models:
        """The change of theta, and the new head."""
        params = {"representation": theta, "head": head}
        trained = self.train(problem.loss, params, data, key, epochs=self.epochs, project=problem.project)
        return optax.tree.sub(trained["representation"], theta), trained["head"]

    def round(self, problem: Problem, state: dict, at: RoundContext) -> dict:
        theta = problem.downlink(state["theta"])
        own = problem.take(state["heads"], at)
        changes, heads = self.for_cohort(problem, self.client_update, at, own, shared=(theta,))
        change = problem.uplink(at, changes)
        theta, server = server_step(self.server_optimizer, problem, at, state, theta, change)
        heads = problem.put(state["heads"], at, heads)
        return state | server | {"theta": problem.model.project(theta), "heads": heads}

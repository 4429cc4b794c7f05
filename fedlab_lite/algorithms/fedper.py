"""FedPer: Arivazhagan et al., "Federated Learning with Personalization Layers", 2019."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import optax

from fedlab_lite.algorithms.base import Algorithm, Models
from fedlab_lite.clients import ClientData, fit_head
from fedlab_lite.problem import At, Problem


@dataclass(frozen=True)
class PartialPersonalisation(Algorithm):
    """A shared representation theta and a head w_i for every client: what FedPer, FedRep and FeDEQ have in common.

    The state has 'theta', 'heads' (stacked) and 'new_head', the head that everybody started from and newcomers get.
    """

    owned: ClassVar[tuple[str, ...]] = ("heads",)

    def init(self, problem: Problem, key: jax.Array) -> dict:
        params = problem.model.init(key)
        heads = problem.broadcast(params["head"])
        return {"theta": params["representation"], "heads": heads, "new_head": params["head"]}

    def models(self, problem: Problem, state: dict, key: jax.Array) -> Models:
        return {"head": state["heads"]}, {"representation": state["theta"]}

    def join_update(self, problem: Problem, data: ClientData, key: jax.Array, theta: dict, head: dict) -> dict:
        """Only the head is trained, theta stays what the others have learned."""
        options = {"epochs": self.join_epochs, "batch_size": self.batch_size}
        return fit_head(problem, theta, head, data, key, self.optimizer(), **options)

    def join(self, problem: Problem, state: dict, key: jax.Array) -> dict[str, Models]:
        shared = (state["theta"], state["new_head"])
        heads = self.for_cohort(problem, self.join_update, problem.everyone(key), shared=shared)
        return {"": ({"head": heads}, {"representation": state["theta"]})}


@dataclass(frozen=True)
class FedPer(PartialPersonalisation):
    """min_{theta, w_i} sum_i (n_i / n) L_i(theta, w_i): body and head trained jointly, only the body averaged."""

    epochs: int = 5  # passes over the client's rows in a round, body and head together

    def client_update(self, problem: Problem, data: ClientData, key: jax.Array, head: dict, theta: dict) -> Models:
        """How theta changed, and the new head."""
        params = {"representation": theta, "head": head}
        trained = self.train(problem.loss, params, data, key, epochs=self.epochs, project=problem.project)
        return optax.tree.sub(trained["representation"], theta), trained["head"]

    def round(self, problem: Problem, state: dict, at: At) -> dict:
        theta = problem.downlink(state["theta"])
        own = problem.take(state["heads"], at)
        changes, heads = self.for_cohort(problem, self.client_update, at, own, shared=(theta,))
        return state | {
            "theta": problem.model.project(optax.tree.add(theta, problem.uplink(at, changes))),
            "heads": problem.put(state["heads"], at, heads),
        }

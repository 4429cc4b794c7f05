"""FedBABU: Oh et al., "FedBABU: Toward Enhanced Representation for Federated Image Classification", 2022."""

from dataclasses import dataclass

import jax
import optax

from fedlab_lite.algorithms.fedavg import FedAvg
from fedlab_lite.algorithms.parts import server_start, server_step
from fedlab_lite.engine import Batch, ClientData, Models, Problem, RoundContext
from fedlab_lite.util.fields import ranged


@dataclass(frozen=True)
class FedBABU(FedAvg):
    """FedAvg of the body, with one random head for all clients that is never trained (Algorithm 1 of the paper).

    A client is judged after `ft_epochs` of tuning on its rows. Tuning changes a copy that training never uses. The head
    is not sent, because its seed determines it. Clients are weighted by their rows. (The paper's code takes the plain
    mean, where clients hold equally many rows. It tunes the checkpoint with the best score on test rows.) FedReCo's and
    FedCR's code uses the name fedbabu for FedPer: it trains everything and averages the body.
    """

    ft_epochs: int = ranged(5, 0)  # passes over the client's rows before it is judged

    def init(self, problem: Problem, key: jax.Array) -> dict:
        params = problem.model.init(key)
        return {"params": params} | server_start(self, params["representation"])

    def body_change(self, problem: Problem, data: ClientData, key: jax.Array, theta: dict, head: dict) -> dict:
        """Run E epochs of SGD on the body under this head; returns its change."""

        def loss(theta: dict, batch: Batch):
            return problem.loss({"representation": theta, "head": head}, batch)

        trained = self.train(loss, theta, data, key, epochs=self.epochs, project=problem.model.project)
        return optax.tree.sub(trained, theta)

    def round(self, problem: Problem, state: dict, at: RoundContext) -> dict:
        params = state["params"]
        theta = problem.downlink(params["representation"])
        changes = self.for_cohort(problem, self.body_change, at, shared=(theta, params["head"]))
        change = problem.uplink(at, changes)
        theta, server = server_step(self, problem, at, state, theta, change)
        return state | server | {"params": params | {"representation": problem.model.project(theta)}}

    def models(self, problem: Problem, state: dict, key: jax.Array) -> Models:
        return self.tuned(problem, state["params"], key, self.ft_epochs)

    def other_models(self, problem: Problem, state: dict, key: jax.Array) -> dict[str, Models]:
        """The judgement 'global': the models before tuning, which shows only how good the random head is."""
        return {"global": super().models(problem, state, key)}

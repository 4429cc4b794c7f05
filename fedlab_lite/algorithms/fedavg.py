"""FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017."""

from dataclasses import dataclass

import jax
import optax

from fedlab_lite.algorithms.parts import server_start, server_step
from fedlab_lite.engine import Algorithm, ClientData, Models, Problem, RoundContext
from fedlab_lite.util.fields import ranged


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """min_w sum_i (n_i / n) L_i(w): one model for all clients (Algorithm 1 of the paper).

    A client sends its change of the params. This is equivalent to the paper's average, because the weights sum to one.
    With an optimiser at the server this is FedOpt (Reddi et al., "Adaptive Federated Optimization", 2021), see
    `parts.server_step`.
    """

    epochs: int = ranged(5, 1)  # E, passes over the client's rows per round
    server_optimizer: optax.GradientTransformation | None = None  # the server's step; None: add the mean change

    def init(self, problem: Problem, key: jax.Array) -> dict:
        params = problem.model.init(key)
        return {"params": params} | server_start(self, params)

    def client_update(self, problem: Problem, data: ClientData, key: jax.Array, params: dict) -> dict:
        """Run E epochs of SGD from the received params."""
        return self.train(problem.loss, params, data, key, epochs=self.epochs, project=problem.project)

    def client_change(self, problem: Problem, data: ClientData, key: jax.Array, params: dict) -> dict:
        return optax.tree.sub(self.client_update(problem, data, key, params), params)

    def round(self, problem: Problem, state: dict, at: RoundContext) -> dict:
        params = problem.downlink(state["params"])
        changes = self.for_cohort(problem, self.client_change, at, shared=(params,))
        change = problem.uplink(at, changes)
        params, server = server_step(self, problem, at, state, params, change)
        return state | server | {"params": problem.project(params)}

    def models(self, problem: Problem, state: dict, key: jax.Array) -> Models:
        return {}, state["params"]

    def tuned(self, problem: Problem, params: dict, key: jax.Array, epochs: int) -> Models:
        """A copy of the global model for every client, after `epochs` on the client's rows."""
        tuner = self.with_values(epochs=epochs)
        return tuner.for_cohort(problem, tuner.client_update, problem.everyone(key), shared=(params,)), {}

    def join(self, problem: Problem, state: dict, key: jax.Array) -> dict[str, Models]:
        """The newcomers' models: the global model after training on their rows; 'global': without that training.

        FeDEQ, Sec. V-B5: "a full model will be trained and adapted to new participants".
        """
        return {"": self.tuned(problem, state["params"], key, self.join_epochs), "global": ({}, state["params"])}

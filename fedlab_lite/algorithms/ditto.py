"""Ditto: Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", 2021, Algorithm 1."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import optax

from fedlab_lite.algorithms.fedavg import FedAvg
from fedlab_lite.algorithms.parts import server_step
from fedlab_lite.engine import Batch, ClientData, Models, Problem, RoundContext
from fedlab_lite.util.fields import ranged


@dataclass(frozen=True)
class Ditto(FedAvg):
    """One model per client, tied to the global one: min_{v_i} L_i(v_i) + lambda/2 ||v_i - w*||^2.

    w* is FedAvg's solution. A client keeps its v_i between rounds. Training continues from it, towards the received
    params w^t. (FeDEQ's code restarts v_i in every round from the client's freshly trained copy of w.) Algorithm 1
    averages uniformly; here clients are weighted by their rows, as in its objective and its code.
    """

    prox: float = ranged(0.3, 0)  # lambda, how strongly v_i is tied to w (FeDEQ's runs: 0.3, Shakespeare 0.1)
    personal_epochs: int = ranged(3, 0)  # passes over the client's rows for v_i

    owned: ClassVar[tuple[str, ...]] = ("client_params",)

    def init(self, problem: Problem, key: jax.Array) -> dict:
        state = super().init(problem, key)
        return state | {"client_params": problem.broadcast(state["params"])}

    def personal_update(self, problem: Problem, data: ClientData, key: jax.Array, own: dict, params: dict) -> dict:
        """Run gradient steps v_i <- v_i - eta (grad L_i(v_i) + lambda (v_i - w^t))."""

        def loss(own: dict, batch: Batch):
            value, z = problem.loss(own, batch)
            gap = optax.tree.sub(own, params)
            return value + self.prox / 2 * optax.tree.vdot(gap, gap), z

        return self.train(loss, own, data, key, epochs=self.personal_epochs, project=problem.project)

    def ditto_update(self, problem: Problem, data: ClientData, key: jax.Array, own: dict, params: dict) -> Models:
        own_key, global_key = jax.random.split(key)
        return self.personal_update(problem, data, own_key, own, params), self.client_change(
            problem, data, global_key, params
        )

    def round(self, problem: Problem, state: dict, at: RoundContext) -> dict:
        params = problem.downlink(state["params"])
        own = problem.take(state["client_params"], at)
        own, changes = self.for_cohort(problem, self.ditto_update, at, own, shared=(params,))
        change = problem.uplink(at, changes)
        params, server = server_step(self, problem, at, state, params, change)
        own = problem.put(state["client_params"], at, own)
        return {"params": problem.project(params), "client_params": own} | server

    def models(self, problem: Problem, state: dict, key: jax.Array) -> Models:
        return state["client_params"], {}

    def other_models(self, problem: Problem, state: dict, key: jax.Array) -> dict[str, Models]:
        return {"global": super().models(problem, state, key)}

    def join(self, problem: Problem, state: dict, key: jax.Array) -> dict[str, Models]:
        """A newcomer's v_i, trained from the global model and tied to it.

        'global': the unchanged global model, which FeDEQ's code scores.
        """
        tuner = self.with_values(personal_epochs=self.join_epochs)
        shared = (state["params"], state["params"])
        own = tuner.for_cohort(problem, tuner.personal_update, problem.everyone(key), shared=shared)
        return {"": (own, {}), "global": ({}, state["params"])}

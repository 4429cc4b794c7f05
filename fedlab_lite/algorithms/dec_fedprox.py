"""DecFedProx: FedProx without a server, FedF-ADMM's Sec. VI-B2."""

from dataclasses import dataclass

import jax
import optax

from fedlab_lite.algorithms.dec_fedavg import DecFedAvg
from fedlab_lite.algorithms.decentralised import averaged, neighbours
from fedlab_lite.clients import Batch, Problem, local_sgd


@dataclass(frozen=True)
class DecFedProx(DecFedAvg):
    """DecFedAvg with C_i(w_i) + alpha ||w_i - M_i[w_j]||^2 as local loss, eq. (22): no one half before alpha.

    M_i[w_j] is what the last exchange brought (at first the common w^0), and held during a round; the paper does not
    say. The state has it as 'received'.
    """

    prox: float = 0.1  # alpha, how strongly a device is tied to its neighbours' mean

    def init(self, problem: Problem, key: jax.Array) -> dict:
        state = super().init(problem, key)
        return state | {"received": state["client_params"]}

    def prox_update(self, problem: Problem, data, key: jax.Array, params: dict, received: dict) -> dict:
        def loss(params: dict, batch: Batch):
            value, z = problem.loss(params, batch)
            gap = optax.tree.sub(params, received)
            return value + self.prox * optax.tree.vdot(gap, gap), z

        return local_sgd(loss, params, data, key, epochs=self.epochs, project=problem.project, **self._sgd())

    def round(self, problem: Problem, state: dict, cohort: jax.Array, key: jax.Array) -> dict:
        trained = self.for_everybody(problem, self.prox_update, key, state["client_params"], state["received"])
        return {"client_params": averaged(problem, trained, self.beta), "received": neighbours(problem, trained)}

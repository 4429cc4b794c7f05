"""DecFedProx: FedProx without a server, FedF-ADMM's Sec. VI-B2."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import optax

from fedlab_lite.algorithms.parts import Decentralised, averaged
from fedlab_lite.engine import Batch, ClientData, Problem, RoundContext
from fedlab_lite.util.fields import ranged


@dataclass(frozen=True)
class DecFedProx(Decentralised):
    """DecFedAvg with local loss C_i(w_i) + alpha ||w_i - M_i[w_j]||^2, eq. (22), without a factor 1/2 before alpha.

    M_i[w_j] is the result of the last exchange (at first the common w^0). It is fixed during a round; the paper does
    not say. The state keeps it as 'received'.
    """

    beta: float = ranged(0.5, 0, 1)  # beta, averaging rate; 1 would oscillate on an even ring
    prox: float = ranged(0.1, 0)  # alpha, how strongly a device is tied to its neighbours' mean

    owned: ClassVar[tuple[str, ...]] = ("client_params", "trained", "received")

    def init(self, problem: Problem, key: jax.Array) -> dict:
        state = super().init(problem, key)
        return state | {"received": state["client_params"]}

    def prox_update(self, problem: Problem, data: ClientData, key: jax.Array, params: dict, received: dict) -> dict:
        def loss(params: dict, batch: Batch):
            value, z = problem.loss(params, batch)
            gap = optax.tree.sub(params, received)
            return value + self.prox * optax.tree.vdot(gap, gap), z

        return self.train(loss, params, data, key, epochs=self.epochs, project=problem.project)

    def round(self, problem: Problem, state: dict, at: RoundContext) -> dict:
        trained = self.for_cohort(problem, self.prox_update, at, state["client_params"], state["received"])
        received = problem.exchange(at, trained)
        mixed = averaged(problem, trained, received, self.beta)
        return {"client_params": mixed, "trained": trained, "received": received}

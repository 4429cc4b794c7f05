"""DFedADMM: Li et al., "DFedADMM: Dual Constraints Controlled Model Inconsistency for Decentralized Learning", 2023.

FedF-ADMM's Sec. VI-B4 uses it for comparison. That section names its three hyper-parameters and prints no update. The
form below is that of its family (FedSpeed, FedDyn) with these hyper-parameters, without the paper's sharpness-aware
variant.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import optax

from fedlab_lite.algorithms.parts import Decentralised, averaged
from fedlab_lite.engine import Batch, ClientData, Problem, RoundContext
from fedlab_lite.util.fields import ranged


@dataclass(frozen=True)
class DFedADMM(Decentralised):
    """ADMM on params, with local loss C_i(w) + <p_i, w> + theta/2 ||w - z_i||^2; z_i is the device's averaged params.

    Then p_i <- p_i + theta (w_i - z_i), the message is m_i = w_i + p_i / theta, and z_i the average (21) of messages.
    A device is judged with z_i, the state's 'client_params', and after local training with w_i. Because z_i contains
    p_i / theta, it is not a convex combination of params. So it is projected where the model has a constraint set.
    """

    beta: float = ranged(0.5, 0, 1)  # beta, averaging rate; 1 would oscillate on an even ring
    theta: float = ranged(0.1, 0, above=True)  # theta, penalty weight

    owned: ClassVar[tuple[str, ...]] = ("client_params", "trained", "duals")

    def init(self, problem: Problem, key: jax.Array) -> dict:
        state = super().init(problem, key)
        return state | {"duals": optax.tree.zeros_like(state["client_params"])}

    def admm_update(self, problem: Problem, data: ClientData, key: jax.Array, z_i: dict, dual: dict) -> tuple:
        """Run the local update; returns w_i, the message m_i and the new p_i."""

        def augmented_loss(params: dict, batch: Batch):
            value, z = problem.loss(params, batch)
            gap = optax.tree.sub(params, z_i)
            return value + optax.tree.vdot(dual, params) + self.theta / 2 * optax.tree.vdot(gap, gap), z

        w_i = self.train(augmented_loss, z_i, data, key, epochs=self.epochs, project=problem.project)
        dual = optax.tree.add_scale(dual, self.theta, optax.tree.sub(w_i, z_i))
        return w_i, optax.tree.add_scale(w_i, 1 / self.theta, dual), dual

    def round(self, problem: Problem, state: dict, at: RoundContext) -> dict:
        trained, sent, duals = self.for_cohort(problem, self.admm_update, at, state["client_params"], state["duals"])
        mixed = averaged(problem, sent, problem.exchange(at, sent), self.beta)
        return {"client_params": mixed, "trained": trained, "duals": duals}

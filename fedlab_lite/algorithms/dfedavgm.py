"""DFedAvgM: Sun et al., "Decentralized Federated Averaging", 2022, as FedF-ADMM's Sec. VI-B3 uses it for comparison."""

from dataclasses import dataclass

import jax

from fedlab_lite.algorithms.parts import Decentralised, averaged
from fedlab_lite.engine import ClientData, Problem, RoundContext
from fedlab_lite.util.fields import ranged


@dataclass(frozen=True)
class DFedAvgM(Decentralised):
    """DecFedAvg with heavy-ball momentum in the local update: y^{k+1} = y^k - eta g(y^k) + epsilon (y^k - y^{k-1}).

    Momentum starts at zero in each round. Averaging is w_i <- (1 - beta) w_i + beta M_i[w_j], eq. (21) of FedF-ADMM.
    The original paper has doubly stochastic weights instead.
    """

    momentum: float | None = ranged(0.9, 0)  # epsilon
    beta: float = ranged(0.5, 0, 1)  # beta, averaging rate; 1 would oscillate on an even ring

    def client_update(self, problem: Problem, data: ClientData, key: jax.Array, params: dict) -> dict:
        """Run SGD with `momentum` from y^0, the device's params; see `Algorithm.client_optimizer`."""
        return self.train(problem.loss, params, data, key, epochs=self.epochs, project=problem.project)

    def round(self, problem: Problem, state: dict, at: RoundContext) -> dict:
        trained = self.for_cohort(problem, self.client_update, at, state["client_params"])
        received = problem.exchange(at, trained)
        return {"client_params": averaged(problem, trained, received, self.beta)}

"""DecFedAvg: FedAvg without a server, FedF-ADMM's Sec. VI-B1."""

from dataclasses import dataclass

from fedlab_lite.algorithms.parts import Decentralised, averaged
from fedlab_lite.engine import Problem, RoundContext
from fedlab_lite.util.fields import ranged


@dataclass(frozen=True)
class DecFedAvg(Decentralised):
    """Local SGD, then w_i <- (1 - beta) w_i + beta M_i[w_j], eq. (21), similar to CDSGD and D-PSGD."""

    beta: float = ranged(0.5, 0, 1)  # beta, averaging rate; 1 would oscillate on an even ring

    def round(self, problem: Problem, state: dict, at: RoundContext) -> dict:
        trained = self.for_cohort(problem, self.client_update, at, state["client_params"])
        mixed = averaged(problem, trained, problem.exchange(at, trained), self.beta)
        return {"client_params": mixed, "trained": trained}

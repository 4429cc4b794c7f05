"""FedAvg + FT: FedAvg, then every client tunes its copy of the global model before it is judged."""

from dataclasses import dataclass

import jax

from fedlab_lite.algorithms.fedavg import FedAvg
from fedlab_lite.engine import Models, Problem
from fedlab_lite.util.fields import ranged


@dataclass(frozen=True)
class FedAvgFT(FedAvg):
    """FedAvg's rounds; each client's model is judged after `ft_epochs` of SGD on its rows, from the global params.

    FeDEQ does not say how it tunes (its code stops aggregating after 30 % of the rounds). Here tuning changes a copy
    that is made for judging. Training never uses it, and every round's number means the same.
    """

    ft_epochs: int = ranged(5, 0)  # passes over the client's rows before it is judged

    def models(self, problem: Problem, state: dict, key: jax.Array) -> Models:
        return self.tuned(problem, state["params"], key, self.ft_epochs)

    def other_models(self, problem: Problem, state: dict, key: jax.Array) -> dict[str, Models]:
        return {"global": super().models(problem, state, key)}

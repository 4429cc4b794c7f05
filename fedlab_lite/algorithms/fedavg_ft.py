"""FedAvg + FT: FedAvg, then every client tunes its copy of the global model before it is judged."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from fedlab_lite.algorithms.fedavg import FedAvg
from fedlab_lite.clients import Problem


@dataclass(frozen=True)
class FedAvgFT(FedAvg):
    """FedAvg's rounds; a model is judged after `ft_epochs` of SGD on its client's rows, from the global params.

    FeDEQ does not say how it tunes (its code stops aggregating after 30 % of the rounds). Here tuning is a copy made
    for judging: the federation never sees it, and every round's number means the same.
    """

    ft_epochs: int = 5  # passes over the client's rows before it is judged

    def init(self, problem: Problem, key: jax.Array) -> dict:
        return super().init(problem, key) | {"round": jnp.int32(0)}

    def round(self, problem: Problem, state: dict, cohort: jax.Array, key: jax.Array) -> dict:
        return super().round(problem, state, cohort, key) | {"round": state["round"] + 1}

    def models(self, problem: Problem, state: dict) -> tuple[dict, dict]:
        key = jax.random.fold_in(jax.random.key(0), state["round"])
        return self.tuned(problem, state, key, self.ft_epochs)

    def other_models(self, problem: Problem, state: dict) -> dict[str, tuple[dict, dict]]:
        return {"global": super().models(problem, state)}

"""D-PSGD: Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms?", 2017, Algorithm 1."""

from dataclasses import dataclass
from functools import partial

import jax
import optax

from fedlab_lite.algorithms.parts import MIXING, Decentralised, check_matrix, mixed, project_all
from fedlab_lite.engine import ClientData, Models, Problem, RoundContext
from fedlab_lite.util.fields import one_of


@dataclass(frozen=True)
class DPSGD(Decentralised):
    """x_i <- sum_j P_ij x_j - eta g_i(x_i): one step per round, with the gradient at the point before mixing.

    DePRL and DisPFL use this name for mixing first and then training for whole epochs ('mix_first'). A model that is
    judged after that has had additional fine-tuning. So 'mixed' judges the average that the next round starts from.
    """

    mixing: str = one_of("metropolis", *MIXING)  # P: 'metropolis' or 'uniform', see `parts.mixed`
    order: str = one_of("together", "mix_first")  # 'together', as printed, or 'mix_first', then `epochs`

    def check(self, problem: Problem) -> None:
        check_matrix(self, problem, self.mixing)

    @property
    def moment(self) -> str:
        return "trained" if self.order == "mix_first" else "mixed"

    def init(self, problem: Problem, key: jax.Array) -> dict:
        state = super().init(problem, key)
        return {"client_params": state["client_params"]} if self.order == "mix_first" else state

    def one_step(self, problem: Problem, data: ClientData, key: jax.Array, params: dict) -> dict:
        """The change -eta g_i(x_i) of one gradient step."""
        return optax.tree.sub(self.train(problem.loss, params, data, key, steps=1), params)

    def round(self, problem: Problem, state: dict, at: RoundContext) -> dict:
        own = state["client_params"]
        neighbourhood = mixed(problem, at, own, self.mixing)
        if self.order == "mix_first":
            return {"client_params": self.for_cohort(problem, self.client_update, at, neighbourhood)}
        change = self.for_cohort(problem, self.one_step, at, own)
        new, trained = optax.tree.add(neighbourhood, change), optax.tree.add(own, change)
        project = partial(project_all, problem, problem.project)
        return {"client_params": project(new), "trained": project(trained)}

    def other_models(self, problem: Problem, state: dict, key: jax.Array) -> dict[str, Models]:
        if self.moment == "mixed":
            return super().other_models(problem, state, key)
        new = mixed(problem, problem.everyone(key), state["client_params"], self.mixing)
        return {"mixed": (project_all(problem, problem.project, new), {})}

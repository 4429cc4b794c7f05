"""Local: every client trains alone; a federation should do better than this baseline."""

from dataclasses import dataclass
from typing import ClassVar

import jax

from fedlab_lite.engine import Algorithm, ClientData, Models, Problem, RoundContext
from fedlab_lite.util.fields import ranged


@dataclass(frozen=True)
class Local(Algorithm):
    """min_{w_i} L_i(w_i) without communication, with the same participation and epochs as the other algorithms."""

    epochs: int = ranged(5, 1)  # passes over the client's rows per round

    has_server: ClassVar[bool] = False
    owned: ClassVar[tuple[str, ...]] = ("client_params",)

    def init(self, problem: Problem, key: jax.Array) -> dict:
        params = problem.model.init(key)
        return {"params": params, "client_params": problem.broadcast(params)}

    def client_update(self, problem: Problem, data: ClientData, key: jax.Array, params: dict) -> dict:
        return self.train(problem.loss, params, data, key, epochs=self.epochs, project=problem.project)

    def round(self, problem: Problem, state: dict, at: RoundContext) -> dict:
        own = problem.take(state["client_params"], at)
        trained = self.for_cohort(problem, self.client_update, at, own)
        return state | {"client_params": problem.put(state["client_params"], at, trained)}

    def models(self, problem: Problem, state: dict, key: jax.Array) -> Models:
        return state["client_params"], {}

    def join(self, problem: Problem, state: dict, key: jax.Array) -> dict[str, Models]:
        """A newcomer's model: it starts from the common initial params, and also trains alone."""
        alone = self.with_values(epochs=self.join_epochs)
        at = problem.everyone(key)
        return {"": (alone.for_cohort(problem, alone.client_update, at, shared=(state["params"],)), {})}

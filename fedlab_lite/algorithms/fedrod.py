"""FedRoD: Chen and Chao, "On Bridging Generic and Personalized Federated Learning for Image Classification", 2022."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from fedlab_lite.algorithms.fedavg import FedAvg
from fedlab_lite.algorithms.parts import server_step
from fedlab_lite.engine import Batch, ClientData, Models, Problem, RoundContext
from fedlab_lite.util import InputError


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BothHeads:
    """The personalised predictor: the sum of both heads' logits."""

    def __call__(self, problem: Problem, params: dict, train: ClientData) -> Callable:
        def answer(x):
            features = problem.model.represent(params, x)
            return sum(problem.model.classify(params[head], features) for head in ("head", "personal")), None

        return answer


@dataclass(frozen=True)
class FedRoD(FedAvg):
    """An averaged generic predictor with a balanced softmax, and one further head per client on the same features.

    The representation and the generic head minimise the cross-entropy of logits + log n_ic. n_ic is the number of rows
    of class c that the client has. The client's own head minimises the cross-entropy of the sum of both logits; this
    loss changes no other part. Own heads start as copies of the generic one, and all parts have one step size. (DePRL
    uses this name for a method with neither the balanced softmax nor the sum.)

    A client is judged with the averaged generic params and its own head. After local training it has the generic params
    that it trained, 'trained' in the state.
    """

    owned: ClassVar[tuple[str, ...]] = ("personal", "trained")

    @property
    def moment(self) -> str:
        return "mixed"

    def init(self, problem: Problem, key: jax.Array) -> dict:
        state = super().init(problem, key)
        own = {"personal": state["params"]["head"], "trained": state["params"]}
        return state | {name: problem.broadcast(entry) for name, entry in own.items()}

    def check(self, problem: Problem) -> None:
        if problem.task.headline != "accuracy":
            raise InputError("FedRoD balances classes, and this task has none; use another algorithm")

    def rod_update(self, problem: Problem, data: ClientData, key: jax.Array, own: dict, params: dict) -> Models:
        """The change of the generic params, which is sent; what the client keeps: its head and the trained params."""
        counted = problem.task.counted(data.y, jnp.arange(len(data.y)) < data.size).astype(jnp.float32)
        rows = jnp.zeros(problem.data.num_classes).at[data.y.ravel()].add(counted.ravel())
        log_rows = jnp.log(jnp.maximum(rows, jnp.finfo(rows.dtype).tiny))  # log 0 is not finite, so training would fail

        def loss(both: dict, batch: Batch):
            body_key, head_key, own_key = jax.random.split(batch.key, 3)
            features = problem.model.represent(both, batch.x, key=body_key, budget=batch.budget)
            generic = problem.model.classify(both["head"], features, key=head_key)
            fixed, below = jax.lax.stop_gradient((generic, features))
            personal = fixed + problem.model.classify(both["personal"], below, key=own_key)
            y = jax.lax.optimization_barrier(batch.y)  # or XLA joins parts of the two gradients on several devices
            whole = problem.mean_loss(generic + log_rows, batch.y, batch.weight)
            return whole + problem.mean_loss(personal, y, batch.weight), None

        trained = self.train(loss, params | {"personal": own}, data, key, epochs=self.epochs, project=problem.project)
        own = trained.pop("personal")
        return jax.tree.map(jnp.subtract, trained, params), {"personal": own, "trained": trained}

    def round(self, problem: Problem, state: dict, at: RoundContext) -> dict:
        params = problem.downlink(state["params"])
        own = problem.take(state["personal"], at)
        changes, new = self.for_cohort(problem, self.rod_update, at, own, shared=(params,))
        change = problem.uplink(at, changes)
        params, server = server_step(self, problem, at, state, params, change)
        return {"params": problem.project(params)} | problem.put_all(state, at, new) | server

    def predictor(self) -> Callable:
        return BothHeads()

    def models(self, problem: Problem, state: dict, key: jax.Array) -> Models:
        return {"personal": state["personal"]}, state["params"]

    def other_models(self, problem: Problem, state: dict, key: jax.Array) -> dict[str, Models]:
        """The judgement 'trained', and 'global': the generic predictor."""
        trained = state["trained"] | {"personal": state["personal"]}
        return {"trained": (trained, {}), "global": ({}, state["params"])}

    def own_head(self, problem: Problem, data: ClientData, key: jax.Array, params: dict) -> dict:
        """A newcomer's head, trained from a copy of the generic one, with the generic params fixed."""

        def loss(own: dict, batch: Batch):
            features = problem.model.represent(params, batch.x, budget=batch.budget)
            generic = problem.model.classify(params["head"], features)  # fixed, so without dropout
            logits = generic + problem.model.classify(own, features, key=batch.key)
            return problem.mean_loss(logits, batch.y, batch.weight), None

        return self.train(loss, params["head"], data, key, epochs=self.epochs)

    def join(self, problem: Problem, state: dict, key: jax.Array) -> dict[str, Models]:
        tuner, shared = self.with_values(epochs=self.join_epochs), (state["params"],)
        own = tuner.for_cohort(problem, tuner.own_head, problem.everyone(key), shared=shared)
        return {"": ({"personal": own}, state["params"]), "global": ({}, state["params"])}

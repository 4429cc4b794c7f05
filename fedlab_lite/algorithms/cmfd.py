"""CMFD: Taya et al., "Decentralized and model-free federated learning: consensus-based distillation in function space".

2022; as FedF-ADMM's Sec. VI-B5 compares with it. Its released code decides what that paper leaves open.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import jax
import jax.numpy as jnp

from fedlab_lite.algorithms.parts import Decentralised
from fedlab_lite.engine import Batch, ClientData, Problem, RoundContext, in_chunks, local_train
from fedlab_lite.util import InputError, choose
from fedlab_lite.util.fields import ranged

SHARES = ("outputs", "params")


@dataclass(frozen=True)
class CMFD(Decentralised):
    """Local SGD, then distillation towards the neighbours' mean output on the shared set D_s, eq. (23).

    Outputs are class probabilities, dropout off; distillation is minibatch SGD on 1/2 mean ||f(x) - target||^2, dropout
    on (both as CMFD's code has it; eq. (23) is one step on a sum over D_s). `share`: neighbours send their outputs, or
    their params for the others to evaluate: the same numbers, other bytes (FedF-ADMM, Sec. IV-B).
    """

    rho: float = ranged(0.08, 0, above=True)  # rho (rho-hat in FedF-ADMM), step size of distillation
    distill_epochs: int = ranged(1, 0)  # passes over D_s
    distill_batch_size: int = ranged(100, 1)  # rows a step of distillation
    share: str = "outputs"  # what crosses the network: 'outputs' on D_s, or 'params'

    step_sizes: ClassVar[tuple[str, ...]] = ("lr", "rho")

    def __post_init__(self):
        super().__post_init__()
        choose("share", self.share, SHARES)

    def check(self, problem: Problem) -> None:
        super().check(problem)
        if len(problem.data.shared_x) == 0:
            raise InputError(
                f"{type(self).__name__} distils on a shared unlabelled set, and there is none; set `shared_size` "
                "(FedF-ADMM: 1,000 for 10,000 training samples)"
            )

    def outputs(self, problem: Problem, params: dict, shared_x: jax.Array) -> jax.Array:
        """A model's class probabilities on D_s, `[|D_s|, C]`."""

        def answer(x):
            return jax.nn.softmax(problem.model.apply(params, x).astype(jnp.float32))

        return in_chunks(answer, shared_x, jnp.int32(len(shared_x)), 100)

    def local_phase(
        self, problem: Problem, data: ClientData, key: jax.Array, params: dict, shared_x: jax.Array
    ) -> tuple[dict, jax.Array]:
        """Eq. (11), and the new model's outputs on D_s: w~_i and y~_i."""
        trained = self.client_update(problem, data, key, params)
        return trained, self.outputs(problem, trained, shared_x)

    def distill(
        self,
        problem: Problem,
        data: ClientData,
        key: jax.Array,
        params: dict,
        target: jax.Array,
        shared_x: jax.Array,
    ) -> dict:
        """Eq. (12), (23): from w~_i towards `target [|D_s|, C]`, which is held."""

        def loss(params: dict, batch: Batch):
            outputs = jax.nn.softmax(problem.model.forward(params, batch.x, key=batch.key)[0])
            gaps = jnp.sum(jnp.square(outputs - batch.y), axis=-1)
            return jnp.sum(gaps * batch.weight) / (2 * batch.weight.sum()), None

        shared = ClientData(shared_x, target, jnp.int32(len(shared_x)))
        options = {"epochs": self.distill_epochs, "batch_size": self.distill_batch_size, "project": problem.project}
        return local_train(loss, params, shared, key, self.optimizer(self.rho), **options)

    def received(self, problem: Problem, at: RoundContext, params: dict, outputs: jax.Array) -> jax.Array:
        """M_i[y~_j], what every device makes of its neighbours' messages: outputs, or params that it evaluates."""
        if self.share == "outputs":
            return problem.exchange(at, outputs)
        sent = problem.transmit(at, params, ways=("up", "down"))
        evaluate = self.outputs
        seen = problem.for_clients(
            lambda params, shared_x: evaluate(problem, params, shared_x), sent, shared=(problem.data.shared_x,)
        )
        return problem.neighbours(at, seen, outputs)

    def targets(self, state: dict, outputs: jax.Array, mean: jax.Array) -> tuple[jax.Array, dict]:
        """What each device distils, `[N, |D_s|, C]`, from its outputs and the neighbours' mean; what it keeps of it."""
        return mean, {}

    def round(self, problem: Problem, state: dict, at: RoundContext) -> dict:
        local, distilling = (replace(at, key=key) for key in jax.random.split(at.key))
        shared = (problem.data.shared_x,)
        params, outputs = self.for_cohort(problem, self.local_phase, local, state["client_params"], shared=shared)
        targets, kept = self.targets(state, outputs, self.received(problem, at, params, outputs))
        params = self.for_cohort(problem, self.distill, distilling, params, targets, shared=shared)
        return {"client_params": params} | kept

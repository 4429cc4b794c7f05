"""CMFD: Taya et al., "Decentralized and model-free federated learning: consensus-based distillation in function space".

2022; as FedF-ADMM's Sec. VI-B5 compares with it. Its released code decides what that paper leaves open.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from fedlab_lite.algorithms.base import both_ways, shapes
from fedlab_lite.algorithms.decentralised import Decentralised, neighbours
from fedlab_lite.clients import Batch, ClientData, Problem, in_chunks, local_sgd
from fedlab_lite.errors import InputError, choose

SHARES = ("outputs", "params")


@dataclass(frozen=True)
class CMFD(Decentralised):
    """Local SGD, then distillation towards the neighbours' mean output on the shared set D_s, eq. (23).

    Outputs are class probabilities, dropout off; distillation is minibatch SGD on 1/2 mean ||f(x) - target||^2, dropout
    on (both as CMFD's code has it; eq. (23) is one step on a sum over D_s). `share`: neighbours send their outputs, or
    their params for the others to evaluate: the same numbers, other bytes (FedF-ADMM, Sec. IV-B).
    """

    rho: float = 0.08  # rho (rho-hat in FedF-ADMM), step size of distillation
    distill_epochs: int = 1  # passes over D_s
    distill_batch_size: int = 100  # rows a step of distillation
    share: str = "outputs"  # what crosses the network: 'outputs' on D_s, or 'params'

    def __post_init__(self):
        choose("share", self.share, SHARES)
        if self.distill_batch_size < 1:
            raise InputError(f"distill_batch_size must be at least 1, got {self.distill_batch_size}")

    def check(self, problem: Problem) -> None:
        super().check(problem)
        if len(problem.data.shared_x) == 0:
            raise InputError(
                f"{type(self).__name__} distils on a shared unlabelled set, and there is none; set `shared_size` "
                "(FedF-ADMM: 1,000 for 10,000 training samples)"
            )

    def local_phase(self, problem: Problem, data, key: jax.Array, params: dict, shared_x) -> tuple[dict, jax.Array]:
        """Eq. (11), and the new model's outputs on D_s: w~_i and y~_i `[|D_s|, C]`."""
        trained = self.client_update(problem, data, key, params)

        def outputs(x):
            return jax.nn.softmax(problem.model.apply(trained, x))

        return trained, in_chunks(outputs, shared_x, jnp.int32(len(shared_x)), 100)

    def distill(self, problem: Problem, data, key: jax.Array, params: dict, target: jax.Array, shared_x) -> dict:
        """Eq. (12), (23): from w~_i towards `target [|D_s|, C]`, which is held."""

        def loss(params: dict, batch: Batch):
            outputs = jax.nn.softmax(problem.model.forward(params, batch.x, key=batch.key)[0])
            gaps = jnp.sum(jnp.square(outputs - batch.y), axis=-1)
            return jnp.sum(gaps * batch.weight) / (2 * batch.weight.sum()), None

        shared = ClientData(shared_x, target, jnp.int32(len(shared_x)))
        sgd = {"lr": self.rho, "epochs": self.distill_epochs, "batch_size": self.distill_batch_size}
        return local_sgd(loss, params, shared, key, project=problem.project, **sgd)

    def targets(self, problem: Problem, state: dict, outputs: jax.Array) -> tuple[jax.Array, dict]:
        """What each device distils, `[N, |D_s|, C]`, from everybody's outputs; and what it keeps of them."""
        return neighbours(problem, outputs), {}

    def round(self, problem: Problem, state: dict, cohort: jax.Array, key: jax.Array) -> dict:
        local_key, distill_key = jax.random.split(key)
        shared = (problem.data.shared_x,)
        params, outputs = self.for_everybody(
            problem, self.local_phase, local_key, state["client_params"], shared=shared
        )
        targets, kept = self.targets(problem, state, outputs)
        params = self.for_everybody(problem, self.distill, distill_key, params, targets, shared=shared)
        return {"client_params": params} | kept

    def messages(self, problem: Problem) -> dict:
        shape = (len(problem.data.shared_x), problem.data.num_classes)
        outputs = {"outputs": jax.ShapeDtypeStruct(shape, jnp.float32)}
        return both_ways(outputs if self.share == "outputs" else shapes(problem))

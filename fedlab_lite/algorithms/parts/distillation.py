"""Distillation of outputs over a shared set D_s on which devices agree: what CMFD and FedF-ADMM have in common.

Equations are those of FedF-ADMM. A device's function takes the algorithm first, as `Algorithm.for_cohort` requires.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from fedlab_lite.algorithms.parts.gossip import check_graph
from fedlab_lite.engine import Batch, ClientData, Problem, RoundContext, in_chunks, local_train, mix
from fedlab_lite.util import InputError

SHARES = ("outputs", "params")
OUTPUTS = ("probabilities", "logits")


def check_shared_set(algorithm: Any, problem: Problem) -> None:
    """Raise `InputError` unless the problem has a graph and a shared set."""
    check_graph(algorithm, problem)
    if len(problem.data.shared_x) == 0:
        raise InputError(
            f"{type(algorithm).__name__} distils on a shared unlabelled set, but the data have none; set `shared_size` "
            "(FedF-ADMM: 1,000 for 10,000 training samples)"
        )


def outputs_on(problem: Problem, params: dict, shared_x: jax.Array, output: str = OUTPUTS[0]) -> jax.Array:
    """The outputs of a model on D_s, `[|D_s|, C]`: class probabilities or logits."""

    def answer(x):
        logits = problem.model.apply(params, x).astype(jnp.float32)
        return logits if output == "logits" else jax.nn.softmax(logits)

    return in_chunks(answer, shared_x, jnp.int32(len(shared_x)), 100)


def local_phase(
    algorithm: Any, problem: Problem, data: ClientData, key: jax.Array, params: dict, shared_x: jax.Array
) -> tuple[dict, jax.Array]:
    """Run eq. (11); returns the new params w~_i, and the new model's outputs y~_i on D_s."""
    trained = algorithm.client_update(problem, data, key, params)
    return trained, outputs_on(problem, trained, shared_x, algorithm.output)


def received(algorithm: Any, problem: Problem, at: RoundContext, params: dict, outputs: jax.Array) -> jax.Array:
    """The mean M_i[y~_j] of the messages of each device's neighbours: outputs, or params that the device evaluates."""
    if algorithm.share == "outputs":
        return problem.exchange(at, outputs)
    sent = problem.transmit(at, params, ways=("up", "down"))
    seen = problem.for_clients(
        lambda params, shared_x: outputs_on(problem, params, shared_x, algorithm.output),
        sent,
        shared=(problem.data.shared_x,),
    )
    return mix(problem.graph.neighbour_mean, seen, problem.graph.neighbours)


@jax.custom_jvp
def _quotient(x: jax.Array, total: jax.Array) -> jax.Array:
    return x * (1 / total)


@_quotient.defjvp
def _(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    (x, total), (dx, dtotal) = primals, tangents
    return _quotient(x, total), dx * (1 / total) - dtotal * x * total**-2


def _softmax(logits: jax.Array) -> jax.Array:
    """`jax.nn.softmax`, whose gradient has the same bits on any number of devices.

    XLA may divide by a total, or multiply by 1 / total. Its choice depends on the number of devices, unless 1 / total
    is written down, as in `_quotient`.
    """
    powers = jnp.exp(logits - jax.lax.stop_gradient(logits.max(-1, keepdims=True)))
    return _quotient(powers, powers.sum(-1, keepdims=True))


def distill(
    algorithm: Any,
    problem: Problem,
    data: ClientData,
    key: jax.Array,
    params: dict,
    target: jax.Array,
    shared_x: jax.Array,
) -> dict:
    """Distil by eq. (12), (23): from w~_i towards `target [|D_s|, C]`, which is fixed."""

    def loss(params: dict, batch: Batch):
        logits, solution = problem.model.forward(params, batch.x, key=batch.key)
        outputs = logits if algorithm.output == "logits" else _softmax(logits)
        gaps = jnp.sum(jnp.square(outputs - batch.y), axis=-1)
        return problem.regularised(jnp.sum(gaps * batch.weight) / (2 * batch.weight.sum()), solution, batch), None

    shared = ClientData(shared_x, target, jnp.int32(len(shared_x)))
    optimizer, epochs = algorithm.client_optimizer(algorithm.rho), algorithm.distill_epochs
    options = {"epochs": epochs, "batch_size": algorithm.distill_batch_size, "project": problem.project}
    return local_train(loss, params, shared, key, optimizer, **options)


def distillation_round(algorithm: Any, problem: Problem, state: dict, at: RoundContext) -> dict:
    """Run a round of CMFD and FedF-ADMM: local training, messages, and distillation towards `algorithm.targets`.

    A device mixes with its neighbours by distillation. So 'trained' is w~_i, the params before it.
    """
    local, distilling = (replace(at, key=key) for key in jax.random.split(at.key))
    shared = (problem.data.shared_x,)
    trained, outputs = algorithm.for_cohort(problem, local_phase, local, state["client_params"], shared=shared)
    targets, kept = algorithm.targets(state, outputs, received(algorithm, problem, at, trained, outputs))
    params = algorithm.for_cohort(problem, distill, distilling, trained, targets, shared=shared)
    return {"client_params": params, "trained": trained} | kept

"""How many clients an accelerator batches: few enough for its memory, and of a size that wastes few steps on padding.

A batch of clients takes as many steps as its largest client. A step takes longer the more clients it batches, but less
than in proportion, because a step of one client does not fill an accelerator.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from fedlab_lite.engine.algorithm import Algorithm
from fedlab_lite.engine.clients import executor_here
from fedlab_lite.engine.devices import mesh
from fedlab_lite.engine.local import Batch
from fedlab_lite.engine.problem import Problem
from fedlab_lite.engine.work import Work, work_of

# Seconds that a step takes at least: some hundred kernels of some microseconds. So small steps are batched in spite of
# unequal clients. HARBox' stand-in at pi = 0.1 executes 3.7 times what it needs, in a third of the time of groups of 4.
STEP = 4e-4
FLOPS, BYTES = 20e12, 2e12  # per second; what this package's rounds may reach on a card of 2023
SHARE = 0.5  # of the device's memory for a batch of clients; the other half is for data and states
DEFAULT_MEMORY = 16e9  # bytes of a device that does not say


def step_seconds(work: Work, clients: int) -> float:
    """An estimate of the seconds that a step of so many clients takes on an accelerator."""
    return STEP + clients * max(work.flops / FLOPS, work.bytes / BYTES)


def group_size(steps: np.ndarray, work: Work, memory: float) -> int:
    """The number of clients per batch that takes least time, of powers of two and what the memory or the clients allow.

    Args:
      steps: each client's steps in a round.
      work: one client's step.
      memory: bytes for a batch of clients.

    Example:
      >>> equal, unequal = np.full(8, 10), np.array([80, 1, 1, 1, 1, 1, 1, 1])
      >>> step = Work(flops=1e11, memory=1e9)
      >>> group_size(equal, step, 1e12), group_size(unequal, step, 1e12), group_size(equal, step, 4e9)
      (8, 1, 4)
    """
    steps = np.sort(steps)[::-1]
    most = max(1, min(len(steps), int(memory // max(work.memory, 1))))
    sizes = sorted({min(2**power, most) for power in range(most.bit_length() + 1)}, reverse=True)

    def seconds(size: int) -> float:
        return float(steps[::size].sum() * step_seconds(work, size))

    return min(sizes, key=seconds)


def in_groups(problem: Problem, algorithm: Algorithm, clients_per_round: int, devices: int | None = None) -> Problem:
    """The problem with the numbers of clients that this machine batches in training and in judging.

    It is unchanged where clients run one after the other, as on a CPU. Numbers that the problem already has stay.
    `devices`: how many share the clients; None: all of this machine.
    """
    if executor_here(problem.executor) != "vmap":
        return problem
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", DEFAULT_MEMORY)
    shares = devices or mesh().size
    sizes = np.sort(np.asarray(problem.data.size))[::-1]
    typical = sizes[np.linspace(0, len(sizes) - 1, -(-clients_per_round // shares)).round().astype(int)]
    at_once, judged = problem.clients_at_once, problem.judged_at_once
    if at_once is None:
        rows = min(algorithm.batch_size, problem.data.y.shape[1])
        at_once = group_size(-(-typical // rows), training_step(problem, rows), SHARE * limit)
    if judged is None:
        steps = -(-np.asarray(problem.data.test_size) // 100) if not problem.data.common_test else np.ones(len(sizes))
        judged = group_size(steps, judging_step(problem), SHARE * limit)
    return replace(problem, clients_at_once=at_once, judged_at_once=judged)


def training_step(problem: Problem, rows: int) -> Work:
    """The work of one client's step on so many rows: the gradient of the loss.

    Example:
      >>> from fedlab_lite.data import federated
      >>> from fedlab_lite.nn import make_model
      >>> data = federated("digits", partition="iid", num_clients=4, train_size=80)
      >>> problem = Problem(data, make_model("mlp", data.input_shape, 10, width=8, depth=1, features=8))
      >>> step = training_step(problem, 10)  # forward and for the weights; for the inputs of all layers but the first
      >>> step.flops == 2 * 10 * (2 * 784 * 8 + 3 * 8 * 8 + 3 * 8 * 10)
      True
    """
    memory = problem.model.equilibrium_shape()
    z0 = None if memory is None else jax.ShapeDtypeStruct((rows, *memory), jnp.float32)
    x, y = (jax.ShapeDtypeStruct((rows, *leaf.shape[2:]), leaf.dtype) for leaf in (problem.data.x, problem.data.y))
    weight, key = jax.ShapeDtypeStruct((rows,), jnp.float32), jax.eval_shape(jax.random.key, 0)
    gradient = jax.grad(problem.loss, has_aux=True)
    return work_of(gradient, jax.eval_shape(problem.model.init, key), Batch(x, y, weight, key, z0))


def judging_step(problem: Problem, rows: int = 100) -> Work:
    """The work of judging one client's model on so many rows."""
    x = jax.ShapeDtypeStruct((rows, *problem.data.input_shape), problem.data.test_x.dtype)
    params = jax.eval_shape(problem.model.init, jax.eval_shape(jax.random.key, 0))
    return work_of(problem.model.forward, params, x)

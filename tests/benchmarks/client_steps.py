"""Client steps: the workloads, a round of ours, and the bare step that bounds it; no clock here.

Each contestant is a function of a workload that returns `run`, a call of which takes `workload.steps` steps of SGD.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from fedlab_lite.algorithms import make_algorithm
from fedlab_lite.data import Federated
from fedlab_lite.engine import Batch, Problem, replicated
from fedlab_lite.engine.training import place_problem
from fedlab_lite.nn import Model, make_model

LR = 0.01


@dataclass(frozen=True)
class Workload:
    """A round of FedAvg: every client's SGD, then the average."""

    title: str
    model: str
    plain_model: str  # the same network without the package's layers
    options: tuple[tuple[str, object], ...]
    input_shape: tuple[int, int, int]
    num_clients: int
    rows: int  # of each client
    batch_size: int  # divides `rows`, so that no contestant meets a ragged batch
    epochs: int

    @property
    def steps(self) -> int:
        return self.num_clients * self.epochs * (self.rows // self.batch_size)

    def network(self, *, plain: bool = False) -> Model:
        return make_model(self.plain_model if plain else self.model, self.input_shape, 10, **dict(self.options))

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Noise: pixels `[clients, rows, H, W, C]`, uint8, and labels `[clients, rows]`."""
        rng = np.random.default_rng(0)
        shape = (self.num_clients, self.rows)
        return rng.integers(0, 256, (*shape, *self.input_shape)).astype(np.uint8), rng.integers(0, 10, shape)

    def problem(self, *, plain: bool = False) -> Problem:
        clients = list(zip(*self.data(), strict=True))
        data = Federated.stack(clients, clients, name="noise", source="random pixels", num_classes=10)
        return place_problem(Problem(data, self.network(plain=plain)))


WORKLOADS = (
    Workload("CNN 5x5x32, 5x5x64, 512; batch 32", "cnn", "plain_cnn", (), (28, 28, 1), 10, 160, 32, 1),
    Workload(
        "MLP 784-200-200-10; batch 10",
        "mlp",
        "mlp",
        (("depth", 2), ("features", 0), ("width", 200)),
        (28, 28, 1),
        num_clients=10,
        rows=600,
        batch_size=10,
        epochs=5,
    ),
    Workload(
        "small ResNet, 64 channels at 32x32; batch 20",
        "small_resnet",
        "plain_small_resnet",
        (),
        (32, 32, 3),
        num_clients=4,
        rows=60,
        batch_size=20,
        epochs=1,
    ),
)


@lru_cache(maxsize=1)  # it is run against every contestant of its workload
def fedlab_round(workload: Workload) -> Callable[[], object]:
    """One jitted round: cohort, shuffles, masks of last batches and average included."""
    problem = workload.problem()
    algorithm = make_algorithm("fedavg", lr=LR, batch_size=workload.batch_size, epochs=workload.epochs)
    step = jax.jit(algorithm.round, out_shardings=replicated())
    state = jax.device_put(algorithm.init(problem, jax.random.key(0)), replicated())
    at = problem.everyone(jax.random.key(1))
    return lambda: jax.block_until_ready(step(problem, state, at))


def bare_step(workload: Workload) -> Callable[[], object]:
    """A Python loop over batches of one client that lie on one device, one dispatch a step."""
    return _bare_step(workload, workload.problem())


def plain_bare_step(workload: Workload) -> Callable[[], object]:
    """The same with Flax's layers: XLA's convolutions are at their best outside of a loop."""
    return _bare_step(workload, workload.problem(plain=True))


def _bare_step(workload: Workload, problem: Problem) -> Callable[[], object]:
    @jax.jit
    def step(params, x, y):
        gradient, _ = jax.grad(problem.loss, has_aux=True)(params, Batch(x, y, jnp.ones(workload.batch_size)))
        return jax.tree.map(lambda p, g: p - LR * g, params, gradient)

    x, y = (jax.device_put(np.asarray(leaf[0]), jax.devices()[0]) for leaf in (problem.data.x, problem.data.y))
    starts = range(0, workload.rows, workload.batch_size)
    batches = [(x[i : i + workload.batch_size], y[i : i + workload.batch_size]) for i in starts]
    params = problem.model.init(jax.random.key(0))

    def run():
        current = params
        for i in range(workload.steps):
            current = step(current, *batches[i % len(batches)])
        return jax.block_until_ready(current)

    return run


def shrunk(workload: Workload) -> Workload:
    """A round of four steps, to see that it runs."""
    return replace(workload, num_clients=2, rows=2 * workload.batch_size, epochs=1)

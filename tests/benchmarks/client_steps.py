"""Client steps a second of a round against the bare jitted step, in one run: python tests/benchmarks/client_steps.py

The bare step is what a Python loop over one model and the same batches dispatches; a round adds the cohort, the
shuffles, the last batches' masks and the average.
"""

import statistics
import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from fedlab_lite.algorithms import make_algorithm
from fedlab_lite.clients import Problem, replicated
from fedlab_lite.data.federated import Federated
from fedlab_lite.nn.model import make_model

WORKLOADS = {  # model, options, clients, rows a client, batch, epochs
    "CNN 5x5x32, 5x5x64, 512; batch 32": ("cnn", {}, 10, 160, 32, 1),
    "MLP 784-200-200-10; batch 10": ("mlp", {"width": 200, "depth": 2, "features": 0}, 10, 600, 10, 5),
}


def make_problem(name: str, options: dict, clients: int, rows: int) -> Problem:
    rng = np.random.default_rng(0)

    def draw(n):
        return rng.integers(0, 256, (n, 28, 28, 1)).astype(np.uint8), rng.integers(0, 10, n)

    train, test = [draw(rows) for _ in range(clients)], [draw(10) for _ in range(clients)]
    data = Federated.stack(train, test, name="noise", source="random pixels", num_classes=10)
    return Problem(data, make_model(name, (28, 28, 1), 10, **options))


def bare_step(problem: Problem, batch_size: int, steps: int):
    """A Python loop over batches that lie on the device, one dispatch a step."""

    @jax.jit
    def step(params, x, y):
        gradient = jax.grad(problem.loss)(params, x, y, jnp.ones(batch_size))
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, gradient)

    x, y = problem.data.x[0], problem.data.y[0]
    batches = [(jnp.asarray(x[:batch_size]), jnp.asarray(y[:batch_size])) for _ in range(4)]
    params = jax.jit(problem.model.init)(jax.random.key(0))

    def run():
        current = params
        for i in range(steps):
            current = step(current, *batches[i % 4])
        jax.block_until_ready(current)

    return run


def round_of(problem: Problem, batch_size: int, epochs: int):
    algorithm = make_algorithm("fedavg", lr=0.01, batch_size=batch_size, epochs=epochs)
    problem = replace(problem, data=jax.device_put(problem.data, replicated()))
    step = jax.jit(algorithm.round, out_shardings=replicated())
    state = jax.device_put(jax.jit(algorithm.init)(problem, jax.random.key(0)), replicated())
    everybody = jnp.arange(problem.num_clients)
    return lambda: jax.block_until_ready(step(problem, state, everybody, jax.random.key(1)))


def seconds(*runs, repeats: int = 9) -> list[list[float]]:
    """Each run's times, taken in turn, so that a slow moment of the machine falls on all of them."""
    for run in runs:
        run()
    times = [[] for _ in runs]
    for _ in range(repeats):
        for run, taken in zip(runs, times, strict=True):
            start = time.perf_counter()
            run()
            taken.append(time.perf_counter() - start)
    return times


def main() -> None:
    print(f"{jax.device_count()} {jax.default_backend()} devices, jax {jax.__version__}")
    for title, (name, options, clients, rows, batch_size, epochs) in WORKLOADS.items():
        problem = make_problem(name, options, clients, rows)
        steps = clients * epochs * -(-rows // batch_size)
        bare, ours = seconds(bare_step(problem, batch_size, steps), round_of(problem, batch_size, epochs))
        ratios = [a / b for a, b in zip(bare, ours, strict=True)]
        bare, ours = steps / statistics.median(bare), steps / statistics.median(ours)
        spread = f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"{title:36s} bare step {bare:8.1f}/s   round {ours:8.1f}/s   {spread}")


if __name__ == "__main__":
    main()

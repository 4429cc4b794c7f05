"""Milliseconds and iterations of an equilibrium layer: python tests/benchmarks/equilibrium_layer.py

Width 512, batch 64, z = tanh(W z + x) with x of scale 0.1 (nearly linear, so the spectral radius of W is felt),
relative tolerance 1e-4. Gradient of a sum of squares with respect to W and x.
"""

import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

from fedlab_lite.deq.gradients import equilibrium

WIDTH, BATCH = 512, 64


def weights(kind: str, radius: float) -> jax.Array:
    w = np.random.default_rng(0).normal(size=(WIDTH, WIDTH))
    w = w + w.T if kind == "symmetric" else w
    return jnp.asarray(w * radius / np.abs(np.linalg.eigvals(w)).max(), jnp.float32)


def layer(w, x, z):
    return jnp.tanh(z @ w.T + x)


def measure(w, x, **options) -> tuple[float, int]:
    def loss(w, x):
        z, solution = equilibrium(layer, w, x, jnp.zeros_like(x), max_iter=100, backward_max_iter=100, **options)
        return jnp.sum(z**2), solution.iterations.max()

    step = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))
    (_, iterations), _ = jax.block_until_ready(step(w, x))
    times = []
    for _ in range(30):
        start = time.perf_counter()
        jax.block_until_ready(step(w, x))
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times), int(iterations)


def main() -> None:
    x = 0.1 * jax.random.normal(jax.random.key(0), (BATCH, WIDTH))
    print(f"{'W':16s} {'solver':12s} {'iterations':>10s} {'one-step':>10s} {'implicit':>10s}  (ms, forward + backward)")
    for kind, radius in (("gaussian", 0.5), ("gaussian", 0.9), ("symmetric", 0.9)):
        w = weights(kind, radius)
        for solver in ("anderson", "fixed_point"):
            one_step, iterations = measure(w, x, solver=solver, gradient="one_step")
            implicit, _ = measure(w, x, solver=solver, gradient="implicit")
            print(f"{kind} {radius:<6} {solver:12s} {iterations:10d} {one_step:10.1f} {implicit:10.1f}")


if __name__ == "__main__":
    main()

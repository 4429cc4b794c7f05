"""An equilibrium layer with its gradient: the workloads, ours, and the evaluations that bound it; no clock here.

Width 512, batch 64, z = tanh(W z + x) with x of scale 0.1 (nearly linear, so the spectral radius of W is felt),
relative tolerance 1e-4; the gradient of sum z^2 with respect to W and x, exact, one-step, by Broyden's inverse
('shine') or by reversal. Each contestant is a function of a workload that returns `run`, a call of which solves,
differentiates and returns a `Result`. 'reversible' takes a fixed number of steps, which single precision can undo.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedlab_lite.deq import equilibrium
from fedlab_lite.deq.solvers import anderson

TOLERANCE, MAX_ITER = 1e-4, 200
TAU, REVERSIBLE_ITER = 0.5, 32  # relaxation and evaluations of 'reversible', the most that float32 can undo


class Result(NamedTuple):
    """Gradients with respect to W and x, in any array type, and the solver's evaluations of the layer."""

    gradients: tuple[Any, Any]
    iterations: Any


@dataclass(frozen=True)
class Workload:
    """`kind` and spectral radius of W; `gradient` is 'implicit', 'one_step', 'shine' or 'reversible'."""

    kind: str
    radius: float
    gradient: str
    width: int = 512
    batch: int = 64

    @property
    def title(self) -> str:
        return f"equilibrium layer, W {self.kind} {self.radius}, {self.gradient} gradient"

    @cached_property
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """W `[width, width]` and x `[batch, width]`, float32."""
        rng = np.random.default_rng(0)
        w = rng.normal(size=(self.width, self.width))
        w = w + w.T if self.kind == "symmetric" else w
        w = w * self.radius / np.abs(np.linalg.eigvals(w)).max()
        return w.astype(np.float32), 0.1 * rng.normal(size=(self.batch, self.width)).astype(np.float32)

    @cached_property
    def solution(self) -> np.ndarray:
        """z* in double precision."""
        w, x = (a.astype(float) for a in self.arrays)
        z = np.zeros_like(x)
        for _ in range(300):
            z = np.tanh(z @ w.T + x)
        return z

    @cached_property
    def gradients(self) -> tuple[np.ndarray, np.ndarray]:
        """What `run` should return, in double precision: by dense solves in place of iterations. 'shine' is close."""
        w, _ = self.arrays
        z = self.solution
        slope, y = 1 - z**2, 2 * z
        if self.gradient != "one_step":  # u = J^T u + y with J = diag(slope) W, sample by sample
            systems = np.eye(self.width) - w.T * slope[:, None, :]
            y = np.linalg.solve(systems, y[..., None])[..., 0]
        return (y * slope).T @ z, y * slope


LAYERS = (("gaussian", 0.5), ("gaussian", 0.9), ("symmetric", 0.9))
WORKLOADS = (
    *(Workload(*layer, gradient) for gradient in ("implicit", "one_step") for layer in LAYERS),
    Workload("gaussian", 0.5, "shine"),
    Workload("symmetric", 0.9, "shine"),
    Workload("gaussian", 0.5, "reversible"),
)


def layer(w: jax.Array, x: jax.Array, z: jax.Array) -> jax.Array:
    return jnp.tanh(z @ w.T + x)


def jitted(workload: Workload, solve: Callable) -> Callable[[], Result]:
    """`run` of a JAX contestant: `solve(w, x) -> (z, iterations)` differentiated and compiled whole."""

    @jax.jit
    def step(w, x):
        def loss(w, x):
            z, iterations = solve(w, x)
            return jnp.sum(z**2), iterations

        return Result(*jax.grad(loss, (0, 1), has_aux=True)(w, x))

    w, x = map(jnp.asarray, workload.arrays)
    return lambda: jax.block_until_ready(step(w, x))


def _equilibrium(workload: Workload, solver: str) -> Callable[[], Result]:
    def solve(w, x):
        limits = {"tol": TOLERANCE, "max_iter": MAX_ITER, "backward_tol": TOLERANCE, "backward_max_iter": MAX_ITER}
        if workload.gradient == "reversible":
            limits |= {"tol": 0.0, "max_iter": REVERSIBLE_ITER, "tau": TAU}
        z, found = equilibrium(layer, w, x, jnp.zeros_like(x), solver=solver, gradient=workload.gradient, **limits)
        return z, found.iterations.max()

    return jitted(workload, solve)


@lru_cache(maxsize=1)  # it is run against every contestant of its workload
def fedlab(workload: Workload) -> Callable[[], Result]:
    """Anderson's method, or the one that the gradient asks for."""
    return _equilibrium(workload, "broyden" if workload.gradient == "shine" else "anderson")


@lru_cache(maxsize=1)
def fedlab_plain(workload: Workload) -> Callable[[], Result]:
    """Plain iteration, for comparison with libraries that have no other."""
    return _equilibrium(workload, "fixed_point")


def evaluations_alone(workload: Workload) -> Callable[[], Result]:
    """As many products with W, forwards and backwards, as ours needs, and nothing that tells where to stop.

    Its gradient is wrong (plain steps get less far); what it costs is the limit.
    """
    w, x = map(jnp.asarray, workload.arrays)
    solve = partial(anderson, tol=TOLERANCE, max_iter=MAX_ITER)
    forward = solve(lambda z: layer(w, x, z), jnp.zeros_like(x))
    transposed = jax.vjp(lambda z: layer(w, x, z), forward.z)[1]
    backward = solve(lambda u: transposed(u)[0] + 2 * forward.z, 2 * forward.z).iterations.max()
    evaluations = int(forward.iterations.max())
    products = int(backward) if workload.gradient == "implicit" else 0

    @jax.jit
    def step(w, x):
        z = jax.lax.fori_loop(0, evaluations, lambda _, z: layer(w, x, z), jnp.zeros_like(x))
        z, vjp = jax.vjp(layer, w, x, z)
        u = jax.lax.fori_loop(0, products, lambda _, u: vjp(u)[2] + 2 * z, 2 * z)
        return Result(vjp(u)[:2], evaluations)

    return lambda: jax.block_until_ready(step(w, x))

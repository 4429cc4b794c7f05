"""The contestant anchorax, a library for implicit networks on Equinox. Needs the extra `bench`.

It takes the batch as one system, so its tolerance is that of all samples together.
"""

from collections.abc import Callable

import equinox as eqx
import jax
from anchorax import backprop, solvers
from equilibrium_layer import MAX_ITER, TOLERANCE, Result, Workload, jitted, layer


class Module(eqx.Module):
    """The layer in the form that anchorax takes."""

    w: jax.Array

    def __call__(self, z: jax.Array, x: jax.Array, *, inference: bool = False, key: jax.Array | None = None):
        return layer(self.w, x, z)


def anchorax_layer(workload: Workload) -> Callable[[], Result]:
    """anchorax's Anderson with as much history as ours, or its Broyden; it has no exact gradient."""
    limits = {"eps": TOLERANCE, "max_depth": MAX_ITER, "stop_mode": "rel", "key": jax.random.key(0)}

    def solve(w, x):
        params, static = eqx.partition(Module(w), eqx.is_array)
        if workload.gradient == "shine":
            z, _, steps = backprop.gdeq((params, x), static, solver=solvers.broyden, LBFGS_thres=10, **limits)
        else:
            z, _, steps = backprop.jfb((params, x), static, solver=solvers.anderson, window_size=4, **limits)
        return z, steps

    return jitted(workload, solve)

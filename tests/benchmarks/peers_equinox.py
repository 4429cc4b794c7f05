"""The contestants that are libraries for deep equilibrium models on Equinox: banax, anchorax. Needs the extra `bench`.

Both take the batch as one system, so their tolerance is that of all samples together.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from anchorax import backprop, solvers
from equilibrium_layer import MAX_ITER, REVERSIBLE_ITER, TAU, TOLERANCE, Result, Workload, jitted, layer


def banax_layer(workload: Workload) -> Callable[[], Result]:
    """banax's solver and adjoint for the workload's gradient; a step of its reversible solver is two evaluations."""
    from banax import adjoint, solver  # needs Python 3.12

    limits = {"rtol": TOLERANCE, "max_steps": MAX_ITER}
    anderson = solver.Anderson(damp=1.0, **limits)
    reversible = solver.Reversible(damp=TAU, rtol=0.0, max_steps=REVERSIBLE_ITER // 2)
    find = {
        "implicit": adjoint.Implicit(anderson, anderson),
        "one_step": adjoint.JFB(anderson),
        "shine": adjoint.GDEQ(solver.Broyden(**limits)),
        "reversible": adjoint.Reversible(reversible),
    }[workload.gradient]

    def solve(w, x):
        found = find((lambda z, w, x: layer(w, x, z), (w, x)), jnp.zeros_like(x))
        return found.value, found.stats.steps

    return jitted(workload, solve)


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

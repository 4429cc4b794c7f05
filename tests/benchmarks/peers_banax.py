"""The contestant banax, a library for deep equilibrium models on Equinox. Needs the extra `bench` on Python 3.12.

It takes the batch as one system, so its tolerance is that of all samples together.
"""

from collections.abc import Callable

import jax.numpy as jnp
from banax import adjoint, solver
from equilibrium_layer import MAX_ITER, REVERSIBLE_ITER, TAU, TOLERANCE, Result, Workload, jitted, layer


def banax_layer(workload: Workload) -> Callable[[], Result]:
    """banax's solver and adjoint for the workload's gradient; a step of its reversible solver is two evaluations."""
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

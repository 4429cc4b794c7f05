"""The contestants that are other JAX libraries: DrJAX, jaxopt, optimistix. Needs the extra `bench`."""

import math
from collections.abc import Callable
from functools import partial

import client_steps
import drjax
import equilibrium_layer
import jax
import jax.numpy as jnp
import jaxopt
import numpy as np
import optimistix
from equilibrium_layer import MAX_ITER, TOLERANCE, Result, jitted, layer
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from fedlab_lite.nn import Model


def drjax_round(workload: client_steps.Workload) -> Callable[[], object]:
    """DrJAX with the package's layers: what differs from ours is how clients are run."""
    return _drjax_round(workload, workload.network())


def plain_drjax_round(workload: client_steps.Workload) -> Callable[[], object]:
    """DrJAX with Flax's layers, as its users have them. It batches clients, and a convolution with a kernel for each
    client, in a loop, is what XLA does worst on a CPU.
    """
    return _drjax_round(workload, workload.network(plain=True))


def _drjax_round(workload: client_steps.Workload, model: Model) -> Callable[[], object]:
    """One jitted round: DrJAX broadcasts, maps over clients and averages, on a mesh of all host devices.

    Batches are cut beforehand and come in the same order every epoch, which spares it the shuffles of ours.
    """
    devices = math.gcd(workload.num_clients, jax.device_count())
    mesh = jax.make_mesh((devices,), ("clients",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])

    def loss(params, x, y):
        logits = jax.nn.log_softmax(model.apply(params, x))
        return -jnp.mean(jnp.take_along_axis(logits, y[:, None], axis=1))

    def local_sgd(params, x, y):
        def step(params, batch):
            gradient = jax.grad(loss)(params, *batch)
            return jax.tree.map(lambda p, g: p - client_steps.LR * g, params, gradient), None

        return jax.lax.fori_loop(0, workload.epochs, lambda _, params: jax.lax.scan(step, params, (x, y))[0], params)

    @jax.jit
    @drjax.program(clients=workload.num_clients)
    def round_(params, x, y):
        sent = drjax.broadcast(params, mesh=mesh)
        return drjax.reduce_mean(drjax.map_fn(local_sgd, (sent, x, y), mesh=mesh))

    over_clients, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("clients",), ()))
    x, y = (
        jax.device_put(a.reshape(a.shape[0], -1, workload.batch_size, *a.shape[2:]), over_clients)
        for a in workload.data()
    )
    params = jax.device_put(model.init(jax.random.key(0)), everywhere)
    return lambda: jax.block_until_ready(round_(params, x, y))


def jaxopt_layer(workload: equilibrium_layer.Workload) -> Callable[[], Result]:
    """jaxopt's Anderson, the adjoint by its BiCGStab (faster here than its GMRES and its default, normal CG).

    It takes the batch as one system, and its tolerance is absolute: the one that all samples together have.
    """
    tolerance = TOLERANCE * float(np.linalg.norm(workload.solution))
    solver = jaxopt.AndersonAcceleration(
        lambda z, w, x: layer(w, x, z),
        maxiter=MAX_ITER,
        tol=tolerance,
        implicit_diff_solve=partial(jaxopt.linear_solve.solve_bicgstab, tol=TOLERANCE),
    )

    def solve(w, x):
        z, state = solver.run(jnp.zeros_like(x), w, x)
        return z, state.iter_num

    return jitted(workload, solve)


def optimistix_layer(workload: equilibrium_layer.Workload) -> Callable[[], Result]:
    """optimistix's fixed-point iteration, its only solver of this form, and one more evaluation that is differentiated.

    Tolerances are entry by entry or absolute: the absolute one that all samples together have.
    """
    tolerance = TOLERANCE * float(np.linalg.norm(workload.solution))
    solver = optimistix.FixedPointIteration(rtol=0.0, atol=tolerance, norm=optimistix.two_norm)

    def solve(w, x):
        fixed = jax.lax.stop_gradient((w, x))
        found = optimistix.fixed_point(
            lambda z, args: layer(*args, z), solver, jnp.zeros_like(x), fixed, max_steps=MAX_ITER
        )
        return layer(w, x, jax.lax.stop_gradient(found.value)), found.stats["num_steps"]

    return jitted(workload, solve)

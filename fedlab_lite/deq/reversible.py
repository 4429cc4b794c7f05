r"""The reversible iteration: the gradient of the steps that were taken, exact, in memory that does not grow with them.

Two states are relaxed in turn, each with the evaluation at the other (McCallum, Arora & Foster, "Reversible deep
equilibrium models" (2025)):

.. math::
  y_{n+1} = (1 - \tau) y_n + \tau f(z_n), \qquad z_{n+1} = (1 - \tau) z_n + \tau f(y_{n+1}), \qquad y_0 = z_0.

Written as one sequence y_0, z_0, y_1, z_1, ..., each step is v_{m+1} = (1 - tau) v_{m-1} + tau f(v_m). The backward
pass undoes it, v_{m-1} = (v_{m+1} - tau f(v_m)) / (1 - tau), so it needs the last two iterates alone. It evaluates f
once per step, together with its product with J^T.

Forwards, errors of a contraction with constant k shrink by |1 - tau| + tau k per step or better, so tau < 2 / (1 + k)
converges. For a symmetric J any tau < 2 does. Backwards, each eigenvalue of J has two modes, whose growth factors have
the product 1 / |1 - tau|. So rounding grows by at least |1 - tau|^(-1/2) per step, and for a contraction by at most
about |1 - tau|^(-1). `most_steps` has the number of steps that a precision bears.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jaxtyping import Array, Float, Int, PyTree

from fedlab_lite.deq.driver import Solution, State, any_of, check, flatten, norm, on_arrays, solve, unflatten
from fedlab_lite.util import InputError

TAU = 0.5
LOST = 0.01  # of the reversed iterates: rounding above this share of them is refused


def most_steps(dtype: Any, tau: float) -> int:
    """The most steps that can be reversed: rounding then grows to 1 % at least, |1 - tau|^(-1/2) per step.

    Example:
      >>> most_steps(jnp.float32, 0.5), most_steps(jnp.float32, 0.8), most_steps(jnp.float64, 0.8)
      (32, 14, 39)
    """
    return int(math.log(LOST / float(jnp.finfo(dtype).eps)) / math.log(abs(1 - tau)) * -2)


def reversible(
    f: Callable, z0: PyTree, *, tau: float | None, tol: float, max_iter: int, budget: Any, keep: tuple[int, ...]
) -> tuple[PyTree, Solution]:
    """z = f(z*) at the z* with the lowest residual, its gradient by reversal, and the `Solution`.

    `f` may close over whatever is differentiated.
    """
    tau = TAU if tau is None else tau
    check(z0, max_iter, tol, keep)
    dtype = flatten(z0).dtype
    if not 0 < tau < 2 or tau == 1:
        raise InputError(f"tau = {tau}: the reversible steps need a tau between 0 and 2 that is not 1")
    if max_iter > most_steps(dtype, tau):
        raise InputError(
            f"max_iter = {max_iter} steps with tau = {tau} cannot be reversed in {dtype}: rounding grows by "
            f"|1 - tau|^(-1/2) per step at least. Use max_iter <= {most_steps(dtype, tau)}, or a tau further from 1"
        )
    z0 = jax.tree.map(jnp.asarray, z0)
    closed = jax.make_jaxpr(on_arrays(f, z0))(flatten(z0))

    def apply(consts: list[Array], z: Float[Array, "B D"]) -> Float[Array, "B D"]:
        """F(z), with `consts` in place of all that f closes over."""
        return jaxpr_as_fun(ClosedJaxpr(closed.jaxpr, consts))(z)[0]

    def update(s: State, fz, g):
        before, before_best, steps = s.memory
        better = s.active & (norm(g) < s.residual)
        best = jnp.where(better[:, None], before, before_best), jnp.where(better, s.step, steps)
        return (s.z, *best), before + tau * (fz - before)

    def memory(z):
        return z, z, jnp.zeros(z.shape[0], jnp.int32)

    @jax.custom_vjp
    def run(consts, budget, z):
        limits = {"tol": tol, "max_iter": max_iter, "budget": budget, "keep": keep}
        found, (_, before, steps) = solve(lambda z: apply(consts, z), z, memory, update, **limits)
        return apply(consts, found.z), found, before, steps

    def forwards(consts, budget, z):
        out, found, before, steps = run(consts, budget, z)
        return (out, found, before, steps), (consts, z, found.z, before, steps)

    def backwards(kept, cotangents):
        consts, start, last, before, steps = kept
        return _reversed(apply, consts, start, last, before, steps, cotangents[0], tau), None, None

    run.defvjp(forwards, backwards)
    z, found, *_ = run([jnp.asarray(each) for each in closed.consts], budget, flatten(z0))
    path = None if found.path is None else jax.vmap(lambda z: unflatten(z, z0))(found.path)
    found = found._replace(z=unflatten(found.z, z0), path=path)
    return unflatten(z, z0), jax.lax.stop_gradient(found)


def _reversed(
    apply: Callable,
    consts: list[Array],
    start: Float[Array, "B D"],
    last: Float[Array, "B D"],
    before: Float[Array, "B D"],
    steps: Int[Array, " B"],
    y: Float[Array, "B D"],
    tau: float,
) -> list[Array | None]:
    """The gradients of `consts`, where y is that of f(last); each sample takes its own number of steps back."""
    inexact = [jnp.issubdtype(each.dtype, jnp.inexact) for each in consts]

    def pullback(z):
        def of(inexact_consts, z):
            given = iter(inexact_consts)
            return apply([next(given) if yes else each for yes, each in zip(inexact, consts, strict=True)], z)

        return jax.vjp(of, [each for yes, each in zip(inexact, consts, strict=True) if yes], z)

    def body(state):
        left, later, now, u_later, u_now, grads = state
        fz, pull = pullback(now)
        going = (left > 0)[:, None]  # a sample that is back at its start stays there, and adds nothing
        more, u_more = pull(jnp.where(going, tau * u_later, 0))
        kept = now, jnp.where(going, (later - tau * fz) / (1 - tau), now), u_now + u_more, (1 - tau) * u_later
        return left - 1, *kept, jax.tree.map(jnp.add, grads, more)

    grads, u = pullback(last)[1](y)
    state = steps, last, before, u, jnp.zeros_like(u), grads
    # Two steps at a time: the two states change places, and back again, so XLA copies neither.
    _, reached, *_, grads = jax.lax.while_loop(lambda state: any_of(state[0] > 0), lambda s: body(body(s)), state)
    if not any(isinstance(each, jax.core.Tracer) for each in (reached, *grads)):
        _say(norm(reached - start) / jnp.maximum(norm(last), jnp.finfo(last.dtype).tiny))
    found = iter(grads)
    return [next(found) if yes else None for yes in inexact]


def _say(missed: Float[Array, " B"]) -> None:
    """Warn where the way back does not end at the start."""
    worst = float(jnp.max(missed, initial=0))
    if not worst <= LOST:
        warnings.warn(
            f"the reversed steps of an equilibrium layer miss their start by {worst:.2g} of z, because rounding grows. "
            "The gradient is not exact. Use fewer steps (max_iter), a tau further from 1, or float64",
            RuntimeWarning,
            stacklevel=2,
        )

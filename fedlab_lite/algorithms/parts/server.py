"""The server's step from the clients' mean change: plain addition, or an optimiser (Reddi et al., 2021)."""

from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import optax

from fedlab_lite.engine import Problem, RoundContext
from fedlab_lite.util import choose
from fedlab_lite.util.fields import Positive, Range, checks_arguments

SECOND_MOMENTS: dict[str, Callable] = {  # v_t from v_{t-1}, the squared change and b2
    "adagrad": lambda v, square, b2: v + square,
    "adam": lambda v, square, b2: b2 * v + (1 - b2) * square,
    "yogi": lambda v, square, b2: v - (1 - b2) * square * jnp.sign(v - square),
}
_Decay = Annotated[float, Range(0, 1, below=True)]


@checks_arguments
def fedopt(
    kind: str, lr: Positive, *, b1: _Decay = 0.9, b2: _Decay = 0.99, tau: Positive = 1e-3
) -> optax.GradientTransformation:
    """A `server_optimizer`: FedAdagrad, FedAdam or FedYogi as printed, Algorithm 2 of Reddi et al. (2021).

    With the mean change D, m <- b1 m + (1 - b1) D and x <- x + lr m / (sqrt(v) + tau). m starts at 0, and v at tau^2.
    There is no correction of the first steps' bias. `optax.adam` and `optax.yogi` are a library's variants: they
    correct the bias, and v starts at 0 or 1e-6.

    Args:
      kind: how v takes D^2 in: 'adagrad', 'adam' or 'yogi'.
      lr: eta, the server's step size.
      b1, b2: the decay of m and of v; FedAdagrad has no b2, and 0 as its usual b1.
      tau: how far the steps adapt; a smaller one adapts more.

    Raises: `InputError` for an unknown kind, or numbers out of range.

    Example (a first change of 1: 0.1 m / (sqrt(v) + tau) with m = 0.1 and v = 0.99 / 100 + 0.01):
      >>> server = fedopt("adam", 0.1, tau=0.1)
      >>> updates, state = server.update(jnp.array([-1.0]), server.init(jnp.zeros(1)))
      >>> round(float(updates[0]), 4)
      0.0415
    """
    choose("kind of server optimiser", kind, SECOND_MOMENTS)

    def start(params: Any) -> dict:
        return {"m": optax.tree.zeros_like(params), "v": optax.tree.full_like(params, tau**2)}

    def update(gradient: Any, state: dict, params: Any = None) -> tuple[Any, dict]:
        m = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state["m"], gradient)
        v = jax.tree.map(lambda v, g: SECOND_MOMENTS[kind](v, jnp.square(g), b2), state["v"], gradient)
        return jax.tree.map(lambda m, v: -lr * m / (jnp.sqrt(v) + tau), m, v), {"m": m, "v": v}

    return optax.GradientTransformation(start, update)


def server_start(algorithm: Any, params: Any) -> dict:
    """The state's entry 'server', the initial state of the server's optimiser; no entry if there is none.

    An algorithm whose server averages has the field `server_optimizer`, which may be None.
    """
    optimizer = getattr(algorithm, "server_optimizer", None)
    return {} if optimizer is None else {"server": optimizer.init(params)}


def server_step(algorithm: Any, problem: Problem, at: RoundContext, state: dict, params, change) -> tuple[Any, dict]:
    """The params after a round with the clients' mean change `change`, and the entry 'server'.

    Without an optimiser, the change is added to the params. With one, minus the change is its gradient ("Adaptive
    Federated Optimization", Algorithm 2): `optax.sgd(1.0)` is the plain sum, `optax.sgd(1.0, momentum=0.9)` FedAvgM,
    `fedopt("adam", 0.1)` FedAdam. A round of idle places alone changes neither params nor optimiser.
    """
    if algorithm.server_optimizer is None:
        return optax.tree.add(params, change), {}
    updates, server = algorithm.server_optimizer.update(optax.tree.scale(-1, change), state["server"], params)
    new, old = (optax.apply_updates(params, updates), server), (params, state["server"])
    sampled = problem.sampled(at).any()  # always so in training; without this choice XLA rounds otherwise
    params, server = jax.tree.map(lambda new, old: jnp.where(sampled, new, old), new, old)
    return params, {"server": server}

"""The server's step from the clients' mean change: plain addition, or an optimiser (Reddi et al., 2021)."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedlab_lite.engine import Problem, RoundContext


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
    `optax.adam(0.1, b2=0.99, eps=1e-3)` FedAdam, `optax.yogi` FedYogi. The last two correct the bias of the first steps
    in optax, but not in the paper. A round of idle places alone changes neither params nor optimiser.
    """
    if algorithm.server_optimizer is None:
        return optax.tree.add(params, change), {}
    updates, server = algorithm.server_optimizer.update(optax.tree.scale(-1, change), state["server"], params)
    new, old = (optax.apply_updates(params, updates), server), (params, state["server"])
    sampled = problem.sampled(at).any()  # always so in training; without this choice XLA rounds otherwise
    params, server = jax.tree.map(lambda new, old: jnp.where(sampled, new, old), new, old)
    return params, {"server": server}

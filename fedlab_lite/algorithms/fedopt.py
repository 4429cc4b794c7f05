"""FedOpt: Reddi et al., "Adaptive Federated Optimization", 2021: an optimizer at the server."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from fedlab_lite.algorithms.fedavg import FedAvg
from fedlab_lite.engine import Problem, RoundContext
from fedlab_lite.util import choose

SERVERS = ("momentum", "adam", "yogi")


@dataclass(frozen=True)
class FedOpt(FedAvg):
    """FedAvg whose mean change is minus a gradient for the server's optimizer (Algorithms 1 and 2 of the paper).

    'momentum' is FedAvgM (with `server_momentum` 0 and `server_lr` 1, FedAvg), 'adam' FedAdam, 'yogi' FedYogi. optax'
    Adam and Yogi correct the bias of the first steps, which the paper's do not.
    """

    server: str = "adam"  # SERVEROPT
    server_lr: float = 0.1  # eta, the server's step size
    server_momentum: float = 0.9  # beta_1
    beta2: float = 0.99  # of Adam and Yogi
    tau: float = 1e-3  # of Adam and Yogi, how adaptive they are: added to the root of the second moment

    def __post_init__(self):
        super().__post_init__()
        choose("server of FedOpt", self.server, SERVERS)

    def server_optimizer(self) -> optax.GradientTransformation:
        if self.server == "momentum":
            return optax.sgd(self.server_lr, momentum=self.server_momentum)
        adaptive = {"adam": optax.adam, "yogi": optax.yogi}[self.server]
        return adaptive(self.server_lr, b1=self.server_momentum, b2=self.beta2, eps=self.tau)

    def init(self, problem: Problem, key: jax.Array) -> dict:
        state = super().init(problem, key)
        return state | {"server": self.server_optimizer().init(state["params"])}

    def round(self, problem: Problem, state: dict, at: RoundContext) -> dict:
        params = problem.downlink(state["params"])
        change = problem.uplink(at, self.for_cohort(problem, self.client_change, at, shared=(params,)))
        gradient = optax.tree.scale(-1, change)  # Algorithm 2, line 11
        updates, server = self.server_optimizer().update(gradient, state["server"], params)
        heard = problem.arrived(at).any()  # a round in which nothing arrives moves no average of the server's either
        new = {"params": problem.project(optax.apply_updates(params, updates)), "server": server}
        return jax.tree.map(lambda new, old: jnp.where(heard, new, old), new, state)

"""DePRL: decentralised training of a shared representation, with one head per worker.

Xiong et al., "DePRL: Achieving Linear Convergence Speedup in Personalized Decentralized Learning with Shared
Representations", 2024, Algorithm 1.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import optax

from fedlab_lite.algorithms import parts
from fedlab_lite.engine import ClientData, Models, Problem, RoundContext, length_of
from fedlab_lite.util.fields import one_of, ranged


@dataclass(frozen=True)
class DePRL(parts.PartialPersonalisation):
    """min_phi (1/N) sum_i min_{theta_i} F_i(theta_i o phi) over a graph, eq. (2): one head per worker, phi by gossip.

    A worker has its own copy of phi ('thetas'; 'trained' is phi before the average) and its head ('heads'). Only phi is
    sent. Workers share phi(0), and each has a random head of its own ("initialized with a random local head", on
    Figs. 10-11). Line 10 passes on theta(k, tau - 1) after the steps s = 0 ... tau - 1, which would drop the last step.
    Here it is theta(k, tau).

    tau is "update steps" in Algorithm 1 and "the epoch number for local head update" in the experiments. Their code
    makes passes over the rows for phi, too. With single steps that shrink by 0.96 per round, the model learns almost
    nothing. So passes are the default, and `head_steps = 2, steps = 1` is what is printed.

    The code also mixes first (`order`), makes 3 passes for the head, and has one step size and momentum 0.9. It gives
    all workers one head at first (`start`). Table 1's notebook shows the effect: gradients of phi pass through the
    heads, and different heads disagree.
    """

    mixing: str = one_of("metropolis", *parts.MIXING)  # P: 'metropolis' or 'uniform', see `parts.mixed`
    lr: float = ranged(0.01, 0, above=True)  # beta, of the representation
    head_lr: float = ranged(0.005, 0, above=True)  # alpha, of the head
    epochs: int = ranged(1, 1)  # passes over the worker's rows for the representation, per round
    head_epochs: int = ranged(2, 1)  # tau, likewise for the head
    steps: int | None = ranged(None, 1)  # random batches for the representation, (5), 1 in the paper; None: `epochs`
    head_steps: int | None = ranged(None, 1)  # tau as random batches, (3); None: `head_epochs`
    order: str = one_of("train_first", "mix_first")  # local steps before the average, or after it
    start: str = one_of("different", "same")  # 'different' or the 'same' heads of the workers at the start
    measures: str = one_of("consensus", "theorem")  # monitored: consensus; or M(k) of the theorem as well

    join_version: ClassVar[int] = 2
    needs_all_clients: ClassVar[bool] = True
    has_server: ClassVar[bool] = False
    owned: ClassVar[tuple[str, ...]] = ("thetas", "trained", "heads")
    step_sizes: ClassVar[tuple[str, ...]] = ("lr", "head_lr")

    def check(self, problem: Problem) -> None:
        parts.check_matrix(self, problem, self.mixing)

    @property
    def moment(self) -> str:
        return "trained" if self.order == "mix_first" else "mixed"

    def init(self, problem: Problem, key: jax.Array) -> dict:
        state = super().init(problem, key)
        heads = state["heads"]
        if self.start == "different":
            keys = jax.random.split(jax.random.fold_in(key, 1), problem.num_clients)
            heads = jax.vmap(problem.model.init)(keys)["head"]
        phi = state["thetas"]
        new = {"thetas": phi, "heads": heads, "new_head": state["new_head"]}
        return new if self.order == "mix_first" else new | {"trained": phi}

    def worker_update(self, problem: Problem, data: ClientData, key: jax.Array, phi: dict, head: dict) -> Models:
        """Run lines 5-8 of Algorithm 1: theta_i(k+1), then phi_i(k+1/2)."""
        for_head, for_body = length_of(self.head_epochs, self.head_steps), length_of(self.epochs, self.steps)
        options = {"for_head": for_head, "for_body": for_body, "head_lr": self.head_lr}
        return parts.alternate(self, problem, data, key, head, phi, **options)

    def round(self, problem: Problem, state: dict, at: RoundContext) -> dict:
        phi = parts.mixed(problem, at, state["thetas"], self.mixing) if self.order == "mix_first" else state["thetas"]
        phi, heads = self.for_cohort(problem, self.worker_update, at, phi, state["heads"])
        if self.order == "mix_first":
            return state | {"thetas": phi, "heads": heads}
        return state | {"thetas": self.average(problem, at, phi), "trained": phi, "heads": heads}

    def average(self, problem: Problem, at: RoundContext, phi: dict) -> dict:
        """The average of phi over the graph, line 9, eq. (7)."""
        return parts.project_all(problem, problem.model.project, parts.mixed(problem, at, phi, self.mixing))

    def models(self, problem: Problem, state: dict, key: jax.Array) -> Models:
        """The models of the workers: each answers with its own phi_i and theta_i."""
        return {"representation": state["thetas"], "head": state["heads"]}, {}

    def other_models(self, problem: Problem, state: dict, key: jax.Array) -> dict[str, Models]:
        """The models with the other phi_i of a round, and the same heads: before the average, or after the next one."""
        if self.moment == "mixed":
            return {"trained": ({"representation": state["trained"], "head": state["heads"]}, {})}
        phi = self.average(problem, problem.everyone(key), state["thetas"])
        return {"mixed": ({"representation": phi, "head": state["heads"]}, {})}

    def join(self, problem: Problem, state: dict, key: jax.Array) -> dict[str, Models]:
        """A new worker's model: the mean of all phi_i, with a head that is trained on it.

        The paper does not say which phi_i a new worker takes.
        """
        return super().join(problem, state | {"theta": parts.mean_of(state["thetas"])}, key)

    def monitor(self, problem: Problem, state: dict) -> dict[str, jax.Array]:
        """The curves of consensus and stationarity.

        'consensus': ||phi_i - mean phi||; 'consensus_error': its square, whose mean is in (10); 'stationarity': M(k).
        """
        gap = parts.disagreement(problem, state["thetas"])
        found = {"consensus": gap, "consensus_error": jnp.square(gap)}
        return found | ({"stationarity": self.stationarity(problem, state)} if self.measures == "theorem" else {})

    def partial_gradients(self, problem: Problem, data: ClientData, key: jax.Array, head: dict, phi: dict) -> dict:
        """The gradients of F_i with respect to phi and theta_i, over all rows of the worker."""
        params = {"representation": phi, "head": head}
        return parts.mean_gradient(lambda at, batch: problem.loss(at, batch)[0], params, data)

    def stationarity(self, problem: Problem, state: dict) -> jax.Array:
        """The number M(k) of eq. (10), with the partial gradients of (8) at the mean of all phi_i.

        Both gradients are at the heads after round k. In (10), that by phi is at the heads of the next round. With
        passes, tau is the number of passes for the head per pass for phi.
        """
        phi = parts.mean_of(state["thetas"])
        everyone = problem.everyone(jax.random.key(0))  # nothing is drawn with this key
        found = self.for_cohort(problem, self.partial_gradients, everyone, state["heads"], shared=(phi,))
        means = (parts.mean_of(found[part]) for part in ("representation", "head"))
        by_phi, by_theta = (optax.tree.norm(mean, squared=True) for mean in means)
        tau = (self.head_steps or self.head_epochs) / (self.steps or self.epochs)
        error = jnp.square(parts.disagreement(problem, state["thetas"])).mean()
        return by_phi + self.head_lr * tau / self.lr * by_theta + error

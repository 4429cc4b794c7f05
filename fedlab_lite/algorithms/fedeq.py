"""FeDEQ: "Federated Deep Equilibrium Learning", Algorithm 1: consensus ADMM over the shared representation."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from fedlab_lite.algorithms.parts import PartialPersonalisation, distances
from fedlab_lite.engine import Batch, ClientData, Models, Problem, RoundContext, average, fit_head
from fedlab_lite.util.fields import one_of, ranged


def lagrangian_terms(theta_i, theta, dual, rho: float) -> jax.Array:
    """The terms <lambda_i, theta_i - theta> + rho/2 ||theta_i - theta||^2 that eq. (11) adds to the local loss."""
    gap = optax.tree.sub(theta_i, theta)
    return optax.tree.vdot(dual, gap) + rho / 2 * optax.tree.vdot(gap, gap)


@dataclass(frozen=True)
class FeDEQ(PartialPersonalisation):
    """min sum_i L_i(theta_i, w_i) s.t. theta_i = theta, eq. (2), by ADMM on the augmented Lagrangian (11).

    A client is judged with the shared theta and its own w_i, for a fair comparison with FedRep. After local training it
    has its own theta_i, which the reference code scores.

    Warm starts (Sec. III-B1; they have no effect in the reference code): a row's equilibrium is kept until its next
    epoch, in the same visit of its client.

    The paper gives two starts of REP_UPDATE. Line 9 as printed continues from the client's own theta_i^t ('own'). Eq.
    (24), on which the proof of Lemma IV.3 rests, linearises at the received theta^{t+1}, where the reference code
    starts too ('received'). A client that is sampled once in ten rounds has an old theta_i. So 'own' costs 4 to 9
    points, and 'received' is the default.

    The server's step has two forms. 'mean' is the mean of the cohort's theta_i, line 4 as printed. 'argmin' minimises
    the Lagrangian (12): the mean over all clients, idle ones too, of theta_i + lambda_i / rho, as eq. (18) of the proof
    assumes. For it a client sends the change of its own theta_i + lambda_i / rho, and the server adds it to its mean.
    The result is not a convex combination, so it is projected. Both are ADMM's own step, so there is no
    `server_optimizer`.
    """

    epochs: int = ranged(5, 1)  # passes of REP_UPDATE (lines 12-20) over the client's rows
    head_epochs: int = ranged(3, 1)  # passes for w_i (line 8)
    rho: float = ranged(0.01, 0, above=True)  # rho, penalty on theta_i - theta
    start: str = one_of("received", "own")  # REP_UPDATE starts at theta^{t+1} (eq. (24)), or at theta_i^t
    server: str = one_of("mean", "argmin")  # line 4: mean of the cohort's theta_i; argmin of the Lagrangian over all
    dual_scale: float = ranged(1e-5, 0)  # std of the random lambda_i^0 (line 2, not printed): no effect up to rho = 1

    owned: ClassVar[tuple[str, ...]] = ("heads", "thetas", "duals")

    def init(self, problem: Problem, key: jax.Array) -> dict:
        """The initial state, line 2: theta^0 = theta_i^0, w_i^0, lambda_i^0.

        S_0 is all clients, so line 4 gives theta^1 = theta^0.
        """
        params_key, dual_key = jax.random.split(key)
        state = super().init(problem, params_key)
        flat, as_tree = ravel_pytree(state["theta"])

        def draw(client):
            return as_tree(self.dual_scale * jax.random.normal(jax.random.fold_in(dual_key, client), flat.shape))

        state["duals"] = problem.for_clients(draw, jnp.arange(problem.num_clients))
        if self.server == "argmin":  # line 4 for t = 0
            equal = jnp.ones(problem.num_clients)
            weights = equal if problem.weight is None else jnp.asarray(problem.weight)
            multipliers = jax.jit(average)(state["duals"], weights)  # one program
            state["mean"] = optax.tree.add_scale(state["theta"], 1 / self.rho, multipliers)
            state["theta"] = optax.tree.cast_like(problem.model.project(state["mean"]), state["theta"])
        return state

    def client_update(self, problem: Problem, data: ClientData, key: jax.Array, own: dict, theta: dict) -> Models:
        """Run lines 7-11, where `theta` is what the client received and `own` what it keeps.

        Returns what it sends, and what it keeps.
        """
        w_key, theta_key = jax.random.split(key)
        # line 8: w_i <- argmin L_i(theta, w_i)
        options = {"epochs": self.head_epochs, "batch_size": self.batch_size}
        w_i = fit_head(problem, theta, own["heads"], data, w_key, self.client_optimizer(), **options)

        # lines 9, 12-20: gradient steps on L_i + <lambda_i, theta_i - theta> + rho/2 ||theta_i - theta||^2
        def augmented_loss(theta_i: dict, batch: Batch):
            loss, z = problem.loss({"representation": theta_i, "head": w_i}, batch)
            return loss + lagrangian_terms(theta_i, theta, own["duals"], self.rho), z

        start = own["thetas"] if self.start == "own" else theta
        memory = problem.equilibria(data.y.shape[0])
        options = {"epochs": self.epochs, "project": problem.model.project, "memory": memory}
        trained = self.train(augmented_loss, start, data, theta_key, **options)
        theta_i = trained if memory is None else trained[0]
        # line 10: lambda_i <- lambda_i + rho (theta_i - theta)
        dual = optax.tree.add_scale(own["duals"], self.rho, optax.tree.sub(theta_i, theta))
        new = {"heads": w_i, "thetas": theta_i, "duals": dual}
        if self.server == "mean":
            sent = optax.tree.sub(theta_i, theta)
        else:
            sent = optax.tree.sub(self.message(new), self.message(own))
        return sent, new

    def message(self, own: dict) -> dict:
        """The message theta_i + lambda_i / rho, whose mean over all clients minimises (12)."""
        return optax.tree.add_scale(own["thetas"], 1 / self.rho, own["duals"])

    def round(self, problem: Problem, state: dict, at: RoundContext) -> dict:
        theta = problem.downlink(state["theta"])
        old = problem.take({name: state[name] for name in self.owned}, at)
        sent, new = self.for_cohort(problem, self.client_update, at, old, shared=(theta,))
        state = state | problem.put_all(state, at, new)
        # line 4 of the next iteration, done here so that the freshest theta is judged
        equal = jnp.ones(at.cohort.shape)
        change = problem.uplink(at, sent, equal)
        if self.server == "mean":
            return state | {"theta": problem.model.project(optax.tree.add(theta, change))}
        total = problem.num_clients if problem.weight is None else jnp.sum(problem.weight)
        share = problem.weights(at, equal).sum() / total
        mean = optax.tree.add_scale(state["mean"], share, change)
        return state | {"theta": optax.tree.cast_like(problem.model.project(mean), theta), "mean": mean}

    def monitor(self, problem: Problem, state: dict) -> dict[str, jax.Array]:
        """The curve 'consensus': ||theta_i - theta||_2, whose mean over all clients is the residual of Fig. 11."""
        return {"consensus": distances(problem, state["thetas"], state["theta"])}

"""FedPAC: Xu et al., "Personalized Federated Learning with Feature Alignment and Classifier Collaboration", 2023."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

from fedlab_lite.algorithms.parts import PartialPersonalisation, features_of, server_step
from fedlab_lite.engine import Batch, ClientData, Models, Problem, RoundContext, average, fit_head, in_chunks, mix
from fedlab_lite.util import InputError
from fedlab_lite.util.fields import ranged

DROPPED = 1e-3  # smaller shares of a head are left out, as in its code (the largest never is)


def head_shares(means: jax.Array, variances: jax.Array, sampled: jax.Array) -> jax.Array:
    """The shares `[m, m]` of all heads in each client's head; row i is client i's.

    Row i is argmin_a sum_j a_j^2 V_j + ||h_i - sum_j a_j h_j||^2.

    Args:
      means: `[m, C, d]`, h_i: for each class, its share of the client's rows times their mean features.
      variances: `[m]`, V_i: the variance of the client's estimate of h_i.
      sampled: `[m]`, whose heads may be used; the others are idle places.

    Example (two that are alike, one that is not):
      >>> h = jnp.array([0.0, 0.0, 9.0]).reshape(3, 1, 1)
      >>> head_shares(h, jnp.full(3, 0.1), jnp.ones(3, bool)).round(2).tolist()[0]
      [0.5, 0.5, 0.0]
    """
    rows = (means - means.mean(0)).reshape(len(means), -1)  # only differences count
    gram = jnp.matmul(rows, rows.T, precision=jax.lax.Precision.HIGHEST)

    def row(i):
        # <h_i - h_j, h_i - h_l>
        bias = gram[i, i] - gram[i][None, :] - gram[i][:, None] + gram
        shares = simplex_minimum(bias + jnp.diag(variances), sampled)
        shares = jnp.where(shares < jnp.minimum(DROPPED, shares.max()), 0, shares)
        return shares / shares.sum()

    return jax.vmap(row)(jnp.arange(len(rows)))


@dataclass(frozen=True)
class FedPAC(PartialPersonalisation):
    """A body with features close to the classes' global prototypes, and heads that are convex mixtures of all heads.

    A client is judged with the averaged body and its mixed head. After local training it has the body and the head that
    it trained. The paper's code differs in two ways. It stops in a round in which a class has no rows (here its
    prototype stays). It does not mix where rounding makes its matrix indefinite. FedReCo's and FedCR's code uses the
    name FedPAC for another method. It has other distances, running averages in place of means, and 50 penalty steps for
    the mixture.
    """

    epochs: int = ranged(5, 1)  # passes for the body, after the head
    head_epochs: int = ranged(1, 1)  # passes for the head, on the received body
    head_lr: float = ranged(0.1, 0, above=True)  # step size for the head (fixed in its code)
    penalty: float = ranged(1.0, 0)  # lambda, of the mean squared distance from features to prototypes
    server_optimizer: optax.GradientTransformation | None = None  # the server's step; None: add the mean change

    owned: ClassVar[tuple[str, ...]] = ("heads", "thetas", "sent_heads")
    join_version: ClassVar[int] = 2
    step_sizes: ClassVar[tuple[str, ...]] = ("lr", "head_lr")

    def check(self, problem: Problem) -> None:
        if problem.data.task != "classification" or getattr(features_of(problem), "ndim", 0) != 2:
            raise InputError(
                f"FedPAC needs one class per row and features of shape [rows, d], but {problem.data.name} with model "
                f"{problem.model.name} is for {problem.data.task}, or has features of another shape"
            )

    def init(self, problem: Problem, key: jax.Array) -> dict:
        """The initial state, whose 'prototypes' `[C, d]` are c_k; zeros: no client has had rows of class k yet.

        'sent_heads' are the heads before the mixture.
        """
        shape = (problem.data.num_classes, features_of(problem).shape[-1])
        state = super().init(problem, key)
        return state | {"prototypes": jnp.zeros(shape), "sent_heads": state["heads"]}

    def statistics(self, problem: Problem, data: ClientData, theta: dict) -> dict:
        """Statistics of the client's features z.

        Returns: 'shares' pi_k `[C]`, 'means' pi_k mean(z | k) `[C, d]`, and 'variance' V_i.
        """
        params = {"representation": theta}
        z = in_chunks(lambda x: problem.model.represent(params, x, budget=data.budget), data.x, data.size, 100)
        z, rows = z.astype(jnp.float32), jnp.maximum(data.size, 1)
        share = 1 / rows  # written down: XLA may divide by `rows` on several devices, and multiply on one
        seen = (jnp.arange(len(z)) < data.size)[:, None]
        members = jax.nn.one_hot(data.y, problem.data.num_classes) * seen
        means = members.T @ z * share
        spread = jnp.sum(jnp.square(z) * seen) / rows - jnp.sum(jnp.square(means))
        return {"shares": members.sum(0) * share, "means": means, "variance": jnp.maximum(spread, 0) / rows}

    def client_update(
        self, problem: Problem, data: ClientData, key: jax.Array, head: dict, theta: dict, prototypes: jax.Array
    ) -> tuple[dict, dict]:
        """What the client sends: changes of body and head, statistics before training ('h'), and prototypes after.

        Beside it, what it trained: its theta_i and head.
        """
        head_key, body_key = jax.random.split(key)
        before = self.statistics(problem, data, theta)
        options = {"epochs": self.head_epochs, "batch_size": self.batch_size}
        v = fit_head(problem, theta, head, data, head_key, self.client_optimizer(self.head_lr), **options)
        known = jnp.any(prototypes != 0, axis=1, keepdims=True)
        own = before["means"] / jnp.maximum(before["shares"], 1e-9)[:, None]
        targets = jnp.where(known, prototypes, own)  # the client's own where no global prototype is known
        penalty = jnp.where(known.any(), self.penalty, 0)  # none in the first round

        def loss(theta: dict, batch: Batch):
            key, v_key = jax.random.split(batch.key)
            z = problem.model.represent({"representation": theta}, batch.x, key=key, budget=batch.budget)
            value = problem.mean_loss(problem.model.classify(v, z, key=v_key), batch.y, batch.weight)
            gaps = jnp.square(z - targets[batch.y]).mean(1)
            return value + penalty * jnp.sum(gaps * batch.weight) / jnp.maximum(batch.weight.sum(), 1), None

        trained = self.train(loss, theta, data, body_key, epochs=self.epochs, project=problem.model.project)
        after = self.statistics(problem, data, trained)
        sent = {
            "body": {"theta": optax.tree.sub(trained, theta), "means": after["means"], "shares": after["shares"]},
            "head": {"change": optax.tree.sub(v, head), "h": before["means"], "variance": before["variance"]},
        }
        return sent, {"thetas": trained, "sent_heads": v}

    def round(self, problem: Problem, state: dict, at: RoundContext) -> dict:
        received = {"theta": state["theta"], "prototypes": state["prototypes"], "head": state["new_head"]}
        problem.downlink(received)  # counted in place of the client's own head, which has the same size
        old = problem.take(state["heads"], at)
        shared = (state["theta"], state["prototypes"])
        sent, new = self.for_cohort(problem, self.client_update, at, old, shared=shared)
        sent = problem.transmit(at, sent)
        body, head = sent["body"], sent["head"]
        mean = average(body, problem.weights(at), order=at.order())  # by rows; a prototype by the rows of its class
        held = mean["shares"][:, None] > 0
        prototypes = jnp.where(held, mean["means"] / jnp.where(held, mean["shares"][:, None], 1), state["prototypes"])
        # heads, with clients sorted by number, so that rounding does not depend on the cohort's order
        order = jnp.argsort(at.cohort, stable=True)
        back = jnp.argsort(order)
        shares = head_shares(head["h"][order], head["variance"][order], problem.sampled(at)[order])
        mixed = mix(shares[back][:, back], optax.tree.add(old, head["change"]))
        own = problem.put_all(state, at, new | {"heads": mixed})
        theta, server = server_step(self, problem, at, state, state["theta"], mean["theta"])
        return state | server | {"theta": problem.model.project(theta), "prototypes": prototypes} | own

    def other_models(self, problem: Problem, state: dict, key: jax.Array) -> dict[str, Models]:
        return {"trained": ({"representation": state["thetas"], "head": state["sent_heads"]}, {})}


def simplex_minimum(
    P: Float[Array, "m m"], allowed: Bool[Array, " m"], *, tol: float = 1e-7, max_steps: int = 5000
) -> Float[Array, " m"]:
    """argmin a'Pa over a >= 0, sum(a) = 1, and a_j = 0 where j is not allowed; zeros where no entry is allowed.

    The method is pairwise Frank-Wolfe. Each step moves weight from the entry with the steepest slope to the entry with
    the least slope. An exact line search gives the amount. It stops when no two slopes differ by more than `tol` times
    P's largest entry.

    Args:
      P: positive semi-definite.

    Example (weights are as the inverse of the variances):
      >>> simplex_minimum(jnp.diag(jnp.array([1.0, 2.0, 2.0])), jnp.ones(3, bool)).round(3).tolist()
      [0.5, 0.25, 0.25]
    """
    P = P.astype(jnp.float32)
    scale = jnp.maximum(jnp.max(jnp.where(allowed, jnp.diag(P), 0)), jnp.finfo(P.dtype).tiny)
    P = P / scale
    start = allowed / jnp.maximum(allowed.sum(), 1)

    def pair(a, slope):
        worst = jnp.argmax(jnp.where(a > 0, slope, -jnp.inf))
        best = jnp.argmin(jnp.where(allowed, slope, jnp.inf))
        return worst, best, slope[worst] - slope[best]

    def unfinished(carry):
        steps, a, slope = carry
        return (steps < max_steps) & allowed.any() & (pair(a, slope)[2] > tol)

    def move(carry):
        steps, a, slope = carry
        worst, best, gain = pair(a, slope)
        curve = P[worst, worst] + P[best, best] - 2 * P[worst, best]
        amount = jnp.clip(gain / jnp.maximum(curve, jnp.finfo(P.dtype).tiny), 0, a[worst])
        a = a.at[worst].add(-amount).at[best].add(amount)
        return steps + 1, a, slope + amount * (P[:, best] - P[:, worst])

    return jax.lax.while_loop(unfinished, move, (0, start, P @ start))[1]
